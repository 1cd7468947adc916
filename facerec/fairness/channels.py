"""Does the norm matter? How a raw norm can reach decisions that cosines alone would not let it.

Cosine scoring discards the norm. A norm that differs between groups changes decisions only through
one of four channels: training, fusion of raw embeddings, gating of images, and confidence shown to
users. What is measured here is mated pairs: the norm of a pair is the lesser one of its two images.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.sparse import coo_array

from facerec.defaults import REPLICATES
from facerec.errors import MetricError
from facerec.fairness.differentials import (
    MIN_SUBJECTS,
    quotients,
    rate_replicates,
    resample,
)
from facerec.fairness.norms import percentile
from facerec.fairness.pair_counts import SubjectCounts
from facerec.fairness.rate_results import ErrorRate, rate_of
from facerec.fairness.rates import GroupErrors
from facerec.report.estimate import Estimate
from facerec.statistics.clustered import ClusteredShare
from facerec.statistics.discard import DiscardCurve, error_versus_discard
from facerec.statistics.operating_points import allowed_accepts

BINS = 10
"""Bins of the norm with equally many mated pairs."""

DISCARD_SHARES = ("0.01", "0.05", "0.10", "0.20")
"""Shares of all mated pairs that the common norm cuts discard, at most."""

PARTIAL_AREA = "0.20"
"""Share discarded up to which the area under a curve is taken."""

STANDARDISATION = (
    "direct standardisation: FNMR of each group by norm bin, averaged with the share of each bin "
    f"among the mated pairs of all groups; bins count where every group has {MIN_SUBJECTS} subjects"
)

_CURVE_POINTS = 200

_CELLS = 100_000_000
"""Mated pairs × replicates of the rank correlation, which ranks all pairs anew each time."""

_LEVELS = 4096
"""Distinct values up to which replicates rank exactly; beyond, neighbours share a level, which
changes a correlation by some 1e-6 and keeps the sums in a core's cache."""

_FEWEST_REPLICATES = 200

_AT_ONCE = 32
"""Replicates of a rank correlation that are computed together."""


@dataclass(frozen=True)
class Channel:
    """One way for a norm to change decisions."""

    name: Literal["training", "fusion", "gating", "confidence"]
    active: bool | None
    """None if this run alone cannot tell."""
    evidence: str


@dataclass(frozen=True, kw_only=True)
class NormCorrelation(Estimate):
    """Spearman's rank correlation between the norm of a mated pair, of ``total``, and its score.

    The interval is from a bootstrap over subjects that ranks every replicate anew.
    """

    in_files: ClassVar = (
        "group value interval pairs=total persons=subjects replicates reason=remark"
    )
    group: str | None
    """None for all groups."""
    subjects: int
    replicates: int


@dataclass(frozen=True)
class GroupFnmr:
    """FNMR of a part of a group's mated pairs."""

    group: str | None
    """None for all groups."""
    fnmr: ErrorRate


@dataclass(frozen=True)
class NormBin:
    """FNMR of the mated pairs in one tenth of the norms, the same tenth for all groups."""

    bin: int
    """1 for the lowest norms."""
    low: float
    """Lowest norm of a pair in it."""
    high: float
    """Highest norm of a pair in it."""
    groups: tuple[GroupFnmr, ...]
    """All groups together, then each."""


@dataclass(frozen=True)
class NormDiscard:
    """Error-versus-discard curve: FNMR of what remains as pairs of low norm are left out."""

    group: str | None
    """None for all groups."""
    pairs: int
    errors: int
    """At the start."""
    area: float
    """Under the curve up to a share of 20 % discarded (pAUC)."""
    area_above_best: float
    """The same less the area under max(0, e₀ − x), which no quality undercuts."""
    discarded: tuple[float, ...]
    """Share discarded, ascending from 0 to 1; points are thinned, areas are of all points."""
    fnmr: tuple[float, ...]
    """Among what remains; 0 where nothing does."""


@dataclass(frozen=True)
class Discarded(Estimate):
    """Share of some things that a cut discards; the interval allows for those of one subject."""

    in_files: ClassVar = "discarded=events total value interval"


@dataclass(frozen=True)
class GroupCut:
    """What a common norm cut does to one group."""

    group: str | None
    """None for all groups."""
    images: Discarded
    """Images of mated pairs whose norm is below the cut."""
    pairs: Discarded
    """Mated pairs with such an image."""
    before: ErrorRate
    """FNMR of all mated pairs."""
    after: ErrorRate
    """FNMR of those that remain."""


