"""Figures of a comparison. Arms keep their colour in all of them; estimates have whiskers."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from facerec.comparison.protocol import METRICS, UNTRAINED
from facerec.comparison.summary import HEADLINE, Summary, kept_scores
from facerec.comparison.tables import percent
from facerec.report.figures import (
    COLOURS,
    SMALL,
    SOFT,
    beside,
    label,
    legend,
    name_rows,
    new_figure,
    note,
    styles,
    tidy,
)

_WIDTH = 7.5
_WIDE = 11.4
"""Of the first figure, which takes the whole page."""
_ROW = 0.172
"""Height of an arm there: 28 of them are to be seen without scrolling."""
_BAND = (0.1, 0.9)
"""Quantiles between which most learning curves lie."""
_METRIC = METRICS["map_at_r"]


def arm_figure(summary: Summary) -> Figure | None:
    """Draw all arms with their intervals, and beside each its difference from its base.

    The best come first, each penalty right below its loss. Colour is for what the test declares.
    """
    rows = _ranked(summary)
    if not rows:
        return None
    figure = Figure(figsize=(_WIDE, 0.85 + _ROW * len(rows)), layout="constrained")
    count = 1 + bool(summary.pairs)
    panels = figure.subplots(1, count, sharey=True, squeeze=False)[0].tolist()
    for axes in panels:
        tidy(axes)
        axes.grid(False, axis="y")
        axes.tick_params(axis="x", labelsize=SMALL)
    tones = []
    for at, arm in enumerate(rows):
        row = summary.headline(arm)
        base = summary.arms.against[arm]
        tone = "0.15" if pd.isna(base) else "0.45"
        if summary.declared(arm, *HEADLINE) and row is not None:
            tone = COLOURS[0] if row.difference > 0 else COLOURS[1]
        tones.append(tone)
        if row is None:
            panels[0].text(0.5, at, "failed", transform=panels[0].get_yaxis_transform())
            continue
        _whiskers(panels[0], row, "mean", at, tone)
        if count == 2 and not math.isnan(row.difference):
            _whiskers(panels[1], row, "difference", at, tone)
            beside(panels[1], at, label(f"− {base}", 26))
    untrained = summary.headline(UNTRAINED)
    if untrained is not None:
        panels[0].axvline(100 * untrained["mean"], color="0.4", linewidth=0.9, linestyle=":")
    name_rows(panels[0], [label(arm, 30).replace("\n", " ") for arm in rows])
    for tone, text in zip(tones, panels[0].get_yticklabels(), strict=True):
        text.set_color(tone)
    panels[0].set_xlabel(f"test {_METRIC}, %; dotted: untrained", fontsize=9)
    if count == 2:
        panels[1].axvline(0, color="0.2", linewidth=0.9)
        panels[1].tick_params(axis="y", left=False, labelleft=False)
        panels[1].set_xlabel("difference from what stands at the right, points", fontsize=9)
    figure.suptitle(
        "blue: above, orange: below what it is compared with (adjusted p ≤ "
        f"{1 - summary.comparison.confidence:.2g}); grey: no difference detected; thin: "
        f"{percent(summary)} over seeds and test classes, thick: over seeds",
        x=0.01,
        ha="left",
        fontsize=SMALL,
        color=SOFT,
    )
    return figure


def _ranked(summary: Summary) -> list[str]:
    """Return the arms, best first; one that differs in its penalty alone follows its base."""
    arms = summary.arms
    if arms.missing.ne("").all():
        return []
    hosts = {pair.Index: pair.against for pair in summary.pairs if pair.claim == "penalty"}

    def host(name: str) -> str:
        return host(hosts[name]) if name in hosts else name

    def value(name: str) -> float:
        row = summary.headline(name)
        return -math.inf if row is None else float(row["mean"])

    order = list(arms.index)
    return sorted(order, key=lambda n: (-value(host(n)), order.index(host(n)), order.index(n)))


def _whiskers(axes: Axes, row: Any, name: str, at: float, colour: str) -> None:
    """Draw an estimate with its joint interval, thin, and that over seeds, thick."""
    value = 100 * row[name]
    for over, width, alpha in (("joint", 1.0, 1.0), ("over_seeds", 3.2, 0.45)):
        low, high = (100 * row[f"{name}_{over}_{end}"] for end in ("low", "high"))
        ends = [min(low, value), max(high, value)]
        axes.plot(ends, [at, at], color=colour, linewidth=width, alpha=alpha)
    axes.plot(value, at, "o", color=colour, markersize=4.5)


def learning_figure(summary: Summary) -> Figure | None:
    """Draw validation scores of the final runs by epoch; None without any."""
    fits = {
        each.arm.name: [f for run in each.runs for f in run.fits] for each in summary.results.arms
    }
    known = {name: of_arm for name, of_arm in fits.items() if of_arm}
    if not known:
        return None
    figure, axes = new_figure(_WIDTH, 4.4)
    shown = styles(list(known))
    for style, of_arm in zip(shown, known.values(), strict=True):
        curves = 100 * kept_scores(of_arm)
        epochs = np.arange(curves.shape[1])
        axes.plot(epochs, curves.mean(axis=0), style.line, color=style.colour, linewidth=1.4)
        if len(known) <= len(COLOURS):
            low, high = np.quantile(curves, _BAND, axis=0)
            axes.fill_between(epochs, low, high, color=style.colour, alpha=0.12, linewidth=0)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_xlabel("epoch", fontsize=9)
    axes.set_ylabel(f"validation {_METRIC}, %", fontsize=9)
    most = " to ".join(f"{100 * share:g}" for share in _BAND)
    note(axes, f"lines: means over seeds and folds; bands: {most} % of them")
    legend(figure, shown)
    return figure
