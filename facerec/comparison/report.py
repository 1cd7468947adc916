"""The report of a comparison: a page, its figures, and tables for other programs.

The page needs nothing but itself and has no script; its policy admits one style sheet by its hash.
Equal results give equal bytes.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure
from rich import box
from rich.table import Table as TerminalTable
from rich.text import Text

from facerec.comparison.figures import (
    difference_figure,
    gain_figure,
    learning_figure,
    trial_figure,
)
from facerec.comparison.finals import VIEWS, View
from facerec.comparison.harness import Results
from facerec.comparison.protocol import UNTRAINED, Range
from facerec.comparison.significance import SeedMean
from facerec.comparison.summary import (
    FIGURES,
    HEADLINE,
    ArmSummary,
    Difference,
    Measured,
    Pair,
    Score,
    Speed,
    Summary,
    summarize,
    to_json,
)
from facerec.errors import ComparisonError
from facerec.files import atomic_path
from facerec.report.blocks import Cell, Drawing, Table, render_page
from facerec.report.csv_tables import to_csv
from facerec.statistics.intervals import Interval
from facerec.verification.page import assumptions, counted, data_uri, provenance_of
from facerec.verification.plots import draw

PAGE = "report.html"

_SPOKEN = 5
"""Pairs up to which the head of the page has a sentence for each."""

COLUMNS: tuple[tuple[View, str], ...] = tuple(
    (view, metric) for view in VIEWS for metric in ("precision_at_1", "r_precision", "map_at_r")
)
"""Of the headline table, in the Reality Check's order."""

_SHORT = {"precision_at_1": "P@1", "r_precision": "RP", "map_at_r": "MAP@R"}
_TEX = str.maketrans(
    {
        "\\": r"\textbackslash{}",
        "&": r"\&",
        "%": r"\%",
        "$": r"\$",
        "#": r"\#",
        "_": r"\_",
        "{": r"\{",
        "}": r"\}",
        "~": r"\textasciitilde{}",
        "^": r"\textasciicircum{}",
        # As letters they would join to dashes or quotation marks.
        "-": r"{-}",
    }
)


@dataclass(frozen=True)
class Answer:
    """A sentence made by rule from a figure."""

    subject: str
    estimate: str
    detail: str

    @property
    def text(self) -> str:
        """The sentence."""
        return f"{self.subject}: {self.estimate}; {self.detail}."


