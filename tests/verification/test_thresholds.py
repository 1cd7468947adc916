from __future__ import annotations

import numpy as np

from facerec.statistics.kfold import fold_indices
from facerec.verification import Pairs, evaluate


def test_thresholds_are_those_of_the_result() -> None:
    pairs = 400
    same = np.tile(np.repeat([True, False], pairs // 20), 10)
    scores = np.clip(np.random.default_rng(0).normal(0.5 * same, 0.15), -1, 1)
    first, people = 2 * np.arange(pairs), np.arange(2 * pairs)
    listed = Pairs(first, first + 1, same, people, fold_indices(pairs))
    found = evaluate(scores, listed, name="lfw", fpr=("1e-1", "1e-2", "1e-4"))
    rows = found.thresholds()
    # 200 different pairs cannot resolve 1e-4.
    assert [row.fpr for row in rows] == ["1e-1", "1e-2"]
    for row, estimate in zip(rows, found.points, strict=False):
        interval = estimate.threshold.interval
        assert row.threshold == estimate.point.threshold
        limits = None if interval is None else (interval.low, interval.high)
        assert row.threshold_interval == (limits if np.isfinite(limits or np.nan).all() else None)
        for rate, counts, of in (
            ("fpr_realised", "false_accepts", found.non_mated_scores),
            ("tpr", "true_accepts", found.mated_scores),
        ):
            accepted = of >= row.threshold
            counted = getattr(row, rate), getattr(row, counts)
            assert counted == (accepted.mean(), (accepted.sum(), 200))
        assert (row.flip, row.bench) == (bool(found.flip), "lfw")
