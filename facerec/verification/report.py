"""Verification results for people: a table on the terminal and a ROC plot."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from rich.console import Console
from rich.table import Table
from rich.text import Text

from facerec.errors import FacerecError
from facerec.files import atomic_path
from facerec.statistics.intervals import Interval, wilson
from facerec.statistics.kfold import KFoldAccuracy
from facerec.statistics.rates import RULE_OF_30, parse_rate, sort_scores
from facerec.verification.evaluate import TprEstimate, VerificationResult

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

PLOT_SUFFIXES = (".png", ".svg", ".pdf")
LISTED_FAILURES = 10

# Okabe and Ito's colours, which most colour-blind readers can tell apart.
_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
_LINES = ("-", "--", "-.", ":")


def format_rate(estimate: TprEstimate) -> str:
    """Return a TPR with interval and counts: ``98.70 % [98.1, 99.1] (2961/3000 at 3/3000)``.

    What the number of different pairs cannot resolve is "not resolvable", never a number.
    """
    point = estimate.point
    if not point.resolvable:
        return f"not resolvable (N={point.negatives})"
    text = f"{_percent(point.tpr)} {_interval(estimate.tpr_interval)} ({_counts(estimate)})"
    return text if point.reliable else f"{text}, few errors"


def describe_flip(flip: bool | None) -> str:
    """Name how two views became one embedding."""
    if flip is None:
        return "flip: unknown"
    return "flip: sum of raw embeddings" if flip else "flip: none"


def print_result(result: VerificationResult, console: Console) -> None:
    """Print one bench as a table, with its notes and failures below."""
    model = "" if result.model is None else f" · {result.model['name']}"
    pairs = f"{result.same} same and {result.different} different pairs"
    table = Table(
        # As Text, so that no name is taken for markup.
        title=Text(f"{result.name}{model}: {pairs}"),
        title_justify="left",
        title_style="bold",
        # Without lines it fits 80 columns.
        box=None,
        padding=(0, 2, 0, 0),
    )
    table.add_column("figure", no_wrap=True)
    table.add_column("value", justify="right", no_wrap=True)
    table.add_column("95 % interval", no_wrap=True)
    table.add_column("counts", no_wrap=True)
    table.add_column("remark")

    accuracy = result.accuracy
    table.add_row(
        f"accuracy {accuracy.folds}-fold",
        _percent(accuracy.mean),
        _interval(result.accuracy_interval),
        f"{accuracy.correct}/{accuracy.pairs}",
        _spread(accuracy),
    )
    if result.insightface is not None:
        table.add_row(
            "insightface mode",
            _percent(result.insightface.mean),
            _interval(wilson(result.insightface.correct, result.insightface.pairs)),
            f"{result.insightface.correct}/{result.insightface.pairs}",
            _spread(result.insightface),
        )
    table.add_row()
    for estimate in result.points:
        table.add_row(f"TPR@FPR={estimate.point.target}", *_point_cells(estimate))
    table.add_row()
    counts = f"{result.same} × {result.different}"
    table.add_row(
        "AUC",
        f"{result.auc.value:.4f}",
        # Four decimals without the zero, so that the column stays narrow.
        _interval(result.auc.interval, 1, 4).replace("0.", "."),
        counts,
        "",
    )
    low, high = (f"{100 * end:.2f}" for end in (result.eer_step.low, result.eer_step.high))
    table.add_row(
        "EER (ROC hull)",
        _percent(result.eer.value),
        _interval(result.eer.interval),
        "",
        f"step rule {low if low == high else f'{low} to {high}'} %",
    )
    if result.norms is not None:
        norms = result.norms
        table.add_row()
        table.add_row(
            "mean ‖f‖ (XNorm)",
            f"{norms.mean:.4g}",
            f"[{norms.interval.low:.4g}, {norms.interval.high:.4g}]",
            f"{norms.values.size} images",
            f"CV {norms.cv:.4f}, std {norms.std:.4g}",
        )
    if result.failures:
        total = result.same + result.different + len(result.failures)
        table.add_row()
        table.add_row(
            "not acquired",
            _percent(len(result.failures) / total),
            "",
            f"{len(result.failures)}/{total} pairs",
            "left out of all rates",
            style="yellow",
        )
    console.print(table)
    console.print(_basis(result), style="dim italic", highlight=False)
    for note in result.notes:
        console.print(f"note: {note}", style="yellow", markup=False, highlight=False)
    if len(result.failures) > 1:
        for failure in result.failures[:LISTED_FAILURES]:
            console.print(
                f"  pair {failure.pair}: {failure.reason}",
                style="yellow",
                markup=False,
                highlight=False,
            )
        if len(result.failures) > LISTED_FAILURES:
            more = len(result.failures) - LISTED_FAILURES
            console.print(f"  and {more} more, all listed by --json", style="yellow")


def check_plot_path(path: Path) -> None:
    """Refuse a plot file of unknown type before the work that it would show is done.

    Raises:
        FacerecError: the suffix is not .png, .svg or .pdf.
    """
    if path.suffix.lower() not in PLOT_SUFFIXES:
        raise FacerecError(f"{path}: a ROC plot is a .png, .svg or .pdf file; change the suffix")


def plot_roc(results: Mapping[str, VerificationResult], path: str | Path) -> None:
    """Draw ROC curves, one a result, into a PNG, SVG or PDF file.

    Args:
        results: name in the legend → result; several benches or models share the plot.
        path: the file; its suffix chooses the format.

    Raises:
        FacerecError: another suffix, or the file cannot be written.
    """
    path = Path(path)
    check_plot_path(path)
    import matplotlib

    figure = roc_figure(results)
    kind = path.suffix.lower().removeprefix(".")
    # Without a date and random ids the same results give the same file.
    metadata = {"svg": {"Date": None}, "pdf": {"CreationDate": None}}.get(kind)
    with atomic_path(path) as temporary, matplotlib.rc_context({"svg.hashsalt": "facerec"}):
        figure.savefig(temporary, format=kind, dpi=150, metadata=metadata)


def roc_figure(results: Mapping[str, VerificationResult]) -> Figure:
    """Draw exact step-function ROC curves over a logarithmic FPR axis.

    A curve begins where its different pairs allow one false accept; what lies left of that is
    shaded. Dots with whiskers are the operating points and their intervals; hollow dots rest on
    fewer than 30 false accepts.
    """
    from matplotlib.figure import Figure
    from matplotlib.ticker import PercentFormatter

    figure = Figure(figsize=(7, 5), layout="constrained")
    axes = figure.add_subplot()
    lowest, finest = 1.0, 1.0
    for index, (name, result) in enumerate(results.items()):
        colour = _COLOURS[index % len(_COLOURS)]
        line = _LINES[index // len(_COLOURS) % len(_LINES)]
        lowest = min(lowest, _draw(axes, name, result, colour, line))
        finest = min(finest, 1 / result.different)
    left = 10 ** (math.floor(math.log10(finest) * 2 - 0.2) / 2)
    axes.set(xscale="log", xlim=(left, 1), xlabel="FPR", ylabel="TPR")
    # Room below the lowest value, and none of it wasted on a good model.
    bottom = max(0.0, 1 - 1.08 * (1 - lowest))
    axes.set_ylim(bottom, 1 + 0.02 * (1 - bottom))
    span = 1 - bottom
    axes.yaxis.set_major_formatter(
        PercentFormatter(1, decimals=0 if span > 0.05 else 1 if span > 0.005 else 2, symbol=" %")
    )
    axes.axvspan(left, finest, color="0.88", zorder=0, linewidth=0)
    axes.text(
        math.sqrt(left * finest),
        (bottom + 1) / 2,
        "less than one false accept:\nnot resolvable",
        rotation=90,
        ha="center",
        va="center",
        fontsize=8,
        color="0.35",
    )
    axes.grid(True, which="major", color="0.85", linewidth=0.6)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(loc="lower right", frameon=True, framealpha=0.9, fontsize=9)
    axes.set_title(
        f"whiskers: 95 % Wilson, {next(iter(results.values())).accuracy_interval.assumption}; "
        f"hollow: fewer than {RULE_OF_30} false accepts",
        fontsize=8,
        color="0.35",
        loc="left",
    )
    return figure


def _draw(axes: Axes, name: str, result: VerificationResult, colour: str, line: str) -> float:
    """Draw one curve; return the lowest TPR in sight."""
    figures = sort_scores(result.positives, result.negatives)
    roc = figures.roc()
    start = 1 / result.different
    # Of the points with one FPR the last has the largest TPR, which is the supremum.
    fpr, index = np.unique(roc.fpr[::-1], return_index=True)
    tpr = roc.tpr[::-1][index]
    seen = fpr >= start
    first = figures.tpr_at_fpr(f"1/{result.different}").tpr
    x = np.concatenate([[start], fpr[seen]])
    y = np.concatenate([[first], tpr[seen]])
    area = f"{name}   AUC {result.auc.value:.4f}"
    axes.step(x, y, where="post", color=colour, linestyle=line, linewidth=1.5, label=area)
    lowest = first
    for estimate in result.points:
        point, interval = estimate.point, estimate.tpr_interval
        if not point.resolvable:
            continue
        lowest = min(lowest, interval.low)
        whiskers = [[point.tpr - interval.low], [interval.high - point.tpr]]
        axes.errorbar(
            float(parse_rate(point.target)),
            point.tpr,
            yerr=np.maximum(whiskers, 0),
            color=colour,
            marker="o",
            markersize=4.5,
            markerfacecolor=colour if point.reliable else "white",
            capsize=2.5,
            elinewidth=1,
            linestyle="none",
        )
    return lowest


def _basis(result: VerificationResult) -> str:
    interval = result.accuracy_interval
    return (
        f"{describe_flip(result.flip)}; score: cosine; intervals: {interval.method}, "
        f"{interval.assumption}"
    )


def _point_cells(estimate: TprEstimate) -> tuple[str, str, str, str]:
    point = estimate.point
    if not point.resolvable:
        finest = f"finest FPR {1 / point.negatives:.1e}"
        return "–", "not resolvable", f"N={point.negatives}", finest
    realised = f"FPR {point.fpr_realised:.3g}"
    remark = realised if point.reliable else f"{realised}, few errors"
    return _percent(point.tpr), _interval(estimate.tpr_interval), _counts(estimate), remark


def _counts(estimate: TprEstimate) -> str:
    point = estimate.point
    return f"{point.true_accepts}/{point.positives} at {point.false_accepts}/{point.negatives}"


def _spread(accuracy: KFoldAccuracy) -> str:
    return f"± {100 * accuracy.sem:.2f} SEM, ± {100 * accuracy.std:.2f} std"


def _percent(rate: float) -> str:
    return f"{100 * rate:.2f} %"


def _interval(interval: Interval, scale: float = 100, decimals: int | None = None) -> str:
    low, high = scale * interval.low, scale * interval.high
    if decimals is None:
        # One decimal says enough unless the interval is narrow.
        decimals = 1 if high - low >= 1 else 2
    return f"[{low:.{decimals}f}, {high:.{decimals}f}]"
