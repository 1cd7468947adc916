"""Figures of a demographic norm audit.

Groups keep their order, colour and marker in all figures of a grouping. Every estimate is drawn
with its interval; what the data cannot carry is hatched or said in words.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import TypeAlias

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap, Normalize
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.ticker import LogLocator, NullFormatter
from numpy.typing import NDArray
from scipy.special import ndtri

from facerec.fairness.association import Association
from facerec.fairness.attributes import ALL_GROUPS
from facerec.fairness.baseline import Change
from facerec.fairness.channels import NormChannels
from facerec.fairness.differentials import Differentials
from facerec.fairness.norms import NormSummary, NormTable, SubjectNorms
from facerec.fairness.rate_results import (
    SCORE_EDGES,
    ErrorRate,
    GroupRates,
    RatesAtThreshold,
    ScoreHistogram,
)
from facerec.report import words
from facerec.report.estimate import Estimate
from facerec.report.figures import (
    COLOURS,
    SMALL,
    SOFT,
    Style,
    beside,
    filled,
    label,
    legend,
    name_rows,
    new_figure,
    note,
    percent_axis,
    probit_axis,
    styles,
    tidy,
    verbatim,
)
from facerec.statistics.intervals import Interval
from facerec.statistics.operating_points import parse_rate

_WIDTH = 7.0
_ROW = 0.3
"""Height of a group in a forest, inches."""
_GRID = 400
"""Points of smooth curves."""
_JOINED = 4
"""Bins of scores that are drawn as one."""
_STRIP = 48
"""Bins of the means of subjects."""
_MARKED = "full marks: at least 30 errors; half: 3 to 29; hollow: fewer"
_MOST_ROWS = 60
"""Rows of a comparison up to which pairs of groups are among them."""
_MOST_TEXT = 15
"""Groups up to which a matrix has text in its cells."""

_ALL = Style("all", "0", "o", "-")
"""How all groups together are drawn."""
_DIVERGING = LinearSegmentedColormap.from_list("delta", ["#0072B2", "#f7f7f7", "#D55E00"])
_AROUND_TARGET = LinearSegmentedColormap.from_list("target", ["#0072B2", "#d9d9d9", "#B2182B"])
_RATIOS = ("max/geomean", "max/min", "max/mean", "IR", "WERM", "SER")
_SHARES = ("Gini", "GARBE", "FDR")


# --- the findings -----------------------------------------------------------------------------


def headline_figure(table: NormTable, point: RatesAtThreshold | None) -> Figure:
    """Draw forests of what findings compare: norms and, with a threshold, FMR and FNMR by group."""
    figure, panels = _forest(table, 1 if point is None else 3)
    if point is not None:
        _both_errors([panels[1:]], [group.name for group in point.groups], [_within(point)])
        panels[1].set_xlabel(f"FMR within the group; dashed: {point.threshold.target}", fontsize=9)
        panels[2].set_xlabel("FNMR at that threshold", fontsize=9)
        figure.set_figwidth(1.6 * _WIDTH)
        # The panels share their rows, whose names have lost their counts of subjects.
        _name_groups(panels[0], table)
    _differences(panels[0], table)
    panels[0].set_xlabel("mean norm, group − all groups", fontsize=9)
    note(panels[0], "whiskers: 95 % intervals")
    return figure


# --- norms ------------------------------------------------------------------------------------


def violin_figure(sample: SubjectNorms, table: NormTable) -> Figure:
    """Draw each group's norms: images as half a violin, means of subjects as a strip of bins.

    Means are binned, so that no file holds the figure of a subject.
    """
    figure, axes = new_figure(max(_WIDTH, 0.6 + 0.75 * len(table.groups)), 4.2)
    means, of_image = sample.means, sample.groups[sample.subjects]
    span = float(sample.norms.min()), float(sample.norms.max())
    for column, style, group in _rows(table):
        norms = sample.norms[of_image == column]
        heights, density = _density(norms, span)
        wide = 0.42 * density / density.max()
        axes.fill_betweenx(
            heights, column - wide, column, color=style.colour, alpha=0.25, linewidth=0
        )
        axes.plot(column - wide, heights, color=style.colour, linewidth=0.9)
        counts, edges = np.histogram(means[sample.groups == column], _STRIP, span)
        axes.fill_betweenx(
            np.repeat(edges, 2)[1:-1],
            column + 0.06,
            column + 0.06 + 0.3 * np.repeat(counts, 2) / counts.max(),
            color=style.colour,
            linewidth=0,
        )
        median = float(np.median(norms))
        axes.plot([column - 0.42, column], [median, median], color="0.2", linewidth=0.8)
        _whisker(axes, column, replace(style, colour="0.1"), group.subject_mean, upright=True)
    names = [
        f"{label(group.name)}\n{group.subjects:,} / {group.images:,}" for group in table.groups
    ]
    axes.set_xticks(range(len(names)), names, fontsize=SMALL)
    verbatim(axes.xaxis)
    axes.grid(False, axis="x")
    axes.set(ylabel="norm of the raw embedding", xlabel="group; subjects / images")
    note(
        axes,
        "left: images, line at the median; right: means of subjects in bins; "
        "marker: mean of these with its 95 % interval",
    )
    return figure


def ecdf_figure(sample: SubjectNorms, names: Sequence[str]) -> Figure:
    """Draw the distribution functions of the norms of images over each other."""
    figure, axes = new_figure(_WIDTH, 3.6)
    of_image = sample.groups[sample.subjects]
    grid = np.linspace(sample.norms.min(), sample.norms.max(), _GRID)
    shown = styles(names)
    for group, style in enumerate(shown):
        norms = np.sort(sample.norms[of_image == group])
        shares = np.searchsorted(norms, grid, side="right") / norms.size
        axes.step(
            grid,
            shares,
            where="post",
            color=style.colour,
            linestyle=style.line,
            marker=style.marker,
            markevery=(_GRID // 20 * group // len(names), _GRID // 10),
            markersize=4,
            linewidth=1.3,
        )
    axes.set(xlabel="norm of the raw embedding", ylabel="share of images at or below")
    axes.set_ylim(0, 1)
    percent_axis(axes.yaxis)
    legend(figure, shown)
    return figure


def difference_figure(table: NormTable) -> Figure:
    """Draw a forest of each group's mean of subject means minus that of all groups."""
    figure, (axes,) = _forest(table, 1)
    _differences(axes, table)
    axes.set_xlabel("mean norm of subjects, group − all groups", fontsize=9)
    note(axes, "whiskers: 95 % intervals over subjects")
    return figure


