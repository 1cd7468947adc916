"""Figures of a comparison. Arms keep colour and line in all of them; estimates have whiskers."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from facerec.comparison.finals import VIEWS
from facerec.comparison.protocol import METRICS
from facerec.comparison.summary import BAND, HEADLINE, ArmSummary, Pair, Summary
from facerec.statistics.intervals import Interval
from facerec.verification.plots import _COLOURS, _SMALL, _SOFT, _plain, _tidy

_WIDTH = 7.5
_COLUMNS = 3
"""Panels side by side."""
_PANEL = 2.5
"""Height of a panel, inches."""
_MOST = len(_COLOURS)
"""Arms in a panel."""
_LABELLED = 14
"""Points of a scatter up to which each bears its name."""
_LEAST = 0.1
"""Points of percent that an axis of gains reaches at least."""
_MARKERS = ("o", "s", "^", "D", "v", "P", "X")
Line = Literal["-", "--", "-.", ":"]
_LINES: tuple[Line, ...] = ("-", "--", "-.", ":")
_METRIC = METRICS["map_at_r"]


@dataclass(frozen=True)
class _Style:
    colour: str
    line: Line
    marker: str


def difference_figure(summary: Summary) -> Figure | None:
    """Draw a forest of the headline differences with their intervals; None without any.

    Differences apart, by single models, lie below those of concatenated embeddings.
    """
    pairs = [pair for pair in summary.pairs if pair.headline is not None]
    if not pairs:
        return None
    figure = Figure(figsize=(_WIDTH, 1.25 + 0.52 * len(pairs)), layout="constrained")
    axes = figure.add_subplot()
    _tidy(axes)
    axes.grid(False, axis="y")
    axes.axvline(0, color="0.2", linewidth=0.9)
    for place, pair in enumerate(pairs):
        for view, shift, colour, filled in zip(
            VIEWS, (-0.13, 0.2), (_COLOURS[0], _COLOURS[1]), (True, False), strict=True
        ):
            found = pair.difference(view, HEADLINE[1])
            if found is None:
                continue
            mean, at = found.mean, place + shift
            _whisker(axes, mean.value, mean.interval, at, colour, 1.1)
            _whisker(axes, mean.value, mean.over_seeds, at, colour, 3.0, ends=False)
            face = colour if filled else "white"
            axes.plot(100 * mean.value, at, "D", color=colour, markersize=5.5, markerfacecolor=face)
            single = mean.differences if mean.total > 1 else ()
            axes.plot(
                [100 * each for each in single],
                [at + 0.13] * len(single),
                "|",
                color=colour,
                markersize=4,
                alpha=0.6,
            )
        _beside(axes, place, _relative(pair))
    names = [f"{pair.arm} − {pair.base}" for pair in pairs]
    axes.set_yticks(range(len(pairs)), [_short(name, 34) for name in names], fontsize=9)
    axes.set_ylim(len(pairs) - 0.5, -0.6)
    for place in range(1, len(pairs)):
        axes.axhline(place - 0.5, color="0.9", linewidth=0.6, zorder=0)
    for label in axes.get_yticklabels():
        label.set_parse_math(False)
    axes.tick_params(axis="x", labelsize=_SMALL)
    axes.set_xlabel(f"difference in test {_METRIC}, points of percent", fontsize=9)
    percent = f"{100 * summary.confidence:g} %"
    _note(
        figure,
        f"thin whiskers: {percent} intervals over seeds and test classes; thick: over seeds alone; "
        "ticks: single seeds; right: concatenated, relative to the base",
    )
    _legend(
        figure,
        [
            Line2D([], [], color=_COLOURS[0], marker="D", label="concatenated"),
            Line2D(
                [], [], color=_COLOURS[1], marker="D", markerfacecolor="white", label="separated"
            ),
        ],
    )
    return figure


def trial_figure(summary: Summary) -> Figure | None:
    """Draw the best validation score so far over the trials of each arm; None without a search."""
    if not any(len(arm.trials) > 1 and arm.validation is not None for arm in summary.arms):
        return None
    figure, panels = _panels(summary, "trial", f"validation {_METRIC}, %")
    for axes, arms in panels:
        for arm, style in arms:
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
        axes.set_xlim(0.5, max(len(arm.trials) for arm in summary.arms) + 0.5)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    _note(figure, "lines: best of this and earlier trials; marks: single trials that did not fail")
    return figure


def learning_figure(summary: Summary) -> Figure | None:
    """Draw validation scores of the final runs by epoch; None without any."""
    if not any(arm.learning for arm in summary.arms):
        return None
    figure, panels = _panels(summary, "epoch", f"validation {_METRIC}, %")
    for axes, arms in panels:
        for arm, style in arms:
            curve = arm.learning
            if curve is None:
                continue
            low, high = 100 * np.array(curve.low), 100 * np.array(curve.high)
            axes.fill_between(curve.epochs, low, high, color=style.colour, alpha=0.16, linewidth=0)
            axes.plot(
                curve.epochs,
                100 * np.array(curve.mean),
                color=style.colour,
                linestyle=style.line,
                linewidth=1.6,
            )
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    fits = sorted({arm.learning.fits for arm in summary.arms if arm.learning})
    most = " to ".join(f"{100 * share:g}" for share in BAND)
    _note(
        figure,
        f"lines: means over seeds and folds ({', '.join(map(str, fits))} trainings an arm); bands: "
        f"{most} % of them; score of the weights kept so far",
    )
    return figure


def gain_figure(summary: Summary) -> Figure | None:
    """Draw each pair's gain over its reduction of norm variance; None without any."""
    points = [
        (pair, pair.norm_reduction, pair.headline.mean)
        for pair in summary.pairs
        if pair.headline is not None and pair.norm_reduction is not None
    ]
    if not points:
        return None
    figure = Figure(figsize=(_WIDTH, 4.2), layout="constrained")
    axes = figure.add_subplot()
    _tidy(axes)
    families = list(dict.fromkeys(pair.family for pair, *_ in points))
    axes.axhline(0, color="0.2", linewidth=0.9)
    axes.axvline(0, color="0.2", linewidth=0.9)
    for pair, reduction, gain in points:
        place = families.index(pair.family)
        colour = _COLOURS[place % len(_COLOURS)]
        x, y = reduction.value, 100 * gain.value
        if reduction.interval is not None:
            axes.plot([reduction.interval.low, reduction.interval.high], [y, y], color=colour, lw=1)
        if gain.interval is not None:
            limits = [100 * gain.interval.low, 100 * gain.interval.high]
            axes.plot([x, x], limits, color=colour, lw=1)
        axes.plot(x, y, _MARKERS[place % len(_MARKERS)], color=colour, markersize=6.5)
        if len(points) <= _LABELLED:
            # Inwards from the outer point, or a long name would squeeze the axes.
            inwards = x > 0.6 * max(each.value for _, each, _ in points)
            axes.annotate(
                _short(pair.arm, 28),
                (x, y),
                (-6 if inwards else 6, 5),
                textcoords="offset points",
                ha="right" if inwards else "left",
                fontsize=_SMALL,
                parse_math=False,
            )
    axes.margins(x=0.14)
    low, high = axes.get_ylim()
    axes.set_ylim(min(low, -_LEAST), max(high, _LEAST))
    axes.tick_params(labelsize=_SMALL)
    axes.set_xlabel(
        "reduction of norm variance, base − arm, variance over squared mean", fontsize=9
    )
    axes.set_ylabel(f"gain in concatenated test {_METRIC}, points", fontsize=9)
    _note(figure, f"{_correlation(summary)}; whiskers: {100 * summary.confidence:g} % intervals")
    if len(points) > _LABELLED:
        _legend(
            figure,
            [
                Line2D(
                    [],
                    [],
                    color=_COLOURS[place % len(_COLOURS)],
                    marker=_MARKERS[place % len(_MARKERS)],
                    linestyle="none",
                    label=_short(name, 28),
                )
                for place, name in enumerate(families)
            ],
        )
    return figure


