from __future__ import annotations

import itertools
import math
from dataclasses import replace
from xml.etree import ElementTree

import numpy as np
import pytest
from helpers.toy_audit import EVIL, default_audit
from matplotlib.axes import Axes
from matplotlib.collections import PolyCollection
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Rectangle
from matplotlib.text import Text
from scipy.special import ndtri

from facerec.fairness.association import Association
from facerec.fairness.channels import NormChannels
from facerec.fairness.differentials import Differentials
from facerec.fairness.figures import (
    comparison_figure,
    decile_figure,
    delta_figure,
    det_figure,
    difference_figure,
    differential_figure,
    discard_figure,
    ecdf_figure,
    headline_figure,
    matrix_figure,
    rate_figure,
    score_figure,
    spread_figure,
    violin_figure,
)
from facerec.fairness.no_comparison import NoComparison
from facerec.fairness.norms import SubjectBootstrap, SubjectNorms, norm_table
from facerec.fairness.rate_results import SCORE_EDGES, GroupRates
from facerec.fairness.result import GroupAudit
from facerec.report.figures import draw, label, styles
from facerec.statistics.intervals import Interval


@pytest.fixture(scope="module")
def grouping() -> GroupAudit:
    return default_audit().groupings[0]


@pytest.fixture(scope="module")
def rates(grouping: GroupAudit) -> GroupRates:
    assert isinstance(grouping.rates, GroupRates)
    return grouping.rates


@pytest.fixture(scope="module")
def channels(grouping: GroupAudit) -> NormChannels:
    assert isinstance(grouping.channels, NormChannels)
    return grouping.channels


def markers(axes: Axes) -> list[Line2D]:
    """Return what is drawn as one symbol, but for the ends of whiskers."""
    ends = ("|", "_", "None")
    return [x for x in axes.get_lines() if len(x.get_xdata()) == 1 and x.get_marker() not in ends]


def place(line: Line2D) -> tuple[float, float]:
    x, y = line.get_data()
    return float(np.asarray(x)[0]), float(np.asarray(y)[0])


def filling(line: Line2D) -> str:
    """Return the sign that tables have for a mark that is full, half full or hollow."""
    if line.get_markerfacecolor() == "white":
        return "○"
    half = line.get_fillstyle() == "left" and line.get_markerfacecoloralt() == "white"
    return "◐" if half else "●"


def whiskers(axes: Axes) -> list[tuple[tuple[float, float], tuple[float, float]]]:
    """Return x and y of the ends of lines between two points."""
    pairs = [line.get_data() for line in axes.get_lines() if len(line.get_xdata()) == 2]
    return [tuple(tuple(map(float, axis)) for axis in pair) for pair in pairs]  # type: ignore[misc]


def ticks(axes: Axes, axis: str = "y") -> list[str]:
    return [text.get_text() for text in getattr(axes, f"get_{axis}ticklabels")()]


def said(figure: Figure) -> list[str]:
    return [text.get_text() for axes in figure.axes for text in axes.texts]


# --- names and styles -------------------------------------------------------------------------


def test_labels_are_short_and_drawable() -> None:
    assert label("Amber") == "Amber"
    assert label("a \x01 b\n\tc") == "a � b c"
    assert label("") == label(" \n ") == "–"
    assert label("$x_1$") == "$x_1$"
    long = label("one two three four five six seven eight nine ten eleven twelve")
    assert long.count("\n") == 1 and long.endswith("…") and max(map(len, long.split("\n"))) <= 24


def test_groups_differ_in_colour_or_marker() -> None:
    names = [str(number) for number in range(56)]
    found = styles(names)
    assert [style.name for style in found] == names
    assert len({(style.colour, style.marker) for style in found}) == 56
    assert found[:4] == styles(names[:4])
    for one, other in itertools.pairwise(found):
        assert one.colour != other.colour and one.marker != other.marker


# --- norms ------------------------------------------------------------------------------------


def test_differences_have_their_intervals_and_groups_their_order(grouping: GroupAudit) -> None:
    (axes,) = difference_figure(grouping.norms).axes
    expected = []
    for row, group in enumerate(grouping.norms.groups):
        assert group.difference is not None and group.difference.interval is not None
        expected.append((group.difference.value, row))
        ends = group.difference.interval.low, group.difference.interval.high
        assert (ends, (row, row)) in whiskers(axes)
    assert [place(mark) for mark in markers(axes)] == expected
    low, high = axes.get_ylim()
    assert low > high  # the first group is on top
    assert ticks(axes)[0] == f"{label(EVIL)} (26)"
    assert [style.marker for style in styles(grouping.names)] == [
        mark.get_marker() for mark in markers(axes)
    ]


