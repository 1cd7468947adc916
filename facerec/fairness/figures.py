"""Figures of a demographic norm audit.

Groups keep their order, colour and marker in all figures of a grouping. Every estimate is drawn
with its interval; what the data cannot carry is hatched or said in words.
"""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.colors import LinearSegmentedColormap, Normalize
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Rectangle
from matplotlib.ticker import LogLocator, NullFormatter, PercentFormatter
from numpy.typing import NDArray
from scipy.special import ndtri

from facerec.fairness.association import Association
from facerec.fairness.channels import NormChannels
from facerec.fairness.differentials import Differential, Differentials
from facerec.fairness.norms import NormSummary, NormTable, SubjectNorms
from facerec.fairness.rates import (
    SCORE_EDGES,
    ErrorRate,
    GroupRates,
    RatesAtThreshold,
    ScoreHistogram,
)
from facerec.report.estimate import Estimate
from facerec.statistics.intervals import Interval
from facerec.statistics.operating_points import parse_rate
from facerec.verification.plots import _COLOURS, _SMALL, _SOFT, _plain, _probit_axis, _tidy

_MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")
_Line = Literal["-", "--", "-.", ":"]
_LINES: tuple[_Line, ...] = ("-", "--", "-.", ":")
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

_DIVERGING = LinearSegmentedColormap.from_list("delta", ["#0072B2", "#f7f7f7", "#D55E00"])
_RATIOS = ("max/geomean", "max/min", "max/mean", "IR", "WERM", "SER")
_SHARES = ("Gini", "GARBE", "FDR")
_AROUND_TARGET = LinearSegmentedColormap.from_list("target", ["#0072B2", "#d9d9d9", "#B2182B"])


@dataclass(frozen=True)
class Style:
    """How a group is drawn."""

    name: str
    colour: str
    marker: str
    line: _Line


