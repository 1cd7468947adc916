"""The five pictures of an audit, of its first attribute.

Every estimate is drawn with its interval. Marks are full for at least 30 errors, half for 3 to 29,
hollow for fewer.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import NullFormatter

from facerec.fairness import rows as names
from facerec.fairness.groupings import ALL_GROUPS, EVERYBODY
from facerec.fairness.norm_errors import BINS
from facerec.fairness.norms import SubjectNorms
from facerec.fairness.result import Audit
from facerec.report.estimate import Estimate
from facerec.report.plotting import (
    SMALL,
    Style,
    filled,
    legend,
    name_rows,
    new_figure,
    note,
    percent_axis,
    plain_axes,
    styles,
    verbatim,
)
from facerec.report.plotting import label as short

_WIDTH = 7.0
_STRIP = 40
"""Bins of the means of subjects, so that no file holds the figure of a subject."""

Named = list[tuple[str, Estimate]]


def pictures(audit: Audit) -> Iterator[tuple[str, Figure, str]]:
    """Yield name, figure and caption of each picture that the data have."""
    grouping, rows = audit.groupings[0], audit.rows
    panels: list[tuple[str, Named]] = []
    for of, said in (("FMR", "wrongly accepted"), ("FNMR", "wrongly rejected")):
        if audit.at.target:
            found = _named(rows, of, audit.at, grouping)
            panels.append((f"{said} ({of} at {audit.at.target})", found))
    if audit.norms is not None:
        panels.append(("mean norm of subjects", _named(rows, names.NORM, names.NOWHERE, grouping)))
    if panels:
        yield (
            "headline",
            _forests([panels]),
            f"By {grouping}, with 95 % intervals. Full marks: at least 30 errors; half: 3 to 29; "
            "hollow: fewer.",
        )
    if audit.norms is not None:
        yield (
            "norms",
            _violins(audit.norms, list(audit.norms.names)),
            f"{grouping}: norms of images (left) and means of subjects in bins (right).",
        )
    fixed = names.select(rows, names.THRESHOLD, "threshold").dropna(subset=["value"])
    places = names.places(fixed)
    if len(places) > 1:
        places.sort(key=lambda at: at.nominal or 0)
        grid = _grid(rows, grouping, ("FMR", "FNMR"), places)
        yield "rates", _forests(grid), f"{grouping}: FMR and FNMR at the global thresholds."
    if len(names.select(rows, names.TENTHS[names.NORMS], grouping=grouping)):
        yield (
            "norm_and_errors",
            _norms_and_errors(rows[rows["grouping"] == grouping]),
            f"{grouping}: FNMR by tenth of the norm, and FNMR of what remains as mated pairs of "
            "the lowest norms are left out (error versus discard).",
        )
    if searched := audit.searches[grouping]:
        grid = _grid(rows, grouping, ("FPIR", "FNIR"), searched)
        yield "searches", _forests(grid), f"{grouping}: FPIR and FNIR at one threshold for all."


def _grid(
    rows: pd.DataFrame, grouping: str, figures: Sequence[str], places: Sequence[names.At]
) -> list[list[tuple[str, Named]]]:
    """Return titles and estimates of two figures at each threshold."""
    return [
        [(f"{of}, {at.said}", _named(rows, of, at, grouping)) for of in figures] for at in places
    ]


def _named(rows: pd.DataFrame, figure: str, at: names.At, grouping: str) -> Named:
    """Return the estimates of a figure by group, without that of all groups."""
    found = names.estimates(rows, figure, at=at, grouping=grouping)
    return [one for one in found.items() if one[0] not in ("", ALL_GROUPS, EVERYBODY)]


def _forests(grid: Sequence[Sequence[tuple[str, Named]]]) -> Figure:
    """Draw estimates by group, in panels side by side and below each other.

    A panel has a title and its estimates.
    """
    groups = len(grid[0][0][1])
    height = len(grid) * (0.9 + 0.3 * groups)
    figure = Figure(figsize=(_WIDTH, height), layout="constrained")
    axes = figure.subplots(len(grid), len(grid[0]), squeeze=False)
    for line, panels in zip(axes, grid, strict=True):
        for place, (axis, (title, named)) in enumerate(zip(line, panels, strict=True)):
            _forest(axis, title, named)
            name_rows(axis, [short(name) if place == 0 else "" for name, _ in named])
    return figure


def _forest(axes: Axes, title: str, named: Named) -> None:
    plain_axes(axes)
    shares = any(one.events is not None for _, one in named)
    values = [one.value for _, one in named if one.value]
    # Rates of groups that differ by orders of magnitude; what is 0 has no place there.
    wide = shares and bool(values) and max(values) > 20 * min(values)
    for row, ((_, one), style) in enumerate(
        zip(named, styles([name for name, _ in named]), strict=True)
    ):
        if one.value is None or one.low is None or one.high is None:
            continue
        low = max(one.low, min(values) / 10) if wide else one.low
        axes.plot([low, one.high], [row, row], color=style.colour, linewidth=1.3)
        if one.value or not wide:
            fill = filled(style, one.mark or "●")
            axes.plot([one.value], [row], style.marker, markersize=6, **fill)
    if wide:
        axes.set_xscale("log")
        axes.xaxis.set_minor_formatter(NullFormatter())
    else:
        axes.locator_params(axis="x", nbins=4)
    if shares:
        percent_axis(axes.xaxis)
    axes.set_xlabel(title, fontsize=SMALL)
    axes.grid(False, axis="y")


def _violins(sample: SubjectNorms, groups: Sequence[str]) -> Figure:
    """Draw each group's norms: images as half a violin, means of subjects as bins beside it."""
    figure, axes = new_figure(max(_WIDTH, 0.6 + 0.75 * len(groups)), 3.6)
    means, of_image = sample.means, sample.groups[sample.subjects]
    span = float(sample.norms.min()), float(sample.norms.max())
    for column, style in enumerate(styles(groups)):
        for values, side, alpha in (
            (sample.norms[of_image == column], -0.4, 0.35),
            (means[sample.groups == column], 0.4, 1.0),
        ):
            counts, edges = np.histogram(values, _STRIP, span)
            reach = column + side * np.repeat(counts, 2) / counts.max()
            heights = np.repeat(edges, 2)[1:-1]
            axes.fill_betweenx(heights, column, reach, color=style.colour, alpha=alpha, linewidth=0)
    axes.set_xticks(range(len(groups)), [short(name) for name in groups], fontsize=SMALL)
    verbatim(axes.xaxis)
    axes.grid(False, axis="x")
    axes.set_ylabel("norm of the raw embedding")
    note(axes, "left: images; right: means of subjects")
    return figure


