"""AgeDB: the protocol files of 5, 10, 20 and 30 years, in MATLAB's format."""

from __future__ import annotations

import io
import re
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.io import loadmat

from facerec.errors import DatasetError
from facerec.verification.bench import Bench
from facerec.verification.protocols.lists import (
    PairTable,
    file_source,
    folder_images,
    make_bench,
    read_content,
)


def read_agedb(path: Path, images: Path | None) -> Bench:
    """Read ``04_FINAL_protocol_30_years.mat`` or its sisters; images are ``{name}.jpg``.

    ``splits{k}`` is a structure of a cell array, two rows of structures that begin with the name
    of the image, and of labels 1 or -1.

    Source: JDAI-CV/FaceX-Zoo, ``test_protocol/lfw/pairs_parser.py``.

    Raises:
        DatasetError: the file has another structure.
    """
    content = read_content(path)
    try:
        splits = loadmat(io.BytesIO(content), variable_names=["splits"])["splits"]
        parts = [_split(cell) for cell in splits.flat]
    # What is no MATLAB file ends in many kinds of error, as does another structure.
    except Exception as problem:
        raise DatasetError(
            f"{path}: this is no protocol file of AgeDB ({type(problem).__name__}: "
            f"{str(problem)[:200]}); it needs the cell array 'splits' in MATLAB's format 5 to 7"
        ) from problem
    table = PairTable()
    folds = []
    for fold, (firsts, seconds, labels) in enumerate(parts):
        for i, label in enumerate(labels.tolist()):
            where = f"{path}, split {fold + 1}, pair {i + 1}"
            if label not in (1, -1):
                raise DatasetError(f"{where}: its label is {label}, not 1 or -1; check the file")
            table.add(f"{firsts[i]}.jpg", f"{seconds[i]}.jpg", label == 1, where)
            folds.append(fold)
    years = re.search(r"(\d+)_?years", path.stem)
    return make_bench(
        f"agedb_{years[1]}" if years else path.stem,
        table,
        folder_images(path.parent if images is None else images, list(table.names)),
        folds=np.array(folds, dtype=np.int64) if len(parts) > 1 else None,
        persons=[_person(name) for name in table.names],
        persons_from="image names",
        source=file_source(path, "agedb"),
    )


def _split(cell: Any) -> tuple[list[str], list[str], NDArray[Any]]:
    """Return the names on both sides and the labels of one split."""
    names, labels = _only(cell)[0], _only(cell)[1]
    labels = labels.reshape(-1)
    if names.shape != (2, len(labels)):
        raise ValueError(f"names of shape {names.shape} for {len(labels)} labels")
    firsts, seconds = ([_text(name) for name in row] for row in names)
    return firsts, seconds, labels


def _only(value: Any) -> Any:
    """Return the one element of arrays inside arrays of length one."""
    while isinstance(value, np.ndarray):
        value = value.item() if value.dtype.names is None else value.reshape(-1)[0]
    return value


def _text(value: Any) -> str:
    """Return the text that a structure begins with, or the text itself."""
    while not isinstance(value, str):
        value = _only(value)
        if isinstance(value, np.void):
            value = value[0]
        elif not isinstance(value, str):
            raise ValueError(f"{type(value).__name__} instead of an image's name")
    # Half of a surrogate pair fits no file's name.
    value.encode()
    return value


def _person(image: str) -> str:
    """Return ``MariaCallas`` of ``0_MariaCallas_35_f.jpg``."""
    parts = image.removesuffix(".jpg").split("_")
    return next((part for part in parts if not part.isdecimal()), image)
