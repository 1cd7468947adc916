"""The report of a comparison: a page, its figures, and tables for other programs.

Equal results give equal bytes.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd

from facerec.comparison.figures import arm_figure, learning_figure
from facerec.comparison.harness import Results
from facerec.comparison.protocol import UNTRAINED
from facerec.comparison.significance import least_p
from facerec.comparison.summary import HEADLINE, SCHEMA, Summary, summarize
from facerec.comparison.tables import (
    difference_cell,
    headline_table,
    norm_table,
    origin_table,
    pair_table,
    paired_trial_table,
    plus_minus,
    setting_table,
    to_latex,
)
from facerec.errors import ComparisonError
from facerec.files import atomic_path, json_bytes
from facerec.recipe import to_dict
from facerec.report import documents
from facerec.report.csv_tables import to_csv
from facerec.report.figures import Drawings
from facerec.report.page import Block, FindingLine, Folded, Listed, Page, Section, Terms, Text
from facerec.report.words import counted, limits, number, p_value

PAGE = "report.html"

_SPOKEN = 5
"""Pairs up to which the page has a sentence for each."""

_TERMS = {
    "P@1, R-Precision (RP), MAP@R, Recall@K": "Of a test image with R others of its class: whether "
    "the nearest image is of its class; the share of its class among the R nearest; the mean of "
    "the precision at i over i = 1 … R, counted where the i-th is of its class; whether any of the "
    "K nearest is. Means over queries.",
    "Concatenated, separated": "A seed trains one model a fold. Concatenated: the unit embeddings "
    "of all folds' models side by side. Separated: the mean of the figures of each model alone.",
    "Interval over seeds, over classes, over both": "Student's t over seeds: another training on "
    "these test classes. Bootstrap of test classes: other test classes with these trainings. Over "
    "both: seeds and classes resampled together. References are held fixed. Figures of a k-means "
    "(NMI, F1) are no means over queries, so their intervals are over seeds alone.",
}


def write_report(results: Results, folder: str | Path) -> dict[str, Path]:
    """Write the page, its figures and tables into a folder, each whole or not at all.

    Args:
        results: of a comparison.
        folder: may hold other files, which stay.

    Returns:
        Path inside the folder → where it was written: ``report.html``, ``results.json``,
        ``table.csv``, ``runs.csv``, ``trials.csv``, ``table.tex``, ``figures/*.svg`` and
        ``figures/*.png``.

    Raises:
        ComparisonError: a file cannot be written.
    """
    paths = {}
    for name, content in render(summarize(results)).items():
        paths[name] = Path(folder) / name
        with atomic_path(paths[name], ComparisonError) as temporary:
            temporary.write_bytes(content)
    return paths


def render(summary: Summary) -> dict[str, bytes]:
    """Return the files of a report, path → contents; the page comes last."""
    drawings = Drawings()
    page = _page(summary, drawings)
    return {
        "results.json": json_bytes(documents.plain(to_json(summary), infinities=False)),
        "table.csv": to_csv(_table(summary)),
        "runs.csv": to_csv(records(summary.runs)),
        "trials.csv": to_csv(records(summary.trials)),
        "table.tex": to_latex(summary).encode(),
        **drawings.files,
        PAGE: page.render().encode(),
    }


def records(table: pd.DataFrame) -> list[dict[str, Any]]:
    """Return the rows of a table with None for what is unknown."""
    known = table.astype(object).where(table.notna(), None)
    return [{str(key): value for key, value in row.items()} for row in known.to_dict("records")]


def to_json(summary: Summary) -> dict[str, Any]:
    """Return all figures as JSON types; what is unknown is null, with a reason beside it."""
    comparison = summary.comparison
    return {
        "schema": SCHEMA,
        **{name: getattr(comparison, name) for name in ("name", "question", "confidence")},
        **{name: getattr(comparison, name) for name in ("replicates", "repetitions", "declared")},
        **_counts(summary),
        "answers": [sentence_of(line) for line in answers(summary)],
        "figures": _table(summary),
        "arms": records(summary.arms.reset_index()),
        "runs": records(summary.runs),
        "trials": records(summary.trials),
        "gain": summary.gain,
        "protocol": to_dict(comparison.protocol),
        "manifest": summary.results.manifest,
    }


def _table(summary: Summary) -> list[dict[str, Any]]:
    """Return the rows of figures, and one for each arm that has none."""
    rows = records(summary.figures.reset_index())
    for row in rows:
        row["fair"] = summary.arms.fair[row["arm"]] if row["against"] else None
    lost = summary.arms.missing[summary.arms.missing != ""]
    return rows + [{"arm": arm, "reason": reason} for arm, reason in lost.items()]


def _counts(summary: Summary) -> dict[str, int]:
    results = summary.results
    runs = [run for arm in results.arms for run in arm.runs] or list(results.untrained)
    labels = runs[0].labels.tolist() if runs else []
    return {
        "classes": len(set(labels)),
        "queries": len(labels),
        "dropped": runs[0].dropped if runs else 0,
    }


# ---------------------------------------------------------------- the answer


def answers(summary: Summary, most: int | None = None) -> list[FindingLine]:
    """Return what the comparison found: each claim, each pair, and which arm comes first.

    Of more than ``most`` pairs none has a line.
    """
    pairs = summary.pairs
    spoken = pairs if most is None or len(pairs) <= most else []
    lines = [_pair_answer(summary, pair) for pair in spoken]
    return [*_claims(summary), *lines, *_ranking(summary), *_gain(summary)]


def sentence_of(line: FindingLine) -> str:
    """Return a line as a sentence."""
    estimate = f"{line.estimate} {line.limits}".strip()
    rest = "; ".join(filter(None, (line.conclusion, line.detail, line.basis)))
    return f"{line.figure}: {estimate}; {rest}."


def _claims(summary: Summary) -> Iterator[FindingLine]:
    """Say of each question how many of its pairs differ."""
    for claim in dict.fromkeys(pair.claim for pair in summary.pairs):
        pairs = [pair for pair in summary.pairs if pair.claim == claim]
        if len(pairs) < 2:
            continue
        counts = Counter(pair.conclusion for pair in pairs)
        detected = [p.Index for p in pairs if p.conclusion == "difference detected"]
        above = sum(summary.headline(arm).difference > 0 for arm in detected)
        undecided = [
            f"{said} in {counts[said]}"
            for said in ("none detected at this precision", "insufficient data")
            if counts[said]
        ]
        level = f"adjusted p at most {1 - summary.comparison.confidence:.2g}"
        smallest = [100 * pair.smallest for pair in pairs if not math.isnan(pair.smallest)]
        ends_ = dict.fromkeys(f"{of(smallest):.2f}" for of in (min, max) if smallest)
        yield FindingLine(
            f"Another {claim}, {len(pairs)} pairs: concatenated MAP@R",
            f"different in {len(detected)}: above in {above}, below in {len(detected) - above}",
            detail="; ".join([level, *undecided]),
            basis=f"80 % power from {' to '.join(ends_)} points on" if len(smallest) else "",
        )


def _pair_answer(summary: Summary, pair: Any) -> FindingLine:
    figure = f"{pair.Index} against {pair.against}"
    row = summary.headline(pair.Index)
    if pair.unpaired or row is None:
        return FindingLine(figure, "no difference can be computed", detail=pair.unpaired)
    cell = difference_cell(summary, pair.Index, *HEADLINE)
    basis, detail = f"n = {counted(int(pair.seeds), 'seed')}", "one seed has no interval and no p"
    if pair.seeds > 1:
        pairs = counted(int(pair.claim_pairs), "pair")
        basis += f"; p = {p_value(row.p)}, adjusted for {pairs} {p_value(row.p_holm)}"
        known = not math.isnan(pair.smallest)
        detail = f"80 % power from {100 * pair.smallest:.2f} on" if known else ""
    return FindingLine(
        figure,
        f"{cell.text} points of concatenated MAP@R",
        cell.small if pair.seeds > 1 else "",
        conclusion=pair.conclusion,
        detail="equal in every run" if pair.equal else detail,
        basis=basis,
    )


def _ranking(summary: Summary) -> Iterator[FindingLine]:
    rows = {arm: row for arm in summary.arms.index if (row := summary.headline(arm)) is not None}
    if len(rows) < 2:
        return
    first = max(rows, key=lambda arm: rows[arm]["mean"])
    others = [arm for arm in meeting_best(rows) if arm != first]
    yield FindingLine(
        "Highest concatenated MAP@R",
        f"{first} {plus_minus(rows[first])} %",
        detail=f"the intervals over seeds of {', '.join(others) or 'no other arm'} meet its own",
        basis=f"n = {counted(int(rows[first].n), 'seed')}",
    )


def _gain(summary: Summary) -> Iterator[FindingLine]:
    """Say whether pairs that lose more norm variance gain more."""
    rank = summary.gain
    if rank.value is not None and rank.interval is not None:
        yield FindingLine(
            "Gain in MAP@R against reduction of norm variance",
            f"Spearman's ρ {number(rank.value, '.2f')}",
            limits(rank.interval, form=".2f"),
            basis=f"{rank.total} families of arms resampled",
        )


def meeting_best(rows: dict[str, Any]) -> list[str]:
    """Return the names whose interval over seeds meets that of the highest mean.

    So the tables of the Reality Check are read. One seed has a point for an interval.
    """

    def end(row: Any, name: str) -> float:
        value = float(row[f"mean_over_seeds_{name}"])
        return float(row["mean"]) if math.isnan(value) else value

    best = max(rows.values(), key=lambda row: row["mean"], default=None)
    return [name for name, row in rows.items() if end(row, "high") >= end(best, "low")]


def _notes(summary: Summary) -> list[str]:
    """Return what a reader must know before the figures."""
    arms = summary.of_arms
    notes = [f"{arm.Index} has no scores: {arm.missing}." for arm in arms if arm.missing]
    notes += [
        f"{arm.Index}: {counted(arm.failed_runs, 'final run')} failed, left out of all figures: "
        f"{arm.failures}."
        for arm in arms
        if arm.failures and not arm.missing
    ]
    pairs = summary.pairs
    notes += [
        f"{pair.Index} against {pair.against} does not bear the mark “fair”: {pair.unfair}."
        for pair in pairs
        if pair.unfair
    ]
    notes += _little_learned(summary)
    seeds = max((int(pair.seeds) for pair in pairs), default=0)
    if seeds == 1:
        notes.append("One seed each: no interval and no p; single runs say nothing of a spread.")
    elif seeds:
        most = int(max(pair.claim_pairs for pair in pairs))
        notes.append(
            f"With {seeds} seeds the sign-flip test cannot give a p below "
            f"{p_value(least_p(seeds))}, adjusted for {counted(most, 'pair')} not below "
            f"{p_value(min(1.0, least_p(seeds) * most))}."
        )
    return [*notes, *(f"{note}." for note in summary.results.manifest["notes"])]


def _little_learned(summary: Summary) -> Iterator[str]:
    """Yield notes on arms whose training never beat the network before it."""
    for arm in summary.results.arms:
        best = [fit.epoch for run in arm.runs for fit in run.fits]
        if untrained := best.count(0):
            yield (
                f"{arm.arm.name}: in {untrained} of {counted(len(best), 'final training')} no "
                "epoch scored higher in validation than the network before training, which was "
                "kept; let training last longer, with more patience."
            )
    rows = [row for arm in summary.arms.index if (row := summary.headline(arm)) is not None]
    before = summary.headline(UNTRAINED)
    if before is not None and rows and before["mean"] > max(row["mean"] for row in rows):
        yield (
            "Every arm scores lower than the network before training, whose concatenated MAP@R is "
            f"{plus_minus(before)} %: what the arms differ in is how much training lost."
        )


# ---------------------------------------------------------------- the page


def _page(summary: Summary, drawings: Drawings) -> Page:
    comparison, notes = summary.comparison, _notes(summary)
    forest = arm_figure(summary)
    scores = "; ".join(
        f"{arm} {plus_minus(row)} %"
        for arm in summary.arms.index
        if (row := summary.headline(arm)) is not None
    )
    opening = drawings.draw(
        "arms",
        forest,
        f"Forest of all arms and their differences. {scores}.",
        "Concatenated MAP@R of every arm on the test classes, and its difference from the arm that "
        "it is compared with.",
    )
    found = _counts(summary)
    design = (
        f"{comparison.name}: {counted(len(summary.arms), 'arm')}, "
        f"{counted(int(summary.arms.trials.max()), 'trial')} each, best settings trained anew with "
        f"{counted(comparison.repetitions, 'fresh seed')}, scored once on "
        f"{counted(found['queries'], 'query', 'queries')} of "
        f"{counted(found['classes'], 'test class', 'test classes')}"
        + (
            f" ({found['dropped']} images alone in their class are none)"
            if found["dropped"]
            else ""
        )
    )
    return Page(
        title=comparison.question,
        verdict=f"{design}.",
        lead="",
        opening=opening,
        # Of many pairs the figure and the tables say more at once than a screen full of sentences.
        findings=answers(summary, _SPOKEN),
        headline=[Listed(notes, "notes")] if notes else [],
        sections=list(_sections(summary, drawings)),
    )


def _sections(summary: Summary, drawings: Drawings) -> Iterator[Section]:
    yield Section("Results", [headline_table(summary)])
    if summary.pairs:
        trials = paired_trial_table(summary)
        yield Section("Differences", [pair_table(summary), *([trials] if trials else [])])
    yield Section("Norms and speed", [norm_table(summary)])
    curves = drawings.draw(
        "learning",
        learning_figure(summary),
        "Learning curves of the final runs.",
        "Validation MAP@R of the best settings over epochs, of the weights kept so far.",
    )
    yield Section("Settings and costs", [setting_table(summary), *curves])
    yield Section("Terms", [Terms(_TERMS)])
    origin = origin_table(summary)
    beside: list[Block] = [
        Folded(origin.caption, [origin]),
        Text("Every figure is in table.csv and results.json beside this page, which has no date."),
    ]
    yield Section("Origin", beside)
