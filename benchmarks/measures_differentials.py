"""How often tests of the audit's differentials reject equal groups, and find unequal ones."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from rows import Row

from facerec.fairness.differentials import differentials
from facerec.fairness.groupings import Grouping
from facerec.fairness.rates import all_pairs_rates

Generator = np.random.Generator
Counts = Callable[[Generator, int], NDArray[np.int64]]


IMAGES: dict[str, Counts] = {
    "5 images": lambda generator, subjects: np.full(subjects, 5),
    "geometric": lambda generator, subjects: np.minimum(generator.geometric(0.2, subjects), 60),
    "Zipf": lambda generator, subjects: np.minimum(generator.zipf(1.8, subjects), 80),
}
"""Images of each subject, by name."""


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
        grouping = Grouping(("group",), tuple(names), codes)
        (errors,) = all_pairs_rates(vectors, people, [grouping], targets=("1e-2",))
        point = errors.points[0]
        whole = point.fnmr[-1]
        count["FNMR", "rate"] += whole.value if whole else 0.0
        for row in differentials(errors, replicates=replicates, seed=run):
            if row.measure != measure or row.p_value is None:
                continue
            count[row.of, "made"] += 1
            count[row.of, "found"] += row.p_value < 0.05
            rates = point.fmr if row.of == "FMR" else point.fnmr
            ends = [share.value if (share := rates[place]) else 1.0 for place in (-2, 0)]
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


def _error(count: int, runs: int) -> str:
    share = count / runs
    error = 100 * math.sqrt(share * (1 - share) / runs)
    return f"{count:,} of {runs:,} sets, Monte-Carlo error {error:.1f} points"