def spread_figure(table: NormTable) -> Figure:
    """Draw forests of the standard deviation and the coefficient of variation of the norms."""
    figure, panels = _forest(table, 2)
    for axes, name, title in zip(
        panels,
        ("sd", "cv"),
        ("standard deviation of norms", "coefficient of variation"),
        strict=True,
    ):
        for row, style, group in _rows(table):
            _whisker(axes, row, style, getattr(group, name))
        overall = getattr(table.overall, name).value
        if overall is not None:
            axes.axvline(overall, color="0.2", linewidth=0.9, linestyle="--")
        axes.set_xlabel(title, fontsize=9)
    note(
        panels[0],
        "whiskers: 95 % intervals over subjects; dashed: all groups; axes do not begin at 0",
    )
    return figure


# --- association ------------------------------------------------------------------------------


def delta_figure(association: Association, names: Sequence[str]) -> Figure:
    """Draw Cliff's delta of every row group against every column group, with its interval."""
    size = len(names)
    values = np.full((size, size), np.nan)
    texts = [[""] * size for _ in names]
    index = {name: row for row, name in enumerate(names)}
    for pair in association.pairs:
        row, column = index[pair.first], index[pair.second]
        for (i, j), sign in (((row, column), 1), ((column, row), -1)):
            if pair.delta.value is not None:
                values[i, j] = sign * pair.delta.value
                limits = _limits(pair.delta.interval, sign)
                texts[i][j] = f"{words.number(values[i, j], '+.2f')}\n{limits}"
    figure, axes = _matrix(values, texts, names, _DIVERGING, Normalize(-1, 1))
    for row in range(size):
        axes.text(row, row, "–", ha="center", va="center", color=SOFT)
    figure.axes[1].set_ylabel("Cliff’s δ", fontsize=9)
    note(axes, "row group above (+) or below (−)\ncolumn group; 95 % intervals")
    return figure


# --- does the norm matter? --------------------------------------------------------------------


