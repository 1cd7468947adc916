"""Embeddings in files that other projects write: arrays with a list of names, and text.

- ``NAME.npy`` ``(N, D)`` with ``NAME.txt`` beside it, one image id a line
- ``.csv``: a line that names the columns, then the id of an image and its D numbers a line
- ``.list`` and ``.txt``, as MagFace writes them: ``path v1 v2 … vD`` a line, without such a first
  line
- ``.mat``: two arrays, with the names of `facerec.embedding.check`
"""

from __future__ import annotations

import io
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from facerec.base.errors import DatasetError, message_line
from facerec.base.files import LIST, open_file, read_file, reading
from facerec.embedding.check import SUBJECTS, Called, find_columns, of_others
from facerec.embedding.extraction import Embeddings
from facerec.records.images import text_array
from facerec.records.tables import TextTable

Found = tuple[list[str], list[str] | None, npt.NDArray[Any]]
"""Ids, subjects where known, and vectors."""


def read_listed(path: Path, columns: Called) -> Embeddings:
    """Read the embeddings of a file of one of `KINDS`; nothing in it is run.

    Raises:
        DatasetError: a line of another length, or no list of names.
        Exception: of NumPy or SciPy, for a damaged file.
    """
    *names, vectors = KINDS[path.suffix.lower()](path, columns)
    ids, subjects = (None if each is None else text_array(each, str(path)) for each in names)
    return of_others(path, ids, subjects, vectors)


def _npy(path: Path, columns: Called) -> Found:
    find_columns(path, (), columns)
    names = path.with_suffix(".txt")
    with reading(names, DatasetError, f"write the image ids of {path.name} there, one a line"):
        ids = read_file(names, LIST).decode("utf-8-sig").splitlines()
    return ids, None, np.load(path, mmap_mode="c", allow_pickle=False)


def _mat(path: Path, columns: Called) -> Found:
    from scipy.io import loadmat

    arrays = loadmat(io.BytesIO(read_file(path, LIST)), simplify_cells=True)
    there = [name for name in arrays if name[0] != "_"]
    ids, subjects, vectors = find_columns(path, there, columns, ("vector", "id"))
    texts = (
        None if name is None else [str(each).rstrip() for each in np.atleast_1d(arrays[name])]
        for name in (ids, subjects)
    )
    return next(texts) or [], next(texts), np.asarray(arrays[vectors])


def _csv(path: Path, columns: Called) -> Found:
    if "vector" in columns:
        raise DatasetError(
            f"{path}: in a .csv every number has a column of its own, which are all but the id and "
            "the subject; leave vector=… out of --columns"
        )
    table = TextTable(path)
    name, subject, _ = find_columns(path, table.columns, columns)
    name = name or "".join(table.columns[:1])
    numbers = [each for each in table.columns if each not in (name, subject, *SUBJECTS)]
    ids, _, vectors = _lines(path, table.rows([name, *numbers]))
    people = subject and [fields[0] for _, fields in TextTable(path).rows([subject])]
    return ids, people or None, vectors


def _list(path: Path, columns: Called) -> Found:
    find_columns(path, (), columns)
    with open_file(path, "rt", encoding="utf-8-sig") as file:
        lines = ((number, line.split()) for number, line in enumerate(file, start=1))
        return _lines(path, ((number, fields) for number, fields in lines if fields))


def _lines(path: Path, lines: Iterable[tuple[int, Any]]) -> Found:
    """Return the first field of each line, and the numbers behind it, equally many in all."""
    ids, rows, line = list[str](), list[npt.NDArray[np.float32]](), 0
    try:
        for number, (name, *fields) in lines:
            line = number
            ids.append(name)
            rows.append(np.array(fields, np.float32))
            if len(rows[-1]) != len(rows[0]):
                raise ValueError(f"{len(rows[-1])} numbers, {len(rows[0])} in the first line")
    except ValueError as problem:
        raise DatasetError(
            f"{path}, line {line}: not an image and its numbers ({message_line(problem)}); mend it"
        ) from problem
    return ids, None, np.array(rows, np.float32).reshape(len(rows), -1 if rows else 0)


KINDS = {".npy": _npy, ".csv": _csv, ".list": _list, ".txt": _list, ".mat": _mat}
"""Readers of ids and raw vectors by the suffix of a file."""
