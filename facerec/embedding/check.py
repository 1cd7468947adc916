"""What every embeddings file must be, whatever its format."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import numpy.typing as npt

from facerec.embedding.extraction import Embeddings
from facerec.errors import DatasetError
from facerec.records.images import check_unique

_BLOCK = 1 << 14


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
    if (
        vectors.dtype != np.float32
        or vectors.ndim != 2
        or not vectors.shape[1]
        or norms.dtype != np.float32
        or any(text.dtype.kind != "U" for text in texts)
        or any(array.shape != (count,) for array in (vectors[:, 0], norms, *texts))
    ):
        layouts = ", ".join(f"{array.dtype} {array.shape}" for array in (vectors, norms, *texts))
        raise DatasetError(
            f"{path}: vectors (N, D) and norms (N,) in float32 and ids (N,) as text are needed, "
            f"found {layouts}; make the file again"
        )
    check_unique(ids, str(path))
    failed = np.zeros(count, bool)
    rows = np.array(list(embeddings.failures), np.int64)
    if ((rows < 0) | (rows >= count)).any():
        raise DatasetError(
            f"{path}: failures are listed for rows {rows.min()} to {rows.max()} of {count} images; "
            "make the file again"
        )
    failed[rows] = True
    finite = np.isfinite(norms)
    for start in range(0, count, _BLOCK):
        block = slice(start, start + _BLOCK)
        finite[block] &= np.isfinite(vectors[block]).all(axis=1)
    finite[rows] = ~(np.isnan(vectors[rows]).all(axis=1) & np.isnan(norms[rows]))
    wrong = np.flatnonzero(finite == failed)
    if len(wrong):
        row = int(wrong[0])
        kind = "has an embedding" if failed[row] else "is not finite"
        listed = "listed" if failed[row] else "not listed"
        raise DatasetError(
            f"{path}: row {row} (id {str(ids[row])!r}) {kind} but is {listed} as a failure to "
            "acquire; make the file again"
        )