def decile_figure(channels: NormChannels, names: Sequence[str]) -> Figure:
    """Draw the FNMR of the mated pairs in each tenth of the norms, by group."""
    figure, axes = new_figure(1.2 * _WIDTH, 3.6)
    shown = styles(names)
    for group, style in enumerate(shown):
        shift = _dodge(group, len(names), 0.7)
        for tenth in channels.bins:
            rate = tenth.groups[group + 1].fnmr
            _whisker(axes, tenth.bin + shift, style, rate, upright=True)
    axes.set_xticks(
        [tenth.bin for tenth in channels.bins],
        [f"{tenth.bin}\n{tenth.low:.3g}–{tenth.high:.3g}" for tenth in channels.bins],
        fontsize=SMALL,
    )
    for edge in channels.bins[1:]:
        axes.axvline(edge.bin - 0.5, color="0.9", linewidth=0.6, zorder=0)
    axes.grid(False, axis="x")
    axes.set(xlabel="tenth of the mated pairs by lesser norm (its range)", ylabel="FNMR")
    axes.set_ylim(bottom=0)
    percent_axis(axes.yaxis)
    legend(figure, shown)
    note(axes, f"whiskers: 95 % intervals; {_MARKED}")
    return figure


def discard_figure(channels: NormChannels, names: Sequence[str]) -> Figure:
    """Draw FNMR against the share discarded by norm, for all groups and for each.

    Marks on the curves of groups are what one common norm cut makes of them.
    """
    figure = Figure(figsize=(_WIDTH, 3.9), layout="constrained")
    left, right = figure.subplots(1, 2, sharey=True)
    shown = styles(names)
    drawn: dict[str | None, tuple[Axes, Style]] = {None: (left, _ALL)}
    drawn |= {name: (right, style) for name, style in zip(names, shown, strict=True)}
    furthest = 0.5
    for curve in channels.curves:
        axes, style = drawn[curve.group]
        axes.step(
            curve.discarded,
            curve.fnmr,
            where="post",
            color=style.colour,
            linestyle=style.line,
            linewidth=1.4,
        )
        if curve.group is None:
            start = curve.errors / curve.pairs
            left.plot([0, start, 1], [start, 0, 0], color="0.5", linestyle=":", linewidth=1)
    for group in (group for cut in channels.cuts for group in cut.groups):
        if group.pairs.value is not None and group.after.value is not None:
            axes, style = drawn[group.group]
            _whisker(axes, group.pairs.value, style, group.after, upright=True)
            furthest = max(furthest, 1.05 * group.pairs.value)
    for axes, title in ((left, ALL_GROUPS), (right, "each group")):
        tidy(axes)
        axes.set_xlim(-0.01, min(1.01, furthest))
        axes.set_ylim(bottom=0)
        axes.set_xlabel("mated pairs discarded, lowest norms first", fontsize=9)
        percent_axis(axes.xaxis)
        axes.set_title(f"{title}, up to {100 * furthest:.0f} % discarded", fontsize=9, loc="left")
    left.set_ylabel("FNMR of what remains")
    percent_axis(left.yaxis)
    legend(figure, shown)
    return figure


# --- error rates ------------------------------------------------------------------------------


def rate_figure(rates: GroupRates) -> Figure | None:
    """Draw FMR and FNMR of every group at each target that the data resolve; None without any."""
    points = [point for point in rates.points if point.threshold.resolvable]
    if not points:
        return None
    figure, panels = _error_figure(rates.names, [*map(_within, points)])
    for (left, right), point in zip(panels, points, strict=True):
        if point.fnmr.value is not None:
            right.axvline(point.fnmr.value, color="0.2", linewidth=0.9, linestyle=":", zorder=1)
        target = point.threshold.target
        left.set_xlabel(f"FMR within the group; dashed: target {target}", fontsize=SMALL)
        right.set_xlabel("FNMR at that threshold; dotted: all groups", fontsize=SMALL)
    return figure


