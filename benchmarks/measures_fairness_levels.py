"""Measurements of the audit's tests and intervals where groups and image counts are uneven.

Groups of 90 and 10 subjects, up to five groups, persons or images that spread unlike, few images
for some, geometric and Zipf image counts, heavy tails, look-alikes: how often a test at the 5 %
level rejects equal groups, how often it finds a difference, how often an interval holds the truth.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import product

import numpy as np
from numpy.typing import NDArray
from rows import Row
from scipy.special import chdtri, fdtrc, ndtri, stdtrit
from scipy.stats import ttest_ind

from facerec.fairness.association import Association, associate, difference_p
from facerec.fairness.differentials import differentials
from facerec.fairness.norms import (
    SubjectBootstrap,
    SubjectNorms,
    between_sd,
    clustered_mean,
    variance_interval,
)
from facerec.fairness.rates import GroupErrors, all_pairs_rates
from facerec.fairness.welch import permute

LEVEL = 0.05
PERMUTED, QUANTILE = "permuted", "Welch's quantile"

Values = NDArray[np.float64]
Generator = np.random.Generator
Counts = Callable[[Generator, int], NDArray[np.int64]]


def _same(images: int) -> Counts:
    return lambda generator, subjects: np.full(subjects, images)


IMAGES: dict[str, Counts] = {
    "20 images": _same(20),
    "5 images": _same(5),
    "1 or 2 images": lambda generator, subjects: generator.integers(1, 3, subjects),
    "geometric": lambda generator, subjects: np.minimum(generator.geometric(0.2, subjects), 60),
    "Zipf": lambda generator, subjects: np.minimum(generator.zipf(1.8, subjects), 80),
}
"""Images of each subject, by name."""

DRAWS: dict[str, Callable[[Generator, int], Values]] = {
    "normal": lambda generator, size: generator.standard_normal(size),
    "t3": lambda generator, size: generator.standard_t(3, size) / math.sqrt(3),
    "t5": lambda generator, size: generator.standard_t(5, size) / math.sqrt(5 / 3),
    "skewed": lambda generator, size: (generator.gamma(4, 1, size) - 4) / 2,
    "log-normal": lambda generator, size: (
        np.expm1(0.4 * generator.standard_normal(size) - 0.08) / math.sqrt(math.expm1(0.16))
    ),
}
"""Distributions of mean 0 and SD 1, by name."""


@dataclass(frozen=True)
class Group:
    """How the norms of one group are drawn."""

    subjects: int
    images: str = "20 images"
    between: float = 1.0
    """SD of subjects."""
    within: float = 1.0
    """SD of images."""
    shift: float = 0.0
    """Of the mean."""

    def draw(self, generator: Generator, persons: str, noise: str) -> tuple[Values, Values, Values]:
        """Return means, sums of squares about them, and counts of images, one a subject each."""
        counts = IMAGES[self.images](generator, self.subjects)
        own = self.shift + self.between * DRAWS[persons](generator, self.subjects)
        people = np.repeat(np.arange(self.subjects), counts)
        images = self.within * DRAWS[noise](generator, len(people))
        means = np.bincount(people, images) / counts
        squares = np.bincount(people, (images - means[people]) ** 2)
        return own + means, squares, counts.astype(np.float64)

    def variance(self) -> float:
        """Return the variance of subjects' means."""
        counts = IMAGES[self.images](np.random.default_rng(0), 100_000)
        return self.between**2 + self.within**2 * float(np.mean(1 / counts))


