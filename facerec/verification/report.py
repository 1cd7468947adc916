"""Verification results on the terminal: tables that fit 80 columns."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from rich.console import Console

from facerec.embedding.align import alignment_words
from facerec.report import words
from facerec.report.table import Table
from facerec.verification import tables
from facerec.verification.compare import Comparison, describe_result
from facerec.verification.evaluation import TprEstimate, VerificationResult
from facerec.verification.identification import IdentificationResult
from facerec.verification.preprocessing import Trials

LISTED_FAILURES = 10


def format_rate(estimate: TprEstimate) -> str:
    """Return a TPR with interval and counts: ``98.70 % [98.1, 99.1] (2961/3000 at 3/3000)``.

    What the number of non-mated pairs cannot resolve is "not resolvable", never a number.
    """
    tpr, fpr = estimate.tpr, estimate.fpr
    if tpr.value is None:
        return f"not resolvable (N={fpr.total})"
    rate = f"{words.percent(tpr.value)} {words.percent_limits(tpr.interval)}"
    few = f", {tpr.remark}" if tpr.remark else ""
    return f"{rate} ({tables.of_total(tpr)} at {tables.of_total(fpr)}){few}"


def describe_flip(flip: bool | None) -> str:
    """Name how two views became one embedding."""
    if flip is None:
        return "flip: unknown"
    return "flip: sum of raw embeddings" if flip else "flip: none"


def print_result(result: VerificationResult, console: Console) -> None:
    """Print one bench as tables, with notes and failures below."""
    console.print()
    _say(console, f"{describe_result(result)}: {tables.pairs_of(result)}", "bold")
    _print_table(tables.figures_table(result), console)
    _print_table(tables.points_table(result.name, result), console)
    _print_table(tables.thresholds_table(result.name, result), console, [tables.THRESHOLD_ADVICE])
    _print_remarks(_remarks(result, f"; intervals: {result.basis}"), result.notes, console)
    if len(result.failures) > 1:
        _print_table(tables.failures_table(result.name, result, LISTED_FAILURES), console)
        more = len(result.failures) - LISTED_FAILURES
        if more > 0:
            _say(console, f"and {more:,} more, all listed by --json and --out", "yellow")


def print_comparison(comparison: Comparison, console: Console) -> None:
    """Print the differences between two results on the same pairs."""
    console.print()
    _say(console, f"difference B − A on {tables.pairs_of(comparison)}", "bold")
    _print_table(tables.comparison_table(comparison), console)
    basis = f"intervals of the differences: {comparison.basis}"
    _print_remarks([basis], comparison.notes, console)


def print_identification(result: IdentificationResult, console: Console) -> None:
    """Print the figures of 1:N by gallery, and their means where there are several."""
    _print_table(tables.identification_table(result), console)
    _print_remarks(_remarks(result), result.notes, console)


def print_trials(trials: Trials, console: Console) -> None:
    """Print the ways of preprocessing, the best first, and the verdict."""
    table = tables.trials_table(trials)
    _print_table(table, console, table.remarks)
    console.print(trials.verdict, style="bold", soft_wrap=True, markup=False)


def _remarks(result: VerificationResult | IdentificationResult, basis: str = "") -> list[str]:
    """Say how what was compared came to be."""
    remarks = [f"{describe_flip(result.flip)}; score: {result.score}{basis}"]
    return remarks if result.align is None else [*remarks, alignment_words(result.align)]


def _print_table(table: Table[Any], console: Console, remarks: Iterable[str] = ()) -> None:
    if table.rows:
        console.print(table.terminal())
        _print_remarks(remarks, [], console)


def _print_remarks(remarks: Iterable[str], notes: Iterable[str], console: Console) -> None:
    for remark in remarks:
        _say(console, remark, "dim italic")
    for note in notes:
        _say(console, f"note: {note}", "yellow")


def _say(console: Console, sentence: str, style: str) -> None:
    console.print(sentence, style=style, markup=False, highlight=False)