def test_an_estimate_without_an_interval_is_hollow(grouping: GroupAudit) -> None:
    first = grouping.norms.groups[0]
    bare = replace(first, sd=replace(first.sd, interval=None), cv=replace(first.cv, value=None))
    table = replace(grouping.norms, groups=(bare, *grouping.norms.groups[1:]))
    deviations, variations = spread_figure(table).axes
    faces = [mark.get_markerfacecolor() for mark in markers(deviations)]
    assert faces[0] == "white" and "white" not in faces[1:]
    assert [place(mark)[1] for mark in markers(variations)] == [1, 2, 3]
    assert variations.get_lines()[-1].get_xdata()[0] == grouping.norms.overall.cv.value


def test_the_strip_holds_bins_and_no_person(grouping: GroupAudit) -> None:
    figure = violin_figure(grouping.sample, grouping.norms)
    (axes,) = figure.axes
    span = grouping.sample.norms.min(), grouping.sample.norms.max()
    edges = np.linspace(*span, 49)
    halves = [found for found in axes.collections if isinstance(found, PolyCollection)]
    assert len(halves) >= 2 * len(grouping.names)
    strips = [found for found in halves if found.get_alpha() is None]
    for row, found in enumerate(strips):
        (path,) = found.get_paths()
        x, y = path.vertices.T
        assert np.abs(y[:, None] - edges).min(axis=1).max() < 1e-9
        counts = np.histogram(grouping.sample.means[grouping.sample.groups == row], edges)[0]
        # At an edge meet the bars on both of its sides.
        taller = np.maximum(np.append(counts, 0), np.append(0, counts)) / counts.max()
        reached = [x[np.abs(y - edge) < 1e-9].max() for edge in edges]
        np.testing.assert_allclose(reached, row + 0.06 + 0.3 * taller)
    means = [place(line) for line in markers(axes)]
    assert means == [
        (row, group.subject_mean.value) for row, group in enumerate(grouping.norms.groups)
    ]
    assert ticks(axes, "x")[1] == "Amber\n40 / 199"


def test_distribution_functions_are_shares(grouping: GroupAudit) -> None:
    (axes,) = ecdf_figure(grouping.sample, grouping.names).axes
    of_image = grouping.sample.groups[grouping.sample.subjects]
    for row, line in enumerate(axes.get_lines()):
        norms = grouping.sample.norms[of_image == row]
        for x, y in list(zip(*line.get_data(), strict=True))[::37]:
            assert y == np.mean(norms <= x)


def test_many_groups_leave_room_for_the_axes() -> None:
    generator = np.random.default_rng(0)
    person = np.arange(400)
    names = [f"group number {number % 40:02d}" for number in person]
    norms = generator.normal(20, 2, person.size)
    sample = SubjectNorms.from_images(norms, person, names)
    table = norm_table(sample, SubjectBootstrap(sample.groups, 20))
    figure = ecdf_figure(sample, sample.names)
    draw(figure, "svg")
    assert figure.get_figheight() > 4.5
    assert figure.axes[0].get_position().height * figure.get_figheight() > 1.5
    assert len(ticks(difference_figure(table).axes[0])) == 40
    assert violin_figure(sample, table).get_figwidth() > 20


# --- association and channels -----------------------------------------------------------------


def test_deltas_change_sign_across_the_diagonal(grouping: GroupAudit) -> None:
    assert isinstance(grouping.association, Association)
    figure = delta_figure(grouping.association, grouping.names)
    values = figure.axes[0].images[0].get_array()
    size = len(grouping.names)
    np.testing.assert_array_equal(values.mask, np.eye(size, dtype=bool))
    np.testing.assert_array_equal(values, -values.T)
    for pair in grouping.association.pairs:
        row, column = grouping.names.index(pair.first), grouping.names.index(pair.second)
        assert values[row, column] == pair.delta.value
        assert pair.delta.interval is not None
        low, high = pair.delta.interval.low, pair.delta.interval.high
        texts = [text.replace("−", "-").replace("\xa0", " ") for text in said(figure)]
        assert f"{pair.delta.value:+.2f}\n[{low:.2f}, {high:.2f}]" in texts
        assert f"{-pair.delta.value:+.2f}\n[{-high:.2f}, {-low:.2f}]" in texts