def write_report(results: Results, folder: str | Path) -> dict[str, Path]:
    """Write the page, its figures and tables into a folder, each whole or not at all.

    Args:
        results: of a comparison.
        folder: may hold other files, which stay.

    Returns:
        Path inside the folder → where it was written: ``report.html``, ``results.json``,
        ``table.csv``, ``runs.csv``, ``trials.csv``, ``table.tex`` and ``figures/*.svg``.

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
    figures = {
        name: draw(figure, "svg")
        for name, figure in _figures(summary).items()
        if figure is not None
    }
    said = [answer.text for answer in answers(summary)]
    document = {**to_json(summary), "answers": said}
    return {
        "results.json": _json(document),
        "table.csv": to_csv(_table_rows(summary)),
        "runs.csv": to_csv(_run_rows(summary)),
        "trials.csv": to_csv(_trial_rows(summary)),
        "table.tex": to_latex(summary).encode(),
        **{f"figures/{name}.svg": picture for name, picture in figures.items()},
        PAGE: _page(summary, figures).encode(),
    }


def format_table(summary: Summary) -> TerminalTable:
    """Return the headline figures of all arms for a terminal."""
    table = TerminalTable(
        box=box.SIMPLE_HEAD,
        caption="percent on the test classes; ± over seeds; difference: points, "
        f"{_percent(summary)} interval over seeds and classes; p: adjusted after Holm",
        caption_justify="left",
        pad_edge=False,
        collapse_padding=True,
    )
    table.add_column("arm", overflow="fold")
    for title in ("P@1", "RP", "MAP@R", "difference", "p"):
        table.add_column(title, justify="right", no_wrap=True)
    columns = COLUMNS[:3]
    best = {column: reaching(summary, *column) for column in columns}
    pairs = {pair.arm: pair for pair in summary.pairs}
    for arm in summary.arms:
        if arm.reason:
            table.add_row(Text(arm.name), Text("failed", style="red"))
            continue
        cells = []
        for column in columns:
            score = arm.score(*column)
            assert score is not None  # an arm without a reason has all
            text = plus_minus(score.mean).replace("\N{NO-BREAK SPACE}", "")
            cells.append(Text(text, style="bold" if arm.name in best[column] else ""))
        table.add_row(Text(arm.name), *cells, *_terminal_difference(pairs.get(arm.name)))
    return table


def _terminal_difference(pair: Pair | None) -> tuple[str, str]:
    found = pair.headline if pair else None
    if found is None:
        return "", ""
    limits = "n=1" if found.mean.interval is None else _limits(found.mean.interval, 100, "+.2f")
    return f"{_points(found.mean.value)}\n{limits}", _p(found.mean.p_holm)


def reaching(summary: Summary, view: View, metric: str) -> frozenset[str]:
    """Return the arms whose interval over seeds meets that of the best arm in a figure."""
    scores = {arm.name: arm.score(view, metric) for arm in summary.arms}
    return meeting_best({name: score.mean for name, score in scores.items() if score})


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


# ---------------------------------------------------------------- the answer


def answers(summary: Summary) -> list[Answer]:
    """Return what the comparison found: all pairs, each of them, and which arm comes first."""
    found = [_pair_answer(summary, pair) for pair in summary.pairs]
    return [*_all_pairs(summary), *found, *_ranking(summary)]


def _all_pairs(summary: Summary) -> Iterator[Answer]:
    means = [pair.headline.mean for pair in summary.pairs if pair.headline]
    places = [_place(mean.interval) for mean in means if mean.interval]
    if len(places) < 2:
        return
    count, level = len(summary.pairs), 1 - summary.confidence
    small = sum(mean.p_holm is not None and mean.p_holm <= level for mean in means)
    said = [f"{place} in {places.count(place)}" for place in _SAID]
    if len(places) < count:
        said.append(f"unknown in {count - len(places)}")
    yield Answer(
        f"Difference in concatenated MAP@R, {_percent(summary)} intervals of {count} pairs",
        ", ".join(said),
        f"p adjusted for {count} pairs is at most {level:.2g} in {small}",
    )


_SAID = {"above 0": "lies above 0", "including 0": "includes 0", "below 0": "lies below 0"}


def _place(interval: Interval) -> str:
    if interval.low > 0:
        return "above 0"
    return "below 0" if interval.high < 0 else "including 0"


def _pair_answer(summary: Summary, pair: Pair) -> Answer:
    subject = f"{pair.arm} against {pair.base}"
    found = pair.headline
    if found is None:
        return Answer(subject, "no difference can be computed", pair.reason)
    mean = found.mean
    estimate = f"{_points(mean.value)} points of concatenated MAP@R"
    if mean.interval is None:
        return Answer(subject, estimate, f"n=1: {mean.remark}")
    basis = counted(mean.total, "seed")
    if mean.joint is not None:
        basis += f" × {_counted(summary.classes, 'test class', 'test classes')}"
    base = "" if found.relative is None else f", {_signed(100 * found.relative, 1)} % of the base"
    return Answer(
        subject,
        f"{estimate} {_limits(mean.interval, 100, '+.2f')}{base}",
        f"the {_percent(summary)} interval {_SAID[_place(mean.interval)]}; n = {basis}; "
        f"p = {_p(mean.p)}, adjusted for {counted(len(summary.pairs), 'pair')} {_p(mean.p_holm)}",
    )


def _ranking(summary: Summary) -> Iterator[Answer]:
    scored = [arm for arm in summary.arms if arm.scores]
    if len(scored) < 2:
        return
    first = max(scored, key=lambda arm: _score(arm, *HEADLINE).mean.value)
    mean = _score(first, *HEADLINE).mean
    reach = reaching(summary, *HEADLINE) - {first.name}
    others = [arm.name for arm in scored if arm.name in reach]
    detail = (
        f"the intervals over seeds of {', '.join(others)} meet its own"
        if others
        else "no other arm's interval over seeds meets its own"
    )
    yield Answer(
        "Highest concatenated MAP@R",
        f"{first.name} {plus_minus(mean)} %",
        f"{detail}; n = {counted(mean.total, 'seed')}",
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
            f"With {seeds} seeds the sign-flip test cannot give a p below {_p(least)}, adjusted "
            f"for {counted(len(summary.pairs), 'pair')} not below "
            f"{_p(min(1.0, least * len(summary.pairs)))}."
        )
    notes += [f"{note}." for note in summary.manifest["notes"]]
    return notes


# ---------------------------------------------------------------- the page


def _figures(summary: Summary) -> dict[str, Figure | None]:
    return {
        "differences": difference_figure(summary),
        "trials": trial_figure(summary),
        "learning": learning_figure(summary),
        "norm_variance": gain_figure(summary),
    }


def _page(summary: Summary, figures: Mapping[str, bytes]) -> str:
    drawings = {
        name: Drawing(data_uri("image/svg+xml", picture), *_captions(summary)[name])
        for name, picture in figures.items()
    }
    # Of many pairs the forest says more at once than a screen full of sentences.
    single = [_pair_answer(summary, pair) for pair in summary.pairs]
    many = len(single) > _SPOKEN
    return render_page(
        "facerec.comparison",
        "report.html.j2",
        "report.css",
        question=summary.question,
        title=f"Comparison: {summary.name}",
        lead=_lead(summary),
        answers=[*_all_pairs(summary), *([] if many else single), *_ranking(summary)],
        single=single if many else [],
        notes=_notes(summary),
        headline=_headline(summary),
        pairs=_pair_tables(summary),
        drawings=drawings,
        speeds=_speeds(summary),
        norms=_norms(summary),
        probes=_probes(summary),
        settings=_settings(summary),
        spaces=_spaces(summary),
        costs=_costs(summary),
        runs=_single_runs(summary),
        protocol=_protocol(summary),
        manifest=_manifest(summary),
        files=["results.json", "table.csv", "runs.csv", "trials.csv", "table.tex", "figures/*.svg"],
        percent=_percent(summary),
        replicates=f"{summary.replicates:,}",
    )


def _lead(summary: Summary) -> str:
    return (
        f"{summary.name}: {counted(len(summary.arms), 'arm')}, "
        f"{counted(max(arm.cost.trials for arm in summary.arms), 'trial')} each, best settings "
        f"trained anew with {counted(summary.repetitions, 'fresh seed')}, scored once on "
        f"{_counted(summary.queries, 'query', 'queries')} of "
        f"{_counted(summary.classes, 'test class', 'test classes')}."
    )


def _headline(summary: Summary) -> Table:
    best = {column: reaching(summary, *column) for column in COLUMNS}
    rows = [[Cell("untrained"), *(_score_cell(_find(summary, *c), False) for c in COLUMNS)]]
    for arm in summary.arms:
        if arm.reason:
            rows.append([Cell(arm.name), Cell("failed", arm.reason, withheld=True, span=6)])
            continue
        cells = [_score_cell(_score(arm, *c), arm.name in best[c]) for c in COLUMNS]
        n = "" if len(arm.seeds) == summary.repetitions else f"n={len(arm.seeds)}"
        rows.append([Cell(arm.name, n), *cells])
    means = [_score(arm, *column).mean for arm in summary.arms if arm.scores for column in COLUMNS]
    remarks = [
        f"Percent on the test classes: mean ± half the {_percent(summary)} interval over seeds, in "
        "the Reality Check's form; below it the interval over seeds and test classes. Bold: the "
        "interval over seeds meets that of the best arm in the column. Arms share test classes, so "
        "their differences are known better than each of them: see the next table.",
        *assumptions(i for mean in means for i in (mean.over_seeds, mean.joint)),
    ]
    if summary.dropped:
        remarks.append(
            f"{summary.dropped:,} test images without another one of their class are no queries."
        )
    return Table(
        "Retrieval on the test classes",
        ["arm", *(_SHORT[metric] for _, metric in COLUMNS)],
        rows,
        remarks,
        groups=[("", 1), ("concatenated", 3), ("separated", 3)],
    )


def _find(summary: Summary, view: View, metric: str) -> Score | None:
    return next((s for s in summary.untrained if (s.view, s.metric) == (view, metric)), None)


def _score(arm: ArmSummary, view: View, metric: str) -> Score:
    found = arm.score(view, metric)
    assert found is not None  # asked of arms with scores only
    return found


def _score_cell(score: Score | None, strong: bool) -> Cell:
    if score is None:
        return Cell("–", withheld=True)
    mean = score.mean
    limits = "" if mean.joint is None else _limits(mean.joint, 100, ".2f")
    return Cell(plus_minus(mean), limits, strong=strong)


def _pair_tables(summary: Summary) -> list[Table]:
    """Return the headline differences, then those of all other figures."""
    if not summary.pairs:
        return []
    columns = ["pair", "n", "difference", "over seeds", "over classes", "p", "p, Holm", "fair"]
    rows = []
    for pair in summary.pairs:
        heading = Cell(f"{pair.arm} − {pair.base}")
        found, fair = pair.headline, _fair_cell(pair)
        if found is None:
            missing = Cell("no difference", pair.reason, withheld=True, span=6)
            rows.append([heading, missing, fair])
            continue
        mean = found.mean
        rows.append(
            [
                heading,
                Cell(str(mean.total)),
                _difference_cell(found),
                *(
                    Cell("–" if i is None else _limits(i, 100, "+.2f"))
                    for i in (mean.over_seeds, mean.over_classes)
                ),
                Cell(_p(mean.p)),
                Cell(_p(mean.p_holm)),
                fair,
            ]
        )
    means = [pair.headline.mean for pair in summary.pairs if pair.headline]
    remarks = [
        "Points of percent, arm − base, paired by seed: equal seeds, splits and data order. The "
        f"interval below the difference is the {_percent(summary)} one over seeds and test "
        "classes; it is not adjusted. p: two-sided sign-flip test over seeds; Holm: adjusted for "
        f"{counted(len(summary.pairs), 'declared pair')}.",
        *assumptions(i for mean in means for i in (mean.joint, mean.over_seeds, mean.over_classes)),
        "Fair: equal protocols, or different in declared fields alone, and equally many trials and "
        "first settings.",
    ]
    first = Table("Concatenated MAP@R, arm − base", columns, rows, remarks, words=["fair"])
    return [first, *(_other_differences(summary, view) for view in VIEWS)]


def _other_differences(summary: Summary, view: View) -> Table:
    rows = []
    for pair in summary.pairs:
        found = [pair.difference(view, metric) for metric in FIGURES]
        rows.append(
            [
                Cell(f"{pair.arm} − {pair.base}"),
                *(
                    Cell("–", withheld=True) if each is None else _difference_cell(each, p=True)
                    for each in found
                ),
            ]
        )
    return Table(
        f"All figures, {view}",
        ["pair", *FIGURES.values()],
        rows,
        ["Points of percent with intervals as above; p adjusted after Holm in each column."],
    )


def _difference_cell(found: Difference, p: bool = False) -> Cell:
    mean = found.mean
    if mean.interval is None:
        return Cell(_points(mean.value), "n=1")
    small = _limits(mean.interval, 100, "+.2f")
    return Cell(_points(mean.value), f"{small}\np {_p(mean.p_holm)}" if p else small)


def _fair_cell(pair: Pair) -> Cell:
    declared = ", ".join(pair.fairness.declared)
    small = "; ".join([*pair.fairness.reasons, *([f"declared: {declared}"] if declared else [])])
    return Cell("fair" if pair.fairness.fair else "not fair", small)


def _speeds(summary: Summary) -> Table | None:
    shares = [f"{100 * speed.share:g} %" for pair in summary.pairs for speed in pair.speeds]
    if not shares:
        return None
    columns = list(dict.fromkeys(shares))
    rows, ratios = [], []
    for pair in summary.pairs:
        heading = Cell(f"{pair.arm} : {pair.base}")
        if not pair.speeds:
            rows.append([heading, Cell("–", pair.reason, withheld=True, span=len(columns))])
            continue
        rows.append([heading, *map(_speed_cell, pair.speeds)])
        ratios += [speed.ratio for speed in pair.speeds if speed.ratio]
    remarks = [
        "Steps of the arm over steps of its base until validation MAP@R comes to that share of the "
        "base's final one: median over seeds, of scores averaged over folds. Below 1 the arm is "
        "quicker. Scores are those of the weights kept so far, known after every epoch; ≥: runs "
        "that never came so far make it a lower bound. p: sign test, adjusted after Holm in each "
        "column.",
        *assumptions(ratio.interval for ratio in ratios),
    ]
    return Table("Ratio of steps", ["pair", *columns], rows, remarks)


def _speed_cell(speed: Speed) -> Cell:
    ratio = speed.ratio
    if ratio is None:
        return Cell("–", speed.reason, withheld=True)
    text = f"≥ {ratio.value:.2f}" if ratio.at_least else f"{ratio.value:.2f}"
    if ratio.interval is None:
        return Cell(text, "n=1")
    never = sum(ratio.censored)
    parts = [
        _limits(ratio.interval, 1, ".2f"),
        f"{100 * ratio.interval.confidence:.3g} %, p {_p(ratio.p_holm)}",
        f"{never} of {ratio.total} never" if never else "",
    ]
    return Cell(text, "\n".join(filter(None, parts)))


def _norms(summary: Summary) -> Table:
    pairs = {pair.arm: pair for pair in summary.pairs}
    rows = []
    for arm in summary.arms:
        pair = pairs.get(arm.name)
        reduction = pair.norm_reduction if pair else None
        cell = (
            Cell("–")
            if reduction is None
            else Cell(
                _signed(reduction.value, 4),
                "n=1" if reduction.interval is None else _limits(reduction.interval, 1, "+.4f"),
            )
        )
        rows.append([Cell(arm.name), *map(_measured_cell, arm.norms), cell])
    columns = ["arm", "mean norm", "variance over squared mean", "reduction, base − arm"]
    remarks = [
        "Norms of raw test embeddings in evaluation mode, averaged over the folds' models; "
        f"{_percent(summary)} intervals over seeds."
    ]
    return Table("Norms of embeddings", columns, rows, remarks)


def _probes(summary: Summary) -> Table | None:
    if not any(probe.mean for arm in summary.arms for probe in arm.probes):
        return None
    columns = [
        "arm",
        "slope of log Δθ on log n",
        "CV of ‖g‖",
        "|cos(g, f)|",
        "Δθ, radians",
        "growth of n per step",
    ]
    rows = [[Cell(arm.name), *map(_measured_cell, arm.probes)] for arm in summary.arms]
    remarks = [
        "Of single training steps: g is the gradient of the loss without penalty by an embedding f "
        "of norm n, Δθ the angle by which the step turned it. Means over epochs and folds; "
        f"{_percent(summary)} intervals over seeds. On free embeddings the slope is −2 under SGD "
        "and −1 under Adam."
    ]
    return Table("Gradients and angular steps", columns, rows, remarks)


def _measured_cell(found: Measured) -> Cell:
    if found.mean is None:
        return Cell("–", found.reason, withheld=True)
    interval = found.mean.interval
    limits = "n=1" if interval is None else _limits(interval, 1, "#.3g")
    return Cell(_minus(f"{found.mean.value:#.3g}"), limits)


def _settings(summary: Summary) -> Table:
    rows = []
    for arm in summary.arms:
        if arm.setting is None:
            rows.append([Cell(arm.name), Cell("–", arm.reason, withheld=True, span=4)])
            continue
        values = "; ".join(f"{name} = {value:.4g}" for name, value in arm.setting.items())
        rows.append(
            [
                Cell(arm.name),
                Cell("–" if arm.best_trial is None else str(arm.best_trial)),
                Cell("–" if arm.validation is None else f"{100 * arm.validation:.2f}"),
                Cell(values or "nothing is searched"),
                Cell(_shorter(arm.loss), _shorter(arm.penalty or "")),
            ]
        )
    columns = [
        "arm",
        "trial",
        "validation MAP@R, %",
        "searched values",
        "loss and penalty with them",
    ]
    words = columns[3:]
    remarks = ["Chosen by the mean validation MAP@R over the folds, never by test classes."]
    return Table("Best settings", columns, rows, remarks, words)


def _shorter(text: str) -> str:
    """Write long decimals of a recipe with six digits; results.json has all."""
    return re.sub(r"\d+\.\d{6,}(e-?\d+)?", lambda found: f"{float(found[0]):.6g}", text)


def _spaces(summary: Summary) -> Table:
    rows = [
        [
            Cell(arm.name),
            Cell(limits.field, "no effect: a control" if limits.field == "nothing" else ""),
            Cell(f"{limits.low:g}"),
            Cell(f"{limits.high:g}"),
            Cell(_scale(limits)),
        ]
        for arm in summary.arms
        for limits in arm.ranges
    ]
    return Table(
        "Search spaces", ["arm", "field", "low", "high", "scale"], rows, words=["field", "scale"]
    )


def _scale(limits: Range) -> str:
    return limits.scale.replace("_", " ") + (", whole numbers" if limits.integer else "")


def _costs(summary: Summary) -> Table:
    rows = []
    for arm in summary.arms:
        cost = arm.cost
        rows.append(
            [
                Cell(arm.name),
                Cell(str(cost.parameters)),
                Cell(f"{cost.trials:,}", f"{cost.failed_trials:,} failed"),
                Cell(str(cost.first_settings)),
                Cell(_duration(cost.trial_seconds)),
                Cell(f"{cost.final_runs:,}", f"{cost.failed_runs:,} failed"),
                Cell(_duration(cost.final_seconds)),
            ]
        )
    total = [
        sum(arm.cost.trial_seconds for arm in summary.arms),
        sum(arm.cost.final_seconds for arm in summary.arms),
    ]
    rows.append(
        [
            Cell("all arms"),
            Cell(""),
            Cell(f"{sum(arm.cost.trials for arm in summary.arms):,}"),
            Cell(""),
            Cell(_duration(total[0])),
            Cell(f"{sum(arm.cost.final_runs for arm in summary.arms):,}"),
            Cell(_duration(total[1])),
        ]
    )
    columns = [
        "arm",
        "searched parameters",
        "trials",
        "of them given",
        "time of trials",
        "final runs",
        "time of final runs",
    ]
    remarks = [
        "Time of training with its validations, summed over workers; failed final runs are not in "
        "it. Failed trials count as trials."
    ]
    return Table("What each arm was given and took", columns, rows, remarks)


def _single_runs(summary: Summary) -> Table:
    columns = ["arm", *(f"seed {seed}" for seed in range(summary.repetitions))]
    rows = []
    for arm in summary.arms:
        found = arm.score(*HEADLINE)
        values = dict(zip(arm.seeds, found.values, strict=True)) if found else {}
        rows.append(
            [
                Cell(arm.name),
                *(
                    Cell(f"{100 * values[seed]:.2f}")
                    if seed in values
                    else Cell("–", "failed", withheld=True)
                    for seed in range(summary.repetitions)
                ),
            ]
        )
    return Table("Concatenated MAP@R of every run, %", columns, rows)


def _protocol(summary: Summary) -> list[Table]:
    """Return the common protocol, and where arms differ from it."""
    rows = [
        [Cell(name, "subject of the study" if _is_declared(summary, name) else ""), Cell(value)]
        for name, value in _flat(summary.protocol)
    ]
    prints = {arm.protocol for arm in summary.arms}
    remarks = [
        f"SHA-256 {prints.pop()}, the same for all arms."
        if len(prints) == 1
        else "Arms differ in declared fields; SHA-256: "
        + "; ".join(f"{arm.name} {arm.protocol}" for arm in summary.arms)
        + "."
    ]
    tables = [Table("The common protocol", ["field", "value"], rows, remarks, words=["value"])]
    own = [
        [Cell(arm.name), Cell(name), Cell(_said(value))]
        for arm in summary.arms
        for name, value in arm.changed.items()
    ]
    if own:
        columns = ["arm", "field", "value"]
        tables.append(Table("Where arms differ from it", columns, own, words=columns[1:]))
    return tables


def _is_declared(summary: Summary, name: str) -> bool:
    return any(name == each or name.startswith(f"{each}.") for each in summary.declared)


def _manifest(summary: Summary) -> Table:
    manifest = {
        **{key: value for key, value in summary.manifest.items() if key not in _SHOWN_ELSEWHERE},
        "split": {
            "test classes": len(summary.manifest["split"]["test"]),
            "folds, training and validation classes": ", ".join(
                f"{len(fold['train'])}/{len(fold['validation'])}"
                for fold in summary.manifest["split"]["folds"]
            ),
        },
        "report": provenance_of(None),
    }
    rows = [[Cell(name), Cell(value)] for name, value in _flat(manifest) if value != "–"]
    return Table("Where these figures come from", ["fact", "value"], rows, words=["value"])


_SHOWN_ELSEWHERE = ("comparison", "protocols", "notes", "split")


def _flat(tree: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    """Yield dotted names and values as words; a dataclass's type is the value of its name."""
    for key, value in tree.items():
        name = f"{prefix}{key}"
        if isinstance(value, Mapping) and value:
            if "type" in value:
                yield name, str(value["type"])
            yield from _flat(value, f"{name}.")
        elif key != "type":
            yield name, _said(value)


