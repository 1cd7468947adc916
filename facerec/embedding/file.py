"""The embeddings file: one writer and one reader of ``.npz``, Parquet, and Parquet in shards.

An ``.npz`` of facerec holds the arrays ``vectors`` float32 ``(N, D)``, ``norms`` float32 ``(N,)``,
``ids`` text ``(N,)``, ``failure_rows`` int64 and ``failure_reasons`` text ``(F,)``,
``several_rows`` int64 and ``several_faces`` text of photos with several faces, ``note`` (one text
of JSON), and where they are known ``subjects`` text ``(N,)``, ``face_scores`` float32 ``(N,)`` and
``digests`` bytes ``(N,)``. For Parquet, which lacks digests and ``several``, see
`facerec.embedding.parquet`.
Vectors and norms are NaN in the rows of failures to acquire and nowhere else. Embeddings are
personal data, so only the owner may read a file.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from facerec.base.errors import DatasetError, FacerecError, fault
from facerec.base.files import atomic_path, check_regular, reading, sha256
from facerec.embedding.check import (
    FORMAT,
    IDS,
    MAX_BYTES,
    SUBJECTS,
    VECTORS,
    Array,
    Called,
    checked,
    find_columns,
    of_others,
    parse_note,
)
from facerec.embedding.extraction import Embeddings
from facerec.embedding.lists import KINDS, read_listed
from facerec.embedding.parquet import SUFFIX, is_shards, list_shards, read_parquet, write_parquet
from facerec.records.npz import read_arrays, write_arrays
from facerec.records.other_kinds import other_kind

_FAILURES = ("failure_rows", "failure_reasons")
_OPTIONAL = ("subjects", "face_scores", "digests")
_SEVERAL = ("several_rows", "several_faces")


def write_embeddings(path: str | Path, embeddings: Embeddings) -> None:
    """Write an embeddings file, whole or not at all; the same content gives the same bytes.

    Args:
        path: ``.npz``, or ``.parquet`` for databases and as a shard of many.
        embeddings: with ids.

    Raises:
        DatasetError: embeddings without ids or of arrays that do not fit together, a name with
            another ending, or a file that cannot be written.
        MissingExtraError: a Parquet file without pyarrow.
    """
    path = Path(path)
    write = {".npz": _write_npz, SUFFIX: write_parquet}.get(path.suffix.lower())
    if write is None:
        raise DatasetError(f"{path}: an embeddings file has a name that ends in .npz; rename it")
    embeddings = checked(path, embeddings)
    note = {**embeddings.note, "format": FORMAT, "flip": embeddings.flip}
    with atomic_path(path, private=True) as temporary:
        write(temporary, embeddings, note)


def is_embeddings(path: str | Path) -> bool:
    """Tell embeddings from models and scores by the name: a file, a folder of shards, a pattern.

    A ``.csv`` or ``.txt`` may be anything, and is read as embeddings where nothing else is taken.
    """
    path = Path(path)
    return path.suffix.lower() in (".npz", SUFFIX, ".npy", ".mat", ".list") or is_shards(path)


def read_embeddings(
    path: str | Path, numbered: bool = False, columns: Called = MappingProxyType({})
) -> Embeddings:
    """Read an embeddings file without running anything that it may contain.

    Vectors of more than some MiB lie on the disk, see `facerec.base.large_arrays`.

    Files of others are taken too: an ``.npz`` with ``vectors``, ``embeddings`` or ``features``
    ``(N, D)``, and ``ids``, ``names``, ``image_id`` or ``images`` ``(N,)``, perhaps ``subjects`` or
    ``labels``; and Parquet with such columns: a file, a folder of shards, ``DIR/part-*.parquet`` or
    ``DIR/part-{000..009}.parquet``; and the kinds of `facerec.embedding.lists`. Their norms
    are computed, rows that are not finite are failures
    to acquire, and their flip mode is unknown. Half and double precision become float32.

    Args:
        path: of the file.
        numbered: an ``.npz`` of others without ids is taken too; its images are named 0, 1, …
        columns: what files of others call ``id``, ``subject`` and ``vector``, where it is none of
            the names above; facerec's own files have their names.

    Raises:
        DatasetError: the file is missing, damaged, pickled, too large, or contradicts itself.
        MissingExtraError: a Parquet file without pyarrow.
    """
    path = Path(path)
    listed = path.suffix.lower() in KINDS
    with reading(path, DatasetError):
        try:
            if path.suffix.lower() == SUFFIX or is_shards(path):
                found = read_parquet(path, columns)
            else:
                check_regular(path)
                found = read_listed(path, columns) if listed else _read_npz(path, numbered, columns)
        except (FacerecError, OSError):
            raise
        except Exception as problem:  # damaged files end in errors of many kinds
            raise DatasetError(
                ("" if listed else other_kind(path))
                or f"{path}: no embeddings that can be read ({fault(problem)}); make the file "
                "again, by facerec embed, numpy.save of float32 or MATLAB's save -v7"
            ) from problem
    return checked(path, found)


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


def _write_npz(path: Path, embeddings: Embeddings, note: Mapping[str, Any]) -> None:
    known = {name: getattr(embeddings, name) for name in ("vectors", "norms", "ids", *_OPTIONAL)}
    arrays = {name: array for name, array in known.items() if array is not None}
    for (rows, texts), said in ((_FAILURES, embeddings.failures), (_SEVERAL, embeddings.several)):
        arrays[rows] = np.array([*said], np.int64)
        arrays[texts] = np.array([*said.values()], np.str_)
    arrays["note"] = np.array(json.dumps(note, ensure_ascii=False, allow_nan=False))
    write_arrays(path, arrays)


def _read_npz(path: Path, numbered: bool, columns: Called) -> Embeddings:
    """Read the arrays of known names, after their headers have been held against their sizes."""
    names = {*VECTORS, *IDS, *SUBJECTS, *_FAILURES, *_OPTIONAL, *_SEVERAL, "norms", "note"}
    names |= {*columns.values()}
    arrays, members = read_arrays(path, names, MAX_BYTES)
    own = "note" in arrays
    needed = ("vector",) if numbered and not own else ("vector", "id")
    called = find_columns(path, sorted(members), {} if own else columns, needed)
    ids, subjects, vectors = (arrays.get(name) for name in called)
    assert vectors is not None
    ids = np.arange(len(vectors)) if ids is None else ids
    found = of_others(path, _text(ids), None if subjects is None else _text(subjects), vectors)
    if not own:
        return found
    note = parse_note(path, str(arrays["note"][()]))
    said = (
        zip(arrays.get(rows, ()), arrays.get(texts, ()), strict=True)
        for rows, texts in (_FAILURES, _SEVERAL)
    )
    failures, several = ({int(row): str(text) for row, text in each} for each in said)
    return replace(
        found,
        norms=arrays["norms"],
        flip=note["flip"],
        failures=failures,
        note=note,
        several=several,
        digests=arrays.get("digests"),
        face_scores=arrays.get("face_scores"),
    )


def _text(array: Array) -> Array:
    """Return names as text, where others stored bytes or numbers."""
    if array.dtype.kind == "S":
        return np.char.decode(array, "utf-8", "replace")
    return array.astype(np.str_) if array.dtype.kind in "iu" else array
