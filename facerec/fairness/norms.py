"""Norms by group: distributions, spread between and within subjects, cluster-bootstrap intervals.

Images of one subject resemble each other, so the subject is the unit of every interval. Where a
subject with many images weighs much, or the spread of few subjects is asked for, a bootstrap covers
too little, and the interval is that of a formula. Else subjects are drawn with replacement within
their groups, all their images follow, and each figure is computed inside each replicate from sums
over subjects, by the rule that gives the estimate.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import ndtr, ndtri, stdtrit

from facerec.errors import MetricError
from facerec.fairness.attributes import ALL_GROUPS, Grouping, Joined
from facerec.report.estimate import Estimate
from facerec.statistics.intervals import Interval

INDEPENDENT_SUBJECTS = "subjects are independent"
PERCENTILE = "cluster bootstrap over subjects, expanded percentile"
BCA = "cluster bootstrap over subjects, BCa"
CLUSTERED_T = "sandwich by subject, Student's t"
BONETT = "Bonett with Student's t, within subjects by jackknife, MOVER"
JACKKNIFE = "jackknife over subjects on a log scale, Student's t"
WOODRUFF = "cluster bootstrap over subjects, inverted (Woodruff)"
NO_SPREAD = "no interval: there are fewer than two subjects, or they do not differ"
QUANTILES = {"p5": 0.05, "p25": 0.25, "median": 0.5, "p75": 0.75, "p95": 0.95}
"""Quantiles of a norm table by name."""

DRAWN_AT_ONCE = 1 << 21
"""How often subjects are drawn in replicates: numbers held at once."""

Array = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class SubjectNorms:
    """Norms of acquired images, with the subject of each and the group of each subject."""

    name: str
    """The attribute, or the intersection."""
    names: tuple[str, ...]
    """The k groups."""
    groups: NDArray[np.int64]
    """Group of each subject, ``(G,)``, every one of 0 … k − 1 at least once."""
    norms: Array
    """Raw norm of each image, ``(N,)``."""
    subjects: NDArray[np.int64]
    """Subject 0 … G − 1 of each image, ``(N,)``."""
    covariates: Mapping[str, Array] = field(default_factory=dict)
    """Value of each covariate, ``(N,)``, NaN where none is recorded."""

    def __post_init__(self) -> None:
        sizes = np.bincount(self.groups, minlength=len(self.names))
        if len(sizes) != len(self.names) or not sizes.all():
            raise MetricError(
                f"{self.name}: {len(self.names)} groups are named but subjects are in "
                f"{np.count_nonzero(sizes)}; leave empty groups out"
            )
        if self.norms.shape != self.subjects.shape or not np.isfinite(self.norms).all():
            raise MetricError(
                f"{self.name}: every image needs one subject and one finite norm; leave images "
                "that were not acquired out"
            )
        if len(np.unique(self.subjects)) != len(self.groups):
            raise MetricError(f"{self.name}: a subject has no image; leave such subjects out")

    @classmethod
    def from_images(
        cls,
        norms: ArrayLike,
        subjects: ArrayLike,
        groups: ArrayLike,
        covariates: Mapping[str, ArrayLike] | None = None,
        name: str = "group",
    ) -> SubjectNorms:
        """Number subjects and groups in their sorted order.

        Args:
            norms: of images, ``(N,)``, finite.
            subjects: of images, ``(N,)``, any names or numbers.
            groups: of images, ``(N,)``, any names or numbers.
            covariates: of images, ``(N,)`` each.
            name: of the attribute.

        Raises:
            MetricError: no image, lengths that differ, a norm that is not finite, or a subject in
                two groups.
        """
        values = np.asarray(norms, dtype=np.float64)
        known, first, index = np.unique(
            np.asarray(subjects), return_index=True, return_inverse=True
        )
        names, codes = np.unique(np.asarray(groups), return_inverse=True)
        columns = {key: np.asarray(v, dtype=np.float64) for key, v in (covariates or {}).items()}
        lengths = {array.shape for array in (values, index, codes, *columns.values())}
        if lengths != {(len(values),)} or not len(values):
            raise MetricError(
                f"{name}: norms, subjects, groups and covariates must be one an image, found "
                f"shapes {sorted(lengths)}"
            )
        torn = np.flatnonzero(codes != codes[first][index])
        if len(torn):
            raise MetricError(
                f"{name}: subject {known[index[torn[0]]]} is in the groups "
                f"{names[codes[first[index[torn[0]]]]]} and {names[codes[torn[0]]]}; a subject "
                "has one group"
            )
        texts = tuple(str(text) for text in names.tolist())
        return cls(name, texts, codes[first], values, index.astype(np.int64), columns)

    @classmethod
    def of(cls, joined: Joined, grouping: Grouping) -> SubjectNorms:
        """Take the acquired images of the shown groups.

        Raises:
            MetricError: all groups are suppressed.
        """
        inside = (grouping.codes >= 0) & joined.acquired
        if not inside.any():
            raise MetricError(
                f"{grouping.name}: no group has enough subjects to be shown; there is nothing to "
                "audit by it"
            )
        _, first, index = np.unique(joined.subjects[inside], return_index=True, return_inverse=True)
        return cls(
            grouping.name,
            grouping.names,
            grouping.codes[inside][first],
            joined.norms[inside],
            index.astype(np.int64),
            {name: column[inside] for name, column in joined.covariates.items()},
        )

    @property
    def counts(self) -> NDArray[np.int64]:
        """Images of each subject, ``(G,)``."""
        return np.bincount(self.subjects)

    @property
    def means(self) -> Array:
        """Mean norm of each subject, ``(G,)``."""
        # Taken about a centre, or a common offset would eat the digits.
        centre = float(self.norms.mean())
        return centre + np.bincount(self.subjects, weights=self.norms - centre) / self.counts

    @property
    def sizes(self) -> NDArray[np.int64]:
        """Subjects in each group, ``(k,)``."""
        return np.bincount(self.groups)


class SubjectBootstrap:
    """How often each subject is drawn in each replicate; the same for every figure and attribute.

    Groups draw in the order of their first subjects, so that their names change nothing.
    """

    def __init__(self, groups: ArrayLike, replicates: int = 2000, seed: int = 0) -> None:
        """Draw as many subjects from every group as it has, with replacement.

        Args:
            groups: group 0 … k − 1 of each subject, ``(G,)``.
            replicates: R, the number of resamples.
            seed: equal seeds draw equal multiplicities.

        Raises:
            MetricError: no replicate.
        """
        if replicates < 1:
            raise MetricError(f"{replicates} replicates; a bootstrap needs at least one")
        codes = np.asarray(groups)
        self.replicates, self.seed = replicates, seed
        self.members = [np.flatnonzero(codes == g) for g in range(int(codes.max()) + 1)]
        self.multiplicities: list[NDArray[np.uint8]] = [np.empty((0, 0), np.uint8)] * len(
            self.members
        )
        """Of the subjects of each group, ``(R, n)``. A byte is enough, see `VertexBootstrap`."""
        generator = np.random.default_rng(seed)
        for g in in_order_of_appearance(codes):
            size = len(self.members[g])
            drawn = np.empty((replicates, size), dtype=np.uint8)
            for row in drawn:
                row[:] = np.bincount(generator.integers(size, size=size), minlength=size)
            self.multiplicities[g] = drawn

    def sums(self, group: int, features: Array) -> Array:
        """Return the sum over drawn subjects, ``(R, F)``.

        Args:
            group: which.
            features: of its subjects in their order, ``(n, F)``.
        """
        return drawn_sums(self.multiplicities[group], features)


def drawn_sums(drawn: NDArray[np.uint8], features: Array) -> Array:
    """Return the sums of the features of subjects, each as often as it is drawn, ``(R, F)``.

    Args:
        drawn: how often each subject is drawn in each replicate, ``(R, n)``.
        features: of the subjects, ``(n, F)``.
    """
    result = np.empty((len(drawn), features.shape[1]))
    step = max(1, DRAWN_AT_ONCE // drawn.shape[1])
    for start in range(0, len(drawn), step):
        batch = slice(start, start + step)
        result[batch] = drawn[batch].astype(np.float64) @ features
    return result


@dataclass(frozen=True)
class NormSummary:
    """The norms of one group."""

    name: str
    """The group."""
    subjects: int
    """Subjects with an acquired image."""
    images: int
    """Acquired images."""
    mean: Estimate
    """Mean over images."""
    subject_mean: Estimate
    """Mean of the subjects' means, in which everybody counts once; tests compare these."""
    difference: Estimate | None
    """``subject_mean`` minus that of all groups together; None for all groups."""
    sd: Estimate
    """Standard deviation over images."""
    cv: Estimate
    """``sd`` / ``mean``."""
    between_sd: Estimate
    """Standard deviation between subjects, beyond what few images each explain (0 if nothing);
    everybody counts once."""
    within_sd: Estimate
    """Standard deviation between the images of one subject."""
    icc: Estimate
    """Intraclass correlation ICC(1), the share of the variance that lies between subjects."""
    quantiles: Mapping[str, Estimate]
    """Over images, by the names of `QUANTILES`."""
    images_per_subject: float
    """m = (N − Σ m² / N) / (G − 1), or N for one subject; the mean where all have equally many."""
    design_effect: float | None
    """1 + (m − 1) · ICC, by which clustering inflates the variance of ``mean``; at least 1."""
    effective_images: float | None
    """Images / design effect."""