@dataclass(frozen=True)
class Design:
    """Groups, and the tails of persons and of images."""

    name: str
    groups: tuple[Group, ...]
    persons: str = "normal"
    noise: str = "normal"

    def means(self, generator: Generator) -> Values:
        """Return the mean norm of every subject, group by group."""
        parts = [group.draw(generator, self.persons, self.noise)[0] for group in self.groups]
        return np.concatenate(parts)

    def codes(self) -> NDArray[np.int64]:
        """Return the group of every subject."""
        return np.repeat(np.arange(len(self.groups)), [group.subjects for group in self.groups])

    def eta2(self) -> float:
        """Return η² of the population, in the shares of these groups."""
        shares = np.array([group.subjects for group in self.groups]) / len(self.codes())
        shifts = np.array([group.shift for group in self.groups])
        between = float(shares @ (shifts - shares @ shifts) ** 2)
        return between / (between + float(shares @ [group.variance() for group in self.groups]))


_MANY, _FEW = Group(90), Group(10)

EQUAL: tuple[Design, ...] = (
    Design("90/10, nothing differs", (_MANY, _FEW)),
    Design("90/10, the 10 have 1 or 2 images", (_MANY, replace(_FEW, images="1 or 2 images"))),
    Design("90/10, the 10 have twice the SD between", (_MANY, replace(_FEW, between=2.0))),
    Design("90/10, the 10 have half the SD between", (_MANY, replace(_FEW, between=0.5))),
    Design(
        "90/10, 5 images, the 10 have thrice the SD of images",
        (Group(90, "5 images"), Group(10, "5 images", within=3.0)),
    ),
    Design(
        "90/10, geometric, t3 noise, twice the SD between",
        (Group(90, "geometric"), Group(10, "geometric", between=2.0)),
        noise="t3",
    ),
    Design(
        "90/10, Zipf, t3 noise, half the SD between",
        (Group(90, "Zipf"), Group(10, "Zipf", between=0.5)),
        noise="t3",
    ),
    Design(
        "180/20, skewed persons, the 20 have 1 or 2 images",
        (Group(180), Group(20, "1 or 2 images")),
        persons="skewed",
        noise="t3",
    ),
    Design(
        "60/20/10, t5 persons, image counts and SD differ",
        (Group(60, "geometric"), Group(20, "1 or 2 images"), Group(10, between=2.0)),
        persons="t5",
    ),
    Design(
        "100/60/40/20/12, SD between falls from 2 to 1",
        tuple(
            Group(n, "geometric", between=sd)
            for n, sd in zip((100, 60, 40, 20, 12), (2.0, 1.75, 1.5, 1.25, 1.0), strict=True)
        ),
        noise="t3",
    ),
    Design(
        "100/60/40/20/12, SD between rises from 1 to 2",
        tuple(
            Group(n, "Zipf", between=sd)
            for n, sd in zip((100, 60, 40, 20, 12), (1.0, 1.25, 1.5, 1.75, 2.0), strict=True)
        ),
    ),
)
"""Designs in which all groups have the same mean; the first five were used to choose a method."""


def subject_tests(runs: int = 1000, permutations: int = 399) -> list[Row]:
    """Count how often tests of equal groups reject at the 5 % level, and find a shift.

    Beside the permutation of Welch's F stand Welch's own quantile and the permutation of η²; both
    powers are counted on the same sets.

    Args:
        runs: simulated sets of each design.
        permutations: of the groups over subjects.
    """
    rows = []
    for place, design in enumerate(EQUAL):
        equal = _p_values(design, runs, permutations, place)
        rejected = {what: _share(p <= LEVEL) for what, p in equal.items()}
        name = f"level of the test of equal means, {design.name}"
        others = ", ".join(
            f"{what} {share:.1f} %" for what, share in rejected.items() if what != PERMUTED
        )
        level = rejected[PERMUTED]
        remark = f"{_error(np.count_nonzero(equal[PERMUTED] <= LEVEL), runs)}; {others}"
        rows += [
            Row(f"{name}: not too low", level, "%", 4, "higher", remark),
            Row(f"{name}: not too high", level, "%", 6, "lower", remark),
        ]
        last = design.groups[-1]
        size = math.sqrt(last.variance() / last.subjects)
        groups = (*design.groups[:-1], replace(last, shift=2.8 * size))
        shifted = _p_values(replace(design, groups=groups), runs, permutations, 1000 + place)
        # Of two tests the one that rejects more equal groups finds more differences as well.
        own = {what: float(np.quantile(p, LEVEL)) for what, p in equal.items()}
        for limits, words in (
            (dict.fromkeys(equal, LEVEL), ""),
            (own, ", each at the p below which 5 % of equal lie"),
        ):
            power = [_share(shifted[what] <= limits[what]) for what in (PERMUTED, QUANTILE)]
            rows.append(
                Row(
                    f"power, {design.name}, the last group higher, less that of Welch's quantile"
                    + words,
                    power[0] - power[1],
                    "points",
                    remark=f"permuted {power[0]:.1f} %, Welch's quantile {power[1]:.1f} %",
                )
            )
    return rows


