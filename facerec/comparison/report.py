"""The report of a comparison: a page, its figure, and tables for other programs.

Equal results give equal bytes.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from facerec.base.files import atomic_path, json_bytes
from facerec.base.recipe import to_dict
from facerec.comparison.plots import arm_figure
from facerec.comparison.summary import HEADLINE, Summary, too_few_seeds
from facerec.comparison.tables import (
    arm_table,
    difference_cell,
    headline_table,
    pair_table,
    plus_minus,
)
from facerec.report import documents
from facerec.report.csv_tables import to_csv
from facerec.report.page import FindingLine, Listed, Page, Section
from facerec.report.plotting import Drawings
from facerec.report.table import facts_table
from facerec.report.tidy import records
from facerec.report.words import counted, limits, number, sentence

SCHEMA = "facerec.comparison.results/6"

_TERMS = {
    "P@1, R-Precision, MAP@R, Recall@K": "Of a test image with R others of its class: whether "
    "the nearest is of its class; the share of its class among the R nearest; the mean of the "
    "precision at i = 1 … R where the i-th is of its class; whether any of the K nearest is.",
    "Concatenated, separated": "A seed trains one model a fold. Concatenated: the unit embeddings "
    "of all folds' models side by side. Separated: the mean of the figures of each model alone.",
    "Interval over seeds, over both": "Student's t over seeds: another training on these test "
    "classes. Over both: the variance over seeds and that of leaving out one test class at a time, "
    "added; figures of a k-means (NMI, F1) have none.",
}


def write_comparison(summary: Summary, folder: Path) -> Path:
    """Write the page, its figure and tables into a folder, each whole or not at all.

    Args:
        summary: of a comparison.
        folder: may hold other files, which stay.

    Returns:
        The page.

    Raises:
        FacerecError: a file cannot be written.
    """
    for name, content in report_files(summary).items():
        with atomic_path(folder / name) as temporary:
            temporary.write_bytes(content)
    return folder / "report.html"


def report_files(summary: Summary) -> dict[str, bytes]:
    """Return the files of a report, path → contents; the page comes last."""
    drawings = Drawings()
    page = _page(summary, drawings)
    document = {
        "schema": SCHEMA,
        **_counts(summary),
        "figures": records(summary.figures),
        "arms": records(summary.arms.reset_index()),
        "runs": records(summary.runs),
        "trials": records(summary.trials),
        "gain": summary.gain,
        "manifest": summary.results.manifest,
    }
    return {
        # What is unknown is null, with a reason beside it.
        "results.json": json_bytes(documents.plain(document, infinities=False)),
        "table.csv": to_csv(records(summary.figures)),
        "runs.csv": to_csv(records(summary.runs)),
        "trials.csv": to_csv(records(summary.trials)),
        "table.tex": headline_table(summary).latex().encode(),
        **drawings.files,
        "report.html": page.render().encode(),
    }


def _counts(summary: Summary) -> dict[str, int]:
    run = summary.results.untrained[0]
    labels = run.labels.tolist()
    return {"classes": len(set(labels)), "queries": len(labels), "dropped": run.dropped}


def answers(summary: Summary) -> Iterator[FindingLine]:
    """Yield what the comparison found: which pairs differ, what leads, and the gain."""
    pairs = summary.pairs
    for claim in dict.fromkeys(pair.claim for pair in pairs):
        said: dict[str, list[str]] = {}
        for pair in pairs:
            if pair.claim == claim:
                cell = difference_cell(summary, pair.Index, *HEADLINE)
                found = f"{pair.Index} − {pair.against} {cell.text} {cell.small}"
                said.setdefault(pair.conclusion, []).append(found.rstrip())
        for conclusion, names in said.items():
            what = f"Another {claim}, {counted(len(names), 'pair')}: points of concatenated MAP@R"
            yield FindingLine(what, "", conclusion=conclusion, detail="; ".join(names))
    rows = {
        str(arm): row for arm in summary.arms.index if (row := summary.headline(arm)) is not None
    }
    if len(rows) > 1:
        first = max(rows, key=lambda arm: rows[arm]["value"])
        what = f"{first} {plus_minus(rows[first])} %"
        seeds = counted(rows[first]["denominator"], "seed")
        yield FindingLine("Highest concatenated MAP@R", what, basis=f"n = {seeds}")
    rank = summary.gain
    if rank.value is not None and rank.interval is not None:
        yield FindingLine(
            "Gain in MAP@R against reduction of norm variance",
            f"Spearman's ρ {number(rank.value, '.2f')}",
            limits(rank.interval, form=".2f"),
            basis=f"{rank.total} families of arms resampled",
        )


def _notes(summary: Summary) -> list[str]:
    """Return what a reader must know before the figures."""
    notes = [f"{each.Index} is not fair: {each.unfair}" for each in summary.pairs if each.unfair]
    for result in summary.results.arms:
        arm = summary.arms.loc[result.arm.name]
        if lost := arm.missing or arm.failures:
            notes.append(f"{result.arm.name}: {lost}")
    epochs = {
        result.arm.name: [fit.epoch for run in result.runs.values() for fit in run.fits]
        for result in summary.results.arms
    }
    if kept := [f"{arm} {e.count(0)} of {len(e)}" for arm, e in epochs.items() if 0 in e]:
        notes.append(
            "Final trainings in which no epoch scored higher in validation than the untrained "
            f"network, which was kept: {', '.join(kept)}; let training last longer, with more "
            "patience"
        )
    few = too_few_seeds(summary.comparison)
    return [*map(sentence, filter(None, [*notes, few, *summary.results.manifest["notes"]]))]


def _page(summary: Summary, drawings: Drawings) -> Page:
    comparison, notes, found = summary.comparison, _notes(summary), _counts(summary)
    opening = drawings.draw(
        "arms",
        arm_figure(summary),
        "Forest of all arms and their differences.",
        "Concatenated MAP@R of every arm on the test classes, and its difference from the arm that "
        "it is compared with.",
    )
    verdict = (
        f"{comparison.name}: {counted(len(summary.arms), 'arm')}, "
        f"{counted(int(summary.arms.trials.max()), 'trial')} each, best settings trained anew with "
        f"{counted(comparison.repetitions, 'fresh seed')}, scored once on "
        f"{counted(found['queries'], 'query', 'queries')} of "
        f"{counted(found['classes'], 'test class', 'test classes')} ({found['dropped']} images are "
        "alone in their class)."
    )
    manifest = summary.results.manifest
    hashes = ("comparison_sha256", "own_losses_sha256")
    origin = ("command", "versions", "device", "data", *hashes, "seeds")
    known = {name: manifest[name] for name in origin if manifest.get(name)}
    facts = {**to_dict(comparison.protocol), **known}
    table = facts_table("Protocol and origin", facts)
    everything = "Every figure is in table.csv and results.json beside this page."
    return Page(
        title=comparison.question,
        verdict=verdict,
        lead="",
        opening=opening,
        findings=list(answers(summary)),
        headline=[Listed(notes, "notes")] if notes else [],
        sections=[
            Section("Results", [headline_table(summary)]),
            *([Section("Differences", [pair_table(summary)])] if summary.pairs else []),
            Section("Arms", [arm_table(summary)]),
            Section("Terms", [_TERMS]),
            Section("Origin", [table, everything]),
        ],
    )
