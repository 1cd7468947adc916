"""The tables of a comparison, each described once: for the page, the terminal, LaTeX and files."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import partial
from typing import Any

from facerec.comparison.finals import VIEWS, View
from facerec.comparison.protocol import UNTRAINED, Range
from facerec.comparison.significance import SeedMean
from facerec.comparison.summary import (
    HEADLINE,
    ArmSummary,
    Claim,
    Cost,
    Difference,
    Measured,
    Pair,
    PairedTrials,
    Score,
    Speed,
    Summary,
    is_declared,
)
from facerec.report import words
from facerec.report.documents import provenance_of
from facerec.report.table import Cell, Column, Spanning, Table, facts_table
from facerec.statistics.intervals import Interval

COLUMNS: tuple[tuple[View, str], ...] = tuple(
    (view, metric) for view in VIEWS for metric in ("precision_at_1", "r_precision", "map_at_r")
)
"""Of the headline table, in the Reality Check's order."""

_SHORT = {"r_precision": "RP"}
_MISSING = Cell(words.NOTHING, withheld=True)
_PLUS_MINUS = "\N{NO-BREAK SPACE}±\N{NO-BREAK SPACE}"
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
class _Row:
    """An arm, or the untrained network, with what it scored."""

    name: str
    scores: Sequence[Score]
    seeds: int
    reason: str = ""

    def score(self, view: View, metric: str) -> Score | None:
        return next((s for s in self.scores if (s.view, s.metric) == (view, metric)), None)


def _rows(summary: Summary) -> list[_Row]:
    arms = (_Row(arm.name, arm.scores, len(arm.seeds), arm.reason) for arm in summary.arms)
    return [_Row(UNTRAINED, summary.untrained, len(summary.untrained_runs)), *arms]


# ---------------------------------------------------------------- scores


def headline_columns(summary: Summary) -> tuple[tuple[View, str], ...]:
    """Return views and metrics of the headline table, those that were asked for at the end."""
    return tuple(
        (view, metric)
        for view in VIEWS
        for metric in [*(m for v, m in COLUMNS if v == view), *summary.special]
    )