# ---------------------------------------------------------------- parts


def _families(summary: Summary) -> list[list[ArmSummary]]:
    """Return what shares a panel: an arm with those compared with it; the others together."""
    names = dict.fromkeys(arm.family for arm in summary.arms)
    found = [[arm for arm in summary.arms if arm.family == name] for name in names]
    alone = [arms[0] for arms in found if len(arms) == 1]
    groups = [arms for arms in found if len(arms) > 1] + ([alone] if alone else [])
    return [part for arms in groups for part in _parts(arms)]


def _parts(arms: list[ArmSummary]) -> list[list[ArmSummary]]:
    """Cut a list that is too long for a panel into about equal parts."""
    size = math.ceil(len(arms) / math.ceil(len(arms) / _MOST))
    return [arms[start : start + size] for start in range(0, len(arms), size)]


def _panels(
    summary: Summary, x: str, y: str
) -> tuple[Figure, Iterator[tuple[Axes, list[tuple[ArmSummary, _Style]]]]]:
    """Return a figure with a panel a family, and the arms in each with their style."""
    groups = _families(summary)
    columns = min(_COLUMNS, len(groups))
    rows = math.ceil(len(groups) / columns)
    deepest = max(map(len, groups))
    figure = Figure(figsize=(_WIDTH, rows * (_PANEL + 0.14 * deepest) + 0.3), layout="constrained")
    grid = figure.subplots(rows, columns, squeeze=False, sharey=True).ravel().tolist()

    def filled() -> Iterator[tuple[Axes, list[tuple[ArmSummary, _Style]]]]:
        for axes, arms in zip(grid, groups, strict=False):
            _tidy(axes)
            axes.tick_params(labelsize=_SMALL, labelleft=True)
            styled = [(arm, _style(place)) for place, arm in enumerate(arms)]
            yield axes, styled
            handles = [
                Line2D([], [], color=s.colour, linestyle=s.line, linewidth=1.6, label=_name(arm))
                for arm, s in styled
            ]
            # Above the axes, so that it hides no curve.
            legend = axes.legend(
                handles=handles,
                loc="lower left",
                bbox_to_anchor=(0, 1),
                frameon=False,
                fontsize=_SMALL,
                borderaxespad=0.2,
                labelspacing=0.25,
            )
            _plain(legend)
        for axes in grid[len(groups) :]:
            axes.set_visible(False)
        figure.supxlabel(x, fontsize=9)
        figure.supylabel(y, fontsize=9)

    return figure, filled()