@dataclass(frozen=True)
class NormTable:
    """Norms of all groups of an attribute or intersection."""

    name: str
    """The attribute, or the intersection."""
    groups: tuple[NormSummary, ...]
    """In the order of the groups."""
    overall: NormSummary
    """All of them together."""
    single_images: bool
    """Whether each subject has one image, so that nothing is known of the spread within."""
    replicates: int
    """Of the bootstrap."""
    seed: int
    """Of the bootstrap."""


def norm_table(sample: SubjectNorms, bootstrap: SubjectBootstrap) -> NormTable:
    """Summarise the norms of every group and of all together.

    Args:
        sample: the norms.
        bootstrap: of its groups.
    """
    centre = float(sample.norms.mean())
    features = _features(sample, centre)
    sums = [bootstrap.sums(g, features[ids]) for g, ids in enumerate(bootstrap.members)]
    everybody = np.arange(len(sample.groups))
    overall = _Subjects(sample, features, sum(sums, np.zeros_like(sums[0])), everybody, centre)
    below = [bootstrap.sums(g, overall.below[ids]) for g, ids in enumerate(bootstrap.members)]
    whole = overall.summary(ALL_GROUPS, sum(below, np.zeros_like(below[0])), len(sums), None)
    rows = []
    for g, ids in enumerate(bootstrap.members):
        group = _Subjects(sample, features, sums[g], ids, centre)
        rows.append(group.summary(sample.names[g], bootstrap.sums(g, group.below), 1, overall))
    return NormTable(
        name=sample.name,
        groups=tuple(rows),
        overall=whole,
        single_images=len(sample.groups) == len(sample.norms),
        replicates=bootstrap.replicates,
        seed=bootstrap.seed,
    )


