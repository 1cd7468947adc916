"""A bench becomes a pack."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from facerec.base.errors import DatasetError
from facerec.base.files import LIST, atomic_path, read_file
from facerec.base.progress import Progress
from facerec.records.images import NAMES, PackImages
from facerec.records.packs import write_pack
from facerec.verification.bench import INFERRED, Bench, contiguous_folds


def export_pack(bench: Bench, out: Path, progress: Progress | None = None) -> tuple[str, ...]:
    """Write a bench as ``.bin`` or ``.npz``, and image names into ``NAME_images.csv`` beside it.

    Pairs are put in the order of their folds, since readers of packs take ten contiguous ones.
    Names get a column ``subject_id`` where more than same pairs tells the subjects.

    Returns:
        What the pack cannot keep, one sentence each.

    Raises:
        DatasetError: there is something at ``out`` already, or names beside it that are not ours.
        FacerecError: an image cannot be read, or the pack cannot be written.
    """
    if out.exists():
        raise DatasetError(f"{out}: is there already; choose another name or take it away")
    pairs, images = bench.pairs, bench.images
    folds = np.zeros(len(pairs), dtype=np.int64) if pairs.folds is None else pairs.folds
    order = np.argsort(folds, kind="stable")
    entries = np.stack([pairs.first[order], pairs.second[order]], axis=1).reshape(-1)
    named = images.named if isinstance(images, PackImages) else bench.subjects_from != INFERRED
    named = named or not all(name.isdecimal() for name in images.ids.tolist())
    names = _names_csv(bench, entries) if named else None
    names_path = out.with_name(out.stem + NAMES)
    there = read_file(names_path, LIST) if names_path.is_file() else None
    if there is not None and there != names:
        raise DatasetError(
            f"{names_path}: it names the images of another pack, and {out.name} would be read with "
            "it; choose another name or take it away"
        )
    contents = []
    for i in range(len(images)):
        contents.append(images.encoded(i))
        if progress is not None:
            progress("images", i + 1, len(images))
    # Names first: a pack that is there is whole.
    if names is not None:
        with atomic_path(names_path) as temporary:
            temporary.write_bytes(names)
    try:
        write_pack(out, [contents[i] for i in entries], pairs.issame[order].tolist())
    except BaseException:
        if there is None:
            names_path.unlink(missing_ok=True)
        raise
    blocks = contiguous_folds(len(folds))
    if blocks is not None and np.array_equal(folds[order], blocks):
        return ()
    return ("a pack is read in ten contiguous folds, which are not those of the protocol",)


def _names_csv(bench: Bench, entries: NDArray[np.int64]) -> bytes:
    """Return the file of names for entries that are these images."""
    columns = {"index": np.arange(len(entries)), "image_id": bench.images.ids[entries]}
    if bench.pairs.subjects is not None and bench.subjects_from != INFERRED:
        columns["subject_id"] = bench.pairs.subjects[entries]
    return pd.DataFrame(columns).to_csv(index=False, lineterminator="\n").encode()
