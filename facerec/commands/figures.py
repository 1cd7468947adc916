"""What `verify` and `verify-scores` share: how figures are computed, and where they go."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import facerec
from facerec.commands.cli import Console, listed_rates
from facerec.defaults import FPR_TARGETS
from facerec.errors import MetricError
from facerec.files import write_json
from facerec.limits import Flags

if TYPE_CHECKING:
    from facerec.verification import VerificationResult
    from facerec.verification.identification import IdentificationResult


@dataclass(frozen=True)
class Computation(Flags):
    """How figures are computed, the same for every bench and both sides of a comparison."""

    fpr: tuple[str, ...] = FPR_TARGETS
    """False positive rates at which the true positive rate is read, as 1e-3,1e-4; taken exactly."""

    def settings(self) -> dict[str, Any]:
        """Return what `facerec.verification.evaluate` takes.

        Raises:
            MetricError: a target is no rate.
        """
        return {"fpr": listed_rates(self.fpr)}


@dataclass(frozen=True)
class Output(Flags):
    """Where figures go beside the terminal."""

    out: Path | None = None
    """Folder for report.html, report.json, tables and figures."""
    json: Path | None = None
    """Write all figures to this file."""

    def check(self) -> None:
        """Refuse what cannot be written, before minutes of work.

        Raises:
            FacerecError: a folder of others, or a file inside it.
        """
        if self.out is None:
            return
        from facerec.verification.page import check_report_folder

        check_report_folder(self.out)
        if self.json is not None and self.json.resolve().is_relative_to(self.out.resolve()):
            raise MetricError(
                f"{self.json}: lies in {self.out}, which holds the report and nothing else; choose "
                "another folder"
            )


COMPUTATION, OUTPUT = Computation(), Output()


@dataclass
class Verified:
    """What was verified: results of 1:1 by name, those of 1:N."""

    results: dict[str, VerificationResult] = field(default_factory=dict)
    searches: list[IdentificationResult] = field(default_factory=list)


def tell(
    both: Sequence[Verified],
    output: Output,
    console: Console,
) -> None:
    """Print one side, or two and their differences, and write what was asked for."""
    from facerec.verification.compare import compare
    from facerec.verification.page import write_report
    from facerec.verification.report import print_comparison, print_identification, print_result

    first, *others = both
    comparisons = {
        name: compare(first.results[name], other)
        for side in others
        for name, other in side.results.items()
    }
    for name, result in first.results.items():
        print_result(result, console)
        if name in comparisons:
            print_comparison(comparisons[name], console)
    searches = [one for side in both for one in side.searches]
    for identification in searches:
        print_identification(identification, console)
    _keep_thresholds(first.results, console)
    if output.json is not None:
        figures: dict[str, Any] = {
            "facerec": facerec.__version__,
            "results": [result.to_json() for result in first.results.values()],
        }
        if comparisons:
            figures["comparisons"] = [each.to_json() for each in comparisons.values()]
        if searches:
            figures["identification"] = [each.to_json() for each in searches]
        write_json(output.json, figures)
        console.print(f"figures: {output.json}", soft_wrap=True)
    if output.out is not None:
        command = shlex.join([Path(sys.argv[0]).name, *sys.argv[1:]])
        page = write_report(
            output.out,
            first.results,
            comparisons=list(comparisons.values()),
            searches=searches,
            command=command,
        )
        console.print(f"report: {output.out / page.name}", soft_wrap=True)


def _keep_thresholds(results: Mapping[str, VerificationResult], console: Console) -> None:
    """Leave the thresholds of a model beside it, for `facerec same` and `facerec.load`."""
    from facerec.embedding.bundle import is_bundle
    from facerec.embedding.recognizer import thresholds_file
    from facerec.export.thresholds import result_thresholds

    first = next(iter(results.values()), None)
    model = {} if first is None else first.model or {}
    rows = [row for result in results.values() for row in result_thresholds(result)]
    path = Path(model.get("path") or "")
    if not rows or not path.is_file() or not isinstance(rows[0]["flip"], bool):
        return
    # A bundle has its own, and is never changed; root may write where nobody is meant to.
    writable = path.parent.stat().st_mode & 0o222 and os.access(path.parent, os.W_OK)
    if is_bundle(path.parent) or not writable:
        return
    write_json(thresholds_file(path), {"sha256": model["sha256"], "thresholds": rows})
    console.print(f"thresholds: {thresholds_file(path)}", soft_wrap=True)