def _said(value: Any) -> str:
    if value is None or value == {}:
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, (list, tuple)):
        return ", ".join(map(_said, value)) or "–"
    return f"{value:g}" if isinstance(value, float) else str(value)


def _captions(summary: Summary) -> dict[str, tuple[str, str]]:
    """Return the alternative text and the caption of each figure."""
    said = " ".join(_pair_answer(summary, pair).text for pair in summary.pairs)
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
    points = "; ".join(
        f"{pair.arm}: reduction {_signed(pair.norm_reduction.value, 4)}, gain "
        f"{_points(pair.headline.mean.value)} points"
        for pair in summary.pairs
        if pair.norm_reduction and pair.headline
    )
    return {
        "differences": (
            f"Forest of the differences. {said}",
            "Differences in test MAP@R, concatenated and separated, with zero line.",
        ),
        "trials": (
            f"Best validation MAP@R over trials. At the end: {best}.",
            "What the search had found after how many trials.",
        ),
        "learning": (
            f"Learning curves of the final runs. At the end: {ends}.",
            "Validation MAP@R of the best settings over epochs.",
        ),
        "norm_variance": (
            f"Gain over reduction of norm variance. {points}.",
            "Whether pairs that lose more norm variance gain more; equal colours are one family "
            "of arms.",
        ),
    }


