"""What every embeddings file must be, whatever its format."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from facerec.embedding.extraction import Embeddings
from facerec.errors import DatasetError
from facerec.files import parse_json
from facerec.records.images import check_unique

_BLOCK = 1 << 14


def parse_note(path: Path, text: str | bytes, newest: int) -> dict[str, Any]:
    """Return what facerec wrote into a file of embeddings about them, with flip checked.

    Args:
        path: the file, for messages.
        text: the note, JSON.
        newest: the format that can be read.

    Raises:
        DatasetError: it is damaged, or of another format.
    """
    try:
        note = parse_json(text)
        stored_format, flip = note.pop("format"), note["flip"]
        if stored_format != newest or flip not in (True, False, None):
            raise TypeError(f"format {stored_format!r}, flip {flip!r}")
    except (ValueError, KeyError, AttributeError, TypeError) as problem:
        raise DatasetError(
            f"{path}: its note is no JSON of format {newest} with flip ({problem!r}); make the "
            "file again"
        ) from problem
    assert isinstance(note, dict)
    return note


def ids_of(path: Path, embeddings: Embeddings) -> npt.NDArray[np.str_]:
    """Return the ids ``(N,)``.

    Raises:
        DatasetError: there are none.
    """
    if embeddings.ids is None:
        raise DatasetError(f"{path}: embeddings without ids cannot be joined with anything")
    return embeddings.ids


def check_alike(one: Embeddings, other: Embeddings, where: str) -> None:
    """Refuse embeddings that cannot be compared, as far as it is known what made them.

    Raises:
        DatasetError: two networks, or mirror images in one alone; ``where`` names both.
    """
    models = [each.note.get("model") for each in (one, other)]
    hashes = [each.get("sha256") if isinstance(each, Mapping) else None for each in models]
    if None not in hashes and hashes[0] != hashes[1]:
        raise DatasetError(
            f"{where} were embedded by two networks, whose scores mean nothing together; embed "
            "both with one model"
        )
    if None not in (one.flip, other.flip) and one.flip != other.flip:
        raise DatasetError(
            f"{where}: mirror images took part in one of them only; embed both with the same --flip"
        )


def check_embeddings(path: Path, embeddings: Embeddings) -> None:
    """Refuse arrays that do not fit together, and NaN outside the rows of failures.

    Raises:
        DatasetError: names the row and its id.
    """
    vectors, norms, subjects = embeddings.vectors, embeddings.norms, embeddings.subjects
    ids = ids_of(path, embeddings)
    count = ids.size
    texts = [ids] if subjects is None else [ids, subjects]
    rows = np.array(list(embeddings.failures), np.int64)
    if (
        vectors.dtype != np.float32
        or vectors.ndim != 2
        or not vectors.shape[1]
        or norms.dtype != np.float32
        or any(text.dtype.kind != "U" for text in texts)
        or any(array.shape != (count,) for array in (vectors[:, 0], norms, *texts))
        or ((rows < 0) | (rows >= count)).any()
    ):
        layouts = ", ".join(f"{array.dtype} {array.shape}" for array in (vectors, norms, *texts))
        raise DatasetError(
            f"{path}: vectors (N, D) and norms (N,) in float32, ids (N,) as text and failures of "
            f"these rows are needed, found {layouts}; make the file again"
        )
    check_unique(ids, str(path))
    failed = np.zeros(count, bool)
    failed[rows] = True
    finite = np.isfinite(norms)
    for start in range(0, count, _BLOCK):
        block = slice(start, start + _BLOCK)
        finite[block] &= np.isfinite(vectors[block]).all(axis=1)
    finite[rows] = ~(np.isnan(vectors[rows]).all(axis=1) & np.isnan(norms[rows]))
    for row in np.flatnonzero(finite == failed)[:1]:
        kind = "has an embedding" if failed[row] else "is not finite"
        listed = "listed" if failed[row] else "not listed"
        raise DatasetError(
            f"{path}: row {row} (id {str(ids[row])!r}) {kind} but is {listed} as a failure to "
            "acquire; make the file again"
        )
