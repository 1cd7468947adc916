"""The embeddings file: an ``.npz`` that is never pickled, written whole or not at all.

The same goes into a Parquet table, and many such tables, or shards, are read as one file.

Arrays: ``vectors`` float32 ``(N, D)``, ``norms`` float32 ``(N,)``, ``ids`` text ``(N,)``,
``failure_rows`` int64 and ``failure_reasons`` text ``(F,)``, ``note`` (one text of JSON), and where
subjects are known ``subjects`` text ``(N,)``. Vectors and norms are NaN in the rows of failures to
acquire and nowhere else. Embeddings are personal data, so only the owner may read the file.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from facerec.embedding.check import (
    FORMAT,
    IDS,
    MAX_BYTES,
    SUBJECTS,
    VECTORS,
    assembled,
    check_embeddings,
    columns_of,
    parse_note,
)
from facerec.embedding.extraction import Embeddings
from facerec.embedding.parquet import SUFFIX, is_shards, list_shards, read_parquet, write_parquet
from facerec.errors import DatasetError
from facerec.files import atomic_path, sha256
from facerec.large_arrays import as_type
from facerec.names import is_missing
from facerec.npz import ArchiveError, read_arrays, write_arrays
from facerec.records.images import text_array
from facerec.tables import Table

_OWN = ("vectors", "norms", "ids", "failure_rows", "failure_reasons", "note")

Array = npt.NDArray[Any]


def write_embeddings(path: str | Path, embeddings: Embeddings) -> None:
    """Write an embeddings file, whole or not at all; the same content gives the same bytes.

    Args:
        path: ``.npz``, or ``.parquet`` for databases and as a shard of many.
        embeddings: with ids.

    Raises:
        DatasetError: embeddings without ids or that contradict themselves, a name with another
            ending, or a file that cannot be written.
        MissingExtraError: a Parquet file without pyarrow.
    """
    path = Path(path)
    parquet = path.suffix.lower() == SUFFIX
    if not parquet and path.suffix != ".npz":
        raise DatasetError(f"{path}: an embeddings file has a name that ends in .npz; rename it")
    check_embeddings(path, embeddings)
    with atomic_path(path, DatasetError, private=True) as temporary:
        if parquet:
            write_parquet(temporary, embeddings)
        else:
            write_arrays(temporary, _arrays(embeddings))


def is_embeddings(path: str | Path) -> bool:
    """Tell embeddings from models and scores by the file's name, or a CSV's first line.

    A folder with Parquet files in it, or a pattern of their names, is an embeddings file too.
    """
    path = Path(path)
    if path.suffix.lower() == ".csv":
        try:
            columns_of(path, Table(path).columns, numbered=False)
        except DatasetError:
            return False
        return True
    return path.suffix.lower() in (".npz", SUFFIX) or is_shards(path)


def read_embeddings(path: str | Path, numbered: bool = False) -> Embeddings:
    """Read an embeddings file without running anything that it may contain.

    Vectors of more than some MiB lie on the disk, see `facerec.large_arrays`.

    Files of others are taken too: an ``.npz`` with ``vectors``, ``embeddings`` or ``features``
    ``(N, D)``, and ``ids``, ``names``, ``image_id`` or ``images`` ``(N,)``, perhaps ``subjects`` or
    ``labels``; ``.csv`` and ``.parquet`` tables with such columns, or e0, e1, …; and Parquet
    shards, see `facerec.embedding.parquet`. Their norms are computed, rows that are not finite are
    failures to acquire, and their flip mode is unknown. Half and double precision become float32.

    Args:
        path: of the file.
        numbered: one file of others without ids is taken too; its images are named 0, 1, …

    Raises:
        DatasetError: the file is missing, damaged, pickled, too large, or contradicts itself.
        MissingExtraError: a Parquet file without pyarrow.
    """
    path = Path(path)
    if path.suffix.lower() == SUFFIX or is_shards(path):
        embeddings = read_parquet(path, numbered)
    elif path.suffix.lower() == ".csv":
        embeddings = _read_csv(path, numbered)
    else:
        embeddings = _read_npz(path, numbered)
    check_embeddings(path, embeddings)
    return embeddings


def embeddings_sha256(path: str | Path) -> str:
    """Return the SHA-256 of an embeddings file; of shards, one from their names and hashes.

    Raises:
        DatasetError: a shard is missing.
    """
    path = Path(path)
    if not is_shards(path):
        return sha256(path)
    text = json.dumps([[shard.name, sha256(shard)] for shard in list_shards(path)])
    return hashlib.sha256(text.encode()).hexdigest()


def _arrays(embeddings: Embeddings) -> dict[str, Array]:
    note = {**embeddings.note, "format": FORMAT, "flip": embeddings.flip}
    failures = dict(sorted(embeddings.failures.items()))
    assert embeddings.ids is not None  # `check_embeddings` sees to that
    return {
        "vectors": embeddings.vectors,
        "norms": embeddings.norms,
        "ids": embeddings.ids,
        "failure_rows": np.array(list(failures), np.int64),
        "failure_reasons": np.array(list(failures.values()), np.str_),
        "note": np.array(json.dumps(note, ensure_ascii=False, allow_nan=False)),
        **({} if embeddings.subjects is None else {"subjects": embeddings.subjects}),
    }


def _read_npz(path: Path, numbered: bool) -> Embeddings:
    """Read the arrays of known names, after their headers have been held against their sizes."""
    names = {*_OWN, *VECTORS, *IDS, *SUBJECTS}
    try:
        arrays, members = read_arrays(path, path.stat().st_size, names, MAX_BYTES)
    except (OSError, ArchiveError) as problem:
        reason = problem.strerror if isinstance(problem, OSError) else None
        raise DatasetError(
            f"{path}: no whole .npz file that can be read ({reason or problem}); make it again "
            "with facerec embed"
        ) from problem
    wanted = [(name,) for name in _OWN] if "note" in arrays else [VECTORS, IDS][: 2 - numbered]
    for options in wanted:
        if not {*options} & arrays.keys():
            gallery = "; facerec enroll --export makes embeddings of a gallery"
            raise DatasetError(
                f"{path}: the array {' or '.join(options)} is missing (there is "
                f"{', '.join(sorted(members)[:10])[:200] or 'nothing'}); make the file again with "
                f"facerec embed{gallery if 'templates' in members else ''}"
            )
    vectors, ids, subjects = (
        next((arrays[name] for name in names if name in arrays), None)
        for names in (VECTORS, IDS, SUBJECTS)
    )
    assert vectors is not None
    if "note" in arrays:
        note = parse_note(path, str(arrays["note"][()]))
        rows, reasons = arrays["failure_rows"], arrays["failure_reasons"]
        if rows.ndim != 1 or rows.shape != reasons.shape or rows.dtype.kind != "i":
            raise DatasetError(
                f"{path}: its failures are not rows and reasons; make the file again"
            )
        failures = dict(zip(rows.tolist(), map(str, reasons.tolist()), strict=True))
        return Embeddings(
            vectors,
            arrays["norms"],
            note["flip"],
            ids=ids,
            subjects=subjects,
            failures=failures,
            note=note,
        )
    texts = [_text(names) for names in (ids, subjects) if names is not None]
    if (
        vectors.ndim != 2
        or vectors.dtype.kind != "f"
        or any(text.dtype.kind != "U" or text.shape != (len(vectors),) for text in texts)
    ):
        found = ", ".join(f"{array.dtype} {array.shape}" for array in (vectors, *texts))
        raise DatasetError(
            f"{path}: embeddings are real numbers (N, D), and ids and labels N texts or whole "
            f"numbers, found {found}"
        )
    with np.errstate(over="ignore"):  # what overflows is caught as not finite
        return assembled(
            path,
            as_type(vectors, np.float32),
            np.arange(len(vectors)).astype(np.str_) if ids is None else _text(ids),
            None if subjects is None else _text(subjects),
            {"flip": None, "source": {"path": str(path), "format": "npz of others"}},
        )


def _text(array: Array) -> Array:
    """Return names as text, where others stored bytes or numbers."""
    if array.dtype.kind == "S":
        return np.char.decode(array, "utf-8", "replace")
    return array.astype(np.str_) if array.dtype.kind in "iu" else array


def _read_csv(path: Path, numbered: bool) -> Embeddings:
    """Read one row an image: its id, perhaps its subject, and ``e0``, ``e1``, … or a list."""
    table = Table(path)
    image, subject, values = columns_of(path, table.columns, numbered)
    listed = values[0] in VECTORS
    known = [name for name in (image, subject) if name]
    rows: list[Array] = []
    texts: list[tuple[str, ...]] = []
    for line, fields in table.rows([*known, *values]):
        texts.append(fields[: len(known)])
        numbers = [None if is_missing(field) else field for field in fields[len(known) :]]
        try:
            row = json.loads(numbers[0] or "[]") if listed else numbers
            rows.append(np.array(row, np.float64).reshape(len(row)))
        except (ValueError, TypeError, RecursionError) as problem:
            raise DatasetError(
                f"{table.where(line)}: the embedding is not all numbers "
                f"({', '.join(fields[len(known) :])[:60]}); mend the line"
            ) from problem
    sizes = sorted({len(row) for row in rows if not np.isnan(row).all()})
    if len(sizes) != 1:
        found = f"embeddings of {sizes[0]} to {sizes[-1]} values" if sizes else "no embedding"
        raise DatasetError(f"{path}: there are {found} in it; check the file")
    nothing = np.full(sizes[0], np.nan)
    columns = dict(zip(known, zip(*texts, strict=True), strict=True))
    ids = columns[image] if image else tuple(map(str, range(len(rows))))
    subjects = columns[subject] if subject else ()
    with np.errstate(over="ignore"):  # what overflows is caught as not finite
        return assembled(
            path,
            np.stack([nothing if np.isnan(row).all() else row for row in rows]).astype(np.float32),
            text_array(ids, str(path)),
            text_array(subjects, str(path)) if any(subjects) else None,
            {"flip": None, "source": {"path": str(path), "format": "csv"}},
        )
