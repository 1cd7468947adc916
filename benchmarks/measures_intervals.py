"""Measurements of intervals: how often they cover the truth, and how long a bootstrap takes."""

from __future__ import annotations

import statistics
import time
import tracemalloc
from collections import defaultdict

import numpy as np
from measures import Row
from numpy.typing import NDArray
from scipy.sparse import coo_array

from facerec.statistics.bootstrap import VertexBootstrap, percentile_interval
from facerec.statistics.clustered import ClusteredShare
from facerec.statistics.intervals import Interval, wilson

IMAGES = 5
FMR, FNMR = 0.01, 0.05
DIMENSIONS, SHARED, NOISE, UNEVEN = 32, 0.3, 1.0, 0.25
DEFAULT, VERTEX, NAIVE = "default", "vertex bootstrap", "naive Wilson"


def coverage(repetitions: int = 1500, replicates: int = 300) -> list[Row]:
    """Count how often nominal 95 % intervals hold the true rate of simulated embeddings.

    All comparisons of 60 and of 200 identities with five images each, at thresholds where the FMR
    is 1 % and the FNMR 5 % in a far larger draw. Identities lean towards one shared direction, and
    their images scatter unevenly, which correlates comparisons that share an identity.

    Args:
        repetitions: simulated sets of each size.
        replicates: of the vertex bootstrap in each.
    """
    generator = np.random.default_rng(0)
    match, non_match, tpr = _truth(generator)
    rows = []
    for identities in (60, 200):
        covered = _covered(identities, repetitions, replicates, match, non_match, generator)
        for (rate, method), count in covered.items():
            rows += _rows(f"{rate}, {identities} × {IMAGES}", method, count, repetitions)
    count = _covered_tpr(60, repetitions, replicates, tpr, generator)
    return rows + _rows(f"TPR@FPR={FMR}, 60 × {IMAGES}", VERTEX, count, repetitions)


def bootstrap_speed(replicates: int = 2000, repeats: int = 3) -> list[Row]:
    """Time the vertex bootstrap of TPR@FPR with thresholds at four targets.

    Args:
        replicates: resamples.
        repeats: the median of these counts.
    """
    rows = []
    for identities, same, different, bar in ((4000, 3000, 3000, 5.0), (500, 5000, 95_000, None)):
        generator = np.random.default_rng(0)
        first = generator.integers(identities, size=same + different)
        shift = generator.integers(1, identities, size=same + different)
        issame = np.arange(same + different) < same
        second = np.where(issame, first, (first + shift) % identities)
        scores = (generator.standard_normal(issame.size) + 3 * issame).astype(np.float32)

        def work(
            arrays: tuple[NDArray, ...] = (first, second, issame), scores: NDArray = scores
        ) -> None:
            targets = ["1e-1", "1e-2", "1e-3", "1e-4"]
            VertexBootstrap(*arrays, replicates=replicates).tpr_at_fpr(scores, targets)

        times = []
        for _ in range(repeats):
            start = time.perf_counter()
            work()
            times.append(time.perf_counter() - start)
        tracemalloc.start()
        work()
        peak = tracemalloc.get_traced_memory()[1] / 2**20
        tracemalloc.stop()
        name = f"vertex bootstrap of TPR@FPR, {same + different:,} pairs of {identities:,} people"
        remark = f"{replicates:,} replicates, 4 targets with thresholds; median of {repeats}"
        rows.append(Row(name, statistics.median(times), "s", bar, remark=remark))
        rows.append(Row(f"{name}: memory", peak, "MB", 1000.0, remark="peak of its arrays"))
    return rows