# ---------------------------------------------------------------- tables for other programs


def to_latex(summary: Summary) -> str:
    """Return the headline table for LaTeX with the package booktabs."""
    best = {column: reaching(summary, *column) for column in COLUMNS}
    lines = [
        "% \\usepackage{booktabs}",
        f"% Percent, mean and half the {_percent(summary).replace('%', 'percent')} interval over "
        "seeds; bold: the interval meets that of the best arm.",
        "\\begin{tabular}{lcccccc}",
        "\\toprule",
        " & \\multicolumn{3}{c}{concatenated} & \\multicolumn{3}{c}{separated} \\\\",
        "\\cmidrule(lr){2-4} \\cmidrule(lr){5-7}",
        " & ".join(["", *(_SHORT[metric] for _, metric in COLUMNS)]).lstrip() + " \\\\",
        "\\midrule",
        _tex_row("untrained", [_tex_cell(_find(summary, *c), False) for c in COLUMNS]),
    ]
    for arm in summary.arms:
        cells = [_tex_cell(arm.score(*c), arm.name in best[c]) for c in COLUMNS]
        lines.append(_tex_row(arm.name.translate(_TEX), cells))
    return "\n".join([*lines, "\\bottomrule", "\\end{tabular}", ""])


def _tex_row(name: str, cells: Sequence[str]) -> str:
    return " & ".join([name, *cells]) + r" \\"