def percentile(replicates: Array, subjects: int, confidence: float = 0.95) -> Interval | None:
    """Return the expanded percentile interval of a figure from its bootstrap replicates.

    The plain percentile interval is too narrow by √((n − 1) / n) and by normal instead of t
    quantiles; both are made up for by taking quantiles further out (Hesterberg, The American
    Statistician 69, 2015, section 5.4). Limits are values of replicates.

    Args:
        replicates: ``(R,)``, NaN where undefined.
        subjects: n that are drawn.
        confidence: coverage, between 0 and 1.

    Returns:
        None with fewer than two subjects, or replicates that are undefined or all equal.
    """
    if subjects < 2:
        return None
    level = tail(subjects, confidence)
    return _between(replicates, level, 1 - level, confidence, PERCENTILE)


def bca(
    value: float, replicates: Array, left_out: Array, subjects: int, confidence: float = 0.95
) -> Interval | None:
    """Return the bias-corrected and accelerated interval of a figure, expanded like `percentile`.

    Efron, Journal of the American Statistical Association 82, 1987.

    Args:
        value: the figure.
        replicates: ``(R,)``, NaN where undefined.
        left_out: the figure without one subject each, ``(n,)``; fewer where that is undefined.
        subjects: n that are drawn.
        confidence: coverage, between 0 and 1.

    Returns:
        None with fewer than two subjects, or replicates that are undefined or all equal.
    """
    defined = replicates[~np.isnan(replicates)]
    if subjects < 2 or not len(defined):
        return None
    below = (np.mean(defined < value) + np.mean(defined <= value)) / 2
    # Beyond all replicates the bias is as large as they can tell.
    least = 1 / (len(defined) + 1)
    bias = float(ndtri(min(max(below, least), 1 - least)))
    influence = left_out.sum() / max(len(left_out), 1) - left_out
    size = float((influence**2).sum())
    skew = float((influence**3).sum()) / (6 * size**1.5) if size > 0 else 0.0
    reach = _reach(subjects, confidence)
    # Where skew · z reaches 1 the limit lies beyond all replicates.
    low, high = (
        float(ndtr(bias + z / max(1 - skew * z, 1e-9))) for z in (bias - reach, bias + reach)
    )
    return _between(replicates, low, high, confidence, BCA)