def _share(held: NDArray[np.bool_]) -> float:
    return 100 * float(np.mean(held))


def _p_values(design: Design, runs: int, permutations: int, seed: int) -> dict[str, Values]:
    """Return the p of each test in each simulated set."""
    generator = np.random.default_rng(seed)
    codes = design.codes()
    labels = np.stack([codes] + [generator.permutation(codes) for _ in range(permutations)])
    members = [(labels == g).astype(np.float64) for g in range(len(design.groups))]
    sizes = [group.subjects for group in design.groups]
    p = defaultdict[str, list[float]](list)
    for run in range(runs):
        means = design.means(generator)
        test = permute(means, codes, permutations, run)
        parts = [means[codes == g] for g in range(len(sizes))]
        p[PERMUTED].append(test.p)
        p[QUANTILE].append(_welch_p(parts))
        centred = means - means.mean()
        squares = sum((one @ centred) ** 2 / n for one, n in zip(members, sizes, strict=True))
        reached = np.count_nonzero(squares[1:] >= squares[0] * (1 - 1e-9))
        p["η² permuted"].append((1 + reached) / (1 + permutations))
        p["delta of a pair"].append(difference_p(parts[0], parts[-1]))
    return {what: np.array(values) for what, values in p.items()}


def _welch_p(parts: Sequence[Values]) -> float:
    """Return the p of Welch's test, written down again without facerec."""
    if len(parts) == 2:
        return float(ttest_ind(*parts, equal_var=False).pvalue)
    k = len(parts)
    sizes = np.array([len(part) for part in parts])
    weights = sizes / np.array([part.var(ddof=1) for part in parts])
    means = np.array([part.mean() for part in parts])
    total = weights.sum()
    centre = weights @ means / total
    uneven = (((1 - weights / total) ** 2) / (sizes - 1)).sum()
    f = weights @ (means - centre) ** 2 / (k - 1) / (1 + 2 * (k - 2) / (k * k - 1) * uneven)
    return float(fdtrc(k - 1, (k * k - 1) / (3 * uneven), f))


def _few(sizes: tuple[int, ...], persons: str, sd: float, eta2: float) -> Design:
    """Return few subjects: the smallest group has another SD, the mean of the last makes η²."""
    name = f"{'/'.join(map(str, sizes))}, {persons}, SD of the smallest {sd:g}"
    first = [Group(n, between=sd if n == min(sizes) else 1.0) for n in sizes]
    unit = Design(name, (*first[:-1], replace(first[-1], shift=1.0)), persons)
    shift = math.sqrt(eta2 / (1 - eta2) * (1 / unit.eta2() - 1))
    return replace(unit, groups=(*first[:-1], replace(first[-1], shift=shift)))


FEW = tuple(
    _few(sizes, persons, sd, 0.12 if place % 2 else 0.18)
    for place, (sizes, persons, sd) in enumerate(
        product(
            ((15, 10), (45, 20), (15, 50), (30, 10, 20), (12, 18, 30)),
            ("normal", "log-normal", "t5"),
            (1.0, 2.0, 0.5),
        )
    )
)
"""25 to 65 subjects, η² 0.12 and 0.18 in turn."""


