"""How norms and errors vary between subjects and within them, and made-up audits drawn from that.

Audits are planned by drawing subjects who are not there. What they must have in common with real
ones is what makes comparisons dependent, since that decides how much a number of them says:

- the norm of an image is that of its subject plus something of its own;
- a subject may resemble many others (a lamb or wolf of Doddington's menagerie), so each has a
  factor on the false match rate; and where two images of two subjects match, other images of the
  same two are likely to match too;
- a subject, or an image, may be hard to recognise, so false non-matches share both.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.optimize import brentq
from scipy.sparse import coo_array, csr_array
from scipy.special import betaln, gammaln, ndtri, psi
from scipy.stats import multivariate_normal

from facerec.errors import DatasetError
from facerec.fairness.channels import mated_pairs
from facerec.fairness.norms import SubjectBootstrap, SubjectNorms, norm_table
from facerec.fairness.pair_counts import SubjectCounts
from facerec.fairness.plain import AUDIT_SCHEMA
from facerec.fairness.rates import GroupErrors, all_pairs_group_rates
from facerec.progress import Progress
from facerec.verification.evaluation import score_pairs

Array = NDArray[np.float64]
Generator = np.random.Generator

FEWEST_ERRORS = 30
"""False matches or non-matches from which on their dependence is estimated."""

MOST_CORRELATED = 0.95


@dataclass(frozen=True)
class NormSpread:
    """Norms of raw embeddings within a group."""

    mean: float
    between: float
    """SD of subjects."""
    within: float
    """SD of the images of a subject."""

    @property
    def total(self) -> float:
        """SD of images."""
        return math.hypot(self.between, self.within)

    def of_means(self, images: int) -> float:
        """Return the SD of the mean norms of subjects with some number of images each."""
        return math.hypot(self.between, self.within / math.sqrt(images))


@dataclass(frozen=True)
class FalseMatchSpread:
    """How false matches within a group gather around subjects, at one false match rate."""

    in_files: ClassVar = "fmr persons=subjects concordance"
    fmr: float
    subjects: float
    """Variance of the logarithm of a subject's factor on the rate."""
    concordance: float
    """Correlation of two comparisons of the same two subjects."""


@dataclass(frozen=True)
class MissSpread:
    """How false non-matches within a group gather, as correlations of normal scores."""

    in_files: ClassVar = "person=subject image"
    subject: float
    """Of two mated comparisons of one subject without an image in common."""
    image: float
    """What an image in common adds to it; every comparison has two images."""


@dataclass(frozen=True)
class Components:
    """All that a plan takes from elsewhere."""

    norms: NormSpread
    false_matches: tuple[FalseMatchSpread, ...]
    """By falling rate."""
    misses: MissSpread
    source: Mapping[str, str]
    """Where ``norms``, ``false_matches`` and ``misses`` come from."""

    def at(self, fmr: float) -> FalseMatchSpread:
        """Return the spread of false matches at a rate, between those known in its logarithm."""
        known = sorted(self.false_matches, key=lambda spread: spread.fmr)
        logs = np.log([spread.fmr for spread in known])
        subjects, concordance = (
            float(np.interp(math.log(fmr), logs, [getattr(spread, name) for spread in known]))
            for name in ("subjects", "concordance")
        )
        return FalseMatchSpread(fmr, subjects, concordance)


_LFW = (
    "LFW (7,695 images of 4,278 subjects) by recorded gender, embedded by a published "
    "MobileFaceNet of 98.2 % on LFW; within groups"
)

DEFAULTS = Components(
    norms=NormSpread(13.4, 0.89, 1.09),
    false_matches=(
        FalseMatchSpread(1e-2, 0.33, 0.25),
        FalseMatchSpread(1e-3, 0.55, 0.14),
        FalseMatchSpread(1e-4, 0.80, 0.080),
        FalseMatchSpread(1e-5, 1.05, 0.048),
    ),
    misses=MissSpread(0.25, 0.30),
    source=dict.fromkeys(("norms", "false_matches", "misses"), _LFW),
)
"""Measured by `from_embeddings` on LFW and the published network that docs/audit.md audits."""


# --- drawing ----------------------------------------------------------------------------------