def _style(place: int) -> _Style:
    return _Style(
        _COLOURS[place % len(_COLOURS)],
        _LINES[place % len(_LINES)],
        _MARKERS[place % len(_MARKERS)],
    )


def _name(arm: ArmSummary) -> str:
    return _short(arm.name, 22) + (" (failed)" if arm.reason else "")


def _whisker(
    axes: Axes,
    estimate: float,
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
    limits = [100 * min(interval.low, estimate), 100 * max(interval.high, estimate)]
    axes.plot(
        limits,
        [at, at],
        "|-" if ends else "-",
        color=colour,
        linewidth=width,
        markersize=6,
        solid_capstyle="butt",
        alpha=1 if ends else 0.45,
    )


def _relative(pair: Pair) -> str:
    found = pair.headline
    if found is None or found.relative is None:
        return ""
    n = "\nn=1" if found.mean.total == 1 else ""
    return f"{100 * found.relative:+.1f} %{n}".replace("-", "−")


def _beside(axes: Axes, place: float, text: str) -> None:
    axes.annotate(
        text,
        (1.0, place),
        (5, 0),
        xycoords=axes.get_yaxis_transform(),
        textcoords="offset points",
        fontsize=_SMALL,
        color=_SOFT,
        va="center",
        annotation_clip=False,
    )


def _correlation(summary: Summary) -> str:
    found, reason = summary.gain.correlation, summary.gain.reason
    if found is None:
        return f"no rank correlation: {reason}"
    text = f"Spearman’s ρ = {found.value:.2f}".replace("-", "−")
    if found.interval is None:
        return f"{text}, no interval: {reason}"
    limits = f"[{found.interval.low:.2f}, {found.interval.high:.2f}]".replace("-", "−")
    return f"{text} {limits}, {found.total} families of arms resampled"


def _legend(figure: Figure, handles: Sequence[Line2D]) -> None:
    legend = figure.legend(
        handles=handles, loc="outside lower center", frameon=False, fontsize=_SMALL, ncols=4
    )
    _plain(legend)


def _note(figure: Figure, text: str) -> None:
    """Say above the figure what its marks are."""
    text = textwrap.fill(text, 128)
    figure.suptitle(text, x=0.01, ha="left", fontsize=_SMALL, color=_SOFT)


def _short(name: str, most: int) -> str:
    """Return a name that fits, its middle left out."""
    if len(name) <= most:
        return name
    return f"{name[: most // 2]}…{name[-(most - most // 2 - 1) :]}"
