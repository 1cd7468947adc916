"""Embeddings in CSV tables of others; `facerec.embedding.parquet` has the same in Parquet.

One row an image: ``image_id``, then ``e0`` … ``eD-1``, or one column ``embedding`` with a list, and
perhaps ``subject_id``, or the other names below. Other columns are passed over. A row whose
embedding is missing (`facerec.names`) is a failure to acquire; anything else that is no finite
number is refused by its line.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from facerec.embedding.extraction import Embeddings
from facerec.errors import DatasetError
from facerec.names import is_missing
from facerec.tables import Table

ID, SUBJECT, LIST = "image_id", "subject_id", "embedding"
IDS = (ID, "ids", "names", "images")
SUBJECTS = (SUBJECT, "subjects", "labels")
VECTORS = (LIST, "embeddings", "vectors", "features")
"""Names of columns, and of arrays in an ``.npz`` of others; the first that is there counts."""

_NUMBERED = re.compile(r"e(0|[1-9]\d{0,5})")

_LAYOUT = (
    f"a table of embeddings has the columns {ID} and e0, e1, …, or {ID} and {LIST} with a list"
)

Row = tuple[str, str, str, npt.NDArray[np.float32] | None]
"""Where it is, image id, subject, embedding (None for a failure to acquire)."""


@dataclass(frozen=True)
class Columns:
    """Which columns of a table hold what."""

    image: str | None
    """Ids; None where rows are named by their numbers."""
    subject: str | None
    """Subjects or classes, where they are known."""
    values: tuple[str, ...]
    """``e0``, ``e1``, …, or the one of the lists."""

    @property
    def listed(self) -> bool:
        """Whether each row has its embedding in one list."""
        return self.values[0] in VECTORS

    @property
    def all(self) -> list[str]:
        """All of them, those of the embedding last."""
        return [*(name for name in (self.image, self.subject) if name), *self.values]


def read_table(path: Path, numbered: bool = False) -> Embeddings:
    """Read a table of embeddings; norms are computed and the flip mode is unknown.

    Args:
        path: a CSV.
        numbered: a table without ids is taken too; its rows are named 0, 1, …

    Raises:
        DatasetError: no such file, another layout, a line with another number of values, or a value
            that is no finite number.
    """
    rows = list(_csv_rows(path, numbered))
    if not rows:
        raise DatasetError(f"{path}: there are no embeddings in it; check the file")
    first = next((row for row in rows if row[3] is not None), None)
    if first is None:
        raise DatasetError(f"{path}: no row has an embedding; check the file")
    assert first[3] is not None
    size = len(first[3])
    vectors = np.full((len(rows), size), np.nan, np.float32)
    line_of: dict[str, str] = {}
    failures: dict[int, str] = {}
    for row, (where, image, _, vector) in enumerate(rows):
        if not image:
            raise DatasetError(f"{where}: {ID} is empty; name the image, or take the line away")
        if image in line_of:
            raise DatasetError(
                f"{where}: a second embedding of {image[:80]!r}, the first is at {line_of[image]}; "
                "keep one of them"
            )
        line_of[image] = where.rpartition(", ")[2]
        if vector is None:
            failures[row] = f"{where}: it has no embedding"
            continue
        if len(vector) != size:
            raise DatasetError(
                f"{where}: {len(vector)} values where the first embedding has {size}; mend it"
            )
        wrong = np.flatnonzero(~np.isfinite(vector))
        if wrong.size:
            raise DatasetError(
                f"{where}: value {wrong[0]} of the embedding is no finite number (of float32); "
                "mend it, or leave all values of an image without a face empty"
            )
        vectors[row] = vector
    subjects = np.array([row[2] for row in rows], np.str_)
    with np.errstate(over="ignore"):  # what overflows is refused by the check of the file
        norms = np.linalg.norm(vectors, axis=1)
    return Embeddings(
        vectors,
        norms,
        None,
        ids=np.array([row[1] for row in rows], np.str_),
        subjects=subjects if (subjects != "").any() else None,
        failures=failures,
        note={"flip": None, "source": {"path": str(path), "format": "csv"}},
    )


def has_embeddings(path: Path) -> bool:
    """Tell whether the first line of a CSV file is that of a table of embeddings."""
    try:
        names = Table(path).columns
    except DatasetError:
        return False
    return bool({*IDS} & {*names}) and bool({*VECTORS, "e0"} & {*names})


def embedding_columns(path: Path, header: Sequence[str], numbered: bool = False) -> Columns:
    """Return the columns of ids, subjects and embeddings by their names.

    Args:
        path: the table, for errors.
        header: its columns.
        numbered: whether it may be without ids.

    Raises:
        DatasetError: neither, both, a gap, or a name that occurs twice.
    """
    doubled = sorted({name for name in header if name and header.count(name) > 1})
    if doubled:
        raise DatasetError(
            f"{path}, line 1: the column {doubled[0][:60]!r} occurs twice; rename it"
        )
    image, subject, listed = (
        next((name for name in names if name in header), None) for names in (IDS, SUBJECTS, VECTORS)
    )
    numbers = {int(match[1]) for name in header if (match := _NUMBERED.fullmatch(name))}
    if numbers and listed != LIST:
        listed = None  # beside e0, e1, … a column of such a name is something else
    shown = ", ".join(header[:8])[:200] + (", …" if len(header) > 8 else "")
    if not (image or numbered) or bool(numbers) == bool(listed):
        raise DatasetError(f"{path}, line 1: {_LAYOUT}, found {shown or 'nothing'}")
    if listed:
        return Columns(image, subject, (listed,))
    missing = next((k for k in range(len(numbers)) if k not in numbers), None)
    if missing is not None:
        raise DatasetError(
            f"{path}, line 1: the column e{missing} is missing, but there is e{max(numbers)}; "
            f"{_LAYOUT}"
        )
    return Columns(image, subject, tuple(f"e{k}" for k in range(len(numbers))))


def _csv_rows(path: Path, numbered: bool) -> Iterator[Row]:
    table = Table(path)
    columns = embedding_columns(path, table.columns, numbered)
    for number, (line, fields) in enumerate(table.rows(columns.all)):
        where = table.where(line)
        names = iter(fields)
        image = next(names) if columns.image else str(number)
        subject = next(names) if columns.subject else ""
        yield where, image, subject, _vector(list(names), where, columns)


def _vector(fields: Sequence[str], where: str, columns: Columns) -> npt.NDArray[np.float32] | None:
    """Return the numbers of one line; None if there are none."""
    if all(map(is_missing, fields)):
        return None
    try:
        values = _parsed(fields[0]) if columns.listed else fields
        numbers = np.array(values, np.float64)
    except (ValueError, TypeError, RecursionError):
        number, field = next(
            ((i, field) for i, field in enumerate(fields) if not _is_number(field)), (0, fields[0])
        )
        what = "no list of numbers, as in [0.1, -2]" if columns.listed else "no number"
        raise DatasetError(
            f"{where}: {columns.values[number]} is {field[:60]!r}, {what}; mend it"
        ) from None
    if np.isnan(numbers).all():  # as of a list: [], [null, null], [NaN, NaN]
        return None
    with np.errstate(over="ignore"):
        return numbers.astype(np.float32)


def _parsed(text: str) -> list[Any]:
    """Return a list as JSON; bool would pass for a number, and so would lists for a matrix."""
    values = json.loads(text)
    if not isinstance(values, list) or any(isinstance(x, bool | list | dict) for x in values):
        raise ValueError("no list of numbers")
    return values


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