@dataclass(frozen=True)
class CommonCut:
    """One norm cut for all groups."""

    share: str
    """Share of all mated pairs that it may discard; tied pairs leave together or not at all."""
    norm: float
    """Images with a lower norm are discarded."""
    groups: tuple[GroupCut, ...]
    """All groups together, then each."""


@dataclass(frozen=True)
class GroupStandardised:
    """FNMR of one group, and what it would be with the norms of all groups."""

    group: str
    raw: Estimate
    standardised: Estimate


@dataclass(frozen=True)
class StandardisedGap:
    """FNMR gap between groups before and after giving all the same distribution of norms."""

    method: str
    bins: int
    """Bins that count."""
    support: float
    """Share of all mated pairs in them; raw figures are of these pairs too."""
    groups: tuple[GroupStandardised, ...]
    raw_gap: Estimate | None
    """Highest less lowest FNMR of a group."""
    standardised_gap: Estimate | None
    change: Estimate | None
    """Standardised less raw gap; what the norms explain makes it negative."""
    reason: str | None
    """Why there are no figures."""


@dataclass(frozen=True)
class NormChannels:
    """How norm and errors of mated pairs go together, at one threshold."""

    in_files: ClassVar = (
        "threshold pairs persons=subjects excluded lost correlations bins curves cuts "
        "standardised seed"
    )
    threshold: float
    pairs: int
    subjects: int
    excluded: int
    """Mated pairs with an image without a subject or a group."""
    lost: int
    """Mated pairs without a score or a norm."""
    correlations: tuple[NormCorrelation, ...]
    """All groups together, then each; so are the curves."""
    bins: tuple[NormBin, ...]
    """In ascending order of norms; with many equal norms there are fewer than ten."""
    curves: tuple[NormDiscard, ...]
    cuts: tuple[CommonCut, ...]
    standardised: StandardisedGap
    seed: int


@dataclass(frozen=True, kw_only=True)
class FusionChange(Estimate):
    """Unit less raw fusion of the same images in an error rate.

    The interval is from one joint resample of subjects, thresholds taken as given.
    """

    in_files: ClassVar = "target of group raw unit change=value interval"
    target: str
    """Nominal FMR, at which each fusion has its own global threshold."""
    of: Literal["FMR", "FNMR"]
    group: str | None
    """None for all groups."""
    raw: ErrorRate
    unit: ErrorRate


def channel_checklist(
    *,
    flip: bool | None,
    gating: bool,
    confidence: bool,
) -> tuple[Channel, ...]:
    """Say through which channels norms reach the decisions of a run.

    Args:
        flip: whether raw embeddings of images and mirror images were added; None if unknown.
        gating: whether the user accepts or discards images by norm.
        confidence: whether the user shows or returns the norm as a confidence.
    """
    evidence = {
        True: "raw embeddings of image and mirror image are added",
        False: "each score comes from one embedding a side, or from unit vectors",
        None: "the embeddings do not say whether two views were added",
    }[flip]
    return (
        Channel(
            "training",
            None,
            "the gradient of a raw embedding shrinks with its norm; only runs with and without the "
            "spherical embedding constraint can tell what that does",
        ),
        Channel("fusion", flip, evidence),
        Channel(
            "gating", gating, f"images are {'' if gating else 'not '}accepted by norm (declared)"
        ),
        Channel(
            "confidence",
            confidence,
            f"the norm is {'' if confidence else 'not '}shown or returned as quality (declared)",
        ),
    )