def clustered_mean(
    values: Array, weights: Array, variances: Array, confidence: float = 0.95
) -> Interval | None:
    """Return the interval of a weighted mean of values of subjects.

    The squared residual of a subject is divided by 1 − its share of the weight, which keeps the sum
    from being too small where few have most of it (Bell and McCaffrey, Survey Methodology 28,
    2002). Degrees of freedom are (n − 1) / n of the effective number of subjects by their
    contributions to the variance; with equal weights that is the usual interval of a mean.

    Args:
        values: one a subject, ``(n,)``.
        weights: positive, ``(n,)``.
        variances: what the value of each is thought to vary by, up to a factor, ``(n,)``; for the
            degrees of freedom alone.
        confidence: coverage, between 0 and 1.

    Returns:
        None with fewer than two subjects, or values that are all equal.
    """
    count = len(values)
    shares = weights / weights.sum()
    mean = float(shares @ values)
    if count < 2:
        return None
    error = math.sqrt(float((shares**2 * (values - mean) ** 2 / (1 - shares)).sum()))
    contributions = shares**2 * variances
    if not (error > 1e-12 * abs(mean) and contributions.any()):
        return None
    effective = float(contributions.sum() ** 2 / (contributions**2).sum())
    freedom = max(1.0, effective * (count - 1) / count)
    margin = float(stdtrit(freedom, (1 + confidence) / 2)) * error
    return Interval(mean - margin, mean + margin, confidence, CLUSTERED_T, INDEPENDENT_SUBJECTS)


def variance_interval(values: Array, confidence: float = 0.95) -> tuple[float, float] | None:
    """Return the limits of the variance of values of subjects, whatever their kurtosis.

    Bonett, Computational Statistics & Data Analysis 50, 2006, with a quantile of t in place of the
    normal one for the error.

    Args:
        values: one a subject, ``(n,)``.
        confidence: coverage, between 0 and 1.

    Returns:
        None with fewer than three subjects, or values that are all equal.
    """
    count, tail = len(values), (1 + confidence) / 2
    normal = float(ndtri(tail))
    if count < 3 or count <= normal:
        return None
    squares = (values - values.mean()) ** 2
    total = float(squares.sum())
    if total <= 1e-24 * float(values @ values):
        return None
    # The share trimmed off either end is below one half.
    cut = math.floor(count / (2 * math.sqrt(count - 4))) if count > 5 else (count - 1) // 2
    ordered = np.sort(values)
    centre = ordered[cut : count - cut].mean()
    kurtosis = count * float(((values - centre) ** 4).sum()) / total**2
    factor = count / (count - normal)
    error = factor * math.sqrt((kurtosis - (count - 3) / count) / (count - 1))
    middle = math.log(factor * total / (count - 1))
    margin = float(stdtrit(count - 1, tail)) * error
    return math.exp(middle - margin), math.exp(min(middle + margin, 700.0))