def test_every_tenth_has_the_rate_of_every_group(
    grouping: GroupAudit, channels: NormChannels
) -> None:
    (axes,) = decile_figure(channels, grouping.names).axes
    found = {(round(place(mark)[0]), mark.get_marker()): mark for mark in markers(axes)}
    assert len(found) == len(channels.bins) * len(grouping.names)
    bars = {(x[0], y) for x, y in whiskers(axes)}
    for part in channels.bins:
        for style, group in zip(styles(grouping.names), part.groups[1:], strict=True):
            x, y = place(found[part.bin, style.marker])
            assert y == group.fnmr.value and group.fnmr.interval is not None
            limits = group.fnmr.interval
            assert (x, (min(limits.low, y), max(limits.high, y))) in bars
            assert filling(found[part.bin, style.marker]) == group.fnmr.mark


def test_curves_and_cuts_of_discarding(grouping: GroupAudit, channels: NormChannels) -> None:
    left, right = discard_figure(channels, grouping.names).axes
    curves = [
        line
        for axes in (left, right)
        for line in axes.get_lines()
        if line.get_drawstyle() == "steps-post"
    ]
    assert len(curves) == len(channels.curves) == 5
    for line, curve in zip(curves, channels.curves, strict=True):
        np.testing.assert_array_equal(line.get_data(), (curve.discarded, curve.fnmr))
    marks = {place(mark) for mark in (*markers(left), *markers(right))}
    assert marks == {
        (group.pairs.value, group.after.value) for cut in channels.cuts for group in cut.groups
    }
    furthest = max(group.pairs.value or 0 for cut in channels.cuts for group in cut.groups)
    assert right.get_xlim()[1] >= furthest


# --- rates ------------------------------------------------------------------------------------


def test_rates_have_intervals_and_counts(rates: GroupRates) -> None:
    figure = rate_figure(rates)
    assert figure is not None
    panels = np.array(figure.axes).reshape(-1, 2)
    assert len(panels) == 4
    for (left, right), point in zip(panels, rates.points, strict=True):
        nominal = float(point.threshold.target)
        assert left.get_xlim()[0] < nominal < left.get_xlim()[1]
        for axes, of in ((left, "fmr"), (right, "fnmr")):
            for row, (group, mark) in enumerate(zip(point.groups, markers(axes), strict=True)):
                rate = getattr(group, of)
                counts = axes.texts[row].get_text()
                assert counts.startswith(f"{rate.events:,}/")
                if rate.events or axes is right:
                    assert place(mark) == (rate.value, row)
                    assert filling(mark) == rate.mark
                else:
                    # An arrow at the edge, and a line up to the limit.
                    assert mark.get_marker() == "<" and place(mark)[0] == left.get_xlim()[0]
                    ends = (left.get_xlim()[0], rate.interval.high)
                    assert (ends, (row, row)) in whiskers(axes)
    assert any(group.fmr.events == 0 for point in rates.points for group in point.groups)


def test_targets_that_cannot_be_resolved_are_not_drawn(rates: GroupRates) -> None:
    blind = [
        replace(point, threshold=replace(point.threshold, resolvable=False))
        for point in rates.points
    ]
    some = rate_figure(replace(rates, points=(rates.points[0], *blind[1:])))
    assert some is not None and len(some.axes) == 2
    assert rate_figure(replace(rates, points=tuple(blind))) is None


def test_false_matches_between_groups(rates: GroupRates) -> None:
    point = rates.points[2]  # target 1e-4, with cells that have no false match
    figure = matrix_figure(point, rates.names)
    axes = figure.axes[0]
    values = axes.images[0].get_array()
    hatched = {
        (int(patch.get_y() + 0.5), int(patch.get_x() + 0.5))
        for patch in axes.patches
        if isinstance(patch, Rectangle) and patch.get_hatch()
    }
    cells = {(round(t.get_position()[1]), round(t.get_position()[0])): t for t in axes.texts}
    for row, column in itertools.product(range(4), repeat=2):
        found = point.matrix[row][column].value
        if column > row:
            assert np.ma.is_masked(values[row, column]) and (row, column) not in cells
            continue
        text = cells[row, column].get_text()
        assert f"{point.matrix[row][column].events}/" in text
        if found:
            assert values[row, column] == pytest.approx(math.log10(found / 1e-4))
            assert text.startswith(f"−{-math.log10(found):.1f}")
        else:
            assert (row, column) in hatched and text.startswith("0/")
    assert hatched == {
        (row, column)
        for row in range(4)
        for column in range(row + 1)
        if not point.matrix[row][column].value
    }
    assert "+1 = ×10" in axes.get_title(loc="left")


