"""Errors and comparisons within a group, by subject: what intervals and joint resamples rest on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.sparse import csr_array
from scipy.stats import binom

from facerec.errors import MetricError
from facerec.report.estimate import Estimate
from facerec.statistics.bootstrap import VertexBootstrap
from facerec.statistics.clustered import ClusteredShare
from facerec.statistics.intervals import Interval, wilson

UNKNOWN = -1
"""Code of an image whose subject or group is not known."""

_CHUNK = 256
"""Replicates held at once."""

Values = NDArray[np.float64]


@dataclass(frozen=True)
class IndependentShare:
    """Events among comparisons of which none is known to share a subject with another."""

    events: int
    comparisons: int

    @property
    def rate(self) -> float:
        """Events over comparisons."""
        return self.events / self.comparisons

    @property
    def test_variance(self) -> float:
        """Of the rate: binomial."""
        return self.rate * (1 - self.rate) / self.comparisons

    @property
    def effective_subjects(self) -> float:
        """How many independent units there are: every comparison is one."""
        return float(self.comparisons)

    def interval(self) -> Interval:
        """Return Wilson's interval."""
        return replace(
            wilson(self.events, self.comparisons),
            assumption="pairs taken as independent, since their subjects are not known",
            effective=float(self.comparisons),
        )


Share = ClusteredShare | IndependentShare


@dataclass(frozen=True, eq=False)
class SubjectCounts:
    """Errors and comparisons within one group at one threshold, by subject."""

    members: NDArray[np.int64]
    """Number of each subject of the group among all subjects, ``(G,)``."""
    false_matches: csr_array
    """``(G, G)``, each counted once."""
    non_mated: csr_array | None
    """Comparisons ``(G, G)``, each counted once; None if all images were compared with all."""
    images: NDArray[np.int64] | None
    """Images, ``(G,)``, where all were compared with all; None where ``non_mated`` is given."""
    missed: NDArray[np.int64]
    """False non-matches, ``(G,)``."""
    mated: NDArray[np.int64]
    """Mated comparisons, ``(G,)``."""

    def shares(self) -> tuple[Share, Share]:
        """Return the shares of false matches and of false non-matches."""
        if self.non_mated is not None:
            fmr = ClusteredShare.from_counts(self.false_matches, self.non_mated)
        else:
            assert self.images is not None
            fmr = ClusteredShare.from_images(self.false_matches, self.images)
        return fmr, ClusteredShare.from_mated_counts(self.missed, self.mated)

    def replicates(self, weights: NDArray[np.uint8]) -> tuple[Values, Values]:
        """Return FMR and FNMR in every replicate, ``(R,)`` each; NaN without comparisons.

        A subject drawn W times brings its mated comparisons W times, and those with a subject drawn
        V times W · V times. Copies of one subject are never compared as impostors.

        Args:
            weights: how often each of all subjects is drawn, ``(R, G)``, see `resample`.
        """
        own = weights[:, self.members]
        drawn = own.astype(np.float64)
        fnmr = quotients(drawn @ self.missed, drawn @ self.mated)
        if self.non_mated is not None:
            comparisons = _pairs_drawn(self.non_mated, own)
        else:
            assert self.images is not None
            comparisons = ((drawn @ self.images) ** 2 - drawn**2 @ self.images**2) / 2
        return quotients(_pairs_drawn(self.false_matches, own), comparisons), fnmr


@dataclass(frozen=True)
class PairCounts:
    """Errors and comparisons within one group at one threshold, where subjects are not known."""

    false_matches: int
    non_mated: int
    missed: int
    mated: int
    seed: tuple[int, ...]
    """Of the resamples of pairs, the same at all thresholds."""

    def shares(self) -> tuple[Share, Share]:
        """Return the shares of false matches and of false non-matches."""
        return (
            IndependentShare(self.false_matches, self.non_mated),
            IndependentShare(self.missed, self.mated),
        )

    def replicates(self, weights: NDArray[np.uint8]) -> tuple[Values, Values]:
        """Return FMR and FNMR in as many resamples of the pairs, ``(R,)`` each.

        The errors among N pairs drawn with replacement are binomial. One set of quantiles serves
        all thresholds, so that a replicate is a high or low one at all of them.
        """
        quantiles = np.random.default_rng(self.seed).random((2, len(weights)))
        counts = (self.false_matches, self.non_mated), (self.missed, self.mated)
        fmr, fnmr = (
            binom.ppf(drawn, pairs, errors / pairs) / pairs
            for drawn, (errors, pairs) in zip(quantiles, counts, strict=True)
        )
        return fmr, fnmr


class LabelledImages:
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
    share: Share | None, errors: int | None = None, comparisons: int | None = None
) -> Estimate:
    """Return a rate with the interval that its sums by subject give.

    Args:
        share: these sums; None where they are not known.
        errors: counted, where the sums are not known.
        comparisons: the same.
    """
    if share is not None:
        return Estimate(share.rate, share.interval(), share.events, share.comparisons)
    errors, comparisons = int(errors or 0), int(comparisons or 0)
    if not comparisons:
        return Estimate(None, events=errors, total=0, remark="no comparison")
    remark = "no interval: errors are too many to be counted by subject"
    return Estimate(errors / comparisons, None, errors, comparisons, remark)


def resample(subjects: int, replicates: int, seed: int) -> NDArray[np.uint8]:
    """Return how often each subject is drawn in each replicate, ``(R, G)``.

    The draws are those of a `VertexBootstrap` of the same subjects and seed.

    Raises:
        MetricError: no replicate.
    """
    if not subjects:
        return np.empty((replicates, 0), np.uint8)
    everyone = np.arange(subjects)
    one_each = VertexBootstrap(
        everyone, everyone, np.ones(subjects, bool), replicates=replicates, seed=seed
    )
    return one_each.multiplicities


def quotients(numerator: NDArray, denominator: NDArray) -> Values:
    """Return the quotients, NaN where the denominator is not positive."""
    result = np.full(np.shape(denominator), np.nan)
    np.divide(numerator, denominator, out=result, where=denominator > 0)
    return result


def _pairs_drawn(counts: csr_array, weights: NDArray[np.uint8]) -> Values:
    """Return Σ W_i W_j c_ij in every replicate, ``(R,)``."""
    matrix = counts.astype(np.float64)
    sums = np.empty(len(weights))
    for start in range(0, len(weights), _CHUNK):
        chunk = np.ascontiguousarray(weights[start : start + _CHUNK].T, dtype=np.float64)
        sums[start : start + _CHUNK] = np.einsum("gr,gr->r", chunk, matrix @ chunk)
    return sums