def mated_pairs(subject: ArrayLike) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return all pairs of images of one subject, each once, ``(P,)`` each.

    Args:
        subject: code of the subject on each image, ``(m,)``; negative codes are nobody.
    """
    codes = np.asarray(subject)
    rows = np.flatnonzero(codes >= 0)
    rows = rows[np.argsort(codes[rows], kind="stable")]
    starts = np.flatnonzero(np.diff(codes[rows], prepend=-1))
    sizes = np.diff(starts, append=rows.size)
    sides = [np.empty((2, 0), np.int64)]
    for size in np.unique(sizes):  # subjects with equally many images at once
        images = rows[starts[sizes == size][:, None] + np.arange(size)]
        first, second = np.triu_indices(size, 1)
        sides.append(np.stack([images[:, first].ravel(), images[:, second].ravel()]))
    first, second = np.concatenate(sides, axis=1)
    return first, second


def norm_channels(
    scores: ArrayLike,
    first: ArrayLike,
    second: ArrayLike,
    norms: ArrayLike,
    subject: ArrayLike,
    group: ArrayLike,
    names: Sequence[str],
    *,
    threshold: float,
    replicates: int = REPLICATES,
    seed: int = 0,
) -> NormChannels:
    """Relate the norms of mated pairs to their scores and errors, overall and by group.

    Args:
        scores: of mated pairs, ``(P,)``, NaN where there is none.
        first: image on the first side of each pair, ``(P,)``.
        second: image on the second side, ``(P,)``.
        norms: raw norm of each image, ``(m,)``, NaN where there is none.
        subject: code of the subject on each image, ``(m,)``; −1 where not known.
        group: code of the group of each image, ``(m,)``; −1 where not known.
        names: of the groups.
        threshold: global one; a pair is an error below it.
        replicates: resamples of the subjects; fewer for the rank correlation of many pairs.
        seed: of the resampling.

    Raises:
        MetricError: arrays that do not fit, a pair of two subjects, or no pair that is left.
    """
    pairs = _MatedPairs(scores, first, second, norms, subject, group, names, threshold)
    weights = resample(pairs.subject_count, replicates, seed)
    curve = error_versus_discard(pairs.errors, pairs.quality)
    return NormChannels(
        threshold=threshold,
        pairs=pairs.errors.size,
        subjects=pairs.subject_count,
        excluded=pairs.excluded,
        lost=pairs.lost,
        correlations=tuple(
            _correlation(pairs, name, subset, weights) for name, subset in pairs.subsets
        ),
        bins=_bins(pairs),
        curves=tuple(
            _discard(pairs, name, subset) for name, subset in pairs.subsets if subset.any()
        ),
        cuts=tuple(_common_cut(pairs, curve, share) for share in DISCARD_SHARES),
        standardised=_standardised(pairs, weights),
        seed=seed,
    )


def compare_fusion(
    raw: GroupErrors, unit: GroupErrors, *, replicates: int = REPLICATES, seed: int = 0
) -> tuple[FusionChange, ...]:
    """Compare raw with unit fusion of the same images at the same nominal FMRs.

    Args:
        raw: errors where raw embeddings of two views, or of the images of templates, were added.
        unit: errors where each was normalised before.
        replicates: resamples of the subjects.
        seed: of the resampling.

    Raises:
        MetricError: they are not of the same comparisons and targets.
    """
    targets = [[point.threshold.target for point in side.rates.points] for side in (raw, unit)]
    same = targets[0] == targets[1] and raw.subjects == unit.subjects
    if not same or not all(
        np.array_equal(one.members, other.members) and np.array_equal(one.mated, other.mated)
        for pair in zip(raw.by_subject, unit.by_subject, strict=True)
        for one, other in zip(*pair, strict=True)
    ):
        raise MetricError(
            "raw and unit fusion were not scored on the same comparisons at the same targets; use "
            "the same images, pairs and targets, and leave out what failed in either"
        )
    weights = resample(raw.subjects, replicates, seed)
    changes: list[FusionChange] = []
    for target_index, target in enumerate(targets[0]):
        points = raw.rates.points[target_index], unit.rates.points[target_index]
        drawn = [
            [rate_replicates(counts, weights) for counts in side.by_subject[target_index]]
            for side in (raw, unit)
        ]
        everyone = [_everyone(side.by_subject[target_index], weights) for side in (raw, unit)]
        changes.append(_change(target, "FNMR", None, (points[0].fnmr, points[1].fnmr), everyone))
        for index, name in enumerate(raw.rates.names):
            groups = [point.groups[index] for point in points]
            fmr, fnmr = ([side[index][kind] for side in drawn] for kind in (0, 1))
            changes += [
                _change(target, "FMR", name, (groups[0].fmr, groups[1].fmr), fmr),
                _change(target, "FNMR", name, (groups[0].fnmr, groups[1].fnmr), fnmr),
            ]
    return tuple(changes)


class _MatedPairs:
    """Mated pairs with a score, norms, a subject and a group."""

    def __init__(
        self,
        scores: ArrayLike,
        first: ArrayLike,
        second: ArrayLike,
        norms: ArrayLike,
        subject: ArrayLike,
        group: ArrayLike,
        names: Sequence[str],
        threshold: float,
    ) -> None:
        values, sides = np.asarray(scores), np.stack([np.asarray(first), np.asarray(second)])
        lengths, subjects, code = np.asarray(norms), np.asarray(subject), np.asarray(group)
        if values.ndim != 1 or sides.shape[1:] != values.shape:
            raise MetricError(
                f"{sides.shape[1:]} mated pairs but scores of shape {values.shape}; give one a pair"
            )
        if lengths.ndim != 1 or not lengths.shape == subjects.shape == code.shape:
            raise MetricError(
                f"norms, subjects and groups of images have shapes {lengths.shape}, "
                f"{subjects.shape} and {code.shape}; give one each an image"
            )
        known = ((subjects >= 0) & (code >= 0))[sides].all(axis=0)
        strange = np.flatnonzero(known & (subjects[sides[0]] != subjects[sides[1]]))
        if strange.size:
            both = subjects[sides[:, strange[0]]].tolist()
            raise MetricError(
                f"mated pair {strange[0]} shows the subjects {both[0]} and {both[1]}; give pairs "
                "of one subject"
            )
        quality = lengths[sides].min(axis=0)  # NaN if one of them is
        used = known & ~np.isnan(values) & ~np.isnan(quality)
        if not used.any():
            raise MetricError(
                f"none of {values.size} mated pairs has a score, norms, a subject and a group"
            )
        self.excluded = int(np.count_nonzero(~known))
        self.lost = int(np.count_nonzero(known & ~used))
        self.scores, self.quality, self.sides = values[used], quality[used], sides[:, used]
        # A float32 score is widened; the threshold is never rounded to it.
        self.errors = self.scores < np.float64(threshold)
        numbers, self.subject = np.unique(subjects[self.sides[0]], return_inverse=True)
        self.subject_count = numbers.size
        self.group, self.names = code[self.sides[0]], tuple(names)
        self.image_norms, self.image_subject = lengths, subjects
        everyone = np.ones(self.errors.size, bool)
        self.subsets: list[tuple[str | None, NDArray[np.bool_]]] = [(None, everyone)]
        self.subsets += [(name, self.group == index) for index, name in enumerate(names)]

    def fnmr(self, subset: NDArray[np.bool_]) -> ErrorRate:
        """Return the FNMR of some pairs."""
        return _rate(self.errors[subset], self.subject[subset])


def _correlation(
    pairs: _MatedPairs,
    name: str | None,
    subset: NDArray[np.bool_],
    weights: NDArray[np.uint8],
) -> NormCorrelation:
    count = int(np.count_nonzero(subset))
    members, subject = np.unique(pairs.subject[subset], return_inverse=True)
    subjects = members.size
    norms, scores = (
        np.unique(values[subset], return_inverse=True)[1]
        for values in (pairs.quality, pairs.scores)
    )
    value = _spearman(norms, scores, subject, np.ones((1, subjects)))[0] if count else np.nan
    if np.isnan(value):
        constant = f"{count} mated pairs with equal norms or scores have no rank correlation"
        return NormCorrelation(
            None, total=count, remark=constant, group=name, subjects=subjects, replicates=0
        )
    replicates = min(len(weights), max(_FEWEST_REPLICATES, _CELLS // count))
    drawn = _spearman(_coarse(norms), _coarse(scores), subject, weights[:replicates, members])
    interval = percentile(drawn, subjects)
    reason = "" if interval else f"no interval: replicates of {subjects} subjects do not vary"
    return NormCorrelation(
        float(value),
        interval,
        total=count,
        remark=reason,
        group=name,
        subjects=subjects,
        replicates=replicates,
    )


def _spearman(
    x: NDArray[np.integer],
    y: NDArray[np.integer],
    subject: NDArray[np.integer],
    weights: NDArray,
) -> NDArray[np.float64]:
    """Return correlations of mid-ranks of points whose subjects count several times each.

    Args:
        x: ranks of distinct values, 0, 1, …, ``(P,)``.
        y: the same of the other variable, ``(P,)``.
        subject: of each point, ``(P,)``.
        weights: how often each subject counts, ``(R, subjects)``.

    Returns:
        one an R; NaN where either variable has one value.
    """
    correlations = np.empty(len(weights))
    tables = [
        coo_array((np.ones(x.size), (codes, subject)), (codes.max() + 1, weights.shape[1])).tocsr()
        for codes in (x, y)
    ]
    # Many replicates at once: a point then costs three short rows, not as many single numbers.
    for start in range(0, len(weights), _AT_ONCE):
        times = weights[start : start + _AT_ONCE].T.astype(np.float64)
        (left, spread), (right, width) = (_middle_ranks(table @ times) for table in tables)
        products = np.zeros(times.shape[1])
        for first in range(0, x.size, _AT_ONCE**2):
            chunk = slice(first, first + _AT_ONCE**2)
            cells = left.take(x[chunk], axis=0)
            cells *= right.take(y[chunk], axis=0)
            cells *= times.take(subject[chunk], axis=0)
            products += cells.sum(axis=0)
        with np.errstate(invalid="ignore"):
            correlations[start : start + _AT_ONCE] = products / np.sqrt(spread * width)
    return correlations


def _middle_ranks(counts: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the mid-ranks of values less their mean, and the sums of their squares.

    Args:
        counts: of the points with each value, ``(V, R)``.
    """
    # The mean of mid-ranks is half the total.
    middle = np.cumsum(counts, axis=0) - counts / 2 - counts.sum(axis=0) / 2
    return middle, (counts * middle**2).sum(axis=0)


