"""Figures of a comparison. Arms keep their colour in all of them; estimates have whiskers."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Callable

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from facerec.comparison.finals import VIEWS
from facerec.comparison.protocol import METRICS
from facerec.comparison.significance import SeedMean
from facerec.comparison.summary import (
    BAND,
    HEADLINE,
    ArmSummary,
    Pair,
    Summary,
    find,
    gains_of,
    is_declared,
)
from facerec.comparison.tables import percent
from facerec.report import words
from facerec.report.figures import (
    COLOURS,
    SMALL,
    SOFT,
    Style,
    beside,
    label,
    legend,
    name_rows,
    new_figure,
    note,
    styles,
    tidy,
    verbatim,
)
from facerec.statistics.intervals import Interval

_WIDTH = 7.5
_WIDE = 11.4
"""Of the first figure, which takes the whole page."""
_ROW = 0.172
"""Height of an arm there: 28 of them are to be seen without scrolling."""
_COLUMNS = 3
"""Panels side by side."""
_PANEL = 2.5
"""Height of a panel, inches."""
_MOST = len(COLOURS)
"""Arms in a panel."""
_LABELLED = 14
"""Points of a scatter up to which each bears its name."""
_LEAST = 0.1
"""Points of percent that an axis of gains reaches at least."""
_METRIC = METRICS["map_at_r"]


def arm_figure(summary: Summary) -> Figure | None:
    """Draw all arms with their intervals, and beside each its difference from its base.

    The best come first, each penalty right below its loss. Colour is for what the test declares.
    """
    rows = _ranked(summary)
    if not rows:
        return None
    pairs = {pair.arm: pair for pair in summary.pairs if pair.headline is not None}
    figure = Figure(figsize=(_WIDE, 0.85 + _ROW * len(rows)), layout="constrained")
    count = 2 if pairs else 1
    panels = figure.subplots(1, count, sharey=True, squeeze=False)[0].tolist()
    for axes in panels:
        tidy(axes)
        axes.grid(False, axis="y")
        axes.tick_params(axis="x", labelsize=SMALL)
    tones = {}
    for row, arm in enumerate(rows):
        pair = pairs.get(arm.name)
        if row % 2:
            for axes in panels:
                axes.axhspan(row - 0.5, row + 0.5, color="0.96", zorder=0, linewidth=0)
        tone = tones[arm.name] = _tone(summary, pair)
        score = arm.headline
        if score is None:
            panels[0].annotate(
                "failed",
                (0.5, row),
                xycoords=panels[0].get_yaxis_transform(),
                fontsize=SMALL,
                va="center",
                ha="center",
                color=SOFT,
            )
        else:
            _forest_row(panels[0], score.mean, row, tone)
        if pair is not None and pair.headline is not None:
            _forest_row(panels[1], pair.headline.mean, row, tone)
            beside(panels[1], row, label(f"− {pair.base}", 26))
    untrained = find(summary.untrained, *HEADLINE)
    if untrained is not None:
        panels[0].axvline(100 * untrained.mean.value, color="0.4", linewidth=0.9, linestyle=":")
    name_rows(panels[0], [label(arm.name, 30).replace("\n", " ") for arm in rows])
    for name, text in zip(tones, panels[0].get_yticklabels(), strict=True):
        text.set_color(tones[name])
    panels[0].set_xlabel(f"test {_METRIC}, %; dotted: untrained", fontsize=9)
    if count == 2:
        panels[1].axvline(0, color="0.2", linewidth=0.9)
        panels[1].tick_params(axis="y", left=False, labelleft=False)
        panels[1].set_xlabel("difference from what stands at the right, points", fontsize=9)
    level = f"{1 - summary.confidence:.2g}"
    figure.suptitle(
        f"blue: above, orange: below what it is compared with (adjusted p ≤ {level}); grey: no "
        f"difference detected; thin: {percent(summary)} over seeds and test classes, "
        "thick: over seeds"
        if pairs
        else f"thin: {percent(summary)} intervals over seeds and test classes, thick: over seeds",
        x=0.01,
        ha="left",
        fontsize=SMALL,
        color=SOFT,
    )
    return figure


def _ranked(summary: Summary) -> list[ArmSummary]:
    """Return the arms, best first; one that differs in its penalty alone follows its base."""
    hosts = {pair.arm: pair.base for pair in summary.pairs if pair.claim == "penalty"}

    def host(name: str) -> str:
        return host(hosts[name]) if name in hosts else name

    def value(name: str) -> float:
        score = summary.arm(name).headline
        return -math.inf if score is None else score.mean.value

    if not any(arm.scores for arm in summary.arms):
        return []
    index_of = {arm.name: index for index, arm in enumerate(summary.arms)}
    return sorted(
        summary.arms,
        key=lambda arm: (-value(host(arm.name)), index_of[host(arm.name)], index_of[arm.name]),
    )


def _tone(summary: Summary, pair: Pair | None) -> str:
    if pair is None or pair.headline is None:
        return "0.15"
    if not is_declared(pair.headline.mean, summary.confidence):
        return "0.45"
    return COLOURS[0] if pair.headline.mean.value > 0 else COLOURS[1]


def _forest_row(axes: Axes, mean: SeedMean, row: int, colour: str) -> None:
    _whisker(axes, mean.value, mean.interval, row, colour, 1.0, ends=False)
    _whisker(axes, mean.value, mean.over_seeds, row, colour, 3.2, ends=False)
    axes.plot(100 * mean.value, row, "o", color=colour, markersize=4.5)


def difference_figure(summary: Summary) -> Figure | None:
    """Draw a forest of the headline differences with their intervals; None without any.

    Differences apart, by single models, lie below those of concatenated embeddings.
    """
    pairs = [pair for pair in summary.pairs if pair.headline is not None]
    if not pairs:
        return None
    figure, axes = new_figure(_WIDTH, 1.25 + 0.52 * len(pairs))
    axes.grid(False, axis="y")
    axes.axvline(0, color="0.2", linewidth=0.9)
    shown = styles(VIEWS)
    for row, pair in enumerate(pairs):
        for view, shift, style in zip(VIEWS, (-0.13, 0.2), shown, strict=True):
            difference = pair.difference(view, HEADLINE[1])
            if difference is None:
                continue
            mean, at, colour = difference.mean, row + shift, style.colour
            _whisker(axes, mean.value, mean.interval, at, colour, 1.1)
            _whisker(axes, mean.value, mean.over_seeds, at, colour, 3.0, ends=False)
            axes.plot(100 * mean.value, at, style.marker, color=colour, markersize=5.5)
            single = mean.differences if mean.total > 1 else ()
            axes.plot(
                [100 * each for each in single],
                [at + 0.13] * len(single),
                "|",
                color=colour,
                markersize=4,
                alpha=0.6,
            )
        beside(axes, row, _relative(pair))
    name_rows(axes, [label(pair.name, 34) for pair in pairs])
    for row in range(1, len(pairs)):
        axes.axhline(row - 0.5, color="0.9", linewidth=0.6, zorder=0)
    axes.set_xlabel(f"difference in test {_METRIC}, points of percent", fontsize=9)
    note(
        axes,
        f"thin whiskers: {percent(summary)} intervals over seeds and test classes; "
        "thick: over seeds alone; ticks: single seeds; right: concatenated, relative to the base",
    )
    legend(figure, shown)
    return figure


def _relative(pair: Pair) -> str:
    difference = pair.headline
    if difference is None or difference.relative is None:
        return ""
    n = "\nn=1" if difference.mean.total == 1 else ""
    return words.number(100 * difference.relative, "+.1f") + f" %{n}"


def trial_figure(summary: Summary) -> Figure | None:
    """Draw the best validation score so far over the trials of each arm; None without a search."""
    if not any(len(arm.trials) > 1 and arm.validation is not None for arm in summary.arms):
        return None

    def draw(axes: Axes, arm: ArmSummary, style: Style) -> None:
        numbers = range(1, len(arm.trials) + 1)
        best = [math.nan if t.best_so_far is None else t.best_so_far for t in arm.trials]
        axes.step(
            numbers,
            100 * np.array(best),
            where="post",
            color=style.colour,
            linestyle=style.line,
            linewidth=1.5,
        )
        tried = [(n, t.score) for n, t in zip(numbers, arm.trials, strict=True) if t.score]
        axes.plot(
            [n for n, _ in tried],
            [100 * score for _, score in tried],
            style.marker,
            color=style.colour,
            markersize=2.5,
            alpha=0.45,
            markeredgewidth=0,
        )
        axes.set_xlim(0.5, max(len(each.trials) for each in summary.arms) + 0.5)

    text = "lines: best of this and earlier trials; marks: single trials that did not fail"
    return _panels(summary, draw, "trial", text)


def learning_figure(summary: Summary) -> Figure | None:
    """Draw validation scores of the final runs by epoch; None without any."""
    fits = sorted({arm.learning.fits for arm in summary.arms if arm.learning})
    if not fits:
        return None

    def draw(axes: Axes, arm: ArmSummary, style: Style) -> None:
        curve = arm.learning
        if curve is None:
            return
        low, high = 100 * np.array(curve.low), 100 * np.array(curve.high)
        axes.fill_between(curve.epochs, low, high, color=style.colour, alpha=0.16, linewidth=0)
        axes.plot(
            curve.epochs,
            100 * np.array(curve.mean),
            color=style.colour,
            linestyle=style.line,
            linewidth=1.6,
        )

    most = " to ".join(f"{100 * share:g}" for share in BAND)
    text = (
        f"lines: means over seeds and folds ({', '.join(map(str, fits))} trainings an arm); bands: "
        f"{most} % of them; score of the weights kept so far"
    )
    return _panels(summary, draw, "epoch", text)


def gain_figure(summary: Summary) -> Figure | None:
    """Draw each pair's gain over its reduction of norm variance; None without any."""
    points = gains_of(summary.pairs)
    if not points:
        return None
    figure, axes = new_figure(_WIDTH, 4.2)
    families = list(dict.fromkeys(pair.family for pair, *_ in points))
    shown = dict(zip(families, styles(families), strict=True))
    axes.axhline(0, color="0.2", linewidth=0.9)
    axes.axvline(0, color="0.2", linewidth=0.9)
    for pair, reduction, gain in points:
        style = shown[pair.family]
        x, y = reduction.value, 100 * gain.value
        if reduction.interval is not None:
            ends = [reduction.interval.low, reduction.interval.high]
            axes.plot(ends, [y, y], color=style.colour, lw=1)
        if gain.interval is not None:
            ends = [100 * gain.interval.low, 100 * gain.interval.high]
            axes.plot([x, x], ends, color=style.colour, lw=1)
        axes.plot(x, y, style.marker, color=style.colour, markersize=6.5)
        if len(points) <= _LABELLED:
            # Inwards from the outer point, or a long name would squeeze the axes.
            inwards = x > 0.6 * max(each.value for _, each, _ in points)
            axes.annotate(
                label(pair.arm),
                (x, y),
                (-6 if inwards else 6, 5),
                textcoords="offset points",
                ha="right" if inwards else "left",
                fontsize=SMALL,
                parse_math=False,
            )
    axes.margins(x=0.14)
    low, high = axes.get_ylim()
    axes.set_ylim(min(low, -_LEAST), max(high, _LEAST))
    axes.tick_params(labelsize=SMALL)
    axes.set_xlabel(
        "reduction of norm variance, base − arm, variance over squared mean", fontsize=9
    )
    axes.set_ylabel(f"gain in concatenated test {_METRIC}, points", fontsize=9)
    note(axes, f"{_correlation(summary)}; whiskers: {percent(summary)} intervals")
    if len(points) > _LABELLED:
        legend(figure, list(shown.values()))
    return figure