def search_figure(
    names: Sequence[str],
    points: Sequence[tuple[str, str, Sequence[ErrorRate], Sequence[ErrorRate]]],
) -> Figure | None:
    """Draw FPIR and FNIR of every group at each threshold; None without any.

    Points are the target FPIR, whose target it is, and FPIR and FNIR by group.
    """
    if not points:
        return None
    rows = [(target, fpir, fnir) for target, _, fpir, fnir in points]
    figure, panels = _error_figure(names, rows)
    for (left, right), (target, basis, *_) in zip(panels, points, strict=True):
        left.set_xlabel(f"FPIR; dashed: target {target} of {label(basis)}", fontsize=SMALL)
        right.set_xlabel("FNIR at that threshold", fontsize=SMALL)
    return figure


def matrix_figure(point: RatesAtThreshold, names: Sequence[str]) -> Figure:
    """Draw log10 FMR of all pairs of groups at one threshold, with counts.

    Grey is on target, red above, blue below; cells without a false match are hatched.
    """
    size = len(names)
    nominal = float(parse_rate(point.threshold.target))
    values = np.full((size, size), np.nan)
    texts = [[""] * size for _ in names]
    for i in range(size):
        for j in range(i + 1):
            cell = point.matrix[i][j]
            counts = f"{cell.events:,}/\n{_thousands(cell.total)}"
            if cell.log10 is None:
                texts[i][j] = counts if cell.total else "no pair"
            else:
                values[i, j] = cell.log10 - math.log10(nominal)
                texts[i][j] = words.number(cell.log10, ".1f") + f"\n{counts}"
    figure, axes = _matrix(values, texts, names, _AROUND_TARGET, Normalize(-2, 2), lower=True)
    bar = figure.axes[1]
    bar.set_yticks([-2, -1, 0, 1, 2], ["÷100", "÷10", "target", "×10", "×100"])
    bar.set_ylabel("FMR relative to the target", fontsize=9)
    note(
        axes, f"log10 FMR at target {point.threshold.target}; +1 = ×10;\nbelow: false matches/pairs"
    )
    return figure


def det_figure(rates: GroupRates) -> Figure:
    """Draw DET curves of all groups on probit axes; dashed lines join marks of one threshold."""
    figure, axes = new_figure(_WIDTH, 5.4)
    shown = styles(rates.names)
    lowest, highest = [0.01, 0.01], 0.5
    for style, curve, size in zip(shown, rates.det, rates.composition, strict=True):
        axes.step(
            curve.x, curve.y, where="post", color=style.colour, linestyle=style.line, linewidth=1.4
        )
        if size.non_mated and size.mated:
            lowest = [min(lowest[0], 1 / size.non_mated), min(lowest[1], 1 / size.mated)]
    for index, point in enumerate(rates.points):
        marks = [curve.marks[index] for curve in rates.det]
        there = [
            (mark.x, mark.y, group, style)
            for mark, group, style in zip(marks, point.groups, shown, strict=True)
            if mark.x is not None and mark.y is not None
        ]
        axes.plot(
            [x for x, *_ in there],
            [y for _, y, *_ in there],
            color="0.4",
            linestyle="--",
            linewidth=0.8,
        )
        for x, y, group, style in there:
            _cross(axes, x, y, group.fmr, group.fnmr, style)
            highest = max(highest, group.fnmr.value or 0.0)
        if there:
            axes.annotate(
                point.threshold.target,
                max((x, y) for x, y, *_ in there),
                (8, 6),
                textcoords="offset points",
                fontsize=SMALL,
                color=SOFT,
            )
    probit_axis(axes.xaxis, lowest[0])
    probit_axis(axes.yaxis, lowest[1])
    axes.set_xlim(ndtri(0.8 * lowest[0]), ndtri(0.6))
    axes.set_ylim(ndtri(0.8 * lowest[1]), ndtri(min(highest + 0.1, 0.999)))
    axes.set(xlabel="FMR within the group", ylabel="FNMR")
    axes.axline((0, 0), slope=1, color="0.6", linewidth=0.8, linestyle=":", zorder=0)
    legend(figure, shown)
    note(axes, f"dashed: equal global threshold; bars: 95 % intervals; {_MARKED}")
    return figure


