"""Measurements of fair comparisons: the search behind their figures, and how often they err."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch
from apart import apart, clusters, peak
from numpy.typing import NDArray
from rows import Row

from facerec.comparison.retrieval import retrieve
from facerec.comparison.significance import SeedMean, adjust, compare_paired


def retrieval(
    images: int = 50_000,
    dimensions: int = 512,
    per_class: int = 50,
    batches: tuple[int, ...] = (256, 1024),
) -> list[Row]:
    """Search and rate all images against all others, as pytorch-metric-learning does too.

    It needs version 2 of that library: version 3 has its calculator elsewhere and with other
    arguments, and wants a Python and a torch that this has not been run with.

    Each contestant runs on one thread in a process of its own; time is CPU time. The other side
    searches in small batches, which take less memory, and in larger ones, which take less time.
    Both find as many neighbours as the largest class needs.

    Args:
        images: embeddings.
        dimensions: of each.
        per_class: images of one class.
        batches: of the other side's own search.
    """
    name = f"P@1, R-Precision and MAP@R, {images:,} × {dimensions}, against "
    installed = version("pytorch-metric-learning")
    if not installed.startswith("2."):
        remark = f"needs pytorch-metric-learning 2, found {installed}"
        return [Row(f"{name}pytorch-metric-learning", None, "×", remark=remark)]
    size = [images, dimensions, per_class]
    ours = apart(searched, 0, *size)
    rows = []
    for batch in batches:
        theirs = apart(searched, batch, *size)
        # Vectors that are normalised in another precision may swap nearly equal neighbours.
        assert np.allclose(ours["figures"], theirs["figures"], rtol=0, atol=0.5 / images + 1e-5)
        what = f"{name}pytorch-metric-learning, batches of {batch}"
        seconds, memory = ([side[key] for side in (ours, theirs)] for key in ("seconds", "memory"))
        reached = f"MAP@R {ours['figures'][2]:.6f} and {theirs['figures'][2]:.6f}"
        told = f"{seconds[0]:.1f} against {seconds[1]:.1f} s of CPU time, {reached}"
        rows.append(Row(f"{what}: faster", seconds[1] / seconds[0], "×", 2.0, "higher", told))
        told = f"{memory[0]:.0f} against {memory[1]:.0f} MB beside the embeddings"
        rows.append(Row(f"{what}: memory", memory[0] / memory[1], "×", 0.5, remark=told))
    return rows


def searched(batch: int, images: int, dimensions: int, per_class: int) -> dict[str, Any]:
    """Search by ours, or by theirs in batches; return seconds, MB and figures."""
    torch.set_num_threads(1)
    generator = np.random.default_rng(0)
    labels = generator.permutation(np.arange(images) // per_class)
    embeddings = clusters(labels, dimensions, generator, 2.5)
    search = _theirs(batch) if batch else _ours
    search(embeddings[:64], np.arange(64) // 2)  # loads what is loaded late
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")  # the peak starts anew
    before, used = peak(), time.process_time()
    figures = search(embeddings, labels)
    used, memory = time.process_time() - used, (peak() - before) / 2**20
    return {"seconds": used, "memory": memory, "figures": figures}


def _ours(vectors: NDArray[np.float32], labels: NDArray[np.int64]) -> list[float]:
    means = retrieve(vectors, labels, ks=(1,)).means()
    return [means[name] for name in ("precision_at_1", "r_precision", "map_at_r")]


def _theirs(batch: int) -> Callable[..., list[float]]:
    from pytorch_metric_learning.distances import CosineSimilarity
    from pytorch_metric_learning.utils.accuracy_calculator import AccuracyCalculator
    from pytorch_metric_learning.utils.inference import CustomKNN

    names = ("precision_at_1", "r_precision", "mean_average_precision_at_r")
    calculator = AccuracyCalculator(
        include=names,
        k="max_bin_count",
        device=torch.device("cpu"),
        knn_func=CustomKNN(CosineSimilarity(), batch_size=batch),
        kmeans_func=lambda x, clusters: None,
    )

    def search(vectors: NDArray[np.float32], labels: NDArray[np.int64]) -> list[float]:
        found = calculator.get_accuracy(torch.from_numpy(vectors), torch.from_numpy(labels))
        return [float(found[name]) for name in names]

    return search


def null(
    families: int = 400, losses: int = 4, seeds: int = 10, classes: int = 24, images: int = 6
) -> list[Row]:
    """Compare arms that do not differ, and count how often a difference is declared.

    A training is a random linear map of cached embeddings. Both arms of one seed share a part of it
    and have a part of their own, alike in distribution; so do all losses of one family. From there
    on everything is as in a report: retrieval, paired comparison of MAP@R, Holm over the losses.

    Args:
        families: repetitions.
        losses: comparisons in each.
        seeds: of each arm.
        classes: of cached embeddings.
        images: of each class.
    """
    generator = np.random.default_rng(0)
    labels = np.repeat(np.arange(classes), images)
    cached = generator.standard_normal((classes, 16))[labels]
    cached += generator.standard_normal(cached.shape)
    found: list[list[SeedMean]] = []
    for _ in range(families):
        family = []
        for _ in range(losses):
            arms = np.array([_train_both(cached, labels, generator) for _ in range(seeds)])
            family.append(compare_paired(arms[:, 0], arms[:, 1], labels))
        found.append(adjust(family))
    name = f"null, {losses} losses × {seeds} seeds, {classes} classes × {images} images"
    return declared_rows(name, found)


def declared_rows(name: str, families: Sequence[Sequence[SeedMean]]) -> list[Row]:
    """Return how often arms that do not differ are declared different, and coverage of 0.

    Args:
        name: of the measurement, which the measures begin with.
        families: their comparisons, adjusted.
    """
    every = [comparison for family in families for comparison in family]
    wrong = [[c.p_holm is not None and c.p_holm <= 0.05 for c in family] for family in families]
    declared, any_declared = sum(map(sum, wrong)), sum(map(any, wrong))
    share, of_families = 100 * declared / len(every), 100 * any_declared / len(families)
    told = f"{declared:,} of {len(every):,} comparisons, after Holm"
    rows = [Row(f"{name}: declared different", share, "%", 5, remark=told)]
    told = f"{any_declared:,} of {len(families):,}; the bar is 5 % and 1.64 binomial errors"
    name_of_any, bar = (
        f"{name}: families with any declared different",
        5 + _allowance(len(families)),
    )
    rows.append(Row(name_of_any, of_families, "%", bar, remark=told))
    for kind, title in (("over_seeds", "over seeds"), ("interval", "joint")):
        intervals = [getattr(comparison, kind) for comparison in every]
        covered = sum(interval.low <= 0 <= interval.high for interval in intervals)
        told = f"{covered:,} of {len(every):,}; the bar is 95 % less 1.64 binomial errors"
        what = f"{name}: coverage of 95 % intervals, {title}"
        bar = 95 - _allowance(len(every))
        rows.append(Row(what, 100 * covered / len(every), "%", bar, "higher", told))
    return rows


def _train_both(
    cached: NDArray[np.float64], labels: NDArray[np.int64], generator: np.random.Generator
) -> list[NDArray[np.float64]]:
    """Return MAP@R of every query for both arms of one seed."""
    size = cached.shape[1]
    shared, *own = generator.standard_normal((3, size, size)) / math.sqrt(size)
    maps = [np.eye(size) + 0.5 * shared + 0.3 * part for part in own]
    return [retrieve(cached @ each, labels, ks=()).figures["map_at_r"] for each in maps]


def _allowance(trials: int) -> float:
    """Return 1.64 binomial standard errors of a share of 5 %, in percent."""
    return 164 * math.sqrt(0.05 * 0.95 / trials)
