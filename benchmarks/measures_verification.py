"""The measurements of verification figures behind ``benchmarks/run.py``."""

from __future__ import annotations

import statistics
import time

import numpy as np
from rows import Row
from sklearn.metrics import roc_curve

from facerec.statistics.rates import operating_points


def exact_figures(*, scores: int = 10_000_000, repeats: int = 3) -> list[Row]:
    """Compare TPR at several FPR targets with scikit-learn's ROC and a search in it.

    Both start from the same float32 scores and must give the same rates. They alternate; the
    median ratio counts. Putting scores and labels together for scikit-learn is not timed.

    Args:
        scores: half of them of same pairs.
        repeats: of both sides.
    """
    generator = np.random.default_rng(0)
    positives, negatives = (
        generator.normal(mean, 1, scores // 2).astype(np.float32) for mean in (3, 0)
    )
    targets = ("1e-1", "1e-2", "1e-3", "1e-4", "1e-5", "1e-6")
    values = np.concatenate([positives, negatives])
    labels = np.repeat([True, False], [positives.size, negatives.size])

    times = np.empty((repeats, 2))
    for row in times:
        start = time.perf_counter()
        points = operating_points(positives, negatives, targets)
        middle = time.perf_counter()
        fpr, tpr, _ = roc_curve(labels, values, drop_intermediate=False)
        found = np.searchsorted(fpr, [float(target) for target in targets], side="right") - 1
        row[:] = middle - start, time.perf_counter() - middle
        np.testing.assert_array_equal([point.tpr for point in points], tpr[found])
        np.testing.assert_array_equal([point.fpr_realised for point in points], fpr[found])
    ours, theirs = (statistics.median(side) for side in times.T.tolist())
    return [
        Row(
            f"TPR at {len(targets)} FPR targets from {scores:,} scores: one call against "
            "scikit-learn's roc_curve and searchsorted",
            statistics.median((times[:, 1] / times[:, 0]).tolist()),
            "×",
            5.0,
            "higher",
            f"{ours:.3f} s against {theirs:.2f} s, the same rates; medians of {repeats}",
        )
    ]