def score_figure(histograms: Sequence[ScoreHistogram], rates: GroupRates) -> Figure | None:
    """Draw the scores of every group in a row, global thresholds marked; None without any."""
    if not histograms:
        return None
    figure = Figure(figsize=(_WIDTH, 0.9 + 0.75 * len(histograms)), layout="constrained")
    panels = figure.subplots(len(histograms), squeeze=False, sharex=True)[:, 0]
    # Coarser bins than those of the thresholds are smoother to look at.
    edges = SCORE_EDGES[::_JOINED]
    counts = np.array([[group.non_mated, group.mated] for group in histograms])
    counts = counts.reshape(len(histograms), 2, -1, _JOINED).sum(axis=3)
    seen = np.flatnonzero(counts.sum(axis=(0, 1)))
    shown = slice(seen[0], seen[-1] + 1)
    marks = [
        (point.threshold.value, point.threshold.target)
        for point in rates.points
        if point.threshold.resolvable and point.threshold.value is not None
    ]
    kinds = (("non-mated", COLOURS[1], "-"), ("mated", COLOURS[0], "--"))
    for axes, group, both in zip(panels, histograms, counts, strict=True):
        tidy(axes)
        axes.grid(False, axis="y")
        for (kind, colour, line), bars in zip(kinds, both, strict=True):
            shares = bars[shown] / max(1, bars.sum())
            ends = edges[shown.start : shown.stop + 1]
            axes.stairs(shares, ends, fill=True, color=colour, alpha=0.3)
            axes.stairs(shares, ends, color=colour, linestyle=line, linewidth=0.9, label=kind)
        for threshold, _ in marks:
            axes.axvline(threshold, color="0.2", linewidth=0.8, linestyle=":")
        axes.set_yticks([])
        axes.set_ylabel(label(group.name), rotation=0, ha="right", va="center", fontsize=SMALL)
        axes.yaxis.label.set_parse_math(False)
        axes.set_ylim(bottom=0)
    panels[-1].set_xlabel("cosine of pairs within the group; height: share of pairs", fontsize=9)
    top = panels[0].secondary_xaxis("top")
    top.set_ticks([threshold for threshold, _ in marks], [target for _, target in marks])
    top.tick_params(labelrotation=60, labelsize=SMALL, length=3)
    top.spines["top"].set_visible(False)
    figure.legend(
        *panels[0].get_legend_handles_labels(),
        loc="outside lower center",
        frameon=False,
        fontsize=SMALL,
        ncols=2,
    )
    return figure


# --- differentials ----------------------------------------------------------------------------


def differential_figure(differentials: Differentials) -> Figure | None:
    """Draw all ratios, and all measures between 0 and 1, at every target; None without any.

    A tick is what groups of equal rates exceed (FDR: fall below) in 5 % of cases. An arrow stands
    for a ratio of 0, which no axis of ratios has: WERM without a single error of one kind.
    """
    rows = [row for row in differentials.rows if row.measure in (*_RATIOS, *_SHARES)]
    targets = list(dict.fromkeys(row.target for row in rows if row.value is not None))
    if not targets:
        return None
    kinds = [
        list(dict.fromkeys((row.measure, row.of) for row in rows if row.measure in scale))
        for scale in (_RATIOS, _SHARES)
    ]
    ends = [
        end
        for row in rows
        if row.measure in _RATIOS and row.value is not None
        for end in (row.value, row.value if row.interval is None else row.interval.low)
    ]
    floor = min([1.0, *(end for end in ends if end > 0)]) / 2
    slot = 0.16 * len(targets) + 0.16
    figure = Figure(figsize=(_WIDTH, 1.3 + slot * sum(map(len, kinds))), layout="constrained")
    ratios, shares = panels = figure.subplots(2, height_ratios=list(map(len, kinds)))
    ratios.set_xscale("log")
    shown = styles(targets)
    for axes, of_panel, least in zip(panels, kinds, (floor, -math.inf), strict=True):
        tidy(axes)
        axes.grid(False, axis="y")
        for row in rows:
            kind = row.measure, row.of
            if kind not in of_panel or row.target not in targets:
                continue
            turn = targets.index(row.target)
            at, style = of_panel.index(kind) + _dodge(turn, len(targets), 0.7), shown[turn]
            _whisker(axes, at, style, Estimate(row.value, row.interval), floor=least)
            if row.value is None:
                axes.text(
                    0.99,
                    at,
                    row.remark.partition(":")[0],
                    transform=axes.get_yaxis_transform(),
                    fontsize=SMALL,
                    color=style.colour,
                    ha="right",
                    va="center",
                    style="italic",
                )
            elif row.at_parity is not None:
                axes.plot(row.at_parity, at, "|", color="0.55", markersize=8, markeredgewidth=1.6)
        for edge in range(1, len(of_panel)):
            axes.axhline(edge - 0.5, color="0.9", linewidth=0.6, zorder=0)
        name_rows(axes, [f"{m} {of}" if of in ("FMR", "FNMR") else m for m, of in of_panel])
    ratios.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    ratios.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
    ratios.xaxis.set_minor_formatter(NullFormatter())
    ratios.set_xlabel("ratio; 1: equal rates", fontsize=SMALL)
    ratios.axvline(1, color="0.2", linewidth=0.9)
    shares.set_xlim(-0.02, 1.02)
    shares.set_xlabel("0: equal rates; FDR 1: equal rates", fontsize=SMALL)
    note(
        ratios,
        "whiskers: 95 % intervals; grey ticks: what groups of equal rates exceed in 5 % of cases",
    )
    legend(figure, shown, "target FMR")
    return figure