def eta2_coverage(runs: int = 500, permutations: int = 199, replicates: int = 299) -> list[Row]:
    """Count how often the interval of η² holds that of the population, and agrees with the test.

    Args:
        runs: simulated sets of each design.
        permutations: of the groups over subjects.
        replicates: of the bootstrap over subjects.
    """
    four = tuple(Group(40, "5 images", shift=shift) for shift in (0.0, 0.0, 0.0, 0.6))
    designs = (
        EQUAL[1],
        EQUAL[5],
        Design(
            "90/10, geometric, t3 noise, the 10 higher by 2 and of twice the SD between",
            (Group(90, "geometric"), Group(10, "geometric", between=2.0, shift=2.0)),
            noise="t3",
        ),
        Design("4 × 40, one higher by 0.6", four),
        Design(
            "60/30, t5 persons, one higher by 1.5",
            (Group(60, "geometric"), Group(30, "geometric", shift=1.5)),
            persons="t5",
        ),
        *FEW,
    )
    rows = []
    for place, design in enumerate(designs):
        generator = np.random.default_rng(place)
        codes, truth = design.codes(), design.eta2()
        bootstraps = [SubjectBootstrap(codes, replicates, seed) for seed in range(10)]
        covered = agree = 0
        for run in range(runs):
            means = 20 + design.means(generator)
            sample = SubjectNorms.from_images(means, np.arange(len(means)), codes)
            found = associate(sample, bootstraps[run % 10], permutations=permutations, seed=run)
            assert isinstance(found, Association) and found.eta2.interval is not None
            interval = found.eta2.interval
            covered += interval.low <= truth <= interval.high
            agree += (interval.low > 0) == (found.p < 0.05)
        name = f"coverage of η² = {truth:.3f}, {design.name}"
        remark = f"{_error(covered, runs)}; interval and test agree in {agree:,}"
        rows += _coverage(name, covered, runs, remark, 93, 98)
    return rows


def norm_coverage(runs: int = 1000) -> list[Row]:
    """Count how often intervals of one group hold the mean over images and the SD between subjects.

    Args:
        runs: simulated sets of each design.
    """
    cells = (
        (10, "20 images", "normal", "t3"),
        (10, "1 or 2 images", "normal", "normal"),
        (10, "geometric", "skewed", "t3"),
        (10, "Zipf", "normal", "t3"),
        (20, "20 images", "normal", "t5"),
        (20, "1 or 2 images", "skewed", "normal"),
        (20, "Zipf", "normal", "t3"),
        (60, "geometric", "normal", "t3"),
        (60, "Zipf", "skewed", "t5"),
        (60, "20 images", "t5", "normal"),
        (200, "Zipf", "normal", "t3"),
    )
    rows = []
    for place, (subjects, images, persons, noise) in enumerate(cells):
        generator = np.random.default_rng(place)
        group = Group(subjects, images)
        covered, made = Counter[str](), Counter[str]()
        for _ in range(runs):
            means, squares, counts = group.draw(generator, persons, noise)
            between, spread = between_sd(means, squares, counts)
            error = squares.sum() / max(1.0, (counts - 1).sum())
            mean = clustered_mean(means, counts, np.nan_to_num(between) ** 2 + error / counts)
            for what, interval, truth in (
                ("mean over images", mean, 0.0),
                ("SD between subjects", spread, 1.0),
            ):
                if interval is not None:
                    made[what] += 1
                    covered[what] += interval.low <= truth <= interval.high
        for what, count in made.items():
            name = f"coverage of the {what}, {subjects} subjects, {images}, {persons}, {noise}"
            rows += _coverage(name, covered[what], count, _error(covered[what], count), 92, 98)
    return rows


