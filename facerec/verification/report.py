"""Verification results on the terminal: tables that fit 80 columns."""

from __future__ import annotations

import math

from rich.console import Console
from rich.table import Table
from rich.text import Text

from facerec.embedding.align import alignment_words
from facerec.statistics.intervals import Interval, wilson
from facerec.statistics.kfold import KFoldAccuracy
from facerec.verification.compare import Comparison, PairedFigure, describe_result
from facerec.verification.evaluate import TprEstimate, VerificationResult
from facerec.verification.identification import IdentificationResult, TpirEstimate

LISTED_FAILURES = 10

THRESHOLD_ADVICE = (
    "A threshold for use is set on other data than it is tested on: take it from one set, with the "
    "model, flip mode and kind of images of the deployment, and report the rates that it gives on "
    "another."
)


def format_rate(estimate: TprEstimate) -> str:
    """Return a TPR with interval and counts: ``98.70 % [98.1, 99.1] (2961/3000 at 3/3000)``.

    What the number of different pairs cannot resolve is "not resolvable", never a number.
    """
    point = estimate.point
    if not point.resolvable:
        return f"not resolvable (N={point.non_mated})"
    rate = f"{format_percent(point.tpr)} {format_interval(estimate.tpr_interval)}"
    text = f"{rate} ({format_counts(estimate)})"
    return text if point.reliable else f"{text}, few errors"


def format_percent(rate: float) -> str:
    """Return a rate as ``98.70 %``."""
    return f"{100 * rate:.2f} %"


def format_interval(interval: Interval, scale: float = 100, decimals: int | None = None) -> str:
    """Return the limits as ``[98.1, 99.1]``, in percent unless another scale is given."""
    low, high = scale * interval.low, scale * interval.high
    if math.isnan(low) or math.isnan(high):
        return "no interval"
    if decimals is None:
        # One decimal says enough unless the interval is narrow.
        decimals = 1 if high - low >= 1 else 2
    return f"[{low:.{decimals}f}, {high:.{decimals}f}]"


def format_counts(estimate: TprEstimate) -> str:
    """Return true and false accepts: ``2961/3000 at 3/3000``."""
    point = estimate.point
    return f"{point.true_accepts}/{point.mated} at {point.false_accepts}/{point.non_mated}"


def format_threshold(threshold: float) -> str:
    """Return a threshold of a score; the ends in words."""
    if math.isnan(threshold):
        return "reject all"
    if math.isinf(threshold):
        return "accept all" if threshold < 0 else "∞"
    return f"{threshold:.4g}"


def format_deployment(estimate: TprEstimate) -> str:
    """Return the threshold that belongs to an FPR, with its interval: ``0.312 [0.305, 0.321]``."""
    point, interval = estimate.point, estimate.threshold_interval
    if not point.resolvable:
        return f"not resolvable (N={point.non_mated})"
    threshold = format_threshold(point.threshold)
    if interval is None:
        return f"{threshold} (too few persons for an interval)"
    low, high = (format_threshold(end) for end in (interval.low, interval.high))
    return f"{threshold} [{low}, {high}]"


def format_spread(accuracy: KFoldAccuracy) -> str:
    """Return both measures of spread over the folds, with their names."""
    return f"± {100 * accuracy.sem:.2f} SEM, ± {100 * accuracy.std:.2f} std"


def format_difference(row: PairedFigure) -> tuple[str, str, str, str]:
    """Return both values, their difference in points of percent, and its interval."""
    values = [
        "not resolvable" if value is None else format_percent(value)
        for value in (row.first, row.second)
    ]
    if row.difference is None:
        return values[0], values[1], "–", "–"
    limits = "no interval"
    if row.interval is not None:
        limits = f"[{100 * row.interval.low:+.2f}, {100 * row.interval.high:+.2f}]"
    return values[0], values[1], f"{100 * row.difference:+.2f}", limits


def describe_flip(flip: bool | None) -> str:
    """Name how two views became one embedding."""
    if flip is None:
        return "flip: unknown"
    return "flip: sum of raw embeddings" if flip else "flip: none"