# --- comparison -------------------------------------------------------------------------------


def comparison_figure(changes: Sequence[Change]) -> Figure | None:
    """Draw every change from baseline to treated with its interval; None without any.

    Every row has a scale of its own, so that only its side of zero can be read off.
    """
    drawn = [change for change in changes if change.value is not None]
    if len(drawn) > _MOST_ROWS:  # those of pairs of groups grow with the square of the groups
        drawn = [change for change in drawn if change.groups is None]
    if not drawn:
        return None
    figure, axes = new_figure(_WIDTH + 1, 0.9 + _ROW * len(drawn))
    axes.grid(False)
    axes.axvline(0, color="0.2", linewidth=0.9)
    style = Style("", "0.1", "D", "-")
    for index, change in enumerate(drawn):
        assert change.value is not None  # see above
        reach = max(abs(end) for end in (change.value, change.low, change.high) if end is not None)
        reach, limits = reach or 1.0, change.interval
        interval = limits and Interval(limits.low / reach, limits.high / reach)
        _whisker(axes, index, style, Estimate(change.value / reach, interval))
        beside(axes, index, f"{change.baseline:.3g} → {change.treated:.3g}")
    name_rows(axes, [change.name for change in drawn])
    axes.set_xlim(-1.08, 1.08)
    axes.set_xticks([0], ["0"])
    axes.set_xlabel("change, new − baseline; every row has its own scale", fontsize=SMALL)
    note(axes, "whiskers: 95 % intervals; right: baseline → new")
    return figure


# --- rows, crosses and cells ------------------------------------------------------------------


def _whisker(
    axes: Axes,
    at: float,
    style: Style,
    estimate: Estimate,
    *,
    upright: bool = False,
    floor: float = -math.inf,
) -> None:
    """Draw a figure with its interval; hollow without one, or where it rests on few errors.

    It stands at a row or, upright, at a column. An arrow stands at the ``floor``, the left end of
    the axis, for a figure of less.
    """
    if estimate.value is None:
        return
    if estimate.interval is not None:
        low = min(estimate.interval.low, estimate.value)
        along, across = [max(low, floor), max(estimate.interval.high, estimate.value)], [at, at]
        axes.plot(
            *((across, along) if upright else (along, across)),
            "_-" if upright else "|-",
            color=style.colour,
            linewidth=1.2,
            markersize=6,
            # No limit is there that the axis does not reach.
            markevery=[1] if low < floor else [0, 1],
        )
    if estimate.value < floor:
        axes.plot(floor, at, "<", color=style.colour, markersize=5, clip_on=False)
        return
    mark = estimate.mark or ("○" if estimate.interval is None else "●")
    point = (at, estimate.value) if upright else (estimate.value, at)
    axes.plot(*point, style.marker, markersize=5.5, **filled(style, mark))


def _forest(table: NormTable, columns: int) -> tuple[Figure, list[Axes]]:
    """Return empty panels with a line for each group, the first one on top."""
    figure = Figure(figsize=(_WIDTH, 1.0 + _ROW * len(table.groups)), layout="constrained")
    panels = figure.subplots(1, columns, squeeze=False, sharey=True)[0].tolist()
    for axes in panels:
        tidy(axes)
        axes.grid(False, axis="y")
    _name_groups(panels[0], table)
    return figure, panels