def test_equal_thresholds_are_joined_on_det_curves(rates: GroupRates) -> None:
    (axes,) = det_figure(rates).axes
    joined = [line for line in axes.get_lines() if line.get_linestyle() == "--"]
    assert len(joined) == len(rates.points)
    for line, point in zip(joined, rates.points, strict=True):
        expected = [
            (ndtri(group.fmr.value), ndtri(group.fnmr.value))
            for group in point.groups
            if group.fmr.value and group.fnmr.value
        ]
        np.testing.assert_allclose(np.transpose(line.get_data()), expected)
        if expected:
            assert point.threshold.target in [text.get_text() for text in axes.texts]
    high = axes.get_ylim()[1]
    assert all(place(mark)[1] < high for mark in markers(axes))


def test_score_histograms_are_shares(grouping: GroupAudit, rates: GroupRates) -> None:
    figure = score_figure(grouping.histograms, rates)
    assert figure is not None
    panels = figure.axes[: len(grouping.names)]
    for axes, found in zip(panels, grouping.histograms, strict=True):
        assert axes.get_ylabel() == label(found.name)
        impostor, genuine = (patch.get_data() for patch in axes.patches[1::2])
        for bars, counts in ((impostor, found.non_mated), (genuine, found.mated)):
            assert bars.values.sum() == pytest.approx(1)
            middle = len(bars.edges) // 2
            below = np.array(counts)[bars.edges[middle] > SCORE_EDGES[:-1]].sum() / sum(counts)
            assert bars.values[:middle].sum() == pytest.approx(below)
    assert score_figure((), rates) is None
    # A group without pairs has no histogram, and takes no other's name.
    fewer = score_figure(grouping.histograms[1:], rates)
    assert fewer is not None and fewer.axes[0].get_ylabel() == "Amber"


# --- differentials and comparison -------------------------------------------------------------


def test_measures_are_drawn_or_said_to_lack(grouping: GroupAudit) -> None:
    found = grouping.differentials
    assert isinstance(found, Differentials)
    figure = differential_figure(found)
    assert figure is not None
    ratios, shares = figure.axes
    assert ticks(ratios)[0] == "max/geomean FMR" and "GARBE" in ticks(shares)
    drawn = {place(mark)[0] for mark in (*markers(ratios), *markers(shares))}
    kinds = ("max/geomean", "max/min", "max/mean", "IR", "WERM", "SER", "Gini", "GARBE", "FDR")
    rows = [row for row in found.rows if row.measure in kinds]
    assert drawn == {row.value for row in rows if row.value is not None}
    lacking = [row for row in rows if row.value is None]
    assert lacking and len(said(figure)) == len(lacking)
    assert {"insufficient data"} <= set(said(figure)) <= {"insufficient data", "undefined"}
    nothing = replace(found, rows=tuple(replace(row, value=None) for row in found.rows))
    assert differential_figure(nothing) is None
    assert differential_figure(replace(found, rows=())) is None


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("others", [False, True])
def test_a_ratio_of_0_is_an_arrow(grouping: GroupAudit, others: bool) -> None:
    """As WERM is where no group has a false non-match, whatever the other measures are."""
    found = grouping.differentials
    assert isinstance(found, Differentials)
    rows = [
        replace(row, value=0.0, interval=Interval(0.0, 0.0), at_parity=None)
        if row.measure == "WERM"
        else (row if others else replace(row, value=None))
        for row in found.rows
    ]
    figure = differential_figure(replace(found, rows=tuple(rows)))
    assert figure is not None
    draw(figure, "png")
    axes = figure.axes[0]
    least, high = axes.get_xlim()
    arrows = [place(mark)[0] for mark in markers(axes) if mark.get_marker() == "<"]
    values = [place(mark)[0] for mark in markers(axes) if mark.get_marker() != "<"]
    assert len(arrows) == sum(row.measure == "WERM" for row in rows)
    assert all(0 < least <= arrow < min([1.0, *values]) <= high for arrow in arrows)


def test_changes_keep_their_sign_and_their_place_against_zero() -> None:
    comparison = default_audit().comparison
    assert comparison is not None
    rows = comparison.changes
    figure = comparison_figure(rows)
    assert figure is not None
    (axes,) = figure.axes
    known = [row for row in rows if row.value is not None]
    for row, mark in zip(known, markers(axes), strict=True):
        assert np.sign(place(mark)[0]) == np.sign(row.value)
    spans = [x for x, y in whiskers(axes) if y[0] == y[1]]
    limited = [row for row in known if row.interval is not None]
    assert len(spans) == len(limited)
    for (low, high), row in zip(spans, limited, strict=True):
        assert (low > 0, high < 0) == (row.low > 0, row.high < 0)
        assert max(abs(low), abs(high)) <= 1 + 1e-9
    assert comparison_figure([replace(row, value=None) for row in rows]) is None
    pairs = [row for row in rows if row.groups]
    many = comparison_figure([*rows, *pairs * 20])
    assert many is not None and len(markers(many.axes[0])) == len(known) - len(pairs)