def _coarse(codes: NDArray[np.integer]) -> NDArray[np.integer]:
    """Return ranks of which at most `_LEVELS` differ, with equally many points each."""
    counts = np.bincount(codes)
    if counts.size <= _LEVELS:
        return codes
    middle = np.cumsum(counts) - counts / 2
    return (middle / codes.size * _LEVELS).astype(np.int64).take(codes)


def _bin_of(pairs: _MatedPairs) -> NDArray[np.int64]:
    """Return the norm bin of each pair, from 0; equal norms share one."""
    edges = np.quantile(pairs.quality, np.arange(1, BINS) / BINS, method="inverted_cdf")
    return np.searchsorted(edges, pairs.quality, side="left")


def _bins(pairs: _MatedPairs) -> tuple[NormBin, ...]:
    bin_of_pair = _bin_of(pairs)
    bins = []
    for index in range(BINS):
        inside = bin_of_pair == index
        if not inside.any():
            continue
        norms = pairs.quality[inside]
        rates = tuple(
            GroupFnmr(name, pairs.fnmr(inside & subset)) for name, subset in pairs.subsets
        )
        bins.append(NormBin(index + 1, float(norms.min()), float(norms.max()), rates))
    return tuple(bins)


def _discard(pairs: _MatedPairs, name: str | None, subset: NDArray[np.bool_]) -> NormDiscard:
    curve = error_versus_discard(pairs.errors[subset], pairs.quality[subset])
    shares, rates = curve.discard_rates, curve.error_rates
    kept = np.unique(np.searchsorted(shares, np.linspace(0, 1, _CURVE_POINTS)))
    return NormDiscard(
        group=name,
        pairs=curve.comparisons,
        errors=int(curve.errors[0]),
        area=curve.area(PARTIAL_AREA),
        area_above_best=curve.area(PARTIAL_AREA, above_best=True),
        discarded=tuple(shares[kept].tolist()),
        fnmr=tuple(rates[kept].tolist()),
    )