def within_interval(
    squares: Array, counts: Array, confidence: float = 0.95
) -> tuple[float, float] | None:
    """Return the limits of the variance between images of one subject.

    A jackknife over subjects of the logarithm (Miller, Biometrika 61, 1974), with the degrees of
    freedom of the effective number of subjects by images beyond the first.

    Args:
        squares: sum of squares about the subject's own mean, ``(n,)``.
        counts: images, ``(n,)``.
        confidence: coverage, between 0 and 1.

    Returns:
        None where it cannot be had without each subject in turn.
    """
    spare = counts - 1.0
    used = spare > 0
    squares, spare = squares[used], spare[used]
    count = len(spare)
    left, freedom = squares.sum() - squares, spare.sum() - spare
    if count < 2 or not (left > 1e-12 * squares.sum()).all():
        return None
    logarithms = np.log(left / freedom)
    whole = math.log(squares.sum() / spare.sum())
    mean = float(logarithms.mean())
    error = math.sqrt((count - 1) / count * float(((logarithms - mean) ** 2).sum()))
    effective = float(spare.sum() ** 2 / (spare**2).sum())
    margin = float(stdtrit(max(1.0, effective - 1), (1 + confidence) / 2)) * error
    middle = count * whole - (count - 1) * mean
    # The jackknife moves the middle; the figure itself stays inside.
    ends = min(middle - margin, whole), max(middle + margin, whole)
    return math.exp(ends[0]), math.exp(min(ends[1], 700.0))


def between_sd(
    means: Array, squares: Array, counts: Array, confidence: float = 0.95
) -> tuple[float, Interval | None]:
    """Return the standard deviation between subjects with its interval; everybody counts once.

    From the variance of the subjects' means is taken what the noise of their images explains
    (Thomas and Hultquist, Annals of Statistics 6, 1978); limits of both are joined by MOVER (Zou
    and Donner, Statistics in Medicine 27, 2008).

    Args:
        means: of the images of each subject, ``(n,)``.
        squares: sum of squares about it, ``(n,)``.
        counts: images, ``(n,)``.
        confidence: coverage, between 0 and 1.

    Returns:
        The figure, NaN where no subject has two images or there is one subject; its interval, None
        where there is none.
    """
    spare = float((counts - 1).sum())
    if len(means) < 2 or spare <= 0:
        return math.nan, None
    share = float((1 / counts).mean())
    spread, noise = float(means.var(ddof=1)), float(squares.sum()) / spare * share
    variance = spread - noise
    value = math.sqrt(max(variance, 0.0))
    around = variance_interval(means, confidence)
    within = within_interval(squares, counts, confidence)
    if within is None and noise == 0:
        within = 0.0, 0.0
    if around is None or within is None:
        return value, None
    low, high = (share * limit for limit in within)
    below = math.hypot(spread - min(around[0], spread), high - noise)
    above = math.hypot(max(around[1], spread) - spread, noise - low)
    lower, upper = (math.sqrt(max(0.0, x)) for x in (variance - below, variance + above))
    return value, Interval(lower, upper, confidence, BONETT, INDEPENDENT_SUBJECTS)


def _between(
    replicates: Array, low: float, high: float, confidence: float, method: str
) -> Interval | None:
    """Return the replicates at two shares of all, taken outwards."""
    defined = np.sort(replicates[~np.isnan(replicates)])
    if not len(defined) or defined[0] == defined[-1]:
        return None
    last = len(defined) - 1
    # Counted from both ends alike; 1 − 0.975 exceeds 0.025 by rounding.
    below, above = (int(share * last + 1e-9) for share in (low, 1 - high))
    ends = float(defined[below]), float(defined[last - above])
    assumption = INDEPENDENT_SUBJECTS
    if len(defined) < len(replicates):
        dropped = len(replicates) - len(defined)
        assumption += f"; {dropped:,} of {len(replicates):,} replicates undefined and left out"
    return Interval(*ends, confidence, method, assumption)


def tail(subjects: int, confidence: float) -> float:
    """Return the share of replicates beyond either limit of an expanded percentile interval."""
    return float(ndtr(-_reach(subjects, confidence)))


def _reach(subjects: int, confidence: float) -> float:
    quantile = float(stdtrit(subjects - 1, (1 + confidence) / 2))
    return math.sqrt(subjects / (subjects - 1)) * quantile