def print_result(result: VerificationResult, console: Console) -> None:
    """Print one bench as a table, with its thresholds, notes and failures below."""
    table = _table(
        f"{describe_result(result)}: {result.mated} same and {result.non_mated} different pairs"
    )
    table.add_column("figure", no_wrap=True)
    table.add_column("value", justify="right", no_wrap=True)
    table.add_column("95 % interval", no_wrap=True)
    table.add_column("counts", no_wrap=True)
    table.add_column("remark")
    _add_accuracy(table, result)
    for estimate in result.points:
        table.add_row(f"TPR@FPR={estimate.point.target}", *_point_cells(estimate))
    table.add_row()
    table.add_row(
        "AUC",
        f"{result.auc.value:.4f}",
        # Four decimals without the zero, so that the column stays narrow.
        format_interval(result.auc.interval, 1, 4).replace("0.", "."),
        f"{result.mated} × {result.non_mated}",
        "",
    )
    low, high = (f"{100 * end:.2f}" for end in (result.eer_step.low, result.eer_step.high))
    table.add_row(
        "EER (ROC hull)",
        format_percent(result.eer.value),
        format_interval(result.eer.interval),
        "",
        f"step rule {low if low == high else f'{low} to {high}'} %",
    )
    if result.norms is not None:
        norms = result.norms
        table.add_row()
        table.add_row(
            "mean ‖f‖ (XNorm)",
            f"{norms.mean:.4g}",
            format_interval(norms.interval, 1, _decimals(norms.mean)),
            f"{norms.values.size} images",
            f"CV {norms.cv:.4f}, std {norms.std:.4g}",
        )
    if result.failures:
        total = result.mated + result.non_mated + len(result.failures)
        table.add_row()
        table.add_row(
            "not acquired",
            format_percent(len(result.failures) / total),
            "",
            f"{len(result.failures)}/{total} pairs",
            "left out of all rates",
            style="yellow",
        )
    console.print(table)
    _print_thresholds(result, console)
    _say(
        console,
        f"{describe_flip(result.flip)}; score: {result.score}; intervals: {result.basis}",
        "dim italic",
    )
    if result.align is not None:
        _say(console, alignment_words(result.align), "dim italic")
    for note in result.notes:
        _say(console, f"note: {note}", "yellow")
    if len(result.failures) > 1:
        for failure in result.failures[:LISTED_FAILURES]:
            _say(console, f"  pair {failure.pair}: {failure.reason}", "yellow")
        if len(result.failures) > LISTED_FAILURES:
            more = len(result.failures) - LISTED_FAILURES
            _say(console, f"  and {more} more, all listed by --json and --out", "yellow")


