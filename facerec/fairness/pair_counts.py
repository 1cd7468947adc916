"""Groups of images, checked, and rates of comparisons with their intervals."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from facerec.errors import MetricError
from facerec.report.estimate import Estimate
from facerec.statistics.clustered import ClusteredShare

UNKNOWN = -1
"""Code of an image whose subject or group is not known."""

Values = NDArray[np.float64]


class GroupedImages:
    """Subjects and groups of images, checked."""

    def __init__(self, subject: ArrayLike, group: ArrayLike, names: Sequence[str]) -> None:
        self.subject, self.group = np.asarray(subject), np.asarray(group)
        self.names = tuple(names)
        if self.subject.shape != self.group.shape:
            raise MetricError(
                f"{self.subject.size} images have a subject but {self.group.size} a group; give "
                "one each an image"
            )
        self.known = (self.subject >= 0) & (self.group >= 0)
        subject, group = self.subject[self.known], self.group[self.known]
        pairs = np.unique(np.stack([subject, group], axis=1), axis=0)
        repeated = np.flatnonzero(pairs[1:, 0] == pairs[:-1, 0])
        if repeated.size:
            at = int(repeated[0])
            one, other = (self.names[code] for code in pairs[at : at + 2, 1])
            raise MetricError(
                f"subject {pairs[at, 0]} has images in the groups {one!r} and {other!r}; a subject "
                "counts in one group, so correct the table or leave the subject out"
            )


def rate(
    share: ClusteredShare | None, errors: int | None = None, comparisons: int | None = None
) -> Estimate:
    """Return a rate with the interval that its sums by subject give.

    Args:
        share: these sums; None where they are not known.
        errors: counted, where the sums are not known.
        comparisons: the same.
    """
    if share is not None:
        return Estimate(share.value, share.interval(), share.events, share.comparisons)
    errors, comparisons = int(errors or 0), int(comparisons or 0)
    if not comparisons:
        return Estimate(None, events=errors, total=0, remark="no comparison")
    remark = "no interval: errors are too many to be counted by subject"
    return Estimate(errors / comparisons, None, errors, comparisons, remark)


def quotients(numerator: NDArray, denominator: NDArray) -> Values:
    """Return the quotients, NaN where the denominator is not positive."""
    result = np.full(np.shape(denominator), np.nan)
    np.divide(numerator, denominator, out=result, where=denominator > 0)
    return result