def draw_means(
    generator: Generator,
    sizes: Sequence[int],
    images: int,
    spread: NormSpread,
    shift: float,
    audits: int,
) -> Array:
    """Draw the mean norms of the subjects of all groups, group by group.

    Args:
        generator: draws.
        sizes: subjects in each group.
        images: of each subject.
        spread: of the norms.
        shift: by which the mean of the last group differs.
        audits: how many sets of subjects.

    Returns:
        ``(audits, Σ sizes)``.
    """
    means = spread.mean + spread.of_means(images) * generator.standard_normal((audits, sum(sizes)))
    means[:, sum(sizes[:-1]) :] += shift
    return means


def draw_false_matches(
    generator: Generator, subjects: int, images: int, fmr: float, spread: FalseMatchSpread
) -> csr_array:
    """Draw the false matches among all images of a group, by two subjects, ``(G, G)``.

    Each subject has a lognormal factor of mean 1. Two subjects have a beta-binomial number of
    matches among the comparisons of their images, of which only those with any are drawn, as is
    right for
    the rare: rates above 1 % are not for this.

    Args:
        generator: draws.
        subjects: G.
        images: of each.
        fmr: of the group.
        spread: how matches gather.
    """
    comparisons = images**2
    factors = np.exp(
        math.sqrt(spread.subjects) * generator.standard_normal(subjects) - spread.subjects / 2
    )
    sizes, chances, mean = _matches_of_two(comparisons, spread.concordance)
    total = (factors.sum() ** 2 - (factors**2).sum()) / 2
    count = generator.poisson(fmr * comparisons * total / mean)
    cumulative = np.cumsum(factors)
    sides = np.empty((2, 0), np.int64)
    while sides.shape[1] < count:
        # A subject is never its own impostor; such draws are made again.
        missing = count - sides.shape[1]
        drawn = cumulative.searchsorted(generator.random((2, missing)) * cumulative[-1])
        sides = np.concatenate([sides, drawn[:, drawn[0] != drawn[1]]], axis=1)
    matches = sizes[chances.searchsorted(generator.random(count) * chances[-1])]
    rows, columns = np.sort(sides, axis=0)
    drawn_counts = coo_array((matches, (rows, columns)), (subjects, subjects)).tocsr()
    drawn_counts.data = np.minimum(drawn_counts.data, comparisons)
    return drawn_counts


def draw_misses(
    generator: Generator, subjects: int, images: int, fnmr: float, spread: MissSpread
) -> NDArray[np.int64]:
    """Draw the false non-matches of each subject among all pairs of its images, ``(G,)``.

    Args:
        generator: draws.
        subjects: G.
        images: of each, at least two.
        fnmr: of the group.
        spread: how misses gather.
    """
    first, second = np.triu_indices(images, 1)
    hard = math.sqrt(spread.subject) * generator.standard_normal((subjects, 1))
    of_images = math.sqrt(spread.image) * generator.standard_normal((subjects, images))
    own = math.sqrt(max(0.0, 1 - spread.subject - 2 * spread.image))
    latent = hard + of_images[:, first] + of_images[:, second]
    latent += own * generator.standard_normal(latent.shape)
    return np.count_nonzero(latent < ndtri(fnmr), axis=1)