def styles(names: Sequence[str]) -> tuple[Style, ...]:
    """Give every group a colour, a marker and a line; 56 groups differ in one of the first two."""
    return tuple(
        Style(
            label(name),
            _COLOURS[place % len(_COLOURS)],
            _MARKERS[place % len(_MARKERS)],
            _LINES[place // len(_COLOURS) % len(_LINES)],
        )
        for place, name in enumerate(names)
    )


def label(name: str) -> str:
    """Return a name as two short lines at most, without what no font can draw."""
    plain = "".join(letter if letter.isprintable() else "�" for letter in " ".join(name.split()))
    return "\n".join(textwrap.wrap(plain, 24, max_lines=2, placeholder=" …")) or "–"


# --- the findings -----------------------------------------------------------------------------


def headline_figure(table: NormTable, point: RatesAtThreshold | None) -> Figure:
    """Draw forests of what findings compare: norms and, with a threshold, FMR and FNMR by group."""
    figure, panels = _forest(table, 1 if point is None else 3)
    names = panels[0].get_yticks(), [label.get_text() for label in panels[0].get_yticklabels()]
    for place, style, group in _rows(table):
        assert group.difference is not None  # all groups together alone have none
        _estimate(panels[0], place, style, group.difference)
    panels[0].axvline(0, color="0.2", linewidth=0.9)
    panels[0].set_xlabel("mean norm, group − all groups", fontsize=9)
    if point is not None:
        shown, target = styles([group.name for group in point.groups]), point.threshold.target
        nominal = float(parse_rate(target))
        _rate_panel(panels[1], [group.fmr for group in point.groups], shown, nominal)
        _rate_panel(panels[2], [group.fnmr for group in point.groups], shown, None)
        panels[1].axvline(nominal, color="0.2", linewidth=0.9, linestyle="--", zorder=1)
        panels[1].set_xlabel(f"FMR within the group; dashed: {target}", fontsize=9)
        panels[2].set_xlabel("FNMR at that threshold", fontsize=9)
        # The panels share their rows, whose names have lost their counts of subjects.
        panels[0].set_yticks(*names, fontsize=_SMALL)
        _verbatim(panels[0].yaxis)
        figure.set_figwidth(1.6 * _WIDTH)
    _note(panels[0], "whiskers: 95 % intervals")
    return figure


# --- norms ------------------------------------------------------------------------------------


def violin_figure(sample: SubjectNorms, table: NormTable) -> Figure:
    """Draw each group's norms: images as half a violin, means of subjects as a strip of bins.

    Means are binned, so that no file holds the figure of a person.
    """
    figure, axes = _axes(max(_WIDTH, 0.6 + 0.75 * len(table.groups)), 4.2)
    means, of_image = sample.means, sample.groups[sample.subjects]
    span = float(sample.norms.min()), float(sample.norms.max())
    for place, style, group in _rows(table):
        norms = sample.norms[of_image == place]
        heights, density = _density(norms, span)
        wide = 0.42 * density / density.max()
        axes.fill_betweenx(
            heights, place - wide, place, color=style.colour, alpha=0.25, linewidth=0
        )
        axes.plot(place - wide, heights, color=style.colour, linewidth=0.9)
        counts, edges = np.histogram(means[sample.groups == place], _STRIP, span)
        axes.fill_betweenx(
            np.repeat(edges, 2)[1:-1],
            place + 0.06,
            place + 0.06 + 0.3 * np.repeat(counts, 2) / counts.max(),
            color=style.colour,
            linewidth=0,
        )
        median = float(np.median(norms))
        axes.plot([place - 0.42, place], [median, median], color="0.2", linewidth=0.8)
        found = group.subject_mean
        if found.value is not None:
            low, high = _ends(found.value, found.interval)
            axes.errorbar(
                place,
                found.value,
                [[found.value - low], [high - found.value]],
                color="0.1",
                marker=style.marker,
                markersize=5,
                markerfacecolor="white",
                capsize=3,
                linewidth=1,
            )
    names = [
        f"{label(group.name)}\n{group.subjects:,} / {group.images:,}" for group in table.groups
    ]
    axes.set_xticks(range(len(names)), names, fontsize=_SMALL)
    _verbatim(axes.xaxis)
    axes.grid(False, axis="x")
    axes.set(ylabel="norm of the raw embedding", xlabel="group; subjects / images")
    _note(
        axes,
        "left: images, line at the median; right: means of subjects in bins; "
        "marker: mean of these with its 95 % interval",
    )
    return figure


def ecdf_figure(sample: SubjectNorms, names: Sequence[str]) -> Figure:
    """Draw the distribution functions of the norms of images over each other."""
    figure, axes = _axes(_WIDTH, 3.6)
    of_image = sample.groups[sample.subjects]
    grid = np.linspace(sample.norms.min(), sample.norms.max(), _GRID)
    shown = styles(names)
    for place, style in enumerate(shown):
        norms = np.sort(sample.norms[of_image == place])
        shares = np.searchsorted(norms, grid, side="right") / norms.size
        axes.step(
            grid,
            shares,
            where="post",
            color=style.colour,
            linestyle=style.line,
            marker=style.marker,
            markevery=(_GRID // 20 * place // len(names), _GRID // 10),
            markersize=4,
            linewidth=1.3,
        )
    axes.set(xlabel="norm of the raw embedding", ylabel="share of images at or below")
    axes.set_ylim(0, 1)
    _percent(axes.yaxis)
    _legend(figure, shown)
    return figure


def difference_figure(table: NormTable) -> Figure:
    """Draw a forest of each group's mean of subject means minus that of all groups."""
    figure, (axes,) = _forest(table, 1)
    for place, style, group in _rows(table):
        assert group.difference is not None  # all groups together alone have none
        _estimate(axes, place, style, group.difference)
    axes.axvline(0, color="0.2", linewidth=0.9)
    axes.set_xlabel("mean norm of subjects, group − all groups", fontsize=9)
    _note(axes, "whiskers: 95 % intervals over subjects")
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
        for place, style, group in _rows(table):
            _estimate(axes, place, style, getattr(group, name))
        overall = getattr(table.overall, name).value
        if overall is not None:
            axes.axvline(overall, color="0.2", linewidth=0.9, linestyle="--")
        axes.set_xlabel(title, fontsize=9)
    _note(
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
    places = {name: place for place, name in enumerate(names)}
    for pair in association.pairs:
        row, column = places[pair.first], places[pair.second]
        for (i, j), sign in (((row, column), 1), ((column, row), -1)):
            found = pair.delta.value
            if found is None:
                continue
            values[i, j] = sign * found
            texts[i][j] = f"{sign * found:+.2f}\n{_limits(pair.delta.interval, sign)}"
    figure, axes = _square(size)
    _matrix(axes, values, texts, names, _DIVERGING, Normalize(-1, 1))
    for place in range(size):
        axes.text(place, place, "–", ha="center", va="center", color=_SOFT)
    bar = figure.colorbar(axes.images[0], ax=axes, shrink=0.8, pad=0.02)
    bar.set_label("Cliff’s δ", fontsize=9)
    bar.ax.tick_params(labelsize=_SMALL)
    _note(axes, "row group above (+) or below (−)\ncolumn group; 95 % intervals")
    return figure


# --- does the norm matter? --------------------------------------------------------------------


def decile_figure(channels: NormChannels, names: Sequence[str]) -> Figure:
    """Draw the FNMR of the mated pairs in each tenth of the norms, by group."""
    figure, axes = _axes(_WIDTH, 3.6)
    shown = styles(names)
    for place, style in enumerate(shown):
        shift = _dodge(place, len(names), 0.7)
        rates = [found.groups[place + 1].fnmr for found in channels.bins]
        for found, rate in zip(channels.bins, rates, strict=True):
            _rate_whisker(axes, found.bin + shift, rate, style)
    axes.set_xticks(
        [found.bin for found in channels.bins],
        [f"{found.bin}\n{found.low:.3g}–{found.high:.3g}" for found in channels.bins],
        fontsize=_SMALL,
    )
    for edge in channels.bins[1:]:
        axes.axvline(edge.bin - 0.5, color="0.9", linewidth=0.6, zorder=0)
    axes.grid(False, axis="x")
    axes.set(xlabel="tenth of the mated pairs by lesser norm (its range)", ylabel="FNMR")
    axes.set_ylim(bottom=0)
    _percent(axes.yaxis)
    _legend(figure, shown)
    _note(axes, f"whiskers: 95 % intervals; {_MARKED}")
    return figure


def discard_figure(channels: NormChannels, names: Sequence[str]) -> Figure:
    """Draw FNMR against the share discarded by norm, for all groups and for each.

    Marks on the curves of groups are what one common norm cut makes of them.
    """
    figure = Figure(figsize=(_WIDTH, 3.9), layout="constrained")
    left, right = figure.subplots(1, 2, sharey=True)
    shown = styles(names)
    of_group = {name: style for name, style in zip(names, shown, strict=True)}
    furthest = 0.5
    for curve in channels.curves:
        style = Style("all", "0", "o", "-") if curve.group is None else of_group[curve.group]
        axes = left if curve.group is None else right
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
    for cut in channels.cuts:
        for found in cut.groups:
            if found.pairs.value is None or found.after.value is None:
                continue
            axes = left if found.group is None else right
            style = Style("", "0", "o", "-") if found.group is None else of_group[found.group]
            _rate_whisker(axes, found.pairs.value, found.after, style)
            furthest = max(furthest, 1.05 * found.pairs.value)
    for axes, title in ((left, "all groups"), (right, "each group")):
        _tidy(axes)
        axes.set_xlim(-0.01, min(1.01, furthest))
        axes.set_ylim(bottom=0)
        axes.set_xlabel("mated pairs discarded, lowest norms first", fontsize=9)
        _percent(axes.xaxis)
        axes.set_title(f"{title}, up to {100 * furthest:.0f} % discarded", fontsize=9, loc="left")
    left.set_ylabel("FNMR of what remains")
    _percent(left.yaxis)
    _legend(figure, shown)
    return figure


# --- error rates ------------------------------------------------------------------------------


def rate_figure(rates: GroupRates) -> Figure | None:
    """Draw FMR and FNMR of every group at each target that the data resolve; None without any."""
    points = [point for point in rates.points if point.threshold.resolvable]
    if not points:
        return None
    shown = styles(rates.names)
    height = 0.95 + _ROW * len(shown)
    figure = Figure(figsize=(_WIDTH + 1, height * len(points) + 0.3), layout="constrained")
    panels = figure.subplots(len(points), 2, squeeze=False, sharey=True)
    for (left, right), point in zip(panels, points, strict=True):
        target = point.threshold.target
        nominal = float(parse_rate(target))
        _rate_panel(left, [group.fmr for group in point.groups], shown, nominal)
        _rate_panel(right, [group.fnmr for group in point.groups], shown, None)
        left.axvline(nominal, color="0.2", linewidth=0.9, linestyle="--", zorder=1)
        if point.fnmr.value is not None:
            right.axvline(point.fnmr.value, color="0.2", linewidth=0.9, linestyle=":", zorder=1)
        left.set_xlabel(f"FMR within the group; dashed: target {target}", fontsize=_SMALL)
        right.set_xlabel("FNMR at that threshold; dotted: all groups", fontsize=_SMALL)
    return figure


def matrix_figure(point: RatesAtThreshold, names: Sequence[str]) -> Figure:
    """Draw log10 FMR of all pairs of groups at one threshold, with counts.

    Grey is on target, red above, blue below; cells without a false match are hatched.
    """
    size = len(names)
    nominal = float(parse_rate(point.threshold.target))
    matrix = point.matrix
    values = np.full((size, size), np.nan)
    texts = [[""] * size for _ in names]
    for i in range(size):
        for j in range(i + 1):
            found, cell = matrix.log10[i][j], matrix.cells[i][j]
            counts = f"{cell.events:,}/\n{_thousands(cell.total)}"
            if found is None:
                texts[i][j] = counts if cell.total else "no pair"
            else:
                values[i, j] = found - math.log10(nominal)
                texts[i][j] = f"{found:.1f}".replace("-", "−") + f"\n{counts}"
    figure, axes = _square(size)
    _matrix(axes, values, texts, names, _AROUND_TARGET, Normalize(-2, 2), lower=True)
    bar = figure.colorbar(axes.images[0], ax=axes, shrink=0.8, pad=0.02, extend="both")
    bar.set_ticks([-2, -1, 0, 1, 2], labels=["÷100", "÷10", "target", "×10", "×100"])
    bar.set_label("FMR relative to the target", fontsize=9)
    bar.ax.tick_params(labelsize=_SMALL)
    _note(
        axes, f"log10 FMR at target {point.threshold.target}; +1 = ×10;\nbelow: false matches/pairs"
    )
    return figure


def det_figure(rates: GroupRates) -> Figure:
    """Draw DET curves of all groups on probit axes; dashed lines join marks of one threshold."""
    figure, axes = _axes(_WIDTH, 5.4)
    shown = styles(rates.names)
    lowest, highest = [0.01, 0.01], 0.5
    for style, curve, size in zip(shown, rates.det, rates.composition, strict=True):
        axes.step(
            curve.x, curve.y, where="post", color=style.colour, linestyle=style.line, linewidth=1.4
        )
        if size.non_mated and size.mated:
            lowest = [min(lowest[0], 1 / size.non_mated), min(lowest[1], 1 / size.mated)]
    for place, point in enumerate(rates.points):
        marks = [curve.marks[place] for curve in rates.det]
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
            x, y = max((x, y) for x, y, *_ in there)
            axes.annotate(
                point.threshold.target,
                (x, y),
                (8, 6),
                textcoords="offset points",
                fontsize=_SMALL,
                color=_SOFT,
            )
    _probit_axis(axes.xaxis, lowest[0])
    _probit_axis(axes.yaxis, lowest[1])
    axes.set_xlim(ndtri(0.8 * lowest[0]), ndtri(0.6))
    axes.set_ylim(ndtri(0.8 * lowest[1]), ndtri(min(highest + 0.1, 0.999)))
    axes.set(xlabel="FMR within the group", ylabel="FNMR")
    axes.axline((0, 0), slope=1, color="0.6", linewidth=0.8, linestyle=":", zorder=0)
    _legend(figure, shown)
    _note(
        axes,
        f"dashed: equal global threshold; bars: 95 % intervals; {_MARKED}",
    )
    return figure


def score_figure(histograms: Sequence[ScoreHistogram], rates: GroupRates) -> Figure | None:
    """Draw the scores of every group in a row, global thresholds marked; None without any."""
    if not histograms:
        return None
    figure = Figure(figsize=(_WIDTH, 0.9 + 0.75 * len(histograms)), layout="constrained")
    panels = figure.subplots(len(histograms), squeeze=False, sharex=True)[:, 0]
    # Coarser bins than those of the thresholds are smoother to look at.
    edges = SCORE_EDGES[::_JOINED]
    counts = np.array([[found.impostor, found.genuine] for found in histograms])
    counts = counts.reshape(len(histograms), 2, -1, _JOINED).sum(axis=3)
    seen = np.flatnonzero(counts.sum(axis=(0, 1)))
    shown = slice(seen[0], seen[-1] + 1)
    marks = [
        (point.threshold.value, point.threshold.target)
        for point in rates.points
        if point.threshold.resolvable and point.threshold.value is not None
    ]
    kinds = (("impostor", _COLOURS[1], "-"), ("genuine", _COLOURS[0], "--"))
    for axes, found, both in zip(panels, histograms, counts, strict=True):
        _tidy(axes)
        axes.grid(False, axis="y")
        for (kind, colour, line), bars in zip(kinds, both, strict=True):
            shares = bars[shown] / max(1, bars.sum())
            places = edges[shown.start : shown.stop + 1]
            axes.stairs(shares, places, fill=True, color=colour, alpha=0.3)
            axes.stairs(shares, places, color=colour, linestyle=line, linewidth=0.9, label=kind)
        for threshold, _ in marks:
            axes.axvline(threshold, color="0.2", linewidth=0.8, linestyle=":")
        axes.set_yticks([])
        axes.set_ylabel(label(found.name), rotation=0, ha="right", va="center", fontsize=_SMALL)
        axes.yaxis.label.set_parse_math(False)
        axes.set_ylim(bottom=0)
    panels[-1].set_xlabel("cosine of pairs within the group; height: share of pairs", fontsize=9)
    top = panels[0].secondary_xaxis("top")
    top.set_ticks([threshold for threshold, _ in marks], [target for _, target in marks])
    top.tick_params(labelrotation=60, labelsize=_SMALL, length=3)
    top.spines["top"].set_visible(False)
    figure.legend(
        *panels[0].get_legend_handles_labels(),
        loc="outside lower center",
        frameon=False,
        fontsize=_SMALL,
        ncols=2,
    )
    return figure


# --- differentials ----------------------------------------------------------------------------


def differential_figure(found: Differentials) -> Figure | None:
    """Draw all ratios, and all measures between 0 and 1, at every target; None without any.

    A tick is what groups of equal rates exceed (FDR: fall below) in 5 % of cases.
    """
    panels = [
        {(row.measure, row.of): row.definition for row in found.rows if row.measure in scale}
        for scale in (_RATIOS, _SHARES)
    ]
    rows = [row for row in found.rows if any((row.measure, row.of) in panel for panel in panels)]
    targets = list(dict.fromkeys(row.target for row in rows if row.value is not None))
    if not targets:
        return None
    slot = 0.16 * len(targets) + 0.16
    figure = Figure(figsize=(_WIDTH, 1.3 + slot * sum(map(len, panels))), layout="constrained")
    ratios, shares = axes_of_both = figure.subplots(2, height_ratios=list(map(len, panels)))
    ratios.set_xscale("log")
    shown = styles(targets)
    for axes, panel in zip(axes_of_both, panels, strict=True):
        _tidy(axes)
        axes.grid(False, axis="y")
        for place, kind in enumerate(panel):
            alike = {row.target: row for row in rows if (row.measure, row.of) == kind}
            for turn, style in enumerate(shown):
                if style.name in alike:
                    shift = _dodge(turn, len(shown), 0.7)
                    _differential(axes, place + shift, style, alike[style.name])
        names = [f"{measure} {of}" if of in ("FMR", "FNMR") else measure for measure, of in panel]
        axes.set_yticks(range(len(panel)), names, fontsize=_SMALL)
        axes.set_ylim(len(panel) - 0.5, -0.5)
        for place in range(1, len(panel)):
            axes.axhline(place - 0.5, color="0.9", linewidth=0.6, zorder=0)
        axes.tick_params(axis="x", labelsize=_SMALL)
    _plain_log(ratios)
    ratios.set_xlabel("ratio; 1: equal rates", fontsize=_SMALL)
    ratios.axvline(1, color="0.2", linewidth=0.9)
    shares.set_xlim(-0.02, 1.02)
    shares.set_xlabel("0: equal rates; FDR 1: equal rates", fontsize=_SMALL)
    _note(
        ratios,
        "whiskers: 95 % intervals; grey ticks: what groups of equal rates exceed in 5 % of cases",
    )
    _legend(figure, shown, "target FMR")
    return figure


# --- comparison -------------------------------------------------------------------------------


def comparison_figure(rows: Sequence[Mapping[str, Any]]) -> Figure | None:
    """Draw every change from baseline to treated with its interval; None without any.

    Every row has a scale of its own, so that only its place against zero can be read off.

    Args:
        rows: of `facerec.fairness.baseline.BaselineComparison.to_json`.
    """
    drawn = [row for row in rows if row["change"] is not None]
    if len(drawn) > _MOST_ROWS:  # those of pairs of groups grow with the square of the groups
        drawn = [row for row in drawn if row["groups"] is None]
    if not drawn:
        return None
    figure = Figure(figsize=(_WIDTH + 1, 0.9 + _ROW * len(drawn)), layout="constrained")
    axes = figure.add_subplot()
    _tidy(axes)
    axes.grid(False)
    axes.axvline(0, color="0.2", linewidth=0.9)
    for place, row in enumerate(drawn):
        change, low, high = row["change"], row["low"], row["high"]
        reach = max(abs(end) for end in (change, low, high) if end is not None) or 1.0
        if low is not None:
            axes.plot([low / reach, high / reach], [place, place], "|-", color="0.1", linewidth=1.2)
        face = "0.1" if low is not None else "white"
        axes.plot(change / reach, place, "D", color="0.1", markersize=4.5, markerfacecolor=face)
        text = f"{row['baseline']:.3g} → {row['treated']:.3g}"
        axes.annotate(
            text,
            (1.0, place),
            (4, 0),
            xycoords=axes.get_yaxis_transform(),
            textcoords="offset points",
            fontsize=_SMALL,
            color=_SOFT,
            va="center",
            annotation_clip=False,
        )
    axes.set_yticks(range(len(drawn)), [comparison_name(row) for row in drawn], fontsize=_SMALL)
    axes.set_ylim(len(drawn) - 0.5, -0.5)
    axes.set_xlim(-1.08, 1.08)
    axes.set_xticks([0], ["0"])
    axes.set_xlabel("change, treated − baseline; every row has its own scale", fontsize=_SMALL)
    _verbatim(axes.yaxis)
    _note(axes, "whiskers: 95 % intervals; right: baseline → treated")
    return figure


def comparison_name(row: Mapping[str, Any]) -> str:
    """Return what a row of a comparison is of."""
    parts = [row["figure"], row["groups"], f"{row['fusion']} fusion" if row["fusion"] else None]
    return ", ".join(part for part in parts if part)


# --- parts ------------------------------------------------------------------------------------


def _axes(width: float, height: float) -> tuple[Figure, Axes]:
    figure = Figure(figsize=(width, height), layout="constrained")
    axes = figure.add_subplot()
    _tidy(axes)
    return figure, axes


def _forest(table: NormTable, columns: int) -> tuple[Figure, list[Axes]]:
    """Return empty panels with a line for each group, the first one on top."""
    size = len(table.groups)
    figure = Figure(figsize=(_WIDTH, 1.0 + _ROW * size), layout="constrained")
    panels = figure.subplots(1, columns, squeeze=False, sharey=True)[0].tolist()
    for axes in panels:
        _tidy(axes)
        axes.grid(False, axis="y")
    names = [f"{label(group.name)} ({group.subjects:,})" for group in table.groups]
    panels[0].set_yticks(range(size), names, fontsize=_SMALL)
    panels[0].set_ylim(size - 0.5, -0.5)
    panels[0].set_ylabel("group (subjects)", fontsize=_SMALL)
    _verbatim(panels[0].yaxis)
    return figure, panels


def _rows(table: NormTable) -> Iterator[tuple[int, Style, NormSummary]]:
    shown = styles([group.name for group in table.groups])
    for place, (style, group) in enumerate(zip(shown, table.groups, strict=True)):
        yield place, style, group


def _ends(value: float, interval: Interval | None) -> tuple[float, float]:
    """Return the limits of an interval, widened to its figure; the figure itself without one."""
    if interval is None:
        return value, value
    return min(interval.low, value), max(interval.high, value)


def _estimate(axes: Axes, place: float, style: Style, found: Estimate) -> None:
    """Draw a figure with its interval into a forest."""
    if found.value is None:
        return
    low, high = _ends(found.value, found.interval)
    axes.plot([low, high], [place, place], "|-", color=style.colour, linewidth=1.2, markersize=6)
    face = style.colour if found.interval else "white"
    axes.plot(
        found.value, place, style.marker, color=style.colour, markersize=5.5, markerfacecolor=face
    )


def _differential(axes: Axes, place: float, style: Style, row: Differential) -> None:
    if row.value is None:
        axes.text(
            0.99,
            place,
            row.remark.partition(":")[0],
            transform=axes.get_yaxis_transform(),
            fontsize=_SMALL,
            color=style.colour,
            ha="right",
            va="center",
            style="italic",
        )
        return
    if row.at_parity is not None:
        axes.plot(row.at_parity, place, "|", color="0.55", markersize=8, markeredgewidth=1.6)
    _estimate(axes, place, style, row)


def _rate_whisker(axes: Axes, x: float, rate: ErrorRate, style: Style) -> None:
    """Draw a rate over ``x`` with its interval; hollow where it rests on few errors."""
    if rate.value is None:
        return
    low, high = _ends(rate.value, rate.interval)
    axes.plot([x, x], [low, high], color=style.colour, linewidth=0.9)
    axes.plot(
        x,
        rate.value,
        style.marker,
        markersize=4.5,
        **_filled(style, rate.mark),
    )


def _filled(style: Style, *marks: str) -> dict[str, Any]:
    """Return how a mark is filled: full for ●, half for ◐, hollow for ○, of several the least."""
    least = min(marks, key="○◐●".index)
    return {
        "color": style.colour,
        "fillstyle": "left" if least == "◐" else "full",
        "markerfacecolor": "white" if least == "○" else style.colour,
        "markerfacecoloralt": "white",
    }


def _rate_panel(
    axes: Axes, rates: Sequence[ErrorRate], shown: Sequence[Style], nominal: float | None
) -> None:
    """Draw one rate of every group as a line of a forest, counts at its end.

    Args:
        axes: to draw on.
        rates: of the groups.
        shown: styles of the groups.
        nominal: rate that must be in sight on a logarithmic axis; None for a linear one.
    """
    _tidy(axes)
    axes.grid(False, axis="y")
    ends = [_ends(rate.value, rate.interval) for rate in rates if rate.value is not None]
    highest = max((high for _, high in ends), default=1) or 1
    if nominal is not None:
        lowest = min([nominal / 2, *(x for pair in ends for x in pair if x > 0)])
        left = 10.0 ** math.floor(math.log10(lowest))
        axes.set_xscale("log")
        axes.set_xlim(left, max(1.6 * highest, 2 * nominal))
        axes.xaxis.set_major_locator(LogLocator())
        # As targets are written, and quicker than powers set as formulas.
        axes.xaxis.set_major_formatter(lambda value, _: f"{value:.0e}".replace("e-0", "e-"))
        axes.xaxis.set_minor_formatter(NullFormatter())
    else:
        left = 0.0
        axes.set_xlim(-0.02 * highest, 1.15 * highest)
        _percent(axes.xaxis)
    for place, (rate, style) in enumerate(zip(rates, shown, strict=True)):
        counts = f"{rate.events:,}/{_thousands(rate.total)}" if rate.total else "no pair"
        axes.annotate(
            counts,
            (1.0, place),
            (3, 0),
            xycoords=axes.get_yaxis_transform(),
            textcoords="offset points",
            fontsize=_SMALL,
            color=_SOFT,
            va="center",
            annotation_clip=False,
        )
        if rate.value is None:
            continue
        low, high = _ends(rate.value, rate.interval)
        axes.plot([max(low, left), high], [place, place], color=style.colour, linewidth=1.2)
        axes.plot(high, place, "|", color=style.colour, markersize=6)
        if low > left:
            axes.plot(low, place, "|", color=style.colour, markersize=6)
        if rate.events or nominal is None:
            axes.plot(
                rate.value,
                place,
                style.marker,
                markersize=5.5,
                **_filled(style, rate.mark),
            )
        else:
            axes.plot(left, place, "<", color=style.colour, markersize=5, clip_on=False)
    axes.set_yticks(range(len(shown)), [style.name for style in shown], fontsize=_SMALL)
    axes.set_ylim(len(shown) - 0.5, -0.5)
    axes.tick_params(axis="x", labelsize=_SMALL)
    _verbatim(axes.yaxis)


def _cross(axes: Axes, x: float, y: float, fmr: ErrorRate, fnmr: ErrorRate, style: Style) -> None:
    """Draw a mark of a DET curve with the intervals of both rates."""
    for rate, horizontal in ((fmr, True), (fnmr, False)):
        if rate.interval is None:
            continue
        # A limit of exactly 0 or 1 lies at infinity; far outside will do.
        low, high = ndtri(np.clip([rate.interval.low, rate.interval.high], 1e-12, 1 - 1e-12))
        ends = ([low, high], [y, y]) if horizontal else ([x, x], [low, high])
        axes.plot(*ends, color=style.colour, linewidth=0.8, alpha=0.8)
    axes.plot(
        x,
        y,
        style.marker,
        markersize=5.5,
        **_filled(style, fmr.mark, fnmr.mark),
    )


def _square(size: int) -> tuple[Figure, Axes]:
    side = min(max(3.6, 1.2 + 0.95 * size), 13.0)
    figure = Figure(figsize=(side + 1.2, side), layout="constrained")
    return figure, figure.add_subplot()


def _matrix(
    axes: Axes,
    values: NDArray[np.float64],
    texts: Sequence[Sequence[str]],
    names: Sequence[str],
    colours: LinearSegmentedColormap,
    scale: Normalize,
    *,
    lower: bool = False,
) -> None:
    """Draw a matrix of groups; cells without a value are hatched.

    Args:
        axes: to draw on.
        values: ``(D, D)``, NaN for none.
        texts: of the cells.
        names: of the groups.
        colours: of the values.
        scale: of the colours.
        lower: draw the lower triangle alone, with the diagonal.
    """
    size = len(names)
    axes.imshow(np.ma.masked_invalid(values), cmap=colours, norm=scale, aspect="equal")
    for i in range(size):
        for j in range(size):
            if lower and j > i:
                continue
            empty = np.isnan(values[i, j])
            if empty and (lower or i != j):
                axes.add_patch(
                    Rectangle(
                        (j - 0.5, i - 0.5),
                        1,
                        1,
                        facecolor="none",
                        edgecolor="0.7",
                        hatch="///",
                        linewidth=0,
                    )
                )
            if size <= _MOST_TEXT:
                dark = not empty and _luminance(colours(scale(values[i, j]))) < 0.4
                axes.text(
                    j,
                    i,
                    texts[i][j],
                    ha="center",
                    va="center",
                    fontsize=_SMALL,
                    color="white" if dark else "0.1",
                    backgroundcolor="white" if empty and texts[i][j] else "none",
                )
    labels = [label(name) for name in names]
    axes.set_xticks(
        range(size), labels, rotation=45, ha="right", rotation_mode="anchor", fontsize=_SMALL
    )
    axes.set_yticks(range(size), labels, fontsize=_SMALL)
    axes.set_xticks(np.arange(size - 1) + 0.5, minor=True)
    axes.set_yticks(np.arange(size - 1) + 0.5, minor=True)
    axes.grid(True, which="minor", color="white", linewidth=1.5)
    axes.tick_params(which="both", length=0)
    axes.spines[:].set_visible(False)
    _verbatim(axes.xaxis)
    _verbatim(axes.yaxis)


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


def _dodge(place: int, size: int, width: float) -> float:
    """Return the shift of one of several marks that share a place."""
    return width * ((place + 0.5) / size - 0.5)


def _percent(axis: Axis) -> None:
    axis.set_major_formatter(PercentFormatter(1, symbol=" %"))


def _plain_log(axes: Axes) -> None:
    """Mark a logarithmic axis with plain numbers."""
    axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axes.xaxis.set_minor_formatter(NullFormatter())


def _legend(figure: Figure, shown: Sequence[Style], title: str | None = None) -> None:
    handles = [
        Line2D(
            [],
            [],
            color=style.colour,
            linestyle=style.line,
            marker=style.marker,
            markersize=5,
            label=style.name,
        )
        for style in shown
    ]
    legend = figure.legend(
        handles=handles,
        loc="outside lower center",
        frameon=False,
        fontsize=_SMALL,
        ncols=min(len(handles), 4),
        title=title,
        title_fontsize=_SMALL,
    )
    _plain(legend)
    # Many groups need a taller figure, or nothing is left for the axes.
    lines = sum(
        1 + max(style.name.count("\n") for style in shown[start : start + 4])
        for start in range(0, len(shown), 4)
    )
    figure.set_figheight(figure.get_figheight() + 0.17 * max(0, lines - 2))


def _note(axes: Axes, text: str) -> None:
    axes.set_title(textwrap.fill(text, 90), fontsize=_SMALL, color=_SOFT, loc="left")


def _verbatim(axis: Axis) -> None:
    """Keep names with dollars from being taken for formulas."""
    for text in axis.get_ticklabels():
        text.set_parse_math(False)


def _limits(interval: Interval | None, sign: int) -> str:
    if interval is None:
        return ""
    low, high = sorted((sign * interval.low, sign * interval.high))
    return f"[{low:.2f}, {high:.2f}]"


def _thousands(count: int) -> str:
    """Return a count in three or four letters, as ``47k``."""
    for unit, size in (("G", 10**9), ("M", 10**6), ("k", 10**4)):
        if count >= size:
            return f"{count / (1000 if unit == 'k' else size):.3g}{unit}"
    return f"{count:,}"
