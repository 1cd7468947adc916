"""Verification results on the terminal: tables that fit 80 columns."""

from __future__ import annotations

from collections.abc import Iterable

from rich.console import Console

from facerec.embedding.align import alignment_words
from facerec.report import words
from facerec.report.table import Table
from facerec.report.tidy import rows_table
from facerec.statistics.operating_points import RULE_OF_30
from facerec.verification.identification import IdentificationResult
from facerec.verification.result import PairedComparison, Result, VerificationResult
from facerec.verification.rows import result_rows

LISTED_FAILURES = 10

THRESHOLD_ADVICE = (
    "A threshold for use is set on other data than it is tested on: take it from one set, with the "
    "model, flip mode and kind of images of the deployment, and report the rates that it gives on "
    "another."
)

_READING = (
    f"few errors: the target leaves room for fewer than {RULE_OF_30} false accepts; n_eff: "
    "independent pairs that would say as much"
)


def pairs_of(one: VerificationResult | PairedComparison) -> str:
    """Return how many pairs of both kinds have a score."""
    return f"{one.mated:,} mated and {one.non_mated:,} non-mated pairs"


def print_result(result: VerificationResult, console: Console) -> None:
    """Print one bench, with notes and failures below."""
    console.print()
    _say(console, f"{result.title}: {pairs_of(result)}", "bold")
    console.print(rows_table("", result_rows(result)).terminal())
    remarks = [*remarks_of(result), f"intervals: {result.basis}", _READING, THRESHOLD_ADVICE]
    _print_remarks(remarks, result.notes, console)
    for failure in result.failures[:LISTED_FAILURES]:
        _say(console, f"pair {failure.pair}: {failure.reason}", "yellow")


def print_comparison(comparison: PairedComparison, console: Console) -> None:
    """Print the differences between two results on the same pairs."""
    console.print()
    _say(console, f"A: {comparison.first}; B: {comparison.second}", "bold")
    table = differences_table(comparison)
    console.print(table.terminal())
    _print_remarks(table.remarks, (), console)


def print_identification(result: IdentificationResult, console: Console) -> None:
    """Print the figures of 1:N by gallery, and their means where there are several."""
    title = f"{result.title}: 1:N identification"
    console.print(rows_table(title, result.rows).terminal())
    _print_remarks(remarks_of(result), result.notes, console)


def remarks_of(result: Result) -> list[str]:
    """Return how what was compared came to be, a sentence each."""
    flip = {None: "unknown", True: "sum of raw embeddings", False: "none"}[result.flip]
    remarks = [f"flip: {flip}; score: {result.score}"]
    return remarks if result.align is None else [*remarks, alignment_words(result.align)]


def differences_table(comparison: PairedComparison) -> Table:
    """Return the rows of a comparison above what they rest on, a sentence each."""
    remarks = [
        f"On {pairs_of(comparison)} with a score in both; {comparison.left_out:,} are left out. "
        f"Intervals of the differences: {comparison.basis}.",
        *map(words.sentence, comparison.notes),
    ]
    return rows_table("", comparison.rows, remarks)


def _print_remarks(remarks: Iterable[str], notes: Iterable[str], console: Console) -> None:
    for remark in remarks:
        _say(console, remark, "dim italic")
    for note in notes:
        _say(console, f"note: {note}", "yellow")


def _say(console: Console, sentence: str, style: str) -> None:
    console.print(sentence, style=style, markup=False, highlight=False)
