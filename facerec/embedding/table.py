"""Embeddings in CSV tables of others; `facerec.embedding.parquet` has the same in Parquet."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import numpy.typing as npt

from facerec.embedding.extraction import Embeddings
from facerec.embedding.parquet import ID, IDS, LIST, SUBJECTS, VECTORS
from facerec.errors import DatasetError
from facerec.names import is_missing
from facerec.records.images import text_array
from facerec.tables import Table


def read_table(path: Path, numbered: bool = False) -> Embeddings:
    """Read one row an image: its id, perhaps its subject, and ``e0``, ``e1``, … or a list.

    A row without any value is a failure to acquire. The flip mode is unknown.

    Args:
        path: the file.
        numbered: a table without ids is taken too; its images are named 0, 1, …

    Raises:
        DatasetError: another layout, or a line with another number of values or no numbers.
    """
    table = Table(path)
    image, subject, listed = (
        next((name for name in names if name in table.columns), None)
        for names in (IDS, SUBJECTS, VECTORS)
    )
    values = [f"e{k}" for k in range(sum(bool(re.fullmatch(r"e\d+", n)) for n in table.columns))]
    if not values and listed:
        values = [listed]
    if not values or not (image or numbered):
        raise DatasetError(
            f"{path}, line 1: a table of embeddings has the columns {ID} and e0, e1, …, or {ID} "
            f"and {LIST}, found {', '.join(table.columns[:8])[:200]}"
        )
    known = [name for name in (image, subject) if name]
    rows: list[npt.NDArray[np.float32] | None] = []
    texts: dict[str | None, list[str]] = {name: [] for name in known}
    failures: dict[int, str] = {}
    for row, (line, fields) in enumerate(table.rows([*known, *values])):
        for name, text in zip(known, fields, strict=False):
            texts[name].append(text)
        where = table.where(line)
        vector = _vector(fields[len(known) :], values == [listed], where)
        if vector is None:
            failures[row] = f"{where}: it has no embedding"
        elif not np.isfinite(vector).all():
            raise DatasetError(
                f"{where}: a value of the embedding is no finite number; mend it, or leave all "
                "values of an image without a face empty"
            )
        rows.append(vector)
    sizes = sorted({len(vector) for vector in rows if vector is not None})
    if len(sizes) != 1:
        found = f"embeddings of {sizes[0]} to {sizes[-1]} values" if sizes else "no embedding"
        raise DatasetError(f"{path}: there are {found} in it; check the file")
    empty = np.full(sizes[0], np.nan, np.float32)
    vectors = np.stack([empty if vector is None else vector for vector in rows])
    with np.errstate(over="ignore"):  # what overflows is refused by the check of the file
        norms = np.linalg.norm(vectors, axis=1)
    ids = texts[image] if image else list(map(str, range(len(rows))))
    named = subject is not None and any(texts[subject])
    return Embeddings(
        vectors,
        norms,
        None,
        ids=text_array(ids, str(path)),
        subjects=text_array(texts[subject], str(path)) if named else None,
        failures=failures,
        note={"flip": None, "source": {"path": str(path), "format": "csv"}},
    )


def has_embeddings(path: Path) -> bool:
    """Tell whether the first line of a CSV file is that of a table of embeddings."""
    try:
        names = {*Table(path).columns}
    except DatasetError:
        return False
    return bool(names & {*IDS}) and bool(names & {*VECTORS, "e0"})


def _vector(fields: tuple[str, ...], listed: bool, where: str) -> npt.NDArray[np.float32] | None:
    """Return the numbers of one line; None if there are none."""
    if all(map(is_missing, fields)):
        return None
    try:
        numbers = np.array(json.loads(fields[0]) if listed else fields, np.float64)
    except (ValueError, TypeError, RecursionError):
        raise DatasetError(
            f"{where}: the embedding is not all numbers ({', '.join(fields)[:60]}); mend the line"
        ) from None
    if numbers.ndim != 1 or np.isnan(numbers).all():  # as of a list: [], [null, null]
        return None
    with np.errstate(over="ignore"):
        return numbers.astype(np.float32)