def spread_coverage(runs: int = 4000) -> list[Row]:
    """Count how often intervals of the variance of few subjects hold it: why one cannot fit all.

    Beside the interval that facerec takes (Bonett's with a quantile of t) stand the same with a
    normal quantile and the chi-squared interval of normal values.

    Args:
        runs: simulated sets of each design.
    """
    rows = []
    for place, (subjects, persons) in enumerate(product((10, 20, 60), ("normal", "skewed", "t5"))):
        generator = np.random.default_rng(place)
        degrees = subjects - 1
        covered, length = Counter[str](), Counter[str]()
        for _ in range(runs):
            values = DRAWS[persons](generator, subjects)
            total = degrees * values.var(ddof=1)
            bonett = variance_interval(values)
            assert bonett is not None
            low, high = (math.log(limit) for limit in bonett)
            middle, margin = (low + high) / 2, (high - low) / 2
            margin *= ndtri(0.975) / stdtrit(degrees, 0.975)
            for what, (lower, upper) in (
                ("Bonett's, t", (low, high)),
                ("Bonett's, normal quantile", (middle - margin, middle + margin)),
                ("chi-squared", tuple(np.log(total / chdtri(degrees, [0.025, 0.975])))),
            ):
                covered[what] += lower <= 0 <= upper
                length[what] += upper - lower
        for what, count in covered.items():
            rows.append(
                Row(
                    f"coverage of the variance between {subjects} subjects, {persons}: {what}",
                    100 * count / runs,
                    "%",
                    remark=f"{_error(count, runs)}; length of its logarithm "
                    f"{length[what] / runs:.2f}",
                )
            )
    return rows


@dataclass(frozen=True)
class Faces:
    """How embeddings of one group are drawn."""

    persons: int
    lean: float = 1.0
    """How far all persons lean to one side, which raises the FMR."""
    scatter: float = 0.7
    """How far images of a person scatter, which raises the FNMR."""


_DIMENSIONS = 24
_EQUAL_FACES: tuple[tuple[str, tuple[Faces, ...], bool, str, str], ...] = (
    ("60/60, 5 images", (Faces(60),) * 2, False, "normal", "5 images"),
    ("60/60, geometric, heavy tails", (Faces(60),) * 2, False, "t3", "geometric"),
    ("60/60, 5 images, look-alikes", (Faces(60),) * 2, True, "normal", "5 images"),
    ("90/20, geometric, heavy tails", (Faces(90), Faces(20)), False, "t3", "geometric"),
    ("40/40/40, Zipf, heavy tails", (Faces(40),) * 3, False, "t3", "Zipf"),
    ("30/30/30/30, geometric", (Faces(30),) * 4, False, "normal", "geometric"),
)
"""Name, groups, whether persons come in threes that look alike, noise, images of a person."""