def _correlation(summary: Summary) -> str:
    correlation, reason = summary.gain.correlation, summary.gain.reason
    if correlation is None:
        return f"no rank correlation: {reason}"
    text = f"Spearman’s ρ = {words.number(correlation.value, '.2f')}"
    if correlation.interval is None:
        return f"{text}, no interval: {reason}"
    ends = words.limits(correlation.interval, form=".2f")
    return f"{text} {ends}, {correlation.total} families of arms resampled"


# ---------------------------------------------------------------- panels


def _families(summary: Summary) -> list[list[ArmSummary]]:
    """Return what shares a panel: an arm with those compared with it; the others together."""
    names = dict.fromkeys(arm.family for arm in summary.arms)
    families = [[arm for arm in summary.arms if arm.family == name] for name in names]
    alone = [arms[0] for arms in families if len(arms) == 1]
    panels = []
    for arms in [*(arms for arms in families if len(arms) > 1), *([alone] if alone else [])]:
        # What is too long for a panel is cut into about equal ones.
        size = math.ceil(len(arms) / math.ceil(len(arms) / _MOST))
        panels += [arms[start : start + size] for start in range(0, len(arms), size)]
    return panels


def _panels(
    summary: Summary, draw: Callable[[Axes, ArmSummary, Style], None], x: str, text: str
) -> Figure:
    """Draw all arms over ``x``, a panel a family, and say above them what their marks are."""
    groups = _families(summary)
    columns = min(_COLUMNS, len(groups))
    rows = math.ceil(len(groups) / columns)
    deepest = max(map(len, groups))
    figure = Figure(figsize=(_WIDTH, rows * (_PANEL + 0.14 * deepest) + 0.3), layout="constrained")
    grid = figure.subplots(rows, columns, squeeze=False, sharey=True).ravel().tolist()
    for axes in grid[len(groups) :]:
        axes.set_visible(False)
    for axes, arms in zip(grid, groups, strict=False):
        tidy(axes)
        axes.tick_params(labelsize=SMALL, labelleft=True)
        names = [arm.name + (" (failed)" if arm.reason else "") for arm in arms]
        handles = []
        for arm, style in zip(arms, styles(names), strict=True):
            draw(axes, arm, style)
            handles.append(Line2D([], [], color=style.colour, ls=style.line, label=style.name))
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        # Above the axes, so that it hides no curve.
        drawn = axes.legend(
            handles=handles,
            loc="lower left",
            bbox_to_anchor=(0, 1),
            frameon=False,
            fontsize=SMALL,
            borderaxespad=0.2,
            labelspacing=0.25,
        )
        verbatim(drawn)
    figure.supxlabel(x, fontsize=9)
    figure.supylabel(f"validation {_METRIC}, %", fontsize=9)
    figure.suptitle(textwrap.fill(text, 128), x=0.01, ha="left", fontsize=SMALL, color=SOFT)
    return figure


def _whisker(
    axes: Axes,
    value: float,
    interval: Interval | None,
    at: float,
    colour: str,
    width: float,
    *,
    ends: bool = True,
) -> None:
    """Draw a level interval, widened to its estimate, in points of percent."""
    if interval is None:
        return
    axes.plot(
        [100 * min(interval.low, value), 100 * max(interval.high, value)],
        [at, at],
        "|-" if ends else "-",
        color=colour,
        linewidth=width,
        markersize=6,
        solid_capstyle="butt",
        alpha=1 if ends else 0.45,
    )
