"""The tables of a comparison, each described once: for the page, the terminal, LaTeX and files."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from facerec.comparison.finals import VIEWS, View
from facerec.comparison.protocol import NOTHING, UNTRAINED, is_within
from facerec.comparison.significance import SeedMean
from facerec.comparison.summary import (
    ArmSummary,
    Claim,
    Cost,
    Difference,
    Measured,
    Pair,
    Run,
    Score,
    Speed,
    Summary,
    find,
    is_declared,
)
from facerec.report import words
from facerec.report.documents import provenance_of
from facerec.report.table import Cell, Column, Spanning, Table, facts_table, text_table

COLUMNS: tuple[tuple[View, str], ...] = tuple(
    (view, metric) for view in VIEWS for metric in ("precision_at_1", "r_precision", "map_at_r")
)
"""Of the headline table, in the Reality Check's order."""

TextRow = Sequence[Cell | str]
TextTable = Table[TextRow]
"""Rows of cells, for people alone."""

_SHORT = {"r_precision": "RP"}
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
    runs: Sequence[Run]
    reason: str = ""


def _rows(summary: Summary) -> list[_Row]:
    arms = (_Row(arm.name, arm.scores, arm.runs, arm.reason) for arm in summary.arms)
    return [_Row(UNTRAINED, summary.untrained, summary.untrained_runs), *arms]


def _missing(reason: str = "") -> Cell:
    """Return what stands where a figure cannot be given."""
    return Cell(words.NOTHING, reason, withheld=True)


# ---------------------------------------------------------------- scores


def headline_columns(summary: Summary) -> tuple[tuple[View, str], ...]:
    """Return views and metrics of the headline table, those that were asked for at the end."""
    return tuple(
        (view, metric)
        for view in VIEWS
        for metric in [*(m for v, m in COLUMNS if v == view), *summary.special]
    )


_OF_PAIRS = (
    " Bold: in this figure the adjusted test declares the arm different from the one it is "
    "compared with, upwards or downwards. Arms share test classes, so their differences are known "
    "better than each of them: see the next table."
)


