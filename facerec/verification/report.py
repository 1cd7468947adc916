"""Verification results on the terminal: tables that fit 80 columns."""

from __future__ import annotations

from rich.console import Console

from facerec.report.tidy import rows_table
from facerec.statistics.operating_points import RULE_OF_30
from facerec.verification.identification import IdentificationResult
from facerec.verification.result import PairedComparison, VerificationResult

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


def print_result(
    result: VerificationResult | PairedComparison | IdentificationResult, console: Console
) -> None:
    """Print all rows of a result, and what a reader must know of them below."""
    remarks, notes = result.remarks, [f"note: {note}" for note in result.notes]
    if isinstance(result, VerificationResult):
        remarks += [_READING, THRESHOLD_ADVICE]
        notes += [f"pair {lost.pair}: {lost.reason}" for lost in result.failures[:LISTED_FAILURES]]

    def say(sentence: str, style: str) -> None:
        console.print(sentence, style=style, markup=False, highlight=False)

    console.print()
    say(result.heading, "bold")
    console.print(rows_table("", result.rows).terminal())
    for remark in remarks:
        say(remark, "dim italic")
    for note in notes:
        say(note, "yellow")