def differential_tests(
    runs: int = 300, replicates: int = 499, measure: str = "max/geomean"
) -> list[Row]:
    """Count how often a measure of groups with equal error rates is called a difference.

    And how often planted ones are found: a group whose persons lean more to one side, and one whose
    images scatter more.

    Args:
        runs: simulated sets of each design.
        replicates: of the bootstrap over persons.
        measure: max/min is that of findings; of two groups the tests are the same.
    """
    rows = []
    for place, (name, groups, alike, noise, images) in enumerate(_EQUAL_FACES):
        generator = np.random.default_rng(place)
        count = _differ(generator, groups, alike, noise, images, runs, replicates, measure)
        for of in ("FMR", "FNMR"):
            made, found = count[of, "made"], count[of, "found"]
            share = 100 * found / max(made, 1)
            remark = f"{_error(found, max(made, 1))}; FNMR {count['FNMR', 'rate'] / runs:.2g}"
            title = f"level of the {of} differential, {name}"
            rows += [
                Row(f"{title}: not too low", share, "%", 3, "higher", remark),
                Row(f"{title}: not too high", share, "%", 7, "lower", remark),
            ]
        if alike:
            continue
        stronger = (*groups[:-1], replace(groups[-1], lean=1.6, scatter=0.85))
        count = _differ(generator, stronger, alike, noise, images, runs // 4, replicates, measure)
        for of in ("FMR", "FNMR"):
            made, found = count[of, "made"], count[of, "found"]
            ratio = math.exp(count[of, "ratio"] / max(made, 1))
            remark = f"{_error(found, max(made, 1))}; typically {ratio:.2g} times the first's rate"
            title = f"power of the {of} differential, {name}, the last group worse"
            rows.append(Row(title, 100 * found / max(made, 1), "%", remark=remark))
    return rows


def _differ(
    generator: Generator,
    groups: Sequence[Faces],
    alike: bool,
    noise: str,
    images: str,
    runs: int,
    replicates: int,
    measure: str,
) -> Counter[tuple[str, str]]:
    names = tuple("ABCDE"[: len(groups)])
    count: Counter[tuple[str, str]] = Counter()
    for run in range(runs):
        drawn = [_faces(generator, group, alike, noise, images) for group in groups]
        firsts = np.cumsum([0, *(group.persons for group in groups)])
        people = np.concatenate(
            [people + first for (people, _), first in zip(drawn, firsts, strict=False)]
        )
        vectors = np.concatenate([vectors for _, vectors in drawn])
        codes = np.searchsorted(firsts, people, side="right") - 1
        (errors,) = all_pairs_rates(vectors, people, [(codes, names)], targets=("1e-2",))
        assert isinstance(errors, GroupErrors), errors
        point = errors.points[0]
        count["FNMR", "rate"] += point.overall[1].value or 0.0
        for row in differentials(errors, replicates=replicates, seed=run).rows:
            if row.measure != measure or row.p_value is None:
                continue
            count[row.of, "made"] += 1
            count[row.of, "found"] += row.p_value < 0.05
            rates = point.fmr if row.of == "FMR" else point.fnmr
            ends = [rates[place].value for place in (-1, 0)]
            count[row.of, "ratio"] += math.log((ends[0] or 1.0) / (ends[1] or 1.0))
    return count


def _faces(
    generator: Generator, group: Faces, alike: bool, noise: str, images: str
) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    """Return the person of each image and its unit embedding."""
    centres = generator.standard_normal((group.persons, _DIMENSIONS), np.float32)
    if alike:
        shared = generator.standard_normal((group.persons // 3 + 1, _DIMENSIONS), np.float32)
        shared = np.repeat(shared, 3, axis=0)[: group.persons]
        centres = math.sqrt(0.8) * centres + math.sqrt(0.2) * shared
    centres[:, 0] += group.lean
    centres /= np.linalg.norm(centres, axis=1, keepdims=True)
    counts = np.minimum(1 + IMAGES[images](generator, group.persons), 20)
    people = np.repeat(np.arange(group.persons), counts)
    scatter = group.scatter * np.exp(0.25 * generator.standard_normal(group.persons))[people]
    if noise != "normal":
        scatter *= 0.6 / np.sqrt(generator.chisquare(3, len(people)) / 3)
    vectors = generator.standard_normal((len(people), _DIMENSIONS), np.float32)
    vectors *= (scatter / math.sqrt(_DIMENSIONS))[:, None].astype(np.float32)
    vectors += centres[people]
    return people, vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def _coverage(
    name: str, covered: int, runs: int, remark: str, low: float, high: float
) -> list[Row]:
    share = 100 * covered / runs
    return [
        Row(f"{name}: not too low", share, "%", low, "higher", remark),
        Row(f"{name}: not too high", share, "%", high, "lower", remark),
    ]


def _error(count: int, runs: int) -> str:
    share = count / runs
    error = 100 * math.sqrt(share * (1 - share) / runs)
    return f"{count:,} of {runs:,} sets, Monte-Carlo error {error:.1f} points"