def print_comparison(comparison: Comparison, console: Console) -> None:
    """Print the differences between two results on the same pairs."""
    table = _table(
        f"difference B − A on {comparison.mated} same and {comparison.non_mated} different pairs"
    )
    table.add_column("figure", no_wrap=True)
    for name in ("A", "B", "B − A, points"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("95 % interval", no_wrap=True)
    for row in comparison.rows:
        *values, difference, limits = format_difference(row)
        counts = (row.first_counts, row.second_counts)
        cells = [
            value if count is None or row.difference is None else f"{value}\n{count[0]}/{count[1]}"
            for value, count in zip(values, counts, strict=True)
        ]
        table.add_row(row.figure, *cells, difference, limits)
    console.print(table)
    for letter, name in (("A", comparison.first), ("B", comparison.second)):
        _say(console, f"{letter}: {name}", "dim italic")
    _say(console, f"intervals of the differences: {comparison.basis}", "dim italic")
    for note in comparison.notes:
        _say(console, f"note: {note}", "yellow")


def print_identification(result: IdentificationResult, console: Console) -> None:
    """Print the figures of 1:N by gallery, and their means where there are several."""
    table = _table(f"{result.name}: 1:N identification")
    table.add_column("figure", no_wrap=True)
    table.add_column("gallery")
    table.add_column("value", justify="right", no_wrap=True)
    table.add_column("95 % interval", no_wrap=True)
    table.add_column("counts", no_wrap=True)
    for gallery in result.galleries:
        for estimate in gallery.points:
            name = f"TPIR@FPIR={estimate.point.target}"
            table.add_row(name, gallery.name, *_tpir_cells(estimate))
        for rate in gallery.ranks:
            limits, counts = format_interval(rate.interval), f"{rate.hits}/{rate.searches}"
            cells = format_percent(rate.rate), limits, counts
            table.add_row(f"rank {rate.rank}", gallery.name, *cells)
        table.add_row()
    if len(result.galleries) > 1:
        means = {
            **{f"TPIR@FPIR={target}": mean for target, mean in result.tpir.items()},
            **{f"rank {rank}": mean for rank, mean in result.rank_rates.items()},
        }
        for name, mean in means.items():
            cells = format_percent(mean.value), format_interval(mean.interval), ""
            table.add_row(name, "mean", *cells)
    console.print(table)
    for note in result.notes:
        _say(console, f"note: {note}", "yellow")


def _table(title: str) -> Table:
    return Table(
        # As Text, so that no name is taken for markup.
        title=Text(title),
        title_justify="left",
        title_style="bold",
        # Without lines it fits 80 columns.
        box=None,
        padding=(0, 2, 0, 0),
    )


def _say(console: Console, sentence: str, style: str) -> None:
    console.print(sentence, style=style, markup=False, highlight=False)


def _add_accuracy(table: Table, result: VerificationResult) -> None:
    accuracy, interval = result.accuracy, result.accuracy_interval
    if accuracy is not None and interval is not None:
        name = f"accuracy {accuracy.folds}-fold"
        table.add_row(name, *_accuracy_cells(accuracy, interval))
    compatible = result.insightface
    if compatible is not None:
        independent = wilson(compatible.correct, compatible.pairs)
        table.add_row("insightface mode", *_accuracy_cells(compatible, independent))
    if table.rows:
        table.add_row()


def _accuracy_cells(accuracy: KFoldAccuracy, interval: Interval) -> tuple[str, str, str, str]:
    counts = f"{accuracy.correct}/{accuracy.pairs}"
    limits = format_interval(interval)
    return format_percent(accuracy.mean), limits, counts, format_spread(accuracy)


def _point_cells(estimate: TprEstimate) -> tuple[str, str, str, str]:
    point = estimate.point
    if not point.resolvable:
        finest = f"finest FPR {1 / point.non_mated:.1e}"
        return "–", "not resolvable", f"N={point.non_mated}", finest
    realised = f"FPR {point.fpr_realised:.3g}"
    remark = realised if point.reliable else f"{realised}, few errors"
    limits = format_interval(estimate.tpr_interval)
    return format_percent(point.tpr), limits, format_counts(estimate), remark


def _tpir_cells(estimate: TpirEstimate) -> tuple[str, str, str]:
    point = estimate.point
    if not point.resolvable:
        return "–", "not resolvable", f"N={point.non_mated}"
    counts = f"{point.hits}/{point.mated} at {point.false_alarms}/{point.non_mated}"
    counts = counts if point.reliable else f"{counts}, few errors"
    return format_percent(point.tpir), format_interval(estimate.tpir_interval), counts


def _print_thresholds(result: VerificationResult, console: Console) -> None:
    shown = [estimate for estimate in result.points if estimate.point.resolvable]
    if not shown:
        return
    console.print()
    width = max(len(estimate.point.target) for estimate in shown)
    for estimate in shown:
        target = estimate.point.target.ljust(width)
        _say(console, f"threshold for FPR {target} = {format_deployment(estimate)}", "")
    _say(console, THRESHOLD_ADVICE, "dim italic")
    console.print()


def _decimals(value: float) -> int:
    """Return the decimals of a number with four digits."""
    return max(0, 3 - math.floor(math.log10(value))) if value > 0 else 2