def _covered(
    identities: int,
    repetitions: int,
    replicates: int,
    match: float,
    non_match: float,
    generator: np.random.Generator,
) -> dict[tuple[str, str], int]:
    """Count by rate and method how often the interval holds the truth."""
    # All cells have equally many comparisons, so a cell can stand for them as one.
    first, second = np.triu_indices(identities)
    issame = first == second
    # The multiplicities do not depend on the data; ten draws of them take turns.
    bootstraps = [VertexBootstrap(first, second, issame, replicates, seed) for seed in range(10)]
    images, pairs = np.full(identities, IMAGES), IMAGES * (IMAGES - 1) // 2
    left, right = np.triu_indices(IMAGES, 1)
    covered: dict[tuple[str, str], int] = defaultdict(int)
    for repetition in range(repetitions):
        embeddings = _draw(generator, identities)
        scores = _scores(embeddings)
        hits = (scores >= match).reshape(identities, IMAGES, identities, IMAGES)
        false_matches = np.triu(hits.sum(axis=(1, 3)), 1)
        own = np.einsum("gid,gjd->gij", embeddings, embeddings)[:, left, right]
        misses = (own < non_match).sum(axis=1)

        bootstrap = bootstraps[repetition % len(bootstraps)]
        cells = np.where(issame, misses[first] / pairs, false_matches[first, second] / IMAGES**2)
        for rate, truth, share, among in (
            ("FMR", FMR, ClusteredShare.from_images(coo_array(false_matches), images), ~issame),
            (
                "FNMR",
                FNMR,
                ClusteredShare.from_mated_counts(misses, np.full(identities, pairs)),
                issame,
            ),
        ):
            intervals: dict[str, Interval] = {
                DEFAULT: share.interval(),
                VERTEX: percentile_interval(share.rate, bootstrap.mean(cells, among)),
                NAIVE: wilson(share.events, share.comparisons),
            }
            for method, interval in intervals.items():
                covered[rate, method] += interval.low <= truth <= interval.high
    return covered


def _covered_tpr(
    identities: int, repetitions: int, replicates: int, truth: float, generator: np.random.Generator
) -> int:
    first, second = np.triu_indices(identities * IMAGES, 1)
    people = first // IMAGES, second // IMAGES
    issame = people[0] == people[1]
    bootstraps = [VertexBootstrap(*people, issame, replicates, seed) for seed in range(10)]
    covered = 0
    for repetition in range(repetitions):
        scores = _scores(_draw(generator, identities))[first, second]
        (found,) = bootstraps[repetition % len(bootstraps)].tpr_at_fpr(scores, [FMR])
        interval = percentile_interval(np.nan, found.tpr)
        covered += interval.low <= truth <= interval.high
    return covered


def _draw(
    generator: np.random.Generator, identities: int, images: int = IMAGES
) -> NDArray[np.float32]:
    """Return unit embeddings, ``(identities, images, DIMENSIONS)``."""
    centres = generator.standard_normal((identities, 1, DIMENSIONS), np.float32)
    centres[..., 0] += SHARED * DIMENSIONS**0.5
    centres /= np.linalg.norm(centres, axis=-1, keepdims=True)
    scatter = NOISE * np.exp(UNEVEN * generator.standard_normal((identities, 1, 1), np.float32))
    noise = generator.standard_normal((identities, images, DIMENSIONS), np.float32)
    embeddings = centres + scatter * noise / np.float32(DIMENSIONS**0.5)
    return embeddings / np.linalg.norm(embeddings, axis=-1, keepdims=True)


def _scores(embeddings: NDArray[np.float32]) -> NDArray[np.float32]:
    flat = embeddings.reshape(-1, DIMENSIONS)
    return flat @ flat.T


def _truth(generator: np.random.Generator) -> tuple[float, float, float]:
    """Return the thresholds of the true FMR and FNMR, and the true TPR at the first of them."""
    match = []
    for _ in range(12):
        scores = _scores(_draw(generator, 4000, 1))
        different = scores[np.triu_indices(len(scores), 1)]
        match.append(np.quantile(different, 1 - FMR))
    one, other = _draw(generator, 1_000_000, 2).swapaxes(0, 1)
    same = np.einsum("nd,nd->n", one, other)
    threshold = float(np.mean(match))
    return threshold, float(np.quantile(same, FNMR)), float(np.mean(same >= threshold))


def _rows(what: str, method: str, covered: int, repetitions: int) -> list[Row]:
    share = covered / repetitions
    error = 100 * (share * (1 - share) / repetitions) ** 0.5
    remark = f"{covered:,} of {repetitions:,} sets, Monte-Carlo error {error:.1f} points"
    name = f"coverage of 95 %, {what}, {method}"
    if method == DEFAULT:
        return [
            Row(f"{name}: not too low", 100 * share, "%", 93.0, "higher", remark),
            Row(f"{name}: not too high", 100 * share, "%", 97.0, "lower", remark),
        ]
    bar = 92.0 if method == VERTEX else None
    return [Row(name, 100 * share, "%", bar, "higher", remark)]