def _norms_and_errors(of_grouping: pd.DataFrame) -> Figure:
    """Draw FNMR by tenth of the norm, and error versus discard; the last group is all together.

    Error versus discard by quality, where there is one, is a line of all groups.
    """
    figures = names.TENTHS[names.NORMS], *names.DISCARDS.values()
    tenths, left_out, by_quality = (names.select(of_grouping, each) for each in figures)
    groups = list(dict.fromkeys(tenths["group"]))
    figure = Figure(figsize=(_WIDTH, 3.4), layout="constrained")
    left, right = figure.subplots(1, 2)
    shown = [*styles(groups[:-1]), Style(groups[-1], "0.2", "x", "--")]
    for axes, rows in ((left, tenths), (right, left_out)):
        there = rows.dropna(subset=["value"])
        for group, style in zip(groups, shown, strict=True):
            found = there[there["group"] == group]
            at = found["target"].astype(float)
            kind = {"color": style.colour, "linestyle": style.line, "marker": style.marker}
            axes.plot(at, found["value"], markersize=4, **kind)
            if style is not shown[-1]:
                ends = found["low"], found["high"]
                axes.fill_between(at, *ends, color=style.colour, alpha=0.12, linewidth=0)
    if len(found := by_quality[by_quality["group"] == ALL_GROUPS]):
        right.plot(found["target"].astype(float), found["value"], "+:", color="0.2")
        shown.append(Style("all, by quality", "0.2", "+", ":"))
    ticks = range(1, BINS + 1)
    left.set(xlabel="tenth of the norm of a mated pair", ylabel="FNMR", xticks=ticks)
    right.set(xlabel="share left out, lowest first", ylabel="FNMR of what remains")
    percent_axis(right.xaxis)
    for axes in (left, right):
        plain_axes(axes)
        percent_axis(axes.yaxis)
        axes.set_ylim(bottom=0)
    legend(figure, shown)
    return figure
