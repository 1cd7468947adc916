"""What `verify` and `verify-scores` share: which figures are computed, and where they go."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import facerec
from facerec.base.defaults import FPR_TARGETS
from facerec.base.errors import MetricError, ModelError
from facerec.base.files import write_json
from facerec.base.limits import Flags
from facerec.commands.cli import Console, command_line, exact_rates
from facerec.records.people import read_members

if TYPE_CHECKING:
    from facerec.embedding.calibration import ScoreCalibration
    from facerec.verification import VerificationResult
    from facerec.verification.identification import IdentificationResult


@dataclass(frozen=True)
class Figures(Flags):
    """Which figures are computed, and where they go beside the terminal."""

    fpr: tuple[str, ...] = FPR_TARGETS
    """False positive rates, as 1e-3,1e-4, at which the true positive rate is measured; never
    rounded."""
    calibration: Path | None = None
    """A file of facerec calibrate, to be judged: the cost of its likelihood ratios on these pairs,
    beside the least possible, and whether it carries over to these people."""
    subjects: Path | None = None
    """With it, a .csv file with the columns image_id and subject_id, and that of --group."""
    group: str | None = None
    """A column of that file: the calibration is judged between people of each group too."""
    quality: str | None = None
    """FILE[:COLUMN], a .csv table of quality scores of the images by another program, as OFIQ's,
    higher is better: the FNMR as mated pairs of the lowest are left out, as by raw norm."""
    out: Path | None = None
    """Folder for report.html, report.json, tables and figures."""
    json: Path | None = None
    """JSON file to write all figures to."""

    def check(self) -> tuple[str, ...]:
        """Return the rates; refuse what cannot be written, before minutes of work.

        Raises:
            FacerecError: no rate, a folder of others, or no calibration.
        """
        from facerec.verification.page import check_report_folder

        if self.calibration is not None:
            read_ratio(self.calibration)
        grouped = self.calibration, self.subjects, self.group
        if any(grouped[1:]) and None in grouped:
            raise MetricError("groups take --calibration, --subjects and --group; give all three")
        if self.out is not None:
            check_report_folder(self.out)
            if self.json and self.out.resolve() in self.json.resolve().parents:
                raise MetricError(f"{self.json}: lies in the report's folder; choose another place")
        return exact_rates(self.fpr)


FIGURES = Figures()


@dataclass
class Verified:
    """What one model or scores gave: results of 1:1 by name, and those of 1:N."""

    results: dict[str, VerificationResult] = field(default_factory=dict)
    searches: list[IdentificationResult] = field(default_factory=list)


def tell(sides: Sequence[Verified], figures: Figures, console: Console) -> None:
    """Print one side, or two and their differences, and write what was asked for."""
    from facerec.verification.calibration import judge
    from facerec.verification.compare import compare
    from facerec.verification.discard import discard_by
    from facerec.verification.page import SCHEMA, write_report
    from facerec.verification.report import print_result

    first, *others = sides
    if figures.calibration is not None:
        known = read_ratio(figures.calibration)
        for name, result in first.results.items():
            groups = None
            if figures.subjects is not None and result.items is not None:
                _, groups, _ = read_members(figures.subjects, result.items, figures.group)
            first.results[name] = judge(result, known, figures.calibration, groups)
    if figures.quality is not None:
        for name, result in first.results.items():
            first.results[name] = discard_by(result, figures.quality)
    theirs = others[0].results if others else {}
    comparisons = {name: compare(first.results[name], other) for name, other in theirs.items()}
    searches = [search for side in sides for search in side.searches]
    for name, result in first.results.items():
        print_result(result, console)
        if name in comparisons:
            print_result(comparisons[name], console)
    for search in searches:
        print_result(search, console)
    if figures.out is not None:
        page = write_report(
            figures.out,
            first.results,
            comparisons=list(comparisons.values()),
            searches=searches,
            command=command_line(),
        )
        console.print(f"report: {figures.out / page.name}")
    if figures.json is not None:
        found = {
            "results": [result.to_json() for result in first.results.values()],
            "comparisons": [comparison.to_json() for comparison in comparisons.values()],
            "identification": [search.to_json() for search in searches],
        }
        document: dict[str, Any] = {name: every for name, every in found.items() if every}
        write_json(figures.json, {"facerec": facerec.__version__, "schema": SCHEMA, **document})
        console.print(f"figures: {figures.json}")


def read_ratio(path: Path) -> ScoreCalibration:
    """Return what a calibration file says that cosines are worth.

    Raises:
        ModelError: there is no such file, it is damaged, or it says nothing of that.
    """
    from facerec.embedding.calibration import ModelCalibration

    ratio = ModelCalibration.read(path).score_calibration
    if ratio is None:
        raise ModelError(f"{path}: this calibration has no likelihood ratio; make another")
    return ratio
