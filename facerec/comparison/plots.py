"""The figure of a comparison: a forest of all arms and of their differences."""

from __future__ import annotations

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from facerec.comparison.protocol import METRICS, UNTRAINED
from facerec.comparison.summary import HEADLINE, Summary
from facerec.report.plotting import COLOURS, SMALL, SOFT, beside, label, name_rows, plain_axes
from facerec.report.tidy import Row

_WIDTH = 11.4
_ROW = 0.172
"""Height of an arm: 28 of them are to be seen without scrolling."""


def arm_figure(summary: Summary) -> Figure | None:
    """Draw all arms with their intervals, and beside each its difference from its base.

    Colour is for what the test declares.
    """
    rows = [arm for arm in summary.arms.index if summary.headline(arm) is not None]
    if not rows:
        return None
    figure = Figure(figsize=(_WIDTH, 0.85 + _ROW * len(rows)), layout="constrained")
    left, right = figure.subplots(1, 2, sharey=True)
    for axes in (left, right):
        plain_axes(axes)
        axes.grid(False, axis="y")
        axes.tick_params(axis="x", labelsize=SMALL)
    for at, arm in enumerate(rows):
        change, base = summary.headline(arm, change=True), summary.arms.against[arm]
        tone = "0.15" if pd.isna(base) else "0.45"
        if summary.declared(arm, *HEADLINE):
            tone = COLOURS[0] if change["value"] > 0 else COLOURS[1]
        _whiskers(left, summary.headline(arm), at, tone)
        if change is not None:
            _whiskers(right, change, at, tone)
            beside(right, at, label(f"− {base}", 26))
    left.axvline(100 * summary.headline(UNTRAINED)["value"], color="0.4", linewidth=0.9, ls=":")
    right.set_visible(bool(summary.pairs))
    right.axvline(0, color="0.2", linewidth=0.9)
    right.tick_params(axis="y", left=False, labelleft=False)
    name_rows(left, [label(arm, 30).replace("\n", " ") for arm in rows])
    left.set_xlabel(f"test {METRICS['map_at_r']}, %; dotted: untrained", fontsize=9)
    right.set_xlabel("difference from what stands at the right, points", fontsize=9)
    confidence = summary.comparison.confidence
    figure.suptitle(
        "blue: above, orange: below what it is compared with (adjusted p ≤ "
        f"{1 - confidence:.2g}); grey: no difference detected; thin: {100 * confidence:g} % over "
        "seeds and test classes, thick: over seeds",
        x=0.01,
        ha="left",
        fontsize=SMALL,
        color=SOFT,
    )
    return figure


def _whiskers(axes: Axes, row: Row, at: float, colour: str) -> None:
    """Draw an estimate with its joint interval, thin, and that over seeds, thick."""
    for over, width, alpha in (("", 1.0, 1.0), ("seeds_", 3.2, 0.45)):
        ends = [row[f"{over}low"], row[f"{over}high"]]
        if None not in ends:
            shares = [100 * end for end in ends]
            axes.plot(shares, [at, at], color=colour, linewidth=width, alpha=alpha)
    axes.plot(100 * row["value"], at, "o", color=colour, markersize=4.5)
