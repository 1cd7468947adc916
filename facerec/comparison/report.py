"""The report of a comparison: a page, its figures, and tables for other programs.

Equal results give equal bytes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import count
from pathlib import Path

from facerec.comparison.figures import (
    arm_figure,
    difference_figure,
    gain_figure,
    learning_figure,
    trial_figure,
)
from facerec.comparison.finals import VIEWS
from facerec.comparison.harness import Results
from facerec.comparison.protocol import Comparison
from facerec.comparison.significance import SeedMean, least_p, level_of
from facerec.comparison.summary import (
    HEADLINE,
    Pair,
    Summary,
    claim_of,
    find,
    gains_of,
    is_declared,
    summarize,
    to_json,
)
from facerec.comparison.tables import (
    claims_of,
    cost_table,
    difference_table,
    headline_table,
    manifest_table,
    norm_table,
    pair_table,
    paired_trial_table,
    percent,
    plus_minus,
    points,
    probe_table,
    protocol_tables,
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
from facerec.report.words import counted, limits, p_value
from facerec.statistics.intervals import Interval

PAGE = "report.html"

_SPOKEN = 5
"""Pairs up to which the page has a sentence for each."""

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


def answers(summary: Summary, most: int | None = None) -> list[FindingLine]:
    """Return what the comparison found: each claim, each pair, and which arm comes first.

    Of more than ``most`` pairs none has a line.
    """
    spoken = summary.pairs if most is None or len(summary.pairs) <= most else ()
    pairs = [_pair_answer(summary, pair) for pair in spoken]
    return [*_claims(summary), *pairs, *_ranking(summary)]


def sentence_of(line: FindingLine) -> str:
    """Return a line as a sentence."""
    estimate = f"{line.estimate} {line.limits}".strip()
    rest = "; ".join(filter(None, (line.conclusion, line.detail, line.basis)))
    return f"{line.figure}: {estimate}; {rest}."


def _claims(summary: Summary) -> Iterator[FindingLine]:
    """Say of each question how many of its pairs differ."""
    level = 1 - summary.confidence
    for claim in dict.fromkeys(pair.claim for pair in summary.pairs):
        pairs = [pair for pair in summary.pairs if pair.claim == claim]
        if len(pairs) < 2:
            continue
        means = [pair.headline.mean for pair in pairs if pair.headline]
        detected = [mean for mean in means if is_declared(mean, summary.confidence)]
        above = sum(mean.value > 0 for mean in detected)
        detail = f"adjusted p at most {level:.2g}; {_undecided(pairs)}"
        smallest = [100 * pair.smallest for pair in pairs if pair.smallest is not None]
        yield FindingLine(
            f"Another {claim}, {len(pairs)} pairs: concatenated MAP@R",
            f"different in {len(detected)}: above in {above}, below in {len(detected) - above}",
            detail=detail.removesuffix("; "),
            basis=f"80 % power from {_range(smallest)} points on" if smallest else "",
        )


def _undecided(pairs: Sequence[Pair]) -> str:
    counts = Counter(pair.conclusion for pair in pairs)
    return "; ".join(
        f"{said} in {counts[said]}"
        for said in ("none detected at this precision", "insufficient data")
        if counts[said]
    )


def _range(values: Sequence[float]) -> str:
    ends = dict.fromkeys(f"{value:.2f}" for value in (min(values), max(values)))
    return " to ".join(ends)


def _side(interval: Interval) -> str:
    if interval.low > 0:
        return "lies above 0"
    return "lies below 0" if interval.high < 0 else "includes 0"


def _pair_answer(summary: Summary, pair: Pair) -> FindingLine:
    figure = f"{pair.arm} against {pair.base}"
    difference = pair.headline
    if difference is None:
        return FindingLine(figure, "no difference can be computed", detail=pair.reason)
    mean = difference.mean
    estimate = f"{points(mean.value)} points of concatenated MAP@R"
    if mean.interval is None:
        detail = f"n=1: {mean.remark}"
        return FindingLine(figure, estimate, conclusion=pair.conclusion, detail=detail)
    basis = counted(mean.total, "seed")
    if mean.joint is not None:
        basis += f" × {counted(summary.classes, 'test class', 'test classes')}"
    relative = difference.relative
    of_base = "" if relative is None else f", {signed(100 * relative, 1)} % of the base"
    detail = f"the {percent(summary)} interval {_side(mean.interval)}"
    if not any(mean.differences):
        detail += "; equal in every run"
    elif pair.smallest is not None:
        detail += f"; 80 % power from {100 * pair.smallest:.2f} on"
    return FindingLine(
        figure,
        estimate,
        limits(mean.interval, 100, "+.2f") + of_base,
        conclusion=pair.conclusion,
        detail=detail,
        basis=f"n = {basis}; p = {p_value(mean.p)}, adjusted for "
        f"{counted(pair.claim_pairs, 'pair')} {p_value(mean.p_holm)}",
    )


def _ranking(summary: Summary) -> Iterator[FindingLine]:
    means = {arm.name: arm.headline.mean for arm in summary.arms if arm.headline}
    if len(means) < 2:
        return
    first = max(means, key=lambda name: means[name].value)
    reach = meeting_best(means) - {first}
    others = [name for name in means if name in reach]
    detail = (
        f"n=1: {means[first].remark}"
        if means[first].over_seeds is None
        else f"the intervals over seeds of {', '.join(others)} meet its own"
        if others
        else "no other arm's interval over seeds meets its own"
    )
    yield FindingLine(
        "Highest concatenated MAP@R",
        f"{first} {plus_minus(means[first])} %",
        detail=detail,
        basis=f"n = {counted(means[first].total, 'seed')}",
    )


def meeting_best(means: Mapping[str, SeedMean]) -> frozenset[str]:
    """Return the names whose interval over seeds meets that of the highest mean.

    So the tables of the Reality Check are read. One seed has a point for an interval.
    """
    if not means:
        return frozenset()
    best = max(means.values(), key=lambda mean: mean.value)
    least, _ = _ends(best)
    return frozenset(name for name, mean in means.items() if _ends(mean)[1] >= least)


def _ends(mean: SeedMean) -> tuple[float, float]:
    interval = mean.over_seeds
    return (mean.value, mean.value) if interval is None else (interval.low, interval.high)


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
    notes += [*_never_learned(summary), *_below_untrained(summary)]
    seeds = max((len(pair.seeds) for pair in summary.pairs), default=0)
    if seeds == 1:
        notes.append(
            "One seed each: no interval and no p; single runs say nothing of their spread."
        )
    elif seeds:
        least = least_p(seeds)
        most = max(pair.claim_pairs for pair in summary.pairs)
        notes.append(
            f"With {seeds} seeds the sign-flip test cannot give a p below {p_value(least)}, "
            f"adjusted for {counted(most, 'pair')} not below {p_value(min(1.0, least * most))}."
        )
    notes += [f"{note}." for note in summary.manifest["notes"]]
    return notes


def too_few_seeds(comparison: Comparison) -> str:
    """Return, before anything is trained, why some claim cannot be decided; empty where all can.

    Holm's adjustment multiplies the lowest of the p of m pairs by m: nothing can be declared where
    m times the lowest p that the seeds can give exceeds 1 − confidence.
    """
    compared = [(arm, comparison.arm(arm.against)) for arm in comparison.arms if arm.against]
    claims = [claim_of(comparison, *pair) for pair in compared]
    level, seeds = level_of(comparison.confidence), comparison.repetitions
    short = [claim for claim in claims if claims.count(claim) * least_p(seeds) > level]
    if not short:
        return ""
    most = max(map(short.count, short))
    enough = next(n for n in count(seeds) if most * least_p(n) <= level)
    return (
        f"with {counted(seeds, 'seed')} no difference can be declared among {claims_of(short)}: "
        f"after Holm's adjustment p is above {level:g}, whatever the runs give; "
        f"it takes --repetitions {enough} at least"
    )


def _never_learned(summary: Summary) -> Iterator[str]:
    """Yield a note on the arms whose training never beat the network before it."""
    counts = []
    for arm in summary.arms:
        best = [epoch for run in arm.runs for epoch in run.epochs]
        if untrained := best.count(0):
            counts.append(f"{arm.name}: in {untrained} of {counted(len(best), 'final training')}")
    if counts:
        yield (
            f"{'; '.join(counts)} no epoch scored higher in validation than the network before "
            "training, which was kept; such scores say little of a loss. Let training last "
            "longer, with more patience."
        )


def _below_untrained(summary: Summary) -> Iterator[str]:
    """Yield a note where no arm scores as high as the network before training."""
    before = find(summary.untrained, *HEADLINE)
    scores = [arm.headline.mean.value for arm in summary.arms if arm.headline]
    if before and scores and before.mean.value > max(scores):
        yield (
            f"Every arm scores lower than the network before training, whose concatenated MAP@R is "
            f"{plus_minus(before.mean)} %: what the arms differ in is how much training lost."
        )


# ---------------------------------------------------------------- the page


def _page(summary: Summary, drawings: Drawings) -> Page:
    notes = _notes(summary)
    drawn = _drawn(summary, drawings)
    findings = answers(summary, _SPOKEN)
    rule = f"All lines are made by rule from the figures below; intervals: {percent(summary)}."
    return Page(
        title=summary.question,
        verdict=_design(summary),
        lead="",
        opening=drawn["arms"],
        # Of many pairs the figure and the tables say more at once than a screen full of sentences.
        findings=findings,
        headline=[
            *([Text(rule)] if findings else []),
            *([Listed(notes, "notes")] if notes else []),
        ],
        sections=list(_sections(summary, drawn)),
    )


def _design(summary: Summary) -> str:
    return (
        f"{summary.name}: {counted(len(summary.arms), 'arm')}, "
        f"{counted(max(arm.cost.trials for arm in summary.arms), 'trial')} each, best settings "
        f"trained anew with {counted(summary.repetitions, 'fresh seed')}, scored once on "
        f"{counted(summary.queries, 'query', 'queries')} of "
        f"{counted(summary.classes, 'test class', 'test classes')}."
    )


def _sections(summary: Summary, drawn: Mapping[str, Sequence[Drawing]]) -> Iterator[Section]:
    runs = run_table(summary)
    yield Section("Results", [headline_table(summary), Folded("Every run", [runs])])
    if summary.pairs:
        tables = [difference_table(summary, view) for view in VIEWS]
        # The first figure has the same differences of concatenated embeddings already.
        tall = drawn["differences"] if len(summary.pairs) > _SPOKEN else []
        others = Folded("All figures", [*tall, *tables])
        trials = paired_trial_table(summary)
        yield Section(
            "Differences",
            [
                pair_table(summary),
                *([trials] if trials else []),
                *([] if tall else drawn["differences"]),
                others,
            ],
        )
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
        "P@1, R-Precision (RP), MAP@R, Recall@K": "Of a test image with R others of its class: "
        "whether the nearest image is of its class; the share of its class among the R nearest; "
        "the mean of the precision at i over i = 1 … R, counted where the i-th is of its class; "
        "whether any of the K nearest is. Means over queries.",
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
    said = "; ".join(
        f"{pair.name} {points(pair.headline.mean.value)}" for pair in summary.pairs if pair.headline
    )
    scores = "; ".join(
        f"{arm.name} {plus_minus(arm.headline.mean)} %" for arm in summary.arms if arm.headline
    )
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
        f"{pair.arm}: reduction {signed(reduction.value, 4)}, gain {points(gain.value)} points"
        for pair, reduction, gain in gains_of(summary.pairs)
    )
    rows = [
        (
            "arms",
            arm_figure(summary),
            f"Forest of all arms{' and their differences' if said else ''}. {scores}.",
            "Concatenated MAP@R of every arm on the test classes"
            f"{', and its difference from the arm that it is compared with' if said else ''}.",
        ),
        (
            "differences",
            difference_figure(summary),
            f"Forest of the differences. {said}.",
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