def in_order_of_appearance(groups: NDArray[np.int64]) -> list[int]:
    """Return the groups in the order of their first subjects, whatever their names."""
    codes, first = np.unique(groups, return_index=True)
    return [int(code) for code in codes[np.argsort(first)]]


def _features(sample: SubjectNorms, centre: float) -> Array:
    """Return what every figure is computed from, of every subject, ``(G, 6)``."""
    counts, means = sample.counts.astype(np.float64), sample.means
    deviations = sample.norms - means[sample.subjects]
    within = np.bincount(sample.subjects, weights=deviations**2)
    shifted = means - centre
    columns = [counts, counts**2, counts * shifted, counts * shifted**2, shifted, within]
    return np.stack(columns, axis=1)


def _figures(sums: Array, subjects: int, centre: float, inflation: float = 1.0) -> dict[str, Array]:
    """Return figures by name from sums over subjects, ``(6,)`` or ``(R, 6)``; NaN if undefined.

    The variance components are those of a one-way analysis of variance with subjects as its groups
    (Searle, Casella and McCulloch, Variance Components, Wiley 1992, section 3.6; ICC(1) of Shrout
    and Fleiss, Psychological Bulletin 86, 1979).

    Args:
        sums: of `_features`.
        subjects: that they are over.
        centre: of the features.
        inflation: factor on the sum of squares between subjects, n / (n − 1) for replicates, in
            which it is that much too small.
    """
    images, squared, total, weighted, means, within = np.moveaxis(sums, -1, 0)
    with np.errstate(divide="ignore", invalid="ignore"):
        # Sums of squares are never negative but for rounding.
        between = np.maximum(weighted - total**2 / images, 0) * inflation
        mean = centre + total / images
        sd = np.sqrt((between + within) / (images - 1))
        per_subject = (images - squared / images) / (subjects - 1)
        mean_square = between / (subjects - 1)
        error = within / (images - subjects)
        variance = (mean_square - error) / per_subject
        return {
            "mean": mean,
            "subject_mean": centre + means / subjects,
            "sd": sd,
            "cv": sd / mean,
            "within_sd": np.sqrt(error),
            "icc": variance / (variance + error),
            "images_per_subject": per_subject,
        }