def subject_counts(
    first: int,
    images: int,
    subjects: int,
    false_matches: csr_array | None = None,
    missed: NDArray[np.int64] | None = None,
) -> SubjectCounts:
    """Return what an audit counts in a group of subjects with equally many images.

    Args:
        first: number of the first subject among those of all groups.
        images: of each subject.
        subjects: of the group.
        false_matches: none if None.
        missed: none if None.
    """
    none = csr_array((subjects, subjects), dtype=np.int64)
    return SubjectCounts(
        members=np.arange(first, first + subjects),
        false_matches=none if false_matches is None else false_matches,
        non_mated=None,
        images=np.full(subjects, images),
        missed=np.zeros(subjects, np.int64) if missed is None else missed,
        mated=np.full(subjects, images * (images - 1) // 2),
    )


def _matches_of_two(comparisons: int, concordance: float) -> tuple[NDArray[np.int64], Array, float]:
    """Return numbers of matches of two subjects who have any, cumulative chances, and their mean.

    The limit of the zero-truncated beta-binomial at a rate of 0: P(k) ∝ C(n, k) B(k, n − k + b), b
    such that two comparisons have the given correlation.
    """
    sizes = np.arange(1, comparisons + 1)
    if comparisons == 1 or concordance <= 0:
        return np.array([1]), np.ones(1), 1.0
    rest = (1 - concordance) / concordance
    logs = gammaln(comparisons + 1) - gammaln(sizes + 1) - gammaln(comparisons - sizes + 1)
    logs = logs + betaln(sizes, comparisons - sizes + rest)
    mean = comparisons / (rest * (psi(comparisons + rest) - psi(rest)))
    return sizes, np.cumsum(np.exp(logs - logs.max())), float(mean)


# --- variances, to begin a search with and to read an audit ------------------------------------


def false_match_variance(
    subjects: float, images: float, fmr: float, spread: FalseMatchSpread
) -> float:
    """Return the variance of a group's FMR over its square, where all have equally many images."""
    comparisons = subjects * (subjects - 1) / 2 * images**2
    gathered = 1 + (images**2 - 1) * spread.concordance
    return 4 * math.expm1(spread.subjects) / subjects + gathered / (comparisons * fmr)


def miss_variance(subjects: float, images: int, fnmr: float, spread: MissSpread) -> float:
    """Return the variance of a group's FNMR over its square, where all have equally many images."""
    pairs = images * (images - 1) / 2
    sharing = 2 * (images - 2)
    apart = pairs - 1 - sharing
    joint = [
        both_below(fnmr, correlation) - fnmr**2
        for correlation in (spread.subject + spread.image, spread.subject)
    ]
    own = fnmr * (1 - fnmr) + sharing * joint[0] + apart * joint[1]
    return own / (pairs * subjects * fnmr**2)


def both_below(share: float, correlation: float) -> float:
    """Return how often two correlated normal scores are both among the lowest ``share``."""
    if correlation <= 0:
        return share**2
    quantile = float(ndtri(share))
    covariance = [[1.0, correlation], [correlation, 1.0]]
    return float(multivariate_normal.cdf([quantile, quantile], cov=covariance))


# --- measuring --------------------------------------------------------------------------------


def from_embeddings(
    vectors: ArrayLike,
    norms: ArrayLike,
    subject: ArrayLike,
    group: ArrayLike,
    names: Sequence[str],
    *,
    source: str,
    fmr: Sequence[str] = ("1e-2", "1e-3", "1e-4", "1e-5"),
    progress: Progress | None = None,
) -> Components:
    """Measure how norms and errors vary within groups.

    What the data cannot tell is taken from `DEFAULTS`, which ``source`` of the result says.

    Args:
        vectors: raw embeddings, ``(m, D)``.
        norms: of them, ``(m,)``.
        subject: code of the subject on each, ``(m,)``; −1 where not known.
        group: code of the group of each, ``(m,)``; −1 where not known.
        names: of the groups.
        source: names the data.
        fmr: rates at which false matches are looked at.
        progress: called while images are compared.

    Raises:
        MetricError: no mated or no non-mated pair, or a subject in two groups.
    """
    subjects, codes, lengths = (np.asarray(array) for array in (subject, group, norms))
    known = (subjects >= 0) & (codes >= 0) & np.isfinite(lengths) & (lengths > 0)
    sample = SubjectNorms.from_images(lengths[known], subjects[known], codes[known])
    table = norm_table(sample, SubjectBootstrap(sample.groups, 1))
    sources = dict.fromkeys(("norms", "false_matches", "misses"), source)
    spread = _pooled_norms(
        [
            (row.subjects, row.mean.value, row.between_sd.value, row.within_sd.value)
            for row in table.groups
        ]
    )
    if spread is None:
        sources["norms"] = f"{DEFAULTS.source['norms']}: {source} has one image a subject"
    errors = all_pairs_group_rates(vectors, subjects, codes, names, targets=fmr, progress=progress)
    spreads = [_gathering(counts) for counts in errors.by_subject]
    false_matches = tuple(one for one in spreads if one is not None)
    if not false_matches:
        sources["false_matches"] = f"{DEFAULTS.source['false_matches']}: {source} has few"
    misses = _miss_spread(np.asarray(vectors), np.where(known, subjects, -1), errors)
    if misses is None:
        sources["misses"] = f"{DEFAULTS.source['misses']}: {source} has few"
    return Components(
        norms=spread or DEFAULTS.norms,
        false_matches=false_matches or DEFAULTS.false_matches,
        misses=misses or DEFAULTS.misses,
        source=sources,
    )


def from_audit(document: Mapping[str, Any], *, source: str) -> Components:
    """Read what an ``audit.json`` tells of how norms and false matches vary within groups.

    It has one effective number of comparisons a rate, so one thing can be read from it: how much
    subjects differ; the rest stays as in `DEFAULTS`.

    Args:
        document: of the file.
        source: names it.

    Raises:
        DatasetError: it is not an audit, or names no group.
    """
    try:
        if document["schema"] != AUDIT_SCHEMA:
            raise ValueError
        primary = document["settings"]["groups"][0]
        rows = [
            row
            for row in document["norms"]
            if row["grouping"] == primary and row["slice"] is not None
        ]
        spread = _pooled_norms(
            [
                (
                    row["subjects"],
                    row["mean"]["value"],
                    row["between_sd"]["value"],
                    row["within_sd"]["value"],
                )
                for row in rows
            ]
        )
        sizes = {row["name"]: _effective_design(row) for row in rows}
        by_target: dict[str, list[tuple[float, float, float]]] = {}
        for row in document["rates"]:
            if row["grouping"] != primary or row["name"] not in sizes:
                continue
            fmr = row["fmr"]
            if fmr["k"] >= FEWEST_ERRORS and fmr["n_eff"] and fmr["value"]:
                subjects = _subjects_of(fmr["value"], fmr["n_eff"], *sizes[row["name"]])
                weight = float(row["fmr"]["identities"])
                of_target = by_target.setdefault(row["fmr_nominal"], [])
                of_target.append((weight, fmr["value"], subjects))
    except (KeyError, TypeError, ValueError, IndexError) as problem:
        raise DatasetError(
            f"{source}: it is not an audit.json of facerec audit, or one of another version; give "
            "an audit.json or an embeddings file"
        ) from problem
    false_matches = []
    for estimates in by_target.values():
        weights, rates, variances = np.array(estimates).T
        rate = float(np.average(rates, weights=weights))
        concordance = DEFAULTS.at(rate).concordance
        variance = float(np.average(variances, weights=weights))
        false_matches.append(FalseMatchSpread(rate, variance, concordance))
    unknown = f"{source} has none"
    sources = {
        "norms": source if spread else f"{DEFAULTS.source['norms']}: {unknown}",
        "false_matches": f"{source}; the correlation of comparisons of two subjects is that of LFW"
        if false_matches
        else f"{DEFAULTS.source['false_matches']}: {unknown}",
        "misses": f"{DEFAULTS.source['misses']}: an audit.json does not tell",
    }
    return Components(
        norms=spread or DEFAULTS.norms,
        false_matches=tuple(false_matches) or DEFAULTS.false_matches,
        misses=DEFAULTS.misses,
        source=sources,
    )


def _effective_design(row: Mapping[str, Any]) -> tuple[float, float]:
    """Return subjects and images a subject that weigh as much as those of a row of norms.

    m = (N − Σ m²/N) / (G − 1) is in the row, so Kish's (Σ m)² / Σ m² follows.
    """
    subjects, images = float(row["subjects"]), float(row["images"])
    squares = images * (images - row["images_per_subject"] * (subjects - 1))
    effective = images**2 / squares if squares > 0 else subjects
    return effective, images / effective


def _subjects_of(fmr: float, n_eff: float, subjects: float, images: float) -> float:
    """Return the variance of subjects' log factors that explains an effective number."""
    correction = (subjects / (subjects - 2)) ** 2 if subjects > 2 else 1.0
    variance = (1 - fmr) / (fmr * n_eff) / correction
    rest = false_match_variance(subjects, images, fmr, replace(DEFAULTS.at(fmr), subjects=0.0))
    return math.log1p(max(0.0, variance - rest) * subjects / 4)


def _pooled_norms(
    rows: Sequence[tuple[int, float | None, float | None, float | None]],
) -> NormSpread | None:
    """Pool the variances of groups, weighed by their subjects; None if they are not known."""
    known = np.array([row for row in rows if None not in row], dtype=np.float64)
    if not len(known):
        return None
    weights = known[:, 0] / known[:, 0].sum()
    mean, between, within = (
        weights @ known[:, 1],
        weights @ known[:, 2] ** 2,
        weights @ known[:, 3] ** 2,
    )
    if not between + within > 0:
        return None
    return NormSpread(float(mean), math.sqrt(between), math.sqrt(within))


def _gathering(groups: Sequence[SubjectCounts]) -> FalseMatchSpread | None:
    """Measure how the false matches within groups gather; None if they are few.

    Two comparisons that share one subject have E[w²] times the chance to match of two that share
    none, w the subject's factor of mean 1; two of the same two subjects match together more often
    still.
    """
    totals = np.zeros(6)
    for group in groups:
        if group.false_matches is None or group.images is None or not group.false_matches.sum():
            continue
        counts = group.false_matches.astype(np.float64)
        whole = counts + counts.T
        images = group.images.astype(np.float64)
        touched = np.asarray(whole.sum(axis=1)).ravel()
        own = np.asarray(whole.multiply(whole).sum(axis=1)).ravel()
        squares = float((images**2).sum())
        comparisons = (images.sum() ** 2 - squares) / 2
        of_two = (squares**2 - float((images**4).sum())) / 2 - comparisons
        rate = counts.sum() / comparisons
        others = images**2 * ((images.sum() - images) ** 2 - (squares - images**2))
        totals += (
            counts.sum(),
            comparisons,
            float((touched**2 - own).sum()),
            rate**2 * float(others.sum()),
            float((counts.data * (counts.data - 1)).sum()),
            rate * of_two,
        )
    events, comparisons, shared, expected, repeated, possible = totals
    if events < FEWEST_ERRORS or not expected:
        return None
    concordance = (
        repeated / possible if possible > 0 else DEFAULTS.at(events / comparisons).concordance
    )
    return FalseMatchSpread(
        fmr=float(events / comparisons),
        subjects=math.log(max(1.0, shared / expected)),
        concordance=float(min(concordance, MOST_CORRELATED)),
    )


def _miss_spread(
    vectors: NDArray[np.floating], subject: NDArray[np.integer], errors: GroupErrors
) -> MissSpread | None:
    """Measure how misses gather at the threshold with the most of them below one in five.

    Subjects with four images or more count alike. None where they have few misses.
    """
    first, second = mated_pairs(subject)
    scores = score_pairs(vectors, first, second)
    usable = ~np.isnan(scores)
    first, second, scores = first[usable], second[usable], scores[usable]
    spread = None
    for point in errors.rates.points:
        if point.threshold.value is None or not (point.fnmr.value or 1.0) < 0.2:
            continue
        missed = scores < point.threshold.value
        of_pair = subject[first]
        images = np.bincount(subject[subject >= 0])
        pairs = np.bincount(of_pair, minlength=len(images))
        chosen = np.flatnonzero((images >= 4) & (pairs == images * (images - 1) // 2))
        misses = np.bincount(of_pair, missed, len(images))
        of_image = np.bincount(np.concatenate([first, second]), np.tile(missed, 2), len(subject))
        sharing = np.bincount(
            np.maximum(subject, 0),
            np.where(subject >= 0, of_image * (of_image - 1), 0),
            len(images),
        )[chosen]
        if misses[chosen].sum() < FEWEST_ERRORS:
            continue
        m, k = images[chosen].astype(np.float64), misses[chosen]
        rate = float(np.mean(k / pairs[chosen]))
        triples = m * (m - 1) * (m - 2)
        alike = float(np.mean(sharing / triples))
        apart = float(np.mean((k * (k - 1) - sharing) / (triples * (m - 3) / 4)))
        subject_correlation = _correlation(rate, apart)
        image_correlation = max(0.0, _correlation(rate, alike) - subject_correlation)
        spread = MissSpread(
            subject_correlation, min(image_correlation, (1 - subject_correlation) / 2)
        )
    return spread


def _correlation(share: float, both: float) -> float:
    """Return the correlation of normal scores that are ``both`` as often among the lowest."""
    if both <= share**2:
        return 0.0
    if both >= both_below(share, MOST_CORRELATED):
        return MOST_CORRELATED
    return float(brentq(lambda r: both_below(share, r) - both, 0.0, MOST_CORRELATED, xtol=1e-6))
