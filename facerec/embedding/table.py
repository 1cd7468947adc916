"""Embeddings in CSV tables of others; `facerec.embedding.parquet` has the same in Parquet.

One row an image: ``image_id``, then ``e0`` … ``eD-1``, or one column ``embedding`` with a list, and
perhaps ``subject_id``. Other columns are passed over. A row whose embedding is empty is a failure
to acquire; anything else that is no finite number is refused by its line.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from facerec.embedding.extract import Embeddings
from facerec.errors import DatasetError
from facerec.tables import Table

ID, SUBJECT, LIST = "image_id", "subject_id", "embedding"
_NUMBERED = re.compile(r"e(0|[1-9]\d{0,5})")
_NOTHING = ("", "nan", "null", "none")

_LAYOUT = (
    f"a table of embeddings has the columns {ID} and e0, e1, …, or {ID} and {LIST} with a list"
)

Row = tuple[str, str, str, npt.NDArray[np.float32] | None]
"""Where it is, image id, subject, embedding (None for a failure to acquire)."""


def read_table(path: Path) -> Embeddings:
    """Read a table of embeddings; norms are computed and the flip mode is unknown.

    Raises:
        DatasetError: no such file, another layout, a line with another number of values, or a value
            that is no finite number.
    """
    rows = list(_csv_rows(path))
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
    return ID in names and bool({LIST, "e0"} & {*names})


def embedding_columns(path: Path, header: Sequence[str]) -> list[int]:
    """Return the columns of e0, e1, …, or the one of the lists.

    Raises:
        DatasetError: neither, both, a gap, or a name that occurs twice.
    """
    doubled = sorted({name for name in header if name and header.count(name) > 1})
    if doubled:
        raise DatasetError(
            f"{path}, line 1: the column {doubled[0][:60]!r} occurs twice; rename it"
        )
    numbers = {
        int(match[1]): i for i, name in enumerate(header) if (match := _NUMBERED.fullmatch(name))
    }
    shown = ", ".join(header[:8])[:200] + (", …" if len(header) > 8 else "")
    if ID not in header or bool(numbers) == (LIST in header):
        raise DatasetError(f"{path}, line 1: {_LAYOUT}, found {shown or 'nothing'}")
    if LIST in header:
        return [header.index(LIST)]
    missing = next((k for k in range(len(numbers)) if k not in numbers), None)
    if missing is not None:
        raise DatasetError(
            f"{path}, line 1: the column e{missing} is missing, but there is e{max(numbers)}; "
            f"{_LAYOUT}"
        )
    return [numbers[k] for k in range(len(numbers))]


def _csv_rows(path: Path) -> Iterator[Row]:
    table = Table(path)
    columns = [table.columns[place] for place in embedding_columns(path, table.columns)]
    known = SUBJECT in table.columns
    for line, fields in table.rows([ID, *([SUBJECT] if known else []), *columns]):
        where = table.where(line)
        vector = _vector(fields[1 + known :], where, columns[0])
        yield where, fields[0], fields[1] if known else "", vector


def _vector(fields: Sequence[str], where: str, column: str) -> npt.NDArray[np.float32] | None:
    """Return the numbers of one line; None if there are none."""
    if all(field.lower() in _NOTHING for field in fields):
        return None
    try:
        values = fields if column != LIST else _parsed(fields[0])
        numbers = np.array(values, np.float64)
    except (ValueError, TypeError, RecursionError):
        number, field = next(
            ((i, field) for i, field in enumerate(fields) if not _is_number(field)), (0, fields[0])
        )
        name = column if column == LIST else f"e{number}"
        what = "no list of numbers, as in [0.1, -2]" if column == LIST else "no number"
        raise DatasetError(f"{where}: {name} is {field[:60]!r}, {what}; mend it") from None
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