def _common_cut(pairs: _MatedPairs, curve: DiscardCurve, share: str) -> CommonCut:
    allowed = allowed_accepts(share, curve.comparisons)
    norm = float(curve.cuts[np.searchsorted(curve.discarded, allowed, side="right") - 1])
    gone = pairs.quality < norm
    groups = []
    for name, subset in pairs.subsets:
        images = np.unique(pairs.sides[:, subset])
        groups.append(
            GroupCut(
                group=name,
                images=_discarded(pairs.image_norms[images] < norm, pairs.image_subject[images]),
                pairs=_discarded(gone[subset], pairs.subject[subset]),
                before=pairs.fnmr(subset),
                after=pairs.fnmr(subset & ~gone),
            )
        )
    return CommonCut(share, norm, tuple(groups))


def _discarded(gone: NDArray[np.bool_], subject: NDArray[np.integer]) -> Discarded:
    rate = _rate(gone, subject)
    return Discarded(rate.value, rate.interval, rate.events, rate.total)


def _rate(events: NDArray[np.bool_], subject: NDArray[np.integer]) -> ErrorRate:
    share = ClusteredShare.from_pairs(events, subject, subject) if events.size else None
    return rate_of(share)


def _standardised(pairs: _MatedPairs, weights: NDArray[np.uint8]) -> StandardisedGap:
    groups = len(pairs.names)
    counts = _Counts(pairs, weights)
    common = (counts.subjects >= MIN_SUBJECTS).all(axis=0)
    support = float(counts.pairs[:, common].sum() / pairs.errors.size)
    if groups < 2 or not common.any():
        reason = (
            "one group alone"
            if groups < 2
            else f"no norm bin has {MIN_SUBJECTS} subjects of every group"
        )
        return StandardisedGap(STANDARDISATION, 0, 0.0, (), None, None, None, reason)
    shares = counts.pairs[:, common].sum(axis=0)
    shares = shares / shares.sum()

    def raw(errors: NDArray, made: NDArray) -> NDArray[np.float64]:
        return errors[..., common].sum(axis=-1) / made[..., common].sum(axis=-1)

    def standardised(errors: NDArray, made: NDArray) -> NDArray[np.float64]:
        return (errors[..., common] / made[..., common]) @ shares

    def gap(rates: NDArray[np.float64]) -> NDArray[np.float64]:
        return rates.max(axis=-1) - rates.min(axis=-1)

    # A group without a pair in a bin makes its replicate undefined.
    with np.errstate(invalid="ignore"):
        values = [f(counts.errors, counts.pairs) for f in (raw, standardised)]
        drawn = [f(counts.drawn_errors, counts.drawn_pairs) for f in (raw, standardised)]
    members = np.bincount(counts.group_of, minlength=groups)

    def contrast(value: float, replicates: NDArray[np.float64], subjects: int) -> Estimate:
        return Estimate(float(value), percentile(replicates, int(subjects)))

    gaps = [float(gap(rates)) for rates in values]
    drawn_gaps = [gap(rates) for rates in drawn]
    return StandardisedGap(
        method=STANDARDISATION,
        bins=int(np.count_nonzero(common)),
        support=support,
        groups=tuple(
            GroupStandardised(
                name,
                *(
                    contrast(rates[index], replicates[:, index], members[index])
                    for rates, replicates in zip(values, drawn, strict=True)
                ),
            )
            for index, name in enumerate(pairs.names)
        ),
        raw_gap=contrast(gaps[0], drawn_gaps[0], pairs.subject_count),
        standardised_gap=contrast(gaps[1], drawn_gaps[1], pairs.subject_count),
        change=contrast(gaps[1] - gaps[0], drawn_gaps[1] - drawn_gaps[0], pairs.subject_count),
        reason=None,
    )