# --- files ------------------------------------------------------------------------------------


def test_equal_figures_give_equal_bytes_without_script_or_date(grouping: GroupAudit) -> None:
    for kind in ("svg", "png"):
        first, second = (draw(spread_figure(grouping.norms), kind) for _ in range(2))
        assert first == second
    content = draw(spread_figure(grouping.norms), "svg")
    assert ElementTree.fromstring(content).tag.endswith("svg")
    assert b"<script" not in content and b"<dc:date>" not in content


def test_hostile_names_are_drawn_as_they_are() -> None:
    names = ("$\\frac{1}{0$", "<script>", "a\x00b\x1b", "-->")
    person = np.arange(40)
    sample = SubjectNorms.from_images(
        np.random.default_rng(1).normal(20, 2, 40), person, [names[i % 4] for i in person]
    )
    table = norm_table(sample, SubjectBootstrap(sample.groups, 20))
    for figure in (violin_figure(sample, table), ecdf_figure(sample, sample.names)):
        content = draw(figure, "svg")
        ElementTree.fromstring(content)
        assert b"<script" not in content


def test_marks_are_those_of_the_tables(rates: GroupRates) -> None:
    figure = rate_figure(rates)
    assert figure is not None
    drawn = {filling(mark) for axes in figure.axes for mark in markers(axes)}
    points = [point for point in rates.points if point.threshold.resolvable]
    shared = [rate for p in points for g in p.groups for rate in (g.fmr, g.fnmr)]
    # Of thirty errors and more that share persons, too, both say the same.
    assert any(rate.mark == "●" and not rate.reliable for rate in shared)
    assert drawn == {"●", "◐", "○"}


def test_no_letters_are_smaller_than_eleven_pixels(
    grouping: GroupAudit, rates: GroupRates, channels: NormChannels
) -> None:
    association, differentials = grouping.association, grouping.differentials
    assert isinstance(association, Association) and isinstance(differentials, Differentials)
    comparison = default_audit().comparison
    assert comparison is not None
    names = grouping.names
    point = next(point for point in rates.points if point.threshold.resolvable)
    figures = (
        headline_figure(grouping.norms, point),
        violin_figure(grouping.sample, grouping.norms),
        ecdf_figure(grouping.sample, names),
        difference_figure(grouping.norms),
        spread_figure(grouping.norms),
        delta_figure(association, names),
        decile_figure(channels, names),
        discard_figure(channels, names),
        rate_figure(rates),
        matrix_figure(point, names),
        det_figure(rates),
        score_figure(grouping.histograms, rates),
        differential_figure(differentials),
        comparison_figure(comparison.changes),
    )
    for figure in figures:
        assert figure is not None
        # A page shows a figure in its own size: 72 points are 96 pixels.
        sizes = [text.get_fontsize() for text in figure.findobj(Text) if text.get_text()]
        assert min(sizes) * 96 / 72 >= 11


def test_the_headline_has_norms_and_both_rates(grouping: GroupAudit, rates: GroupRates) -> None:
    point = rates.points[0]
    norms, fmr, fnmr = headline_figure(grouping.norms, point).axes
    differences = [group.difference for group in grouping.norms.groups]
    assert [place(mark)[0] for mark in markers(norms)] == [d.value for d in differences if d]
    assert [place(mark)[0] for mark in markers(fmr)] == [group.fmr.value for group in point.groups]
    assert [place(mark)[0] for mark in markers(fnmr)] == [g.fnmr.value for g in point.groups]
    assert ticks(norms)[0] == f"{label(EVIL)} (26)"
    assert len(headline_figure(grouping.norms, None).axes) == 1


def test_two_groups_are_enough() -> None:
    sex = default_audit().groupings[1]
    assert not isinstance(sex.rates, NoComparison) and not isinstance(sex.association, NoComparison)
    for figure in (
        violin_figure(sex.sample, sex.norms),
        delta_figure(sex.association, sex.names),
        det_figure(sex.rates),
        matrix_figure(sex.rates.points[0], sex.names),
    ):
        assert figure.axes
