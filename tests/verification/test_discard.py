from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np

from facerec.verification import Pairs, evaluate
from facerec.verification.discard import discard_by


def test_a_quality_that_orders_errors_makes_them_fall(tmp_path: Path) -> None:
    """Mated scores rise with the quality of the worse image; the norm is drawn apart from it."""
    draw, path = np.random.default_rng(0), tmp_path / "Q.csv"
    rows, mated = np.arange(2000), np.arange(2000) < 1000
    values, norms = draw.uniform(0, 100, 4000), draw.uniform(10, 30, 4000)
    scores = np.where(mated, np.minimum(values[::2], values[1::2]) / 40, draw.normal(0, 0.3, 2000))
    pairs, ids = Pairs(2 * rows, 2 * rows + 1, mated), np.arange(4000).astype(np.str_)
    result = evaluate(scores.astype(np.float32), pairs, name="drawn", fpr=["1e-1", "5e-2", "1e-3"])
    result = replace(result, items=ids, norms=norms)
    lines = [f"{i},{values[i]},{norms[i]}" for i in range(20, 4000)]
    path.write_text("\n".join(["image,ofiq,norm", *lines]))
    found = discard_by(result, f"{path}:ofiq")
    point = result.points[1].point
    assert result.headline_point == point and "20 of 4,000 images" in found.notes[-1]
    wrong = scores[10:1000].astype(np.float32) < point.threshold
    order = np.argsort(np.minimum(values[20:2000:2], values[21:2000:2]))
    kept = [found.metrics[f"FNMR without the lowest {share} % of ofiq"] for share in (1, 5, 10, 20)]
    gone = [9, 49, 99, 198]
    assert [one.events for one in kept] == [wrong[order[each:]].sum() for each in gone]
    assert [one.total for one in kept] == [990 - each for each in gone]
    assert (np.diff([wrong.mean(), *(one.value or 0 for one in kept)]) < 0).all()
    area = "area under error versus discard to 20 %, {}".format
    best, other = (found.metrics[area(of)].value for of in ("ofiq", "raw norm"))
    assert best is not None and other is not None and best < 0.9 * other
    # A file that holds the norms gives the figures of the norms.
    again = discard_by(result, f"{path}:norm").metrics
    by_norm = {name: one for name, one in again.items() if name.endswith("raw norm")}
    assert len(by_norm) == 5
    assert all(again[name.replace("raw norm", "norm")] == one for name, one in by_norm.items())
