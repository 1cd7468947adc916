"""Does the norm matter here? What the norms of mated pairs have to do with their errors.

Cosine scoring discards the norm. A norm that differs between groups changes decisions only through
training, fusion of raw embeddings, gating of images by norm, or a norm that is shown as a
confidence. The norm of a pair is the lesser one of its two images.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import ArrayLike, NDArray

from facerec.fairness import rows as names
from facerec.fairness.groupings import Grouping, members
from facerec.report.estimate import Estimate
from facerec.statistics.clustered import ClusteredShare
from facerec.statistics.discard import DISCARD_SHARES, PARTIAL_AREA, error_versus_discard

BINS = 10
"""Bins of the norm with equally many mated pairs."""
MOST_MATED = 2**25
"""Mated pairs up to which norms and errors of pairs are held against each other."""


def mated_pairs(subject: ArrayLike) -> NDArray[np.int64]:
    """Return all pairs of images of one subject, each once, ``(2, P)``.

    Args:
        subject: code of the subject on each image, ``(m,)``; negative codes are nobody.
    """
    codes = np.asarray(subject)
    rows = np.flatnonzero(codes >= 0)
    rows = rows[np.argsort(codes[rows], kind="stable")]
    people = np.split(rows, np.flatnonzero(np.diff(codes[rows])) + 1)
    return np.hstack([images[np.stack(np.triu_indices(len(images), 1))] for images in people])


def norm_errors(
    grouping: Grouping,
    mated: tuple[NDArray[np.floating], NDArray[np.int64]] | None,
    norms: NDArray[np.float64],
    subject: NDArray[np.int64],
    threshold: float | None,
    of: str = names.NORMS,
) -> Iterator[names.Row]:
    """Relate the norms of mated pairs to their errors, by group and at last of all groups.

    Yields rows: the FNMR in each tenth of the norm, the same tenths for all groups, where equal
    norms share one; the FNMR of what remains when `DISCARD_SHARES` of the pairs of a group, at
    most, are left out by norm; and the area under the curve of error versus discard. Where nothing
    can be related, one row says why.

    Args:
        grouping: of the N images.
        mated: scores of mated pairs, ``(P,)``, NaN where there is none, and the images of each,
            ``(2, P)``; None where there are more than `MOST_MATED`.
        norms: raw norm of each image, ``(N,)``, NaN where there is none.
        subject: code of the subject on each image, ``(N,)``.
        threshold: global one; a pair is an error below it; None where there is none.
        of: what ``norms`` are, `rows.NORMS` or a quality of the images, `rows.QUALITY`.
    """

    def lacking(why: str) -> names.Row:
        where = names.At(basis=of)
        return names.row(grouping.name, names.AREA, Estimate(None, remark=why), at=where)

    if threshold is None:
        yield lacking("no target has a threshold on these data")
        return
    if mated is None:
        yield lacking(f"there are more than {MOST_MATED:,} mated pairs")
        return
    scores, sides = mated
    quality = norms[sides].min(axis=0)  # NaN if one of them is
    used = (grouping.codes[sides] >= 0).all(axis=0) & ~np.isnan(scores) & ~np.isnan(quality)
    if not used.any():
        yield lacking(f"none of {scores.size} mated pairs has a score, {of} and a group")
        return
    # A float32 score is widened; the threshold is never rounded to it.
    errors = scores[used] < np.float64(threshold)
    quality, who = quality[used], subject[sides[0, used]]
    edges = np.quantile(quality, np.arange(1, BINS) / BINS, method="inverted_cdf")
    tenth = np.searchsorted(edges, quality, side="left")

    def fnmr(inside: NDArray[np.bool_]) -> Estimate:
        pairs = errors[inside], who[inside], who[inside]
        return names.rate(ClusteredShare.from_pairs(*pairs, alike=True) if inside.any() else None)

    for name, inside in members(grouping.names, grouping.codes[sides[0, used]]):
        if not inside.any():
            continue
        for number in range(BINS):
            place = names.At(str(number + 1), of)
            found = fnmr(inside & (tenth == number))
            yield names.row(grouping.name, names.TENTHS[of], found, name, place)
        curve = error_versus_discard(errors[inside], quality[inside])
        for share in DISCARD_SHARES:
            found = fnmr(inside & (quality >= curve.cut(share)))
            yield names.row(grouping.name, names.DISCARDS[of], found, name, names.At(share, of))
        area = Estimate(curve.area(PARTIAL_AREA), unit="area")
        yield names.row(grouping.name, names.AREA, area, name, names.At(basis=of))
