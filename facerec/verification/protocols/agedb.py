"""AgeDB: the protocol files of 5, 10, 20 and 30 years, in MATLAB's format."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np

from facerec.errors import DatasetError
from facerec.verification.bench import Bench
from facerec.verification.protocols.lists import PairTable, file_source, folder_images, make_bench
from facerec.verification.protocols.matlab import many, read_mat


def read_agedb(path: Path, images: Path | None) -> Bench:
    """Read ``04_FINAL_protocol_30_years.mat`` or its sisters; images are ``{name}.jpg``.

    ``splits{k}`` is a structure of a cell array, two rows of structures that begin with the name
    of the image, and of labels 1 or -1.

    Source: JDAI-CV/FaceX-Zoo, ``test_protocol/lfw/pairs_parser.py``.

    Raises:
        DatasetError: the file has another structure.
    """
    splits = many(read_mat(path, ["splits"])["splits"])
    try:
        split_pairs = [_split(cell) for cell in splits]
    except ValueError as problem:
        raise DatasetError(
            f"{path}: this is no protocol file of AgeDB ({problem}); it needs the cell array "
            "'splits' of structures, with pairs of names and labels"
        ) from problem
    table = PairTable()
    folds = []
    for fold, (firsts, seconds, labels) in enumerate(split_pairs):
        for i, label in enumerate(labels):
            where = f"{path}, split {fold + 1}, pair {i + 1}"
            if label not in (1, -1):
                raise DatasetError(f"{where}: its label is {label:g}, not 1 or -1; check the file")
            table.add(f"{firsts[i]}.jpg", f"{seconds[i]}.jpg", label == 1, where)
            folds.append(fold)
    years = re.search(r"(\d+)_?years", path.stem)
    return make_bench(
        f"agedb_{years[1]}" if years else path.stem,
        table,
        folder_images(path.parent if images is None else images, list(table.names)),
        folds=np.array(folds, dtype=np.int64) if len(split_pairs) > 1 else None,
        subject_names=[_subject(name) for name in table.names],
        named_by="image names",
        source=file_source(path, "agedb"),
    )


def _split(cell: Any) -> tuple[list[str], list[str], list[float]]:
    """Return the names on both sides and the labels of one split, else raise a ValueError."""
    fields = list(cell.values())[:2] if isinstance(cell, dict) else []
    if len(fields) < 2:
        raise ValueError(f"a split is a {type(cell).__name__}, not a structure of two parts")
    labels = many(fields[1])
    sides = [many(side) for side in many(fields[0])]
    if [len(side) for side in sides] != [len(labels)] * 2:
        raise ValueError(f"{[len(side) for side in sides][:5]} names for {len(labels)} labels")
    if not all(isinstance(label, (int, float)) for label in labels):
        raise ValueError("labels that are no numbers")
    firsts, seconds = ([_name(entry) for entry in side] for side in sides)
    return firsts, seconds, labels


def _name(entry: Any) -> str:
    """Return the text that a structure begins with, or the text itself."""
    if isinstance(entry, dict):
        entry = next(iter(entry.values()), None)
    # Half of a surrogate pair fits no file's name.
    if not isinstance(entry, str) or any("\ud800" <= sign <= "\udfff" for sign in entry):
        raise ValueError(f"{type(entry).__name__} instead of an image's name")
    return entry


def _subject(image: str) -> str:
    """Return ``MariaCallas`` of ``0_MariaCallas_35_f.jpg``."""
    words = image.removesuffix(".jpg").split("_")
    return next((word for word in words if not word.isdecimal()), image)
