from __future__ import annotations

import numpy as np
from helpers.plain_rates import tpr_at_fpr
from helpers.toy_results import make_result
from matplotlib.axes import Axes
from matplotlib.patches import StepPatch

from facerec.verification import Pairs, evaluate
from facerec.verification.plots import roc_plot, score_plot


def curves(axes: Axes) -> list[tuple[np.ndarray, np.ndarray]]:
    return [
        tuple(map(np.asarray, line.get_data()))  # type: ignore[misc]
        for line in axes.get_lines()
        if line.get_drawstyle() == "steps-post"
    ]


# --- ROC --------------------------------------------------------------------------------------


def test_curve_is_the_exact_step_function() -> None:
    result = make_result()
    ((x, y),) = curves(roc_plot({"toy": result}).axes[0])
    assert x[0] == 1 / 100  # nothing is drawn where nothing is resolvable
    assert (x[-1], y[-1]) == (1, 1)
    for target in ("1/100", "1/50", "0.055", "1/10", "0.333", "1/2", "1"):
        numerator, _, denominator = target.partition("/")
        at = np.searchsorted(x, float(numerator) / float(denominator or 1), side="right") - 1
        assert y[at] == tpr_at_fpr(result.mated_scores, result.non_mated_scores, target).tpr


def test_separated_scores_can_be_drawn() -> None:
    rows = np.arange(40)
    pairs = Pairs(2 * rows, 2 * rows + 1, rows < 20)
    result = evaluate(np.where(pairs.issame, 1.0, -1.0), pairs, name="perfect")
    for drawn in (roc_plot({"perfect": result}), score_plot("perfect", result)):
        drawn.draw_without_rendering()
        assert all(np.isfinite([*axes.get_xlim(), *axes.get_ylim()]).all() for axes in drawn.axes)


# --- histograms -------------------------------------------------------------------------------


def outlines(axes: Axes) -> list[StepPatch]:
    return [patch for patch in axes.patches if isinstance(patch, StepPatch) and not patch.fill]


def test_every_pair_is_in_the_histogram_of_its_kind() -> None:
    results = {"one": make_result(), "two": make_result(400, noise=5)}
    for name, result in results.items():
        axes = score_plot(name, result).axes[0]
        sets = result.mated_scores, result.non_mated_scores
        for patch, scores in zip(outlines(axes), sets, strict=True):
            counts, edges, _ = patch.get_data()
            np.testing.assert_array_equal(counts, np.histogram(scores, edges)[0])
            assert counts.sum() == scores.size