def _tex_cell(score: Score | None, strong: bool) -> str:
    if score is None:
        return "--"
    text = f"{100 * score.mean.value:.2f}"
    text = f"\\textbf{{{text}}}" if strong else text
    interval = score.mean.over_seeds
    if interval is None:
        return f"{text} ($n=1$)" if score.mean.total == 1 else text
    return f"{text} $\\pm$ {_half(interval):.2f}"


def _table_rows(summary: Summary) -> Iterator[dict[str, Any]]:
    """Yield every figure of every arm, and its difference from the base."""
    pairs = {pair.arm: pair for pair in summary.pairs}
    named = [
        (UNTRAINED, "", summary.untrained),
        *((a.name, a.reason, a.scores) for a in summary.arms),
    ]
    for name, reason, scores in named:
        if reason:
            yield {"arm": name, "reason": reason}
        for score in scores:
            pair = pairs.get(name)
            found = pair.difference(score.view, score.metric) if pair else None
            yield {
                "arm": name,
                "view": score.view,
                "metric": score.metric,
                "n": score.mean.total,
                **_csv_mean("mean", score.mean),
                "against": pair.base if pair else None,
                **_csv_mean("difference", found.mean if found else None),
                "p": found.mean.p if found else None,
                "p_holm": found.mean.p_holm if found else None,
                "fair": pair.fairness.fair if pair else None,
                "reason": score.mean.remark,
            }


