"""Plots of verification results: ROC curves and histograms of scores."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Mapping

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray

from facerec.report.plotting import (
    COLOURS,
    SMALL,
    label,
    new_figure,
    percent_axis,
    styles,
    verbatim,
)
from facerec.statistics.calibration_checks import observed_ratios
from facerec.statistics.operating_points import parse_rate
from facerec.statistics.rates import roc_curve
from facerec.verification.calibration import counts_of
from facerec.verification.result import VerificationResult

_MATED, _NON_MATED = COLOURS[0], COLOURS[1]
_BINS = 80

# Corners of a curve that are drawn: several a pixel, whatever the number of pairs.
_COLUMNS = 4000


def roc_plot(results: Mapping[str, VerificationResult]) -> Figure:
    """Draw exact step-function ROC curves over a logarithmic FPR axis.

    A curve begins where its different pairs allow one false accept; what lies left of that is
    shaded. Dots with whiskers are the operating points and their intervals; hollow dots rest on
    fewer than 30 false accepts.
    """
    figure, axes = new_figure(7, 5)
    lowest, finest = 1.0, 1.0
    for (name, result), style in zip(results.items(), styles(list(results)), strict=True):
        x, y = _steps(result)
        # Names take two lines at most, so that a legend leaves room for the curves.
        text = f"{label(name, 40)}   AUC {result.auc.value:.4f}"
        axes.step(x, y, where="post", color=style.colour, ls=style.line, lw=1.5, label=text)
        lowest, finest = min(lowest, y[0]), min(finest, x[0])
        for estimate in result.points:
            point, tpr, interval = estimate.point, estimate.point.tpr, estimate.tpr.interval
            if interval is None:
                continue
            lowest = min(lowest, interval.low)
            axes.errorbar(
                float(parse_rate(point.target)),
                tpr,
                # An interval may lie on one side of the figure itself.
                yerr=[[max(0.0, tpr - interval.low)], [max(0.0, interval.high - tpr)]],
                color=style.colour,
                marker="o",
                linestyle="none",
                markersize=4.5,
                markerfacecolor=style.colour if point.reliable else "white",
                capsize=2.5,
                elinewidth=1,
            )
    left = 10 ** (math.floor(math.log10(finest) * 2 - 0.2) / 2)
    axes.set(xscale="log", xlim=(left, 1), xlabel="FPR", ylabel="TPR")
    # Room below the lowest value, and none of it wasted on a good model.
    axes.set_ylim(max(0.0, 1 - 1.08 * (1 - lowest)), 1 + 0.02 * (1 - lowest) + 1e-9)
    percent_axis(axes.yaxis)
    axes.axvspan(left, finest, color="0.88", zorder=0, linewidth=0)
    verbatim(axes.legend(loc="lower right", frameon=True, framealpha=0.9, fontsize=9))
    return figure


def score_plot(name: str, result: VerificationResult) -> Figure:
    """Draw histograms of mated and non-mated scores, thresholds marked.

    The count axis is logarithmic, so that single pairs on the wrong side are in sight. Infinite
    scores have no place in it and are named in the legend.
    """
    figure, axes = new_figure(7, 3.2)
    there = result.scores[np.isfinite(result.scores)].astype(np.float64)
    edges = np.histogram_bin_edges(there, _BINS)
    highest = 1
    for kind, scores, colour in (
        ("mated", result.mated_scores, _MATED),
        ("non-mated", result.non_mated_scores, _NON_MATED),
    ):
        finite = scores[np.isfinite(scores)]
        beyond = scores.size - finite.size
        text = f"{kind} ({scores.size:,} pairs)"
        text += f", {beyond:,} infinite not shown" if beyond else ""
        counts = np.histogram(finite, edges)[0]
        axes.stairs(counts, edges, fill=True, color=colour, alpha=0.25)
        axes.stairs(counts, edges, color=colour, label=text)
        highest = max(highest, counts.max())
    # Room for the legend above the highest bar.
    axes.set_ylim(0.7, 12 * highest)
    axes.set(yscale="log", ylabel="pairs a bin")
    axes.set_xlabel(textwrap.fill(f"{name}: {result.score}", 70), parse_math=False)
    points = [one.point for one in result.points if one.point.resolvable]
    points = [point for point in points if math.isfinite(point.threshold)]
    for point in points:
        axes.axvline(point.threshold, color="0.2", linewidth=0.9, linestyle="--")
    top = axes.secondary_xaxis("top")
    top.set_ticks([one.threshold for one in points], [f"FPR {one.target}" for one in points])
    top.tick_params(labelrotation=60, labelsize=SMALL, length=3)
    top.spines["top"].set_visible(False)
    verbatim(axes.legend(loc="upper left", frameon=False, fontsize=SMALL, ncols=2))
    return figure


def reliability_plot(result: VerificationResult) -> Figure:
    """Draw the likelihood ratios that the pairs of a result show over those that are claimed.

    Dots are bins of equally many pairs with their intervals; on the diagonal claims are true.
    """
    figure, axes = new_figure(5, 4)
    assert result.calibration is not None
    rows = observed_ratios(result.calibration.ratio.told(), counts_of(result))
    claimed, value, low, high = rows.T
    axes.errorbar(
        claimed, value, [value - low, high - value], fmt="o", color=COLOURS[0], capsize=2.5
    )
    ends = [min(rows.min(), -1), max(rows.max(), 1)]
    axes.plot(ends, ends, color="0.4", lw=1, ls="--", zorder=0)
    axes.set_xlabel("claimed likelihood ratio, power of ten")
    axes.set_ylabel("shown by the pairs, power of ten")
    return figure


def _steps(result: VerificationResult) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return FPR and TPR at the corners of the ROC, from one false accept on."""
    roc = roc_curve(result.mated_scores, result.non_mated_scores)
    fpr, tpr, start = roc.fpr, roc.tpr, 1 / result.non_mated
    first = int(np.searchsorted(fpr, start, side="right"))
    x, y = np.concatenate([[start], fpr[first:]]), tpr[first - 1 :]
    if x.size > _COLUMNS:
        # The first point in each of many columns, and the last of all.
        column = np.floor(np.log(x / start) / math.log(x[-1] / start) * _COLUMNS)
        shown = np.append(np.unique(column, return_index=True)[1], x.size - 1)
        x, y = x[shown], y[shown]
    return x, y
