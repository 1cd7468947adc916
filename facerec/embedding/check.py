"""What every embeddings file must be, whatever its format, and what others' files become."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from facerec.embedding.extraction import Embeddings
from facerec.errors import DatasetError
from facerec.files import parse_json
from facerec.records.images import check_unique

FORMAT = 1
"""Of the note in a file of our own."""

MAX_BYTES = 64 << 30
"""Largest total size of the embeddings that are read as one."""

ID, SUBJECT, LIST = "image_id", "subject_id", "embedding"
IDS = (ID, "ids", "names", "images")
SUBJECTS = (SUBJECT, "subjects", "labels")
VECTORS = (LIST, "embeddings", "vectors", "features")
"""Names of columns, and of arrays in an ``.npz`` of others; the first that is there counts."""

_BLOCK = 1 << 14

Array = npt.NDArray[Any]


def columns_of(
    path: Path, header: Collection[str], numbered: bool
) -> tuple[str | None, str | None, list[str]]:
    """Return the columns of ids, of subjects, and of values: one of lists, or e0, e1 and on.

    Args:
        path: the table, for messages.
        header: names of its columns.
        numbered: whether it may be without ids.

    Raises:
        DatasetError: columns are missing.
    """
    image, subject, listed = (
        next((name for name in names if name in header), None) for names in (IDS, SUBJECTS, VECTORS)
    )
    count = sum(bool(re.fullmatch(r"e\d+", name)) for name in header)
    values = [f"e{k}" for k in range(count)] or [name for name in [listed] if name]
    if not values or not {*values} <= {*header} or not (image or numbered):
        raise DatasetError(
            f"{path}: a table of embeddings has the columns {ID} and {LIST}, or {ID} and e0, e1, "
            f"…, found {', '.join([*header][:8])[:200]}"
        )
    return image, subject, values


def assembled(
    path: Path,
    vectors: Array,
    ids: Array,
    subjects: Array | None,
    note: dict[str, Any],
    norms: npt.NDArray[np.float32] | None = None,
    reasons: Mapping[int, str] | None = None,
) -> Embeddings:
    """Return embeddings of what a table holds; rows that are not finite are failures to acquire.

    Args:
        path: of the table.
        vectors: float32 ``(N, D)``, changed in place.
        ids: text ``(N,)``.
        subjects: the same, or None where nobody is known.
        note: how they were made, with ``flip``.
        norms: by default those of ``vectors``.
        reasons: row → why it is a failure, as far as that is known.
    """
    count = len(vectors)
    norms = np.full(count, np.nan, np.float32) if norms is None else norms.copy()
    finite = np.zeros(count, bool)
    with np.errstate(all="ignore"):
        for start in range(0, count, _BLOCK):
            block = slice(start, start + _BLOCK)
            rows = vectors[block]
            norms[block] = np.where(
                np.isnan(norms[block]), np.linalg.norm(rows, axis=1), norms[block]
            )
            finite[block] = np.isfinite(norms[block]) & np.isfinite(rows).all(axis=1)
    failed = np.flatnonzero(~finite)
    vectors[failed], norms[failed] = np.nan, np.nan
    known = reasons or {}
    return Embeddings(
        vectors,
        norms,
        note["flip"],
        ids=ids,
        subjects=subjects,
        failures={
            row: known.get(row) or f"{path}, row {row}: it has no finite embedding"
            for row in failed.tolist()
        },
        note=note,
    )


def parse_note(path: Path, text: str | bytes) -> dict[str, Any]:
    """Return what facerec wrote into a file of embeddings about them, with flip checked.

    Raises:
        DatasetError: it is damaged, or of another format.
    """
    try:
        note = dict(parse_json(text))
        stored_format, flip = note.pop("format"), note["flip"]
        if stored_format != FORMAT or flip not in (True, False, None):
            raise TypeError(f"format {stored_format!r}, flip {flip!r}")
    except (ValueError, KeyError, TypeError) as problem:
        raise DatasetError(
            f"{path}: its note is no JSON of format {FORMAT} with flip ({problem!r}); make the "
            "file again"
        ) from problem
    return note


def check_alike(one: Embeddings, other: Embeddings, where: str) -> None:
    """Refuse embeddings that cannot be compared, as far as it is known what made them.

    Raises:
        DatasetError: two networks, or mirror images in one alone; ``where`` names both.
    """
    first, second = ({**each.note, "flip": each.flip} for each in (one, other))
    check_notes(first, second, where)


def check_notes(one: Mapping[str, Any], other: Mapping[str, Any], where: str) -> None:
    """Refuse embeddings that cannot be compared, by their notes, see `check_alike`.

    Raises:
        DatasetError: as there.
    """
    models = [
        model if isinstance(model := each.get("model"), dict) else {} for each in (one, other)
    ]
    for name in ("sha256", "preprocessing"):
        values = [model.get(name) for model in models]
        if None not in values and values[0] != values[1]:
            raise DatasetError(
                f"{where} were embedded by two networks (their {name} differs), whose scores mean "
                "nothing together; embed both with one model"
            )
    flips = [one.get("flip"), other.get("flip")]
    if None not in flips and flips[0] != flips[1]:
        raise DatasetError(
            f"{where}: mirror images took part in one of them only; embed both with the same --flip"
        )


def check_embeddings(path: Path, embeddings: Embeddings) -> None:
    """Refuse arrays that do not fit together, and NaN outside the rows of failures.

    Raises:
        DatasetError: names the row and its id.
    """
    vectors, norms, ids = embeddings.vectors, embeddings.norms, embeddings.ids
    if ids is None:
        raise DatasetError(f"{path}: embeddings without ids cannot be joined with anything")
    count = ids.size
    texts = [ids] if embeddings.subjects is None else [ids, embeddings.subjects]
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
