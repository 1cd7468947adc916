"""Class-disjoint splits: the first classes for cross-validation, the rest for the test.

Musgrave, Belongie and Lim, *A Metric Learning Reality Check* (ECCV 2020), section 3.3.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from facerec.base.errors import DatasetError

Numbering = Literal["kfold", "mlrc"]
Classes = NDArray[np.int64]


class Fold(NamedTuple):
    """One round of cross-validation."""

    train: Classes
    """Ascending class numbers to train on."""
    validation: Classes
    """Ascending class numbers to validate on; none of ``train``."""


@dataclass(frozen=True, eq=False)
class ClassSplit:
    """Which classes serve what.

    Attributes:
        folds: one a round.
        test: int64, ascending; in no fold.
    """

    folds: tuple[Fold, ...]
    test: Classes


def split_classes(
    num_classes: int,
    folds: int = 4,
    numbering: Numbering = "kfold",
    development: int | None = None,
    where: str = "",
) -> ClassSplit:
    """Split classes 0 … C−1: the first half for cross-validation, the second for the test.

    With D classes for development and K folds, ``kfold`` cuts them into K runs whose sizes differ
    by one at most, the longer ones first, and validates on run k in fold k, as scikit-learn's
    ``KFold(K)`` does. ``mlrc`` does as the authors' code: fold k trains on the D − ⌊D/K⌋ classes
    from ⌊kD/K⌋ on, going round at the end, and validates on the ⌊D/K⌋ that follow, so fold 0
    validates on the last run. Where K divides D, both have the same pairs in another order; where
    it does not, ``mlrc`` validates some classes never (of 98: 24 and 73).

    Args:
        num_classes: C. An odd one gives the class in the middle to the test.
        folds: K.
        numbering: which of the two.
        development: D, where the data set itself says which classes are for training
            (`ImageSet.train_classes`); by default ⌊C/2⌋.
        where: the data, which begins the sentence of an error.

    Raises:
        DatasetError: fewer classes for development than folds, or none for the test.
    """
    size = num_classes // 2 if development is None else development
    if not folds <= size < num_classes:
        raise DatasetError(
            f"{f'{where}: ' if where else ''}{size:,} of {num_classes:,} classes of two or more "
            f"images are for cross-validation in {folds} folds, the others for the test: too few; "
            "take data with more classes, or fewer folds"
        )
    classes, length = np.arange(size), size // folds
    if numbering == "kfold":
        runs = np.array_split(classes, folds)
    else:  # as powerful-benchmarker's MLRCSplitManager
        runs = [(k * size // folds + np.arange(-length, 0)) % size for k in range(folds)]
    of_folds = (Fold(np.setdiff1d(classes, run), np.sort(run)) for run in runs)
    return ClassSplit(tuple(of_folds), np.arange(size, num_classes))


def select_classes(
    labels: NDArray[np.int64], classes: Classes
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the positions of the images of some classes, and their classes numbered anew.

    Args:
        labels: int64 ``(n,)``, the class of every image.
        classes: ascending class numbers.

    Returns:
        int64 ``(m,)`` ascending positions, and int64 ``(m,)`` indices of ``classes``.
    """
    positions = np.flatnonzero(np.isin(labels, classes))
    return positions, np.searchsorted(classes, labels[positions])
