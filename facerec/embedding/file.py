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
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from facerec.embedding.check import check_embeddings, parse_note
from facerec.embedding.extraction import Embeddings
from facerec.embedding.parquet import IDS, SUBJECTS, VECTORS, read_parquet, write_parquet
from facerec.embedding.shards import is_shards, list_shards
from facerec.embedding.table import has_embeddings, read_table
from facerec.errors import DatasetError
from facerec.files import atomic_path, sha256
from facerec.large_arrays import as_type
from facerec.npz import ArchiveError, read_arrays, write_arrays

FORMAT = 1
MAX_BYTES = 64 << 30
"""Largest total size of the arrays in a file that is read."""

_OWN = ("vectors", "norms", "ids", "failure_rows", "failure_reasons", "note")
_BLOCK = 1 << 14

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
    parquet = path.suffix.lower() == ".parquet"
    if not parquet:
        path = _npz(path)
    check_embeddings(path, embeddings)
    with atomic_path(path, DatasetError, private=True) as temporary:
        if parquet:
            write_parquet(temporary, embeddings)
        else:
            write_arrays(temporary, _arrays(embeddings))


def is_embeddings(path: str | Path) -> bool:
    """Tell embeddings from models and scores by the file's name.

    A folder with Parquet files in it, or a pattern of their names, is an embeddings file too.
    """
    path = Path(path)
    suffix = path.suffix.lower()
    named = suffix in (".npz", ".parquet") or (suffix == ".csv" and has_embeddings(path))
    return named or is_shards(path)


def read_embeddings(path: str | Path, numbered: bool = False) -> Embeddings:
    """Read an embeddings file without running anything that it may contain.

    Vectors of more than some MiB lie on the disk, see `facerec.large_arrays`.

    A plain ``.npz`` of others is taken too: ``vectors``, ``embeddings`` or ``features`` ``(N, D)``,
    and ``ids``, ``names``, ``image_id`` or ``images`` ``(N,)``, perhaps ``subjects`` or ``labels``.
    Its norms are computed, its rows that are not finite are failures to acquire, and its flip mode
    is unknown. Half and double precision become float32; ``note["stored_dtype"]`` then says what it
    was. So are ``.csv`` and ``.parquet`` tables, see `facerec.embedding.parquet`, and shards: a
    folder, ``DIR/*.parquet`` or ``DIR/part-{000..009}.parquet``, see `facerec.embedding.shards`.

    Args:
        path: of the file.
        numbered: one file of others without ids is taken too; its images are named 0, 1, …

    Raises:
        DatasetError: the file is missing, damaged, pickled, too large, or contradicts itself.
        MissingExtraError: a Parquet file without pyarrow.
    """
    path = Path(path)
    if path.suffix.lower() == ".parquet" or is_shards(path):
        embeddings = read_parquet(path, numbered)
    elif path.suffix.lower() == ".csv":
        embeddings = read_table(path, numbered)
    else:
        arrays = _load(path, numbered)
        embeddings = _own(path, arrays) if "note" in arrays else _foreign(path, arrays)
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


def _npz(path: str | Path) -> Path:
    path = Path(path)
    if path.suffix != ".npz":
        raise DatasetError(f"{path}: an embeddings file has a name that ends in .npz; rename it")
    return path


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


def _load(path: Path, numbered: bool) -> dict[str, Array]:
    """Read the arrays of known names, after their headers have been held against their sizes."""
    names = {*_OWN, *VECTORS, *IDS, *SUBJECTS}
    try:
        arrays, members = read_arrays(path, path.stat().st_size, names, MAX_BYTES)
    except OSError as problem:
        raise DatasetError(
            f"{path}: the embeddings file cannot be read ({problem.strerror or problem}); give "
            "a file of facerec embed"
        ) from problem
    except ArchiveError as problem:
        raise DatasetError(
            f"{path}: not a whole .npz file ({problem}); make it again with facerec embed"
        ) from problem
    wanted = [(name,) for name in _OWN] if "note" in arrays else [VECTORS, IDS][: 2 - numbered]
    for options in wanted:
        if not {*options} & arrays.keys():
            advice = "make the file again with facerec embed"
            if "templates" in members:
                advice = "this is a gallery, of which facerec enroll --export makes embeddings"
            listed = ", ".join(sorted(members)[:10])[:200] or "nothing"
            raise DatasetError(
                f"{path}: the array {' or '.join(options)} is missing (there is {listed}); {advice}"
            )
    return arrays


def _own(path: Path, arrays: Mapping[str, Array]) -> Embeddings:
    note = parse_note(path, str(arrays["note"][()]), FORMAT)
    rows, reasons = arrays["failure_rows"], arrays["failure_reasons"]
    kinds = rows.dtype.kind + reasons.dtype.kind
    if rows.ndim != 1 or rows.shape != reasons.shape or kinds != "iU":
        raise DatasetError(f"{path}: its failures are not rows and reasons; make the file again")
    return _widened(
        Embeddings(
            arrays["vectors"],
            arrays["norms"],
            note["flip"],
            ids=arrays["ids"],
            subjects=arrays.get("subjects"),
            failures=dict(zip(rows.tolist(), reasons.tolist(), strict=True)),
            note=note,
        )
    )


def _foreign(path: Path, arrays: Mapping[str, Array]) -> Embeddings:
    vectors, ids, subjects = (
        next((arrays[name] for name in names if name in arrays), None)
        for names in (VECTORS, IDS, SUBJECTS)
    )
    assert vectors is not None  # `_load` sees to that
    texts = [text for text in (ids, subjects) if text is not None]
    if (
        vectors.ndim != 2
        or vectors.dtype.kind != "f"
        or any(t.dtype.kind not in "USiu" or t.shape != (len(vectors),) for t in texts)
    ):
        found = ", ".join(f"{array.dtype} {array.shape}" for array in (vectors, *texts))
        raise DatasetError(
            f"{path}: embeddings are real numbers (N, D), and ids and labels N texts or whole "
            f"numbers, found {found}"
        )
    widened = _widened(
        Embeddings(
            vectors,
            np.empty(0, np.float32),
            None,
            ids=_text(np.arange(len(vectors)) if ids is None else ids),
            subjects=None if subjects is None else _text(subjects),
            note={"flip": None, "source": {"path": str(path), "format": "npz of others"}},
        )
    )
    matrix = widened.vectors
    norms = np.empty(len(matrix), np.float32)
    with np.errstate(all="ignore"):
        for start in range(0, len(matrix), _BLOCK):
            norms[start : start + _BLOCK] = np.linalg.norm(matrix[start : start + _BLOCK], axis=1)
    failed = np.flatnonzero(~np.isfinite(norms))
    matrix[failed] = np.nan
    norms[failed] = np.nan
    why = f"{path}: its embedding is not finite"
    return replace(widened, norms=norms, failures=dict.fromkeys(failed.tolist(), why))


def _text(array: Array) -> Array:
    """Return names as text, where others stored bytes or numbers."""
    if array.dtype.kind == "S":
        return np.char.decode(array, "utf-8", "replace")
    return array.astype(np.str_) if array.dtype.kind in "iu" else array


def _widened(embeddings: Embeddings) -> Embeddings:
    """Make everything float32, and say in the note what it was."""
    stored = embeddings.vectors.dtype
    if stored == np.float32 or stored.kind != "f":
        return embeddings
    with np.errstate(over="ignore"):  # what overflows is caught as not finite
        return replace(
            embeddings,
            vectors=as_type(embeddings.vectors, np.float32),
            norms=embeddings.norms.astype(np.float32),
            note={**embeddings.note, "stored_dtype": stored.name},
        )
