"""What embeddings of every file must be."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from facerec.base.errors import DatasetError
from facerec.base.files import parse_json, reading
from facerec.base.large_arrays import as_type
from facerec.embedding.extraction import Embeddings
from facerec.records.images import check_unique

FORMAT = 1
"""Of the note in a file of our own."""

MAX_BYTES = 64 << 30
"""Largest total size of the embeddings that are read as one."""

IDS = ("image_id", "ids", "names", "images")
SUBJECTS = ("subject_id", "subjects", "labels")
VECTORS = ("embedding", "embeddings", "vectors", "features")
"""Names of columns and arrays; the first that is there counts."""

ROLES = {"id": IDS, "subject": SUBJECTS, "vector": VECTORS}
"""What these columns are, as ``--columns`` says it."""

Called = Mapping[str, str]
"""What files of others call them, as ``{"vector": "emb"}``."""

Array = npt.NDArray[Any]

BLOCK = 1 << 14
"""Rows that are in memory at once."""


def find_columns(
    path: Path, there: Collection[str], called: Called, needed: Collection[str] = ()
) -> list[Any]:
    """Return what a file calls ids, subjects and vectors; None where it has no such column.

    Args:
        path: the file.
        there: its columns or arrays.
        called: see `Called`.
        needed: roles that it must have.

    Raises:
        DatasetError: one is missing, or a name that is not there, or of another column than these.
    """
    for role, name in called.items():
        given, known, kind = (name, there, "column") if role in ROLES else (role, ROLES, "NAME")
        if given not in known:
            near = difflib.get_close_matches(given, known, 1, 0.0) or ["none at all"]
            raise DatasetError(
                f"{path}: --columns {role}={name}: {given!r} is no {kind} here, the nearest is "
                f"{near[0][:200]!r}; there are {', '.join(known)[:300]}"
            )
    found = {
        role: called.get(role) or next((name for name in names if name in there), None)
        for role, names in ROLES.items()
    }
    if missing := [role for role in needed if found[role] is None]:
        raise DatasetError(
            f"{path}: {' or '.join(ROLES[missing[0]])} is missing (there is "
            f"{', '.join(there)[:300] or 'nothing'}); say what it is called by --columns "
            f"{missing[0]}=NAME, or make the file with facerec embed or facerec enroll --export"
        )
    return list(found.values())


def checked(path: Path, found: Embeddings) -> Embeddings:
    """Return embeddings whose rows without a finite one are failures, NaN in place.

    Norms that are not known are computed.

    Raises:
        DatasetError: arrays that do not fit together, or an id twice.
    """
    vectors, norms, ids = found.vectors, found.norms, found.ids
    texts = [each for each in (ids, found.subjects) if each is not None]
    scores = norms if found.face_scores is None else found.face_scores
    digests = [] if found.digests is None else [found.digests]
    columns = [norms, scores, *texts, *digests]
    if (
        ids is None
        or [vectors.ndim, vectors.dtype, norms.dtype, scores.dtype] != [2, *[np.float32] * 3]
        or not vectors.shape[1]
        or any(array.shape != vectors.shape[:1] for array in columns)
        or any(text.dtype.kind != "U" for text in texts)
        or any(array.dtype.kind != "S" for array in digests)
        or any(not 0 <= row < len(vectors) for row in (*found.failures, *found.several))
    ):
        layouts = ", ".join(f"{array.dtype} {array.shape}" for array in (vectors, *columns))
        raise DatasetError(
            f"{path}: vectors (N, D) and norms (N,) of numbers, ids and subjects (N,) of text, "
            f"digests (N,) of bytes, and failures of these rows are needed, found {layouts}; make "
            "the file again"
        )
    check_unique(ids, str(path))
    failed = np.zeros(len(ids), bool)
    failed[list(found.failures)] = True
    for start in range(0, len(ids), BLOCK):
        block = slice(start, start + BLOCK)
        if (unknown := np.isnan(norms[block])).any():
            with np.errstate(all="ignore"):
                norms[block][unknown] = np.linalg.norm(vectors[block][unknown], axis=1)
        failed[block] |= ~(np.isfinite(norms[block]) & np.isfinite(vectors[block]).all(axis=1))
    if rows := np.flatnonzero(failed).tolist():
        vectors[rows], norms[rows] = np.nan, np.nan
    failures = {
        row: found.failures.get(row, f"{path}, row {row}: it has no finite embedding")
        for row in rows
    }
    return replace(found, failures=failures)


def of_others(path: Path, ids: Array | None, subjects: Array | None, vectors: Array) -> Embeddings:
    """Return embeddings of a file that says no more of them; half and double become float32."""
    if vectors.ndim == 2 and vectors.dtype.kind == "f" and vectors.dtype != np.float32:
        with np.errstate(over="ignore"):  # what overflows is caught as not finite
            vectors = as_type(vectors, np.float32)
    norms = np.full(vectors.shape[:1], np.nan, np.float32)
    return Embeddings(vectors, norms, None, ids=ids, subjects=subjects, note=parse_note(path, None))


def parse_note(path: Path, text: str | bytes | None) -> dict[str, Any]:
    """Return the note of how embeddings were made, with ``flip``; one of our own for others' files.

    Raises:
        DatasetError: it is damaged, or of another format.
    """
    if text is None:
        return {"flip": None, "source": {"path": str(path), "format": "others"}}
    with reading(f"{path}: its note", DatasetError, "make the file again", Exception):
        note = dict(parse_json(text))
        stored_format, flip = note.pop("format"), note["flip"]
        if stored_format != FORMAT or flip not in (True, False, None):
            raise ValueError(f"format {stored_format!r} is not {FORMAT}, or flip is {flip!r}")
    return note