def _csv_mean(name: str, mean: SeedMean | None) -> dict[str, Any]:
    row: dict[str, Any] = {name: mean.value if mean else None}
    for over in ("joint", "over_seeds", "over_classes"):
        interval = getattr(mean, over) if mean else None
        row[f"{name}_{over}_low"] = interval.low if interval else None
        row[f"{name}_{over}_high"] = interval.high if interval else None
    return row


def _run_rows(summary: Summary) -> Iterator[dict[str, Any]]:
    """Yield a row for every seed of every arm."""
    named = [
        (UNTRAINED, summary.untrained_runs, summary.untrained),
        *((arm.name, arm.runs, arm.scores) for arm in summary.arms),
    ]
    generators = summary.manifest["seeds"]["final_runs"]
    for name, runs, scores in named:
        for place, run in enumerate(runs):
            yield {
                "arm": name,
                "seed": run.seed,
                "generator_seed": generators[run.seed],
                **{f"{s.view}_{s.metric}": s.values[place] for s in scores},
                "validation_map_at_r": " ".join(map(str, run.validation)),
                "best_epochs": " ".join(map(str, run.epochs)),
                "norm_mean": run.norm_mean,
                "norm_cv2": run.norm_cv2,
                "tied": run.tied,
                "seconds": run.seconds,
            }


