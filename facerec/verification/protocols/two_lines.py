"""Lists with two lines a pair: CALFW and CPLFW."""

from __future__ import annotations

import re
from pathlib import Path, PurePosixPath

import numpy as np
from numpy.typing import NDArray

from facerec.errors import DatasetError
from facerec.verification.bench import Bench, contiguous_folds
from facerec.verification.protocols.lists import (
    Line,
    PairTable,
    file_source,
    folder_images,
    make_bench,
    read_lines,
)


def read_two_lines(path: Path, images: Path | None, format: str) -> Bench:
    """Read two lines a pair, ``image label`` each, where 0 is different and anything else same.

    CALFW and CPLFW list all same pairs first; these are dealt out again to ten folds, 300 same and
    then 300 different pairs each.

    Source: JDAI-CV/FaceX-Zoo, ``test_protocol/lfw/pairs_parser.py``.

    Raises:
        DatasetError: an odd number of lines, or another grammar.
    """
    lines, notes = read_lines(path)
    if len(lines) % 2:
        raise DatasetError(
            f"{path}, line {lines[-1][0]}: the last pair has one line of two; get the whole list"
        )
    pairs = [_parse_pair(path, *lines[i : i + 2]) for i in range(0, len(lines), 2)]
    order, folds = deal(np.array([same for _, _, same in pairs]))
    table = PairTable()
    for i in order.tolist():
        first, second, same = pairs[i]
        table.add(first, second, same, f"{path}, line {lines[2 * i][0]}")
    return make_bench(
        format,
        table,
        folder_images(path.parent if images is None else images, list(table.names)),
        folds=folds,
        subject_names=[_subject(name) for name in table.names],
        named_by="image names",
        source=file_source(path, format),
        notes=notes,
    )


def deal(same: NDArray[np.bool_]) -> tuple[NDArray[np.intp], NDArray[np.int64] | None]:
    """Return an order in which ten contiguous folds have both classes, and the fold of every pair.

    Where all same pairs come first, fold k gets the k-th tenth of these, then the k-th tenth of the
    others; any other order stays. All are ``(n,)``; folds are None if pairs are too few.
    """
    count = int(same.sum())
    order = np.arange(len(same))
    if not (same[:count].all() and 0 < count < len(same)):
        return order, contiguous_folds(len(same))
    class_folds = contiguous_folds(count), contiguous_folds(len(same) - count)
    if class_folds[0] is None or class_folds[1] is None:
        return order, None
    folds = np.concatenate([class_folds[0], class_folds[1]])
    order = np.argsort(folds, kind="stable")
    return order, folds[order]


def _label(text: str) -> bool | None:
    """Return the label at the end of a line, None if there is none."""
    fields = text.rsplit(maxsplit=1)
    if len(fields) == 2 and re.fullmatch(r"[+-]?[0-9]{1,9}", fields[1]):
        return int(fields[1]) != 0
    return None


def _parse_pair(path: Path, first: Line, second: Line) -> tuple[str, str, bool]:
    labels = []
    for line, text in (first, second):
        label = _label(text)
        if label is None:
            raise DatasetError(
                f"{path}, line {line}: {text[:60]!r} is not 'image label' with a whole number for "
                "the label; mend the line or check the format"
            )
        labels.append(label)
    if labels[0] != labels[1]:
        raise DatasetError(
            f"{path}, lines {first[0]} and {second[0]}: one says that the pair is same, the other "
            "that it is different; lines may be missing before them, get the whole list"
        )
    return first[1].rsplit(maxsplit=1)[0], second[1].rsplit(maxsplit=1)[0], labels[0]


def _subject(image: str) -> str:
    """Return ``Ann_Lee`` of ``Ann_Lee_0001.jpg``, in a folder or not."""
    return re.sub(r"_[0-9]+$", "", PurePosixPath(image).stem)