def _name_groups(axes: Axes, table: NormTable) -> None:
    name_rows(axes, [f"{label(group.name)} ({group.subjects:,})" for group in table.groups])
    axes.set_ylabel("group (subjects)", fontsize=SMALL)


def _rows(table: NormTable) -> Iterator[tuple[int, Style, NormSummary]]:
    shown = styles([group.name for group in table.groups])
    for row, (style, group) in enumerate(zip(shown, table.groups, strict=True)):
        yield row, style, group


def _differences(axes: Axes, table: NormTable) -> None:
    """Draw the mean of each group less that of all into a forest."""
    for row, style, group in _rows(table):
        assert group.difference is not None  # all groups together alone have none
        _whisker(axes, row, style, group.difference)
    axes.axvline(0, color="0.2", linewidth=0.9)


_Errors: TypeAlias = "tuple[str, Sequence[ErrorRate], Sequence[ErrorRate]]"
"""The target of a threshold, and false positives and false negatives of every group there."""


def _within(point: RatesAtThreshold) -> _Errors:
    """Return FMR and FNMR within the groups."""
    groups = point.groups
    return point.threshold.target, [one.fmr for one in groups], [one.fnmr for one in groups]


def _error_figure(
    names: Sequence[str], rows: Sequence[_Errors]
) -> tuple[Figure, NDArray[np.object_]]:
    """Draw both errors of all groups, a row of two panels a threshold."""
    height = (0.95 + _ROW * len(names)) * len(rows) + 0.3
    figure = Figure(figsize=(_WIDTH + 1, height), layout="constrained")
    panels = figure.subplots(len(rows), 2, squeeze=False, sharey=True)
    _both_errors(panels, names, rows)
    return figure, panels


def _both_errors(
    panels: Iterable[Sequence[Axes]], names: Sequence[str], rows: Sequence[_Errors]
) -> None:
    """Draw false positives (logarithmic, target dashed) and false negatives, counts at the ends.

    Rows of one target have one scale, so that they can be compared.
    """
    shown = styles(names)
    for (left, right), (target, *errors) in zip(panels, rows, strict=True):
        nominal = float(parse_rate(target))
        alike = [errors for other, *errors in rows if other == target]
        ends = _ends(rates for rates, _ in alike)
        floor = 10.0 ** math.floor(math.log10(min([nominal / 2, *ends])))
        left.set_xscale("log")
        left.set_xlim(floor, max([2 * nominal, *(1.6 * end for end in ends)]))
        left.xaxis.set_major_locator(LogLocator())
        # As targets are written, and quicker than powers set as formulas.
        left.xaxis.set_major_formatter(lambda value, _: f"{value:.0e}".replace("e-0", "e-"))
        left.xaxis.set_minor_formatter(NullFormatter())
        left.axvline(nominal, color="0.2", linewidth=0.9, linestyle="--", zorder=1)
        highest = max(_ends(rates for _, rates in alike), default=1.0)
        right.set_xlim(-0.02 * highest, 1.15 * highest)
        right.locator_params(axis="x", nbins=4)
        percent_axis(right.xaxis)
        for axes, rates, least in zip((left, right), errors, (floor, -math.inf), strict=True):
            tidy(axes)
            axes.grid(False, axis="y")
            for row, (rate, style) in enumerate(zip(rates, shown, strict=True)):
                counts = f"{rate.events:,}/{_thousands(rate.total)}" if rate.total else "no pair"
                beside(axes, row, counts)
                _whisker(axes, row, style, rate, floor=least)
            name_rows(axes, [style.name for style in shown])


def _ends(rows: Iterable[Sequence[ErrorRate]]) -> list[float]:
    """Return all values and limits but 0."""
    return [
        end for rates in rows for rate in rates for end in (rate.low, rate.value, rate.high) if end
    ]


def _cross(axes: Axes, x: float, y: float, fmr: ErrorRate, fnmr: ErrorRate, style: Style) -> None:
    """Draw a mark of a DET curve with the intervals of both rates."""
    for rate, horizontal in ((fmr, True), (fnmr, False)):
        if rate.interval is None:
            continue
        # A limit of exactly 0 or 1 lies at infinity; far outside will do.
        low, high = ndtri(np.clip([rate.interval.low, rate.interval.high], 1e-12, 1 - 1e-12))
        ends = ([low, high], [y, y]) if horizontal else ([x, x], [low, high])
        axes.plot(*ends, color=style.colour, linewidth=0.8, alpha=0.8)
    axes.plot(x, y, style.marker, markersize=5.5, **filled(style, fmr.mark, fnmr.mark))