def _trial_rows(summary: Summary) -> Iterator[dict[str, Any]]:
    """Yield a row for every trial; each searched field is a column."""
    for arm in summary.arms:
        for trial in arm.trials:
            yield {
                "arm": arm.name,
                "trial": trial.number,
                "best": trial.number == arm.best_trial,
                "score": trial.score,
                "best_so_far": trial.best_so_far,
                "folds": " ".join("" if fold is None else str(fold) for fold in trial.folds),
                "seconds": trial.seconds,
                "failure": trial.failure,
                **trial.setting,
            }


def _json(value: Mapping[str, Any]) -> bytes:
    return f"{json.dumps(value, indent=1, ensure_ascii=False, allow_nan=False)}\n".encode()


# ---------------------------------------------------------------- numbers as words


def plus_minus(mean: SeedMean) -> str:
    """Return percent with half the interval over seeds: ``26.70 ± 0.23``; one run is marked."""
    text, interval = f"{100 * mean.value:.2f}", mean.over_seeds
    if interval is None:
        return f"{text} (n=1)" if mean.total == 1 else text
    return f"{text}\N{NO-BREAK SPACE}±\N{NO-BREAK SPACE}{_half(interval):.2f}"


def _half(interval: Interval) -> float:
    return 50 * (interval.high - interval.low)


def _limits(interval: Interval, scale: float, form: str) -> str:
    """Return the limits; without an upper one, ∞."""
    ends = (format(scale * end, form) for end in (interval.low, interval.high))
    # No line break within: in a narrow column the two limits would come apart.
    return _minus("[" + ",\N{NO-BREAK SPACE}".join(ends) + "]").replace("inf", "∞")


def _points(share: float) -> str:
    return _signed(100 * share, 2)


def _signed(value: float, decimals: int) -> str:
    text = _minus(f"{value:+.{decimals}f}")
    return text if text.strip("+−0.") else text.lstrip("+−")


def _minus(text: str) -> str:
    return text.replace("-", "−")


def _counted(number: int, one: str, more: str) -> str:
    return f"{number:,} {one if number == 1 else more}"


def _p(value: float | None) -> str:
    return "–" if value is None else f"{value:.2g}"


def _percent(summary: Summary) -> str:
    return f"{100 * summary.confidence:g} %"


def _duration(seconds: float) -> str:
    if seconds < 600:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 36000 else f"{seconds / 3600:.1f} h"