class _Counts:
    """Mated pairs and errors by group and norm bin, as they are and in every replicate."""

    def __init__(self, pairs: _MatedPairs, weights: NDArray[np.uint8]) -> None:
        groups = len(pairs.names)
        cell = pairs.subject * BINS + _bin_of(pairs)
        made, errors = (
            np.bincount(cell, values, pairs.subject_count * BINS).reshape(pairs.subject_count, BINS)
            for values in (np.ones(cell.size), pairs.errors)
        )
        self.group_of = np.empty(pairs.subject_count, np.int64)
        self.group_of[pairs.subject] = pairs.group
        own = [self.group_of == code for code in range(groups)]
        self.subjects = np.array([np.count_nonzero(made[members], axis=0) for members in own])
        """Subjects with a pair, ``(D, BINS)``."""
        self.pairs = np.array([made[members].sum(axis=0) for members in own])
        self.errors = np.array([errors[members].sum(axis=0) for members in own])
        drawn = [weights[:, members].astype(np.float64) for members in own]
        self.drawn_pairs, self.drawn_errors = (
            np.stack([w @ counts[p] for w, p in zip(drawn, own, strict=True)], axis=1)
            for counts in (made, errors)
        )
        """``(R, D, BINS)`` each."""


def _everyone(counts: Sequence[SubjectCounts], weights: NDArray[np.uint8]) -> NDArray[np.float64]:
    """Return the FNMR of all groups together in every replicate."""
    drawn = [weights[:, group.members].astype(np.float64) for group in counts]
    missed = sum(own @ group.missed for own, group in zip(drawn, counts, strict=True))
    mated = sum(own @ group.mated for own, group in zip(drawn, counts, strict=True))
    return quotients(np.asarray(missed), np.asarray(mated))


def _change(
    target: str,
    of: Literal["FMR", "FNMR"],
    group: str | None,
    rates: tuple[ErrorRate, ErrorRate],
    drawn: Sequence[NDArray[np.float64] | None],
) -> FusionChange:
    change = interval = None
    if rates[0].value is not None and rates[1].value is not None:
        change = rates[1].value - rates[0].value
        if drawn[0] is not None and drawn[1] is not None:
            interval = percentile(drawn[1] - drawn[0], rates[0].subjects)
    return FusionChange(
        change, interval, target=target, of=of, group=group, raw=rates[0], unit=rates[1]
    )