def headline_table(summary: Summary) -> Table[_Row]:
    """Return the retrieval figures of all arms; a terminal shows those of concatenated models."""
    columns = headline_columns(summary)
    bold = {column: declared(summary, *column) for column in columns}

    def column(view: View, metric: str) -> Column[_Row]:
        def show(row: _Row) -> Cell:
            score = row.score(view, metric)
            return _score_cell(score, row.name in bold[view, metric])

        heading = _SHORT.get(metric, summary.figures.get(metric, metric))
        return Column(heading, show, terminal=view == VIEWS[0])

    def name(row: _Row) -> Cell:
        return Cell(row.name, "" if row.seeds == summary.repetitions else f"n={row.seeds}")

    rows = [
        Spanning(row.name, Cell("failed", row.reason, withheld=True)) if row.reason else row
        for row in _rows(summary)
    ]
    means = [score.mean for arm in summary.arms for score in arm.scores]
    remarks = [
        f"Percent on the test classes: mean ± half the {percent(summary)} interval over seeds, in "
        "the Reality Check's form; below it the interval over seeds and test classes. Bold: in "
        "this figure the adjusted test declares the arm different from the one it is compared "
        "with, upwards or downwards. Arms share test classes, so their differences are known "
        "better than each of them: see the next table.",
        *words.assumptions(i for mean in means for i in (mean.over_seeds, mean.joint)),
    ]
    if summary.dropped:
        remarks.append(
            f"{summary.dropped:,} test images without another one of their class are no queries."
        )
    return Table(
        "Retrieval on the test classes",
        [Column("arm", name), *(column(*each) for each in columns)],
        rows,
        remarks,
        groups=[("", 1), *((view, len(columns) // len(VIEWS)) for view in VIEWS)],
    )


def _score_cell(score: Score | None, strong: bool) -> Cell:
    if score is None:
        return _MISSING
    small = "" if score.mean.joint is None else limits(score.mean.joint, 100, ".2f")
    return Cell(plus_minus(score.mean), small, strong=strong)


def declared(summary: Summary, view: View, metric: str) -> frozenset[str]:
    """Return the arms that the adjusted test of a figure declares different from their base."""
    return frozenset(
        pair.arm
        for pair in summary.pairs
        if (difference := pair.difference(view, metric))
        and is_declared(difference.mean, summary.confidence)
    )


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


def run_table(summary: Summary) -> Table[ArmSummary]:
    """Return the headline figure of every seed."""

    def column(seed: int) -> Column[ArmSummary]:
        def show(arm: ArmSummary) -> Cell:
            score = arm.score(*HEADLINE)
            if score is None or seed not in arm.seeds:
                return Cell(words.NOTHING, "failed", withheld=True)
            return Cell(f"{100 * score.values[arm.seeds.index(seed)]:.2f}")

        return Column(f"seed {seed}", show)

    columns = map(column, range(summary.repetitions))
    return Table("Concatenated MAP@R of every run, %", [_ARM, *columns], summary.arms)


_ARM: Column[ArmSummary] = Column("arm", lambda arm: arm.name)


# ---------------------------------------------------------------- differences


def pair_table(summary: Summary) -> Table[Pair]:
    """Return the headline differences with their tests."""
    bold = declared(summary, *HEADLINE)

    def difference(pair: Pair) -> Cell:
        return _difference_cell(pair.headline, pair.reason, strong=pair.arm in bold)

    def of_mean(show: Callable[[Difference], str]) -> Callable[[Pair], Cell]:
        return lambda pair: _MISSING if pair.headline is None else Cell(show(pair.headline))

    def over(view: str) -> Callable[[Pair], Cell]:
        return of_mean(lambda each: limits(getattr(each.mean, view), 100, "+.2f") or words.NOTHING)

    columns: list[Column[Pair]] = [
        Column("pair", lambda pair: f"{pair.arm} − {pair.base}"),
        Column("n", of_mean(lambda each: str(each.mean.total))),
        Column("difference", difference),
        Column("over seeds", over("over_seeds"), terminal=False),
        Column("over classes", over("over_classes"), terminal=False),
        Column("p", of_mean(lambda each: words.p_value(each.mean.p))),
        Column("p, Holm", of_mean(lambda each: words.p_value(each.mean.p_holm))),
        Column(
            "found at 80 %",
            lambda pair: words.number(pair.smallest and 100 * pair.smallest, ".2f"),
            terminal=False,
        ),
        Column("fair", _fair_cell, words=True),
    ]
    means = [pair.headline.mean for pair in summary.pairs if pair.headline]
    claims = claims_of(pair.claim for pair in summary.pairs)
    remarks = [
        "Points of percent, arm − base, paired by seed: equal seeds, splits and data order. The "
        f"interval below the difference is the {percent(summary)} one over seeds and test "
        "classes; it is not adjusted. p: two-sided sign-flip test over seeds; Holm: adjusted for "
        f"the {claims}. Bold: adjusted p ≤ {1 - summary.confidence:.2g}. Found at "
        "80 %: the smallest true difference that as many seeds with this spread find, after the "
        "adjustment, four times in five.",
        *words.assumptions(
            each for mean in means for each in (mean.joint, mean.over_seeds, mean.over_classes)
        ),
        "Fair: equal protocols, or different in declared fields alone, and equally many trials and "
        "first settings.",
    ]
    return Table("Concatenated MAP@R, arm − base", columns, summary.pairs, remarks)


def difference_table(summary: Summary, view: View) -> Table[Pair]:
    """Return the differences in all figures of a view."""

    def column(metric: str, title: str) -> Column[Pair]:
        bold = declared(summary, view, metric)

        def show(pair: Pair) -> Cell:
            difference = pair.difference(view, metric)
            return _difference_cell(difference, p=True, strong=pair.arm in bold)

        return Column(title, show)

    columns: list[Column[Pair]] = [
        Column("pair", lambda pair: f"{pair.arm} − {pair.base}"),
        *(column(metric, title) for metric, title in summary.figures.items()),
    ]
    remark = (
        "Points of percent with intervals as above; p adjusted after Holm in each column, claim by "
        "claim; bold as above."
    )
    if summary.clusterings:
        remark += " Intervals of NMI and F1 are over seeds alone."
    return Table(f"All figures, {view}", columns, summary.pairs, [remark])


def claims_of(claims: Iterable[Claim]) -> str:
    """Return how many pairs, of which each has a claim, answer each question together."""
    counts = Counter(claims)
    return ", ".join(
        words.counted(count, f"pair of another {claim}", f"pairs of another {claim}")
        for claim, count in counts.items()
    )


def paired_trial_table(summary: Summary) -> Table[Pair] | None:
    """Return what the same settings gave with and without what the arm has besides."""
    pairs = [pair for pair in summary.pairs if pair.trials is not None]
    if not pairs:
        return None

    def of_trials(show: Callable[[PairedTrials], Cell | str]) -> Callable[[Pair], Cell | str]:
        return lambda pair: _MISSING if pair.trials is None else show(pair.trials)

    def best(name: str) -> str:
        value = summary.arm(name).validation
        return words.number(value and 100 * value, ".2f")

    def mean(trials: PairedTrials) -> Cell:
        return Cell(
            points(trials.mean.value), limits(trials.mean.over_seeds, 100, "+.2f") or words.NOTHING
        )

    columns: list[Column[Pair]] = [
        Column("pair", lambda pair: f"{pair.arm} − {pair.base}"),
        Column(
            "settings",
            of_trials(lambda t: Cell(f"{t.mean.total}", f"{t.failed} failed" if t.failed else "")),
        ),
        Column("mean difference", of_trials(mean)),
        Column("p", of_trials(lambda t: words.p_value(t.mean.p))),
        Column("higher in", of_trials(lambda t: f"{t.higher} of {t.mean.total}")),
        Column("best of base", lambda pair: best(pair.base)),
        Column("best of arm", lambda pair: best(pair.arm)),
    ]
    remarks = [
        "Validation MAP@R of the same settings, tried with and without what the arm has besides: "
        f"points, with Student's {percent(summary)} interval and the sign-flip test over settings, "
        "unadjusted. The base's search proposed the settings, which favours the base, and large "
        "weights are tried as well as small ones; the final runs above compare the best of both."
    ]
    return Table("The same trials with and without", columns, pairs, remarks)


def _difference_cell(
    difference: Difference | None, reason: str = "", p: bool = False, strong: bool = False
) -> Cell:
    if difference is None:
        return Cell(words.NOTHING, reason, withheld=True)
    mean = difference.mean
    if mean.interval is None:
        return Cell(points(mean.value), "n=1")
    small = limits(mean.interval, 100, "+.2f")
    if p:
        small = f"{small}\np {words.p_value(mean.p_holm)}"
    return Cell(points(mean.value), small, strong=strong)


def _fair_cell(pair: Pair) -> Cell:
    declared = ", ".join(pair.fairness.declared)
    small = "; ".join([*pair.fairness.reasons, *([f"declared: {declared}"] if declared else [])])
    return Cell("fair" if pair.fairness.fair else "not fair", small)


def speed_table(summary: Summary) -> Table[Pair] | None:
    """Return the ratios of steps; None where no pair was scored."""
    shares = dict.fromkeys(speed.share for pair in summary.pairs for speed in pair.speeds)
    if not shares:
        return None

    def column(index: int, share: float) -> Column[Pair]:
        return Column(f"{100 * share:g} %", lambda pair: _speed_cell(pair.speeds[index]))

    columns: list[Column[Pair]] = [
        Column("pair", _ratio_name),
        *(column(index, share) for index, share in enumerate(shares)),
    ]
    rows = [
        pair
        if pair.speeds
        else Spanning(_ratio_name(pair), Cell(words.NOTHING, pair.reason, withheld=True))
        for pair in summary.pairs
    ]
    ratios = [speed.ratio for pair in summary.pairs for speed in pair.speeds if speed.ratio]
    remarks = [
        "Steps of the arm over steps of its base until validation MAP@R comes to that share of the "
        "base's final one: median over seeds, of scores averaged over folds. Below 1 the arm is "
        "quicker. Scores are those of the weights kept so far, known after every epoch; ≥: runs "
        "that never came so far make it a lower bound. p: sign test, adjusted after Holm in each "
        "column.",
        *words.assumptions(ratio.interval for ratio in ratios),
    ]
    return Table("Ratio of steps", columns, rows, remarks)


def _ratio_name(pair: Pair) -> str:
    return f"{pair.arm} : {pair.base}"


def _speed_cell(speed: Speed) -> Cell:
    ratio = speed.ratio
    if ratio is None:
        return Cell(words.NOTHING, speed.reason, withheld=True)
    text = f"≥ {ratio.value:.2f}" if ratio.at_least else f"{ratio.value:.2f}"
    if ratio.interval is None:
        return Cell(text, "n=1")
    never = sum(ratio.censored)
    small = [
        limits(ratio.interval, 1, ".2f"),
        f"{100 * ratio.interval.confidence:.3g} %, p {words.p_value(ratio.p_holm)}",
        f"{never} of {ratio.total} never" if never else "",
    ]
    return Cell(text, "\n".join(filter(None, small)))


# ---------------------------------------------------------------- norms, settings, costs


def norm_table(summary: Summary) -> Table[ArmSummary]:
    """Return the norms of test embeddings."""
    reductions = {pair.arm: pair.norm_reduction for pair in summary.pairs}

    def reduction(arm: ArmSummary) -> Cell:
        mean = reductions.get(arm.name)
        if mean is None:
            return Cell(words.NOTHING)
        return Cell(signed(mean.value, 4), limits(mean.interval, 1, "+.4f") or "n=1")

    columns = [
        _ARM,
        *_measured_columns("norms", ("mean norm", "variance over squared mean")),
        Column("reduction, base − arm", reduction),
    ]
    remarks = [
        "Norms of raw test embeddings in evaluation mode, averaged over the folds' models; "
        f"{percent(summary)} intervals over seeds."
    ]
    return Table("Norms of embeddings", columns, summary.arms, remarks)


def probe_table(summary: Summary) -> Table[ArmSummary] | None:
    """Return what steps do to embeddings; None where nothing was measured."""
    if not any(probe.mean for arm in summary.arms for probe in arm.probes):
        return None
    headings = (
        "slope of log Δθ on log n",
        "CV of ‖g‖",
        "|cos(g, f)|",
        "Δθ, radians",
        "growth of n per step",
    )
    remarks = [
        "Of single training steps: g is the gradient of the loss without penalty by an embedding f "
        "of norm n, Δθ the angle by which the step turned it. Means over epochs and folds; "
        f"{percent(summary)} intervals over seeds. On free embeddings the slope is −2 under SGD "
        "and −1 under Adam."
    ]
    columns = [_ARM, *_measured_columns("probes", headings)]
    return Table("Gradients and angular steps", columns, summary.arms, remarks)


def _measured_columns(name: str, headings: Sequence[str]) -> Iterator[Column[ArmSummary]]:
    def show(arm: ArmSummary, index: int) -> Cell:
        return _measured_cell(getattr(arm, name)[index])

    for index, heading in enumerate(headings):
        yield Column(heading, partial(show, index=index))


def _measured_cell(measured: Measured) -> Cell:
    mean = measured.mean
    if mean is None:
        return Cell(words.NOTHING, measured.reason, withheld=True)
    return Cell(minus(f"{mean.value:#.3g}"), limits(mean.interval, 1, "#.3g") or "n=1")


def setting_table(summary: Summary) -> Table[ArmSummary]:
    """Return the best setting of each arm."""

    def searched(arm: ArmSummary) -> str:
        values = (f"{name} = {value:.4g}" for name, value in (arm.setting or {}).items())
        return "; ".join(values) or "nothing is searched"

    columns: list[Column[ArmSummary]] = [
        _ARM,
        Column("trial", lambda arm: words.number(arm.best_trial, "d")),
        Column(
            "validation MAP@R, %",
            lambda arm: words.number(arm.validation and 100 * arm.validation, ".2f"),
        ),
        Column("searched values", searched, words=True),
        Column(
            "loss and penalty with them",
            lambda arm: Cell(_shorter(arm.loss), _shorter(arm.penalty or "")),
            words=True,
        ),
    ]
    rows = [
        Spanning(arm.name, Cell(words.NOTHING, arm.reason, withheld=True))
        if arm.setting is None
        else arm
        for arm in summary.arms
    ]
    remarks = ["Chosen by the mean validation MAP@R over the folds, never by test classes."]
    return Table("Best settings", columns, rows, remarks)


def _shorter(text: str) -> str:
    """Write long decimals of a recipe with six digits; results.json has all."""
    return re.sub(r"\d+\.\d{6,}(e-?\d+)?", lambda match: f"{float(match[0]):.6g}", text)


def space_table(summary: Summary) -> Table[tuple[ArmSummary, Range]]:
    """Return what is searched, and where."""
    columns: list[Column[tuple[ArmSummary, Range]]] = [
        Column("arm", lambda row: row[0].name),
        Column(
            "field",
            lambda row: Cell(
                row[1].field, "no effect: a control" if row[1].field == "nothing" else ""
            ),
            words=True,
        ),
        Column("low", lambda row: f"{row[1].low:g}"),
        Column("high", lambda row: f"{row[1].high:g}"),
        Column(
            "scale",
            lambda row: (
                row[1].scale.replace("_", " ") + (", whole numbers" if row[1].integer else "")
            ),
            words=True,
        ),
    ]
    rows = [(arm, each) for arm in summary.arms for each in arm.ranges]
    return Table("Search spaces", columns, rows)


def cost_table(summary: Summary) -> Table[tuple[str, Cost]]:
    """Return what each arm was given and took, and all of them together."""
    columns: list[Column[tuple[str, Cost]]] = [
        Column("arm", lambda row: row[0]),
        Column("searched parameters", lambda row: str(row[1].parameters)),
        Column(
            "trials",
            lambda row: Cell(f"{row[1].trials:,}", f"{row[1].failed_trials:,} failed"),
        ),
        Column("of them given", lambda row: f"{row[1].first_settings:,}"),
        Column("time of trials", lambda row: _duration(row[1].trial_seconds)),
        Column(
            "final runs",
            lambda row: Cell(f"{row[1].final_runs:,}", f"{row[1].failed_runs:,} failed"),
        ),
        Column("time of final runs", lambda row: _duration(row[1].final_seconds)),
    ]
    costs = [arm.cost for arm in summary.arms]
    total = {each.name: sum(getattr(cost, each.name) for cost in costs) for each in fields(Cost)}
    rows = [*((arm.name, arm.cost) for arm in summary.arms), ("all arms", Cost(**total))]
    remarks = [
        "Time of training with its validations, summed over workers; failed final runs are not in "
        "it. Failed trials count as trials."
    ]
    return Table("What each arm was given and took", columns, rows, remarks)


# ---------------------------------------------------------------- protocol and manifest


def protocol_tables(summary: Summary) -> list[Table[Any]]:
    """Return the common protocol, and where arms differ from it."""

    def is_declared(name: str) -> bool:
        return any(name == each or name.startswith(f"{each}.") for each in summary.declared)

    columns: list[Column[tuple[str, str]]] = [
        Column(
            "field",
            lambda row: Cell(row[0], "subject of the study" if is_declared(row[0]) else ""),
        ),
        Column("value", lambda row: row[1], words=True),
    ]
    prints = {arm.protocol for arm in summary.arms}
    remarks = [
        f"SHA-256 {prints.pop()}, the same for all arms."
        if len(prints) == 1
        else "Arms differ in declared fields; SHA-256: "
        + "; ".join(f"{arm.name} {arm.protocol}" for arm in summary.arms)
        + "."
    ]
    common = Table("The common protocol", columns, list(_flat(summary.protocol)), remarks)
    own = [
        (arm.name, name, words.setting(value))
        for arm in summary.arms
        for name, value in arm.changed.items()
    ]
    if not own:
        return [common]
    differing: list[Column[tuple[str, str, str]]] = [
        Column("arm", lambda row: row[0]),
        Column("field", lambda row: row[1], words=True),
        Column("value", lambda row: row[2], words=True),
    ]
    return [common, Table("Where arms differ from it", differing, own)]


def manifest_table(summary: Summary) -> Table[Any]:
    """Return where the figures come from."""
    elsewhere = ("comparison", "protocols", "notes", "split")
    manifest = {
        **{key: value for key, value in summary.manifest.items() if key not in elsewhere},
        "split": {
            "test classes": len(summary.manifest["split"]["test"]),
            "folds, training and validation classes": ", ".join(
                f"{len(fold['train'])}/{len(fold['validation'])}"
                for fold in summary.manifest["split"]["folds"]
            ),
        },
        "report": provenance_of(None),
    }
    facts = {name: value for name, value in _flat(manifest) if value != words.NOTHING}
    return facts_table("Where these figures come from", facts)


def _flat(tree: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    """Yield dotted names and values as words; a dataclass's type is the value of its name."""
    for key, value in tree.items():
        name = f"{prefix}{key}"
        if isinstance(value, Mapping) and value:
            if "type" in value:
                yield name, str(value["type"])
            yield from _flat(value, f"{name}.")
        elif key != "type":
            yield name, words.setting(value)


# ---------------------------------------------------------------- tables for other programs


def to_latex(summary: Summary) -> str:
    """Return the headline table for LaTeX with the package booktabs."""
    table = headline_table(summary)
    width = len(table.columns) - 1
    half = width // len(VIEWS)
    groups = (f"\\multicolumn{{{half}}}{{c}}{{{view}}}" for view in VIEWS)
    headings = (column.heading for column in table.columns[1:])
    lines = [
        "% \\usepackage{booktabs}",
        f"% Percent, mean and half the {percent(summary).replace('%', 'percent')} interval over "
        "seeds; bold: the adjusted test declares a difference from the base.",
        f"\\begin{{tabular}}{{l{'c' * width}}}",
        "\\toprule",
        f" & {' & '.join(groups)} \\\\",
        f"\\cmidrule(lr){{2-{half + 1}}} \\cmidrule(lr){{{half + 2}-{width + 1}}}",
        f"& {' & '.join(headings)} \\\\",
        "\\midrule",
    ]
    for row, (name, *cells) in zip(table.rows, table.cells, strict=True):
        scores = ["--"] * width if isinstance(row, Spanning) else map(_tex_cell, cells)
        lines.append(" & ".join([name.text.translate(_TEX), *scores]) + r" \\")
    return "\n".join([*lines, "\\bottomrule", "\\end{tabular}", ""])


def _tex_cell(cell: Cell) -> str:
    if cell.withheld:
        return "--"
    value, _, half = cell.text.replace(" (n=1)", "").partition(_PLUS_MINUS)
    text = f"\\textbf{{{value}}}" if cell.strong else value
    if half:
        return f"{text} $\\pm$ {half}"
    return f"{text} ($n=1$)" if cell.text.endswith("(n=1)") else text


def score_records(summary: Summary) -> Iterator[dict[str, Any]]:
    """Yield every figure of every arm, and its difference from the base."""
    pairs = {pair.arm: pair for pair in summary.pairs}
    for row in _rows(summary):
        if row.reason:
            yield {"arm": row.name, "reason": row.reason}
        pair = pairs.get(row.name)
        for score in row.scores:
            difference = pair.difference(score.view, score.metric) if pair else None
            yield {
                "arm": row.name,
                "view": score.view,
                "metric": score.metric,
                "n": score.mean.total,
                **_mean_record("mean", score.mean),
                "against": pair.base if pair else None,
                **_mean_record("difference", difference.mean if difference else None),
                "p": difference.mean.p if difference else None,
                "p_holm": difference.mean.p_holm if difference else None,
                "fair": pair.fairness.fair if pair else None,
                "reason": score.mean.remark,
            }


def _mean_record(name: str, mean: SeedMean | None) -> dict[str, Any]:
    record: dict[str, Any] = {name: mean.value if mean else None}
    for over in ("joint", "over_seeds", "over_classes"):
        interval = getattr(mean, over) if mean else None
        record[f"{name}_{over}_low"] = interval.low if interval else None
        record[f"{name}_{over}_high"] = interval.high if interval else None
    return record


def run_records(summary: Summary) -> Iterator[dict[str, Any]]:
    """Yield a row for every seed of every arm."""
    generators = summary.manifest["seeds"]["final_runs"]
    named = [
        (UNTRAINED, summary.untrained_runs, summary.untrained),
        *((arm.name, arm.runs, arm.scores) for arm in summary.arms),
    ]
    for name, runs, scores in named:
        for index, run in enumerate(runs):
            yield {
                "arm": name,
                "seed": run.seed,
                "generator_seed": generators[run.seed],
                **{f"{s.view}_{s.metric}": s.values[index] for s in scores},
                "validation_map_at_r": " ".join(map(str, run.validation)),
                "best_epochs": " ".join(map(str, run.epochs)),
                "norm_mean": run.norm_mean,
                "norm_cv2": run.norm_cv2,
                "tied": run.tied,
                "seconds": run.seconds,
            }


def trial_records(summary: Summary) -> Iterator[dict[str, Any]]:
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


# ---------------------------------------------------------------- numbers as words


def plus_minus(mean: SeedMean) -> str:
    """Return percent with half the interval over seeds: ``26.70 ± 0.23``; one run is marked."""
    text, interval = f"{100 * mean.value:.2f}", mean.over_seeds
    if interval is None:
        return f"{text} (n=1)" if mean.total == 1 else text
    return f"{text}{_PLUS_MINUS}{50 * (interval.high - interval.low):.2f}"


def limits(interval: Interval | None, scale: float, form: str) -> str:
    """Return the limits; without an upper one, ∞; empty without an interval."""
    return minus(words.limits(interval, scale, form)).replace("inf", "∞")


def points(share: float) -> str:
    """Return a difference of shares in points of percent."""
    return signed(100 * share, 2)


def signed(value: float, decimals: int) -> str:
    """Return a number with its sign, which a zero has not."""
    text = minus(f"{value:+.{decimals}f}")
    return text if text.strip("+−0.") else text.lstrip("+−")


def minus(text: str) -> str:
    """Return text with minus signs in place of hyphens."""
    return text.replace("-", "−")


def percent(summary: Summary) -> str:
    """Return the confidence of the intervals."""
    return f"{100 * summary.confidence:g} %"


def _duration(seconds: float) -> str:
    if seconds < 600:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 36000 else f"{seconds / 3600:.1f} h"
