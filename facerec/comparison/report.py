"""The report of a comparison: a page, its figures, and tables for other programs.

Equal results give equal bytes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from facerec.comparison.figures import (
    difference_figure,
    gain_figure,
    learning_figure,
    trial_figure,
)
from facerec.comparison.finals import VIEWS
from facerec.comparison.harness import Results
from facerec.comparison.summary import HEADLINE, Pair, Summary, summarize, to_json
from facerec.comparison.tables import (
    cost_table,
    difference_table,
    headline_table,
    limits,
    manifest_table,
    norm_table,
    pair_table,
    percent,
    plus_minus,
    points,
    probe_table,
    protocol_tables,
    reaching,
    run_records,
    run_table,
    score_records,
    setting_table,
    signed,
    space_table,
    speed_table,
    to_latex,
    trial_records,
)
from facerec.errors import ComparisonError
from facerec.files import atomic_path
from facerec.report import documents
from facerec.report.csv_tables import to_csv
from facerec.report.figures import Drawing, Drawings
from facerec.report.page import (
    Block,
    Code,
    FindingLine,
    Folded,
    Listed,
    Page,
    Section,
    Terms,
    Text,
)
from facerec.report.words import counted, p_value
from facerec.statistics.intervals import Interval

PAGE = "report.html"

_SPOKEN = 5
"""Pairs up to which the head of the page has a sentence for each."""

_NOT_MEASURED = "Gradients and angular steps were not measured; the protocol's probe_every is 0."


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
    said = [sentence_of(line) for line in answers(summary)]
    return {
        "results.json": documents.to_json({**to_json(summary), "answers": said}),
        "table.csv": to_csv(score_records(summary)),
        "runs.csv": to_csv(run_records(summary)),
        "trials.csv": to_csv(trial_records(summary)),
        "table.tex": to_latex(summary).encode(),
        **drawings.files,
        PAGE: page.render().encode(),
    }


# ---------------------------------------------------------------- the answer


def answers(summary: Summary) -> list[FindingLine]:
    """Return what the comparison found: all pairs, each of them, and which arm comes first."""
    pairs = [_pair_answer(summary, pair) for pair in summary.pairs]
    return [*_all_pairs(summary), *pairs, *_ranking(summary)]


def sentence_of(line: FindingLine) -> str:
    """Return a line as a sentence."""
    estimate = f"{line.estimate} {line.limits}".strip()
    return f"{line.figure}: {estimate}; {'; '.join(filter(None, (line.detail, line.basis)))}."


def _all_pairs(summary: Summary) -> Iterator[FindingLine]:
    means = [pair.headline.mean for pair in summary.pairs if pair.headline]
    sides = [_side(mean.interval) for mean in means if mean.interval]
    if len(sides) < 2:
        return
    count, level = len(summary.pairs), 1 - summary.confidence
    small = sum(mean.p_holm is not None and mean.p_holm <= level for mean in means)
    said = [f"{side} in {sides.count(side)}" for side in _SAID]
    if len(sides) < count:
        said.append(f"unknown in {count - len(sides)}")
    yield FindingLine(
        f"Difference in concatenated MAP@R, {percent(summary)} intervals of {count} pairs",
        ", ".join(said),
        detail=f"p adjusted for {count} pairs is at most {level:.2g} in {small}",
    )


_SAID = {"above 0": "lies above 0", "including 0": "includes 0", "below 0": "lies below 0"}


def _side(interval: Interval) -> str:
    if interval.low > 0:
        return "above 0"
    return "below 0" if interval.high < 0 else "including 0"


def _pair_answer(summary: Summary, pair: Pair) -> FindingLine:
    figure = f"{pair.arm} against {pair.base}"
    difference = pair.headline
    if difference is None:
        return FindingLine(figure, "no difference can be computed", detail=pair.reason)
    mean = difference.mean
    estimate = f"{points(mean.value)} points of concatenated MAP@R"
    if mean.interval is None:
        return FindingLine(figure, estimate, detail=f"n=1: {mean.remark}")
    basis = counted(mean.total, "seed")
    if mean.joint is not None:
        basis += f" × {counted(summary.classes, 'test class', 'test classes')}"
    relative = difference.relative
    of_base = "" if relative is None else f", {signed(100 * relative, 1)} % of the base"
    return FindingLine(
        figure,
        estimate,
        limits(mean.interval, 100, "+.2f") + of_base,
        detail=f"the {percent(summary)} interval {_SAID[_side(mean.interval)]}",
        basis=f"n = {basis}; p = {p_value(mean.p)}, adjusted for "
        f"{counted(len(summary.pairs), 'pair')} {p_value(mean.p_holm)}",
    )


def _ranking(summary: Summary) -> Iterator[FindingLine]:
    scores = {arm.name: arm.score(*HEADLINE) for arm in summary.arms}
    means = {name: score.mean for name, score in scores.items() if score}
    if len(means) < 2:
        return
    first = max(means, key=lambda name: means[name].value)
    reach = reaching(summary, *HEADLINE) - {first}
    others = [name for name in means if name in reach]
    detail = (
        f"the intervals over seeds of {', '.join(others)} meet its own"
        if others
        else "no other arm's interval over seeds meets its own"
    )
    yield FindingLine(
        "Highest concatenated MAP@R",
        f"{first} {plus_minus(means[first])} %",
        detail=detail,
        basis=f"n = {counted(means[first].total, 'seed')}",
    )


def _notes(summary: Summary) -> list[str]:
    """Return what a reader must know before the figures."""
    notes = [f"{arm.name} has no scores: {arm.reason}." for arm in summary.arms if arm.reason]
    notes += [
        f"{arm.name}: {counted(len(arm.failures), 'final run')} failed, left out of all figures: "
        f"{'; '.join(arm.failures)}."
        for arm in summary.arms
        if arm.failures and not arm.reason
    ]
    notes += [
        f"{pair.arm} against {pair.base} does not bear the mark “fair”: "
        f"{'; '.join(pair.fairness.reasons)}."
        for pair in summary.pairs
        if not pair.fairness.fair
    ]
    for arm in summary.arms:
        best = [epoch for run in arm.runs for epoch in run.epochs]
        if untrained := best.count(0):
            notes.append(
                f"{arm.name}: in {untrained} of {counted(len(best), 'final training')} no epoch "
                "scored higher in validation than the network before training, which was kept; "
                "such scores say little of a loss. Let training last longer, with more patience."
            )
    seeds = max((len(pair.seeds) for pair in summary.pairs), default=0)
    if seeds == 1:
        notes.append(
            "One seed each: no interval and no p; single runs say nothing of their spread."
        )
    elif seeds:
        least = 2.0 ** (1 - seeds)
        notes.append(
            f"With {seeds} seeds the sign-flip test cannot give a p below {p_value(least)}, "
            f"adjusted for {counted(len(summary.pairs), 'pair')} not below "
            f"{p_value(min(1.0, least * len(summary.pairs)))}."
        )
    notes += [f"{note}." for note in summary.manifest["notes"]]
    return notes


# ---------------------------------------------------------------- the page


def _page(summary: Summary, drawings: Drawings) -> Page:
    pairs = [_pair_answer(summary, pair) for pair in summary.pairs]
    # Of many pairs the forest says more at once than a screen full of sentences.
    many = len(pairs) > _SPOKEN
    findings = [*([] if many else pairs), *_ranking(summary)]
    overall = [sentence_of(line) for line in _all_pairs(summary)]
    design, notes = _design(summary), _notes(summary)
    drawn = _drawn(summary, drawings)
    rule = f"All lines are made by rule from the figures below; intervals: {percent(summary)}."
    return Page(
        title=summary.question,
        verdict=overall[0] if overall else design,
        lead=f"{design} {rule}" if overall else rule,
        findings=findings,
        headline=[
            *drawn["differences"],
            *([Listed(notes, "notes")] if notes else []),
        ],
        sections=list(_sections(summary, drawn, pairs if many else [])),
    )


def _design(summary: Summary) -> str:
    return (
        f"{summary.name}: {counted(len(summary.arms), 'arm')}, "
        f"{counted(max(arm.cost.trials for arm in summary.arms), 'trial')} each, best settings "
        f"trained anew with {counted(summary.repetitions, 'fresh seed')}, scored once on "
        f"{counted(summary.queries, 'query', 'queries')} of "
        f"{counted(summary.classes, 'test class', 'test classes')}."
    )


def _sections(
    summary: Summary, drawn: Mapping[str, Sequence[Drawing]], spoken: Sequence[FindingLine]
) -> Iterator[Section]:
    yield Section("Results", [headline_table(summary), run_table(summary)])
    if summary.pairs:
        others = Folded("All figures", [difference_table(summary, view) for view in VIEWS])
        sentences = [Listed([sentence_of(line) for line in spoken])] if spoken else []
        yield Section("Differences", [*sentences, pair_table(summary), others])
    speeds, curves = speed_table(summary), drawn["learning"]
    if speeds or curves:
        yield Section("Convergence", [*([speeds] if speeds else []), *curves])
    yield Section(
        "Norms and gradients",
        [
            norm_table(summary),
            *drawn["norm_variance"],
            probe_table(summary) or Text(_NOT_MEASURED),
        ],
    )
    spaces = space_table(summary)
    folded = [Folded(spaces.caption, [spaces])] if spaces.rows else []
    yield Section("Search and settings", [setting_table(summary), *drawn["trials"], *folded])
    yield Section("Budgets and costs", [cost_table(summary)])
    common, *own = protocol_tables(summary)
    yield Section("Protocol", [Folded(common.caption, [common]), *own])
    yield Section("Terms", [Terms(_terms(summary))])
    files = ["results.json", "table.csv", "runs.csv", "trials.csv", "table.tex", "figures/"]
    beside: list[Block] = [
        Text(
            "Beside this page: ",
            Code(", ".join(files)),
            ". Equal results give equal bytes, so this page bears no date.",
        )
    ]
    yield Section("Manifest", [manifest_table(summary), *beside])


def _terms(summary: Summary) -> dict[str, str]:
    terms = {
        "P@1, R-Precision (RP), MAP@R": "Of a test image with R others of its class: whether the "
        "nearest image is of its class; the share of its class among the R nearest; the mean of "
        "the precision at i over i = 1 … R, counted where the i-th is of its class. Means over "
        "queries.",
        "Concatenated, separated": "A seed trains one model a fold. Concatenated: the unit "
        "embeddings of all folds' models side by side. Separated: the mean of the figures of each "
        "model alone.",
        "Interval over seeds, over classes, over both": "Student's t over seeds: another training "
        f"on these test classes. Bootstrap of test classes, {summary.replicates:,} resamples: "
        "other test classes with these trainings. Over both: seeds and classes resampled "
        "together; the headline of every difference. References are held fixed.",
        "p": "Two-sided sign-flip permutation test of the paired differences over seeds; n seeds "
        "cannot give less than 2 to the power of 1 − n.",
        "n=1": "A single run, which has no interval.",
        "Trial, first setting": "A setting that was trained on every fold; one that was given "
        "rather than proposed, such as defaults and published values.",
    }
    if summary.clusterings:
        terms["NMI, F1"] = (
            "Of k-means on the unit embeddings of the queries, with as many clusters as classes: "
            "mutual information of clusters and classes over the mean of their entropies; harmonic "
            "mean of precision and recall over pairs put together. Not means over queries, so "
            "their intervals are over seeds alone."
        )
    return terms


# ---------------------------------------------------------------- figures


def _drawn(summary: Summary, drawings: Drawings) -> dict[str, list[Drawing]]:
    """Draw all figures; a list without a drawing where there is nothing to be drawn."""
    said = " ".join(sentence_of(_pair_answer(summary, pair)) for pair in summary.pairs)
    best = "; ".join(
        f"{arm.name} {100 * arm.validation:.2f} %"
        for arm in summary.arms
        if arm.validation is not None
    )
    ends = "; ".join(
        f"{arm.name} {100 * arm.learning.mean[-1]:.2f} % after {arm.learning.epochs[-1]} epochs"
        for arm in summary.arms
        if arm.learning
    )
    gains = "; ".join(
        f"{pair.arm}: reduction {signed(pair.norm_reduction.value, 4)}, gain "
        f"{points(pair.headline.mean.value)} points"
        for pair in summary.pairs
        if pair.norm_reduction and pair.headline
    )
    rows = [
        (
            "differences",
            difference_figure(summary),
            f"Forest of the differences. {said}",
            "Differences in test MAP@R, concatenated and separated, with zero line.",
        ),
        (
            "trials",
            trial_figure(summary),
            f"Best validation MAP@R over trials. At the end: {best}.",
            "What the search had found after how many trials.",
        ),
        (
            "learning",
            learning_figure(summary),
            f"Learning curves of the final runs. At the end: {ends}.",
            "Validation MAP@R of the best settings over epochs.",
        ),
        (
            "norm_variance",
            gain_figure(summary),
            f"Gain over reduction of norm variance. {gains}.",
            "Whether pairs that lose more norm variance gain more; equal colours are one family of "
            "arms.",
        ),
    ]
    return {row[0]: drawings.draw(*row) for row in rows}