class _Subjects:
    """Subjects of one group, or all, with figures of them and of their replicates."""

    def __init__(
        self,
        sample: SubjectNorms,
        features: Array,
        sums: Array,
        members: NDArray[np.intp],
        centre: float,
    ) -> None:
        """Compute figures.

        Args:
            sample: the norms.
            features: of all subjects, ``(G, 6)``.
            sums: of drawn subjects, ``(R, 6)``.
            members: who they are among all subjects, ``(n,)``.
            centre: of the features.
        """
        self.subjects, self.sums, self.centre = len(members), sums, centre
        own = features[members]
        self.counts, self.means, self.squares = own[:, 0], centre + own[:, 4], own[:, 5]
        inside = np.isin(sample.subjects, members)
        self.norms = sample.norms[inside]
        self.figures = _figures(own.sum(axis=0), self.subjects, centre)
        self.left_out = _figures(own.sum(axis=0) - own, self.subjects - 1, centre)
        subjects = sample.subjects[inside]
        counts = [
            np.bincount(subjects[self.norms <= cut], minlength=len(sample.groups))[members]
            for cut in np.quantile(self.norms, list(QUANTILES.values()))
        ]
        self.below = np.stack(counts, axis=1).astype(np.float64)
        """Images of each subject at or below each quantile, ``(n, 5)``."""

    def summary(self, name: str, below: Array, groups: int, whole: _Subjects | None) -> NormSummary:
        """Put the row together.

        Args:
            name: of the group.
            below: drawn images at or below each quantile, ``(R, 5)``.
            groups: within which subjects are drawn.
            whole: all groups; None if this is they.
        """
        subjects, images = self.subjects, len(self.norms)
        inflation = subjects / (subjects - groups) if subjects > groups else 1.0
        replicates = _figures(self.sums, subjects, self.centre, inflation)

        def estimate(figure: str) -> Estimate:
            value = float(self.figures[figure])
            if not math.isfinite(value):
                return Estimate(None, total=subjects, remark=_undefined(figure, subjects, images))
            left_out = self.left_out[figure]
            left_out = left_out[np.isfinite(left_out)]
            interval = bca(value, replicates[figure], left_out, subjects)
            return estimate_of(value, interval, subjects)

        difference = None
        if whole is not None:
            values = replicates["subject_mean"] - whole.replicated_mean
            interval = percentile(values, subjects)
            value = float(self.figures["subject_mean"] - whole.figures["subject_mean"])
            difference = estimate_of(value, interval, subjects)
        figures = {figure: estimate(figure) for figure in self.figures}
        figures |= self._by_formula(figures)
        per_subject = figures.pop("images_per_subject").value or float(images)
        icc = figures["icc"].value
        design = None if icc is None else max(1.0, 1 + (per_subject - 1) * icc)
        shares = below / self.sums[:, :1]
        return NormSummary(
            name=name,
            subjects=subjects,
            images=images,
            difference=difference,
            quantiles={
                key: _quantile(self.norms, share, shares[:, i], subjects)
                for i, (key, share) in enumerate(QUANTILES.items())
            },
            images_per_subject=per_subject,
            design_effect=design,
            effective_images=None if design is None else images / design,
            **figures,
        )

    def _by_formula(self, figures: dict[str, Estimate]) -> dict[str, Estimate]:
        """Return the figures whose intervals come from a formula; the values of others stay."""
        between, interval = between_sd(self.means, self.squares, self.counts)
        images = len(self.norms)
        known = math.isfinite(between)
        undefined = _undefined("between_sd", self.subjects, images)
        result = {
            "between_sd": estimate_of(between, interval, self.subjects)
            if known
            else Estimate(None, total=self.subjects, remark=undefined)
        }
        alike, own = np.ones(self.subjects), self.counts
        error = figures["within_sd"].value
        varies = alike if error is None or not known else between**2 + error**2 / own
        intervals = {
            "mean": clustered_mean(self.means, own, varies),
            "subject_mean": clustered_mean(self.means, alike, alike),
            "within_sd": None,
        }
        if error is not None:
            limits = within_interval(self.squares, own)
            if limits is not None:
                low, high = map(math.sqrt, limits)
                intervals["within_sd"] = Interval(
                    low, high, method=JACKKNIFE, assumption=INDEPENDENT_SUBJECTS
                )
        for name, limit in intervals.items():
            if limit is not None and limit.low < 0:
                limit = replace(limit, low=0.0)  # no norm is negative
            if figures[name].value is not None:
                result[name] = estimate_of(figures[name].value, limit, self.subjects)
        return result

    @property
    def replicated_mean(self) -> Array:
        """Replicates of the mean of the subjects' means, ``(R,)``."""
        return _figures(self.sums, self.subjects, self.centre)["subject_mean"]


def estimate_of(
    value: float | None, interval: Interval | None, subjects: int, missing: str = NO_SPREAD
) -> Estimate:
    """Return a figure of some subjects, with why it has no interval if it has none."""
    return Estimate(value, interval, total=subjects, remark="" if interval else missing)


def _undefined(figure: str, subjects: int, images: int) -> str:
    if subjects < 2 and figure != "within_sd":
        return "one subject"
    if images == subjects:
        return "one image a subject"
    return "all norms are equal" if figure == "icc" else "the mean is zero"


def _quantile(norms: Array, share: float, below: Array, subjects: int) -> Estimate:
    """Return a quantile with the norms at the limits of the share below it as its interval.

    Woodruff, Journal of the American Statistical Association 47, 1952.

    Args:
        norms: of the images, ``(N,)``.
        share: of images below the quantile.
        below: share of drawn images at or below it, ``(R,)``.
        subjects: in the group.
    """
    value = float(np.quantile(norms, share))
    around = percentile(below, subjects)
    if around is None:
        return estimate_of(value, None, subjects)
    centre = np.count_nonzero(norms <= value) / len(norms)
    ends = np.clip([share - (around.high - centre), share + (centre - around.low)], 0, 1)
    low, high = np.quantile(norms, ends).tolist()
    interval = replace(around, low=low, high=high, method=WOODRUFF)
    return estimate_of(value, interval, subjects)
