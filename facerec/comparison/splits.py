"""Class-disjoint splits: the first classes for cross-validation, the rest for the test.

Musgrave, Belongie and Lim, *A Metric Learning Reality Check* (ECCV 2020), section 3.3.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from facerec.errors import DatasetError

Numbering = Literal["kfold", "mlrc"]
Classes = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Fold:
    """One round of cross-validation.

    Attributes:
        train: int64, ascending class numbers to train on.
        validation: int64, ascending class numbers to validate on; none of ``train``.
    """

    train: Classes
    validation: Classes


@dataclass(frozen=True, eq=False)
class ClassSplit:
    """Which classes serve what.

    Attributes:
        folds: one a round.
        test: int64, ascending; in no fold.
    """

    folds: tuple[Fold, ...]
    test: Classes

    def to_dict(self) -> dict[str, Any]:
        """Return the class numbers as JSON types, for the manifest and its hash."""
        return {
            "folds": [
                {"train": fold.train.tolist(), "validation": fold.validation.tolist()}
                for fold in self.folds
            ],
            "test": self.test.tolist(),
        }


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
        DatasetError: fewer than two folds, fewer classes for development than folds, or none for
            the test.
    """
    size = num_classes // 2 if development is None else development
    beginning = f"{where}: " if where else ""
    if folds < 2:
        raise DatasetError(f"cross-validation needs at least two folds, found {folds}")
    if size < folds:
        raise DatasetError(
            f"{beginning}{size:,} of {num_classes:,} classes are for cross-validation, fewer than "
            f"the {folds} folds; take data with more classes or fewer folds"
        )
    if size >= num_classes:
        raise DatasetError(
            f"{beginning}all of {num_classes:,} classes are for cross-validation ({size:,} asked "
            "for), which leaves none for the test; take fewer"
        )
    build = _kfold if numbering == "kfold" else _mlrc
    return ClassSplit(build(size, folds), np.arange(size, num_classes))


def _kfold(size: int, folds: int) -> tuple[Fold, ...]:
    classes = np.arange(size)
    return tuple(Fold(np.setdiff1d(classes, run), run) for run in np.array_split(classes, folds))


def _mlrc(size: int, folds: int) -> tuple[Fold, ...]:
    """Number as powerful-benchmarker's MLRCSplitManager; a run of one class is fine here."""
    validation = size // folds
    runs = []
    for k in range(folds):
        round_trip = (k * size // folds + np.arange(size)) % size
        train, held_out = np.split(round_trip, [size - validation])
        runs.append(Fold(np.sort(train), np.sort(held_out)))
    return tuple(runs)


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