def _matrix(
    values: NDArray[np.float64],
    texts: Sequence[Sequence[str]],
    names: Sequence[str],
    colours: LinearSegmentedColormap,
    scale: Normalize,
    *,
    lower: bool = False,
) -> tuple[Figure, Axes]:
    """Draw a matrix of groups, ``(D, D)``, with a bar of its colours; cells of NaN are hatched.

    With ``lower`` the lower triangle alone, with the diagonal; values go beyond the scale.
    """
    size = len(names)
    side = min(max(3.6, 1.2 + 0.95 * size), 13.0)
    figure = Figure(figsize=(side + 1.2, side), layout="constrained")
    axes = figure.add_subplot()
    image = axes.imshow(np.ma.masked_invalid(values), cmap=colours, norm=scale, aspect="equal")
    for i in range(size):
        for j in range(i + 1 if lower else size):
            empty = np.isnan(values[i, j])
            if empty and (lower or i != j):
                corner = (j - 0.5, i - 0.5)
                axes.add_patch(Rectangle(corner, 1, 1, fc="none", ec="0.7", hatch="///", lw=0))
            if size <= _MOST_TEXT:
                dark = not empty and _luminance(colours(scale(values[i, j]))) < 0.4
                axes.text(
                    j,
                    i,
                    texts[i][j],
                    ha="center",
                    va="center",
                    fontsize=SMALL,
                    color="white" if dark else "0.1",
                    backgroundcolor="white" if empty and texts[i][j] else "none",
                )
    labels = [label(name) for name in names]
    axes.set_xticks(
        range(size), labels, rotation=45, ha="right", rotation_mode="anchor", fontsize=SMALL
    )
    axes.set_yticks(range(size), labels, fontsize=SMALL)
    axes.set_xticks(np.arange(size - 1) + 0.5, minor=True)
    axes.set_yticks(np.arange(size - 1) + 0.5, minor=True)
    axes.grid(True, which="minor", color="white", linewidth=1.5)
    axes.tick_params(which="both", length=0)
    axes.spines[:].set_visible(False)
    verbatim(axes.xaxis)
    verbatim(axes.yaxis)
    extend = "both" if lower else "neither"
    bar = figure.colorbar(image, ax=axes, shrink=0.8, pad=0.02, extend=extend)
    bar.ax.tick_params(labelsize=SMALL)
    return figure, axes


def _luminance(colour: tuple[float, float, float, float]) -> float:
    """Return the relative luminance of a colour (Rec. 709, without its gamma)."""
    return 0.2126 * colour[0] + 0.7152 * colour[1] + 0.0722 * colour[2]


def _density(
    norms: NDArray[np.float64], span: tuple[float, float]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return heights and a density of the norms there, smoothed by Silverman's rule of thumb."""
    counts, edges = np.histogram(norms, _GRID, span)
    step = edges[1] - edges[0]
    width = max(0.9 * float(norms.std()) * norms.size**-0.2, step)
    offsets = np.arange(-_GRID + 1, _GRID) * step
    kernel = np.exp(-0.5 * (offsets / width) ** 2)
    density = np.convolve(counts, kernel, mode="valid")
    shown = density > 1e-3 * density.max()
    return (edges[:-1] + step / 2)[shown], density[shown]


def _dodge(turn: int, size: int, width: float) -> float:
    """Return the shift of one of several marks that share a row or a column."""
    return width * ((turn + 0.5) / size - 0.5)


def _limits(interval: Interval | None, sign: int) -> str:
    if interval is None:
        return ""
    low, high = sorted((sign * interval.low, sign * interval.high))
    return words.limits(Interval(low, high), form=".2f")


def _thousands(count: int) -> str:
    """Return a count in three or four letters, as ``47k``."""
    for unit, size in (("G", 10**9), ("M", 10**6), ("k", 10**4)):
        if count >= size:
            return f"{count / (1000 if unit == 'k' else size):.3g}{unit}"
    return f"{count:,}"
