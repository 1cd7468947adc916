"""Shares of searches (1:N), whose errors depend on subjects of both sides.

A search errs because of its probe and because of whom the gallery holds: one subject has many
probes, and one entry can be the false match of many of them. Leaving a subject out takes its
searches away, and the events that its entry causes alone in the searches of others.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import stdtrit

from facerec.statistics.clustered import ClusteredShare
from facerec.statistics.intervals import Interval

NOBODY = -1
"""In place of an entry: none of them alone causes the event."""


def search_share(
    events: ArrayLike,
    probe: ArrayLike,
    entry: ArrayLike,
    gallery: ArrayLike,
) -> ClusteredShare:
    """Return the share of searches that are events, such as a candidate at or above a threshold.

    Args:
        events: whether each search is an event, ``(n,)``.
        probe: subject of its probe, ``(n,)``, 0 to G − 1.
        entry: subject whose entry causes the event alone, ``(n,)``; `NOBODY` where several do,
            none does, or there is no event.
        gallery: in which gallery each subject is enrolled, ``(G,)``; negative for none.
    """
    happened = np.asarray(events, dtype=bool)
    subject, cause, placed = (np.asarray(x, np.int64) for x in (probe, entry, gallery))
    alone, size = cause != NOBODY, placed.size
    made = np.bincount(subject, minlength=size)
    share = ClusteredShare.from_mated_counts(np.bincount(subject, happened, size), made)
    caused = np.bincount(cause[alone], minlength=size).astype(np.float64)
    for number in np.unique(placed[placed >= 0]):
        # Another entry comes in place of the one that is left out.
        members = placed == number
        caused[members] -= caused[members].mean()
    both = int(alone.sum()) / happened.size**2
    return replace(
        share,
        changes=share.changes - caused / happened.size,
        noise=both,
        subjects=int(np.count_nonzero((made > 0) | (caused != 0))),
    )


def ratio_interval(share: ClusteredShare, reference: ClusteredShare) -> Interval:
    """Return the 95 % interval of the ratio of two shares, symmetric in its logarithm.

    It allows for subjects that both shares depend on, such as a gallery searched by two groups.

    Args:
        share: the numerator, with events.
        reference: the denominator, with events; of the same numbering of subjects.
    """
    sides = share, reference
    variance = sum(one.variance / one.value**2 for one in sides)
    if math.isinf(variance):
        few = "too few subjects on one side for an interval"
        return Interval(0.0, math.inf, lacking=few)
    shared = float(share.changes @ reference.changes) / (share.value * reference.value)
    # An estimated covariance is noisy: it may not take more than either side has.
    most = min(one.jackknife / one.value**2 for one in sides)
    variance -= 2 * min(max(shared, 0.0), most)
    centre = math.log(share.value / reference.value)
    freedom = min(one.freedom for one in sides)
    margin = float(stdtrit(freedom, 0.975)) * math.sqrt(max(variance, 0.0))
    return Interval(math.exp(centre - margin), math.exp(centre + margin))