def headline_table(summary: Summary) -> Table[_Row]:
    """Return the retrieval figures of all arms; a terminal shows those of concatenated models."""
    columns = headline_columns(summary)

    def column(view: View, metric: str) -> Column[_Row]:
        bold = declared(summary, view, metric)

        def show(row: _Row) -> Cell:
            return _score_cell(find(row.scores, view, metric), row.name in bold)

        heading = _SHORT.get(metric, summary.figures.get(metric, metric))
        return Column(heading, show, terminal=view == VIEWS[0])

    def name(row: _Row) -> Cell:
        return Cell(row.name, "" if len(row.runs) == summary.repetitions else f"n={len(row.runs)}")

    rows = [
        Spanning(row.name, Cell("failed", row.reason, withheld=True)) if row.reason else row
        for row in _rows(summary)
    ]
    means = [score.mean for arm in summary.arms for score in arm.scores]
    remarks = [
        f"Percent on the test classes: mean ± half the {percent(summary)} interval over seeds, in "
        "the Reality Check's form; below it the interval over seeds and test classes."
        f"{_OF_PAIRS if summary.pairs else ''}",
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
        return _missing()
    small = "" if score.mean.joint is None else words.limits(score.mean.joint, 100, ".2f")
    return Cell(plus_minus(score.mean), small, strong=strong)


def declared(summary: Summary, view: View, metric: str) -> frozenset[str]:
    """Return the arms that the adjusted test of a figure declares different from their base."""
    return frozenset(
        pair.arm
        for pair in summary.pairs
        if (difference := pair.difference(view, metric))
        and is_declared(difference.mean, summary.confidence)
    )


def run_table(summary: Summary) -> TextTable:
    """Return the headline figure of every seed."""
    seeds = range(summary.repetitions)

    def cell(arm: ArmSummary, seed: int) -> Cell:
        score = arm.headline
        if score is None or seed not in arm.seeds:
            return _missing("failed")
        return Cell(f"{100 * score.values[arm.seeds.index(seed)]:.2f}")

    rows: list[TextRow] = [(arm.name, *(cell(arm, seed) for seed in seeds)) for arm in summary.arms]
    headings = ("arm", *(f"seed {seed}" for seed in seeds))
    return text_table("Concatenated MAP@R of every run, %", headings, rows)


# ---------------------------------------------------------------- differences


def pair_table(summary: Summary) -> TextTable:
    """Return the headline differences with their tests."""

    def row(pair: Pair) -> list[Cell | str]:
        difference = _difference_cell(summary, pair.headline, pair.reason)
        figures: list[Cell | str] = [_missing(), difference, *[_missing()] * 4]
        if pair.headline is not None:
            mean = pair.headline.mean
            figures = [
                str(mean.total),
                difference,
                words.limits(mean.over_seeds, 100, "+.2f") or words.NOTHING,
                words.limits(mean.over_classes, 100, "+.2f") or words.NOTHING,
                words.p_value(mean.p),
                words.p_value(mean.p_holm),
            ]
        smallest = words.number(pair.smallest and 100 * pair.smallest, ".2f")
        return [pair.name, *figures, smallest, _fair_cell(pair)]

    headings = ("pair", "n", "difference", "over seeds", "over classes", "p", "p, Holm")
    wide = ("over seeds", "over classes", "found at 80 %")
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
    return text_table(
        "Concatenated MAP@R, arm − base",
        (*headings, "found at 80 %", "fair"),
        map(row, summary.pairs),
        words=("fair",),
        page_only=wide,
        remarks=remarks,
    )


def difference_table(summary: Summary, view: View) -> TextTable:
    """Return the differences in all figures of a view."""
    rows: list[TextRow] = [
        (
            pair.name,
            *(
                _difference_cell(summary, pair.difference(view, metric), p=True)
                for metric in summary.figures
            ),
        )
        for pair in summary.pairs
    ]
    remark = (
        "Points of percent with intervals as above; p adjusted after Holm in each column, claim by "
        "claim; bold as above."
    )
    if summary.clusterings:
        remark += " Intervals of NMI and F1 are over seeds alone."
    headings = ("pair", *summary.figures.values())
    return text_table(f"All figures, {view}", headings, rows, remarks=[remark])


def claims_of(claims: Iterable[Claim]) -> str:
    """Return how many pairs, of which each has a claim, answer each question together."""
    counts = Counter(claims)
    return ", ".join(
        words.counted(count, f"pair of another {claim}", f"pairs of another {claim}")
        for claim, count in counts.items()
    )


def paired_trial_table(summary: Summary) -> TextTable | None:
    """Return what the same settings gave with and without what the arm has besides."""
    best = {
        arm.name: words.number(arm.validation and 100 * arm.validation, ".2f")
        for arm in summary.arms
    }
    rows = [
        (
            pair.name,
            Cell(f"{tried.mean.total}", f"{tried.failed} failed" if tried.failed else ""),
            Cell(
                points(tried.mean.value),
                words.limits(tried.mean.over_seeds, 100, "+.2f") or words.NOTHING,
            ),
            words.p_value(tried.mean.p),
            f"{tried.higher} of {tried.mean.total}",
            best[pair.base],
            best[pair.arm],
        )
        for pair in summary.pairs
        if (tried := pair.trials)
    ]
    if not rows:
        return None
    headings = ("pair", "settings", "mean difference", "p", "higher in", "best of base")
    remarks = [
        "Validation MAP@R of the same settings, tried with and without what the arm has besides: "
        f"points, with Student's {percent(summary)} interval and the sign-flip test over settings, "
        "unadjusted. The base's search proposed the settings, which favours the base, and large "
        "weights are tried as well as small ones; the final runs above compare the best of both."
    ]
    caption = "The same trials with and without"
    return text_table(caption, (*headings, "best of arm"), rows, remarks=remarks)


def _difference_cell(
    summary: Summary, difference: Difference | None, reason: str = "", p: bool = False
) -> Cell:
    if difference is None:
        return _missing(reason)
    mean = difference.mean
    if mean.interval is None:
        return Cell(points(mean.value), "n=1")
    small = words.limits(mean.interval, 100, "+.2f")
    if p:
        small = f"{small}\np {words.p_value(mean.p_holm)}"
    return Cell(points(mean.value), small, strong=is_declared(mean, summary.confidence))


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
        pair if pair.speeds else Spanning(_ratio_name(pair), _missing(pair.reason))
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
        return _missing(speed.reason)
    text = f"≥ {ratio.value:.2f}" if ratio.at_least else f"{ratio.value:.2f}"
    if ratio.interval is None:
        return Cell(text, "n=1")
    never = sum(ratio.censored)
    small = [
        words.limits(ratio.interval, 1, ".2f"),
        f"{100 * ratio.interval.confidence:.3g} %, p {words.p_value(ratio.p_holm)}",
        f"{never} of {ratio.total} never" if never else "",
    ]
    return Cell(text, "\n".join(filter(None, small)))


# ---------------------------------------------------------------- norms, settings, costs


def norm_table(summary: Summary) -> TextTable:
    """Return the norms of test embeddings."""
    reductions = {pair.arm: pair.norm_reduction for pair in summary.pairs}

    def reduction(arm: ArmSummary) -> Cell:
        mean = reductions.get(arm.name)
        if mean is None:
            return Cell(words.NOTHING)
        return Cell(signed(mean.value, 4), words.limits(mean.interval, 1, "+.4f") or "n=1")

    rows: list[TextRow] = [
        (arm.name, *map(_measured_cell, arm.norms), reduction(arm)) for arm in summary.arms
    ]
    headings = ("arm", "mean norm", "variance over squared mean", "reduction, base − arm")
    remarks = [
        "Norms of raw test embeddings in evaluation mode, averaged over the folds' models; "
        f"{percent(summary)} intervals over seeds."
    ]
    return text_table("Norms of embeddings", headings, rows, remarks=remarks)


def probe_table(summary: Summary) -> TextTable | None:
    """Return what steps do to embeddings; None where nothing was measured."""
    if not any(probe.mean for arm in summary.arms for probe in arm.probes):
        return None
    headings = (
        "arm",
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
    rows: list[TextRow] = [(arm.name, *map(_measured_cell, arm.probes)) for arm in summary.arms]
    return text_table("Gradients and angular steps", headings, rows, remarks=remarks)


def _measured_cell(measured: Measured) -> Cell:
    mean = measured.mean
    if mean is None:
        return _missing(measured.reason)
    return Cell(words.number(mean.value, "#.3g"), words.limits(mean.interval, 1, "#.3g") or "n=1")


def setting_table(summary: Summary) -> Table[ArmSummary]:
    """Return the best setting of each arm."""

    def searched(arm: ArmSummary) -> str:
        values = (f"{name} = {value:.4g}" for name, value in (arm.setting or {}).items())
        return "; ".join(values) or "nothing is searched"

    columns: list[Column[ArmSummary]] = [
        Column("arm", lambda arm: arm.name),
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
        Spanning(arm.name, _missing(arm.reason)) if arm.setting is None else arm
        for arm in summary.arms
    ]
    remarks = ["Chosen by the mean validation MAP@R over the folds, never by test classes."]
    return Table("Best settings", columns, rows, remarks)


def _shorter(text: str) -> str:
    """Write long decimals of a recipe with six digits; results.json has all."""
    return re.sub(r"\d+\.\d{6,}(e-?\d+)?", lambda match: f"{float(match[0]):.6g}", text)


def space_table(summary: Summary) -> TextTable:
    """Return what is searched, and where."""
    rows = [
        (
            arm.name,
            Cell(each.field, "no effect: a control" if each.field == NOTHING else ""),
            f"{each.low:g}",
            f"{each.high:g}",
            each.scale.replace("_", " ") + (", whole numbers" if each.integer else ""),
        )
        for arm in summary.arms
        for each in arm.ranges
    ]
    headings = ("arm", "field", "low", "high", "scale")
    return text_table("Search spaces", headings, rows, words=("field", "scale"))


def cost_table(summary: Summary) -> TextTable:
    """Return what each arm was given and took, and all of them together."""
    costs = [arm.cost for arm in summary.arms]
    total = {each.name: sum(getattr(cost, each.name) for cost in costs) for each in fields(Cost)}
    rows = [
        (
            name,
            str(cost.parameters),
            Cell(f"{cost.trials:,}", f"{cost.failed_trials:,} failed"),
            f"{cost.first_settings:,}",
            _duration(cost.trial_seconds),
            Cell(f"{cost.final_runs:,}", f"{cost.failed_runs:,} failed"),
            _duration(cost.final_seconds),
        )
        for name, cost in [
            *((arm.name, arm.cost) for arm in summary.arms),
            ("all arms", Cost(**total)),
        ]
    ]
    headings = (
        "arm",
        "searched parameters",
        "trials",
        "of them given",
        "time of trials",
        "final runs",
        "time of final runs",
    )
    remarks = [
        "Time of training with its validations, summed over workers; failed final runs are not in "
        "it. Failed trials count as trials."
    ]
    return text_table("What each arm was given and took", headings, rows, remarks=remarks)


# ---------------------------------------------------------------- protocol and manifest


def protocol_tables(summary: Summary) -> list[TextTable]:
    """Return the common protocol, and where arms differ from it."""
    prints = {arm.protocol for arm in summary.arms}
    remarks = [
        f"SHA-256 {prints.pop()}, the same for all arms."
        if len(prints) == 1
        else "Arms differ in declared fields; SHA-256: "
        + "; ".join(f"{arm.name} {arm.protocol}" for arm in summary.arms)
        + "."
    ]
    subject = "subject of the study"
    common = [
        (Cell(name, subject if is_within(name, summary.declared) else ""), value)
        for name, value in _flat(summary.protocol)
    ]
    table = text_table(
        "The common protocol", ("field", "value"), common, words=("value",), remarks=remarks
    )
    own = [
        (arm.name, name, words.setting(value))
        for arm in summary.arms
        for name, value in arm.changed.items()
    ]
    headings = ("arm", "field", "value")
    differing = text_table("Where arms differ from it", headings, own, words=headings[1:])
    return [table, *([differing] if own else [])]


def manifest_table(summary: Summary) -> TextTable:
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
    for row in _rows(summary):
        for index, run in enumerate(row.runs):
            yield {
                "arm": row.name,
                "seed": run.seed,
                "generator_seed": generators[run.seed],
                **{f"{s.view}_{s.metric}": s.values[index] for s in row.scores},
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


def points(share: float) -> str:
    """Return a difference of shares in points of percent."""
    return signed(100 * share, 2)


def signed(value: float, decimals: int) -> str:
    """Return a number with its sign, which a zero has not."""
    text = words.number(value, f"+.{decimals}f")
    return text if text.strip("+−0.") else text.lstrip("+−")


def percent(summary: Summary) -> str:
    """Return the confidence of the intervals."""
    return f"{100 * summary.confidence:g} %"


def _duration(seconds: float) -> str:
    if seconds < 600:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 36000 else f"{seconds / 3600:.1f} h"
