"""What tables of a comparison say: cells for people, rows for LaTeX."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import Any

import pandas as pd

from facerec.comparison.finals import VIEWS
from facerec.comparison.protocol import FIGURES, UNTRAINED, figure_title
from facerec.comparison.summary import HEADLINE, Summary, claims_of
from facerec.recipe import to_dict
from facerec.report import words
from facerec.report.documents import provenance_of
from facerec.report.table import Cell, Column, Spanning, Table, facts_table, text_table

COLUMNS = ("precision_at_1", "r_precision", "map_at_r")
"""Of the headline table for each view, in the Reality Check's order."""

_PLUS_MINUS = "\N{NO-BREAK SPACE}±\N{NO-BREAK SPACE}"
_TEX = str.maketrans(
    {
        **{letter: f"\\{letter}" for letter in "&%$#_{}"},
        "\\": r"\textbackslash{}",
        "~": r"\textasciitilde{}",
        "^": r"\textasciicircum{}",
        # As letters they would join to dashes or quotation marks.
        "-": r"{-}",
    }
)
Texts = Sequence[Cell | str]

_OTHERS = ("models", "validation", "steps")
_OF_OTHERS = (
    "Intervals over seeds. Norms n are those of raw test embeddings in evaluation mode, means over "
    "the folds' models; norm cv2 is their variance over their squared mean. Steps to 90 %: those "
    "of the arm over those of its base until validation MAP@R comes to that share of the base's "
    "final one, median over seeds; below 1 the arm is quicker. Of single training steps, where "
    "probe_every is set: slope is that of log Δθ on log n (−2 under SGD and −1 under Adam on free "
    "embeddings), Δθ the angle by which the step turned an embedding (angular step), gradient cv "
    "the spread of the norms of gradients over their mean, radial the share of them along the "
    "embedding, norm growth the growth of n by the step."
)


def headline_metrics(summary: Summary) -> list[str]:
    """Return the metrics of the headline table, those that were asked for at the end."""
    return [*COLUMNS, *(name for name in summary.comparison.figures if name not in FIGURES)]


def headline_table(summary: Summary) -> Table[str]:
    """Return the retrieval figures of all arms; a terminal shows those of concatenated models."""
    metrics, repetitions = headline_metrics(summary), summary.comparison.repetitions

    def column(view: str, metric: str) -> Column[str]:
        def show(arm: str) -> Cell:
            row = summary.row(arm, view, metric)
            strong = summary.declared(arm, view, metric)
            small = ends(row, "mean_joint", 100, ".2f")
            return missing() if row is None else Cell(plus_minus(row), small, strong=strong)

        heading = "RP" if metric == "r_precision" else figure_title(metric)
        return Column(heading, show, terminal=view == VIEWS[0])

    def name(arm: str) -> Cell:
        row = summary.headline(arm)
        few = row is not None and row.n != repetitions
        return Cell(arm, f"n={row.n}" if few and row is not None else "")

    rows = [UNTRAINED, *summary.arms.index]
    return Table(
        "Retrieval on the test classes",
        [Column("arm", name), *(column(view, each) for view in VIEWS for each in metrics)],
        [
            Spanning(arm, Cell("failed", summary.arms.missing[arm], withheld=True))
            if arm != UNTRAINED and summary.arms.missing[arm]
            else arm
            for arm in rows
        ],
        [
            f"Percent: mean ± half the {percent(summary)} interval over seeds, in the Reality "
            "Check's form; below it the interval over seeds and test classes. Bold: the adjusted "
            "test declares the arm different in this figure from the one it is compared with. "
            "Arms share test classes, so their differences are known better than each of them."
        ],
        groups=[("", 1), *((view, len(metrics)) for view in VIEWS)],
    )


def pair_table(summary: Summary) -> Table[Texts]:
    """Return the headline differences with their tests."""

    def cells(pair: Any) -> list[Cell | str]:
        fair = Cell(
            "fair" if pair.fair else "not fair",
            "; ".join(filter(None, [pair.unfair, pair.declared and f"declared: {pair.declared}"])),
        )
        name = f"{pair.Index} − {pair.against}"
        if pair.unpaired:
            return [name, missing(), missing(pair.unpaired), *[missing()] * 5, fair]
        row = summary.headline(pair.Index)
        return [
            name,
            str(int(pair.seeds)),
            difference_cell(summary, pair.Index, *HEADLINE),
            ends(row, "difference_over_seeds", 100, "+.2f") or words.NOTHING,
            ends(row, "difference_over_classes", 100, "+.2f") or words.NOTHING,
            words.p_value(_known(row.p)),
            words.p_value(_known(row.p_holm)),
            _hundredfold(pair.smallest),
            fair,
        ]

    claims = claims_of([pair.claim for pair in summary.pairs])
    level = f"{1 - summary.comparison.confidence:.2g}"
    return text_table(
        "Concatenated MAP@R, arm − base",
        (
            *("pair", "n", "difference", "over seeds", "over classes", "p", "p, Holm"),
            *("found at 80 %", "fair"),
        ),
        map(cells, summary.pairs),
        words=("fair",),
        page_only=("over seeds", "over classes", "found at 80 %"),
        remarks=[
            "Points of percent, paired by seed. The interval below the difference is the "
            f"{percent(summary)} one over seeds and test classes, not adjusted. p: two-sided "
            f"sign-flip test over seeds; Holm: adjusted for the {claims}. Bold: adjusted p ≤ "
            f"{level}. Found at 80 %: the smallest true difference that as many seeds with this "
            "spread find four times in five, after the adjustment. Fair: equal protocols, or "
            "different in declared fields alone, and equally many trials and first settings.",
        ],
    )


def norm_table(summary: Summary) -> Table[Texts]:
    """Return norms of test embeddings, and where they were measured steps and speeds."""
    keys = dict.fromkeys(key[1:] for key in summary.figures.index if key[1] in _OTHERS)

    def cell(arm: str, view: str, metric: str) -> Cell:
        row = summary.row(arm, view, metric)
        if row is None:
            return missing()
        bound = "≥ " if "lower bound" in str(row.reason) else ""
        limits = ends(row, "mean_over_seeds", 1, "#.3g") or "n=1"
        return Cell(bound + words.number(row["mean"], "#.3g"), limits)

    return text_table(
        "Norms, steps and speed",
        ("arm", *(metric.replace("_", " ") for _, metric in keys)),
        [(arm, *(cell(arm, *key) for key in keys)) for arm in summary.arms.index],
        remarks=[_OF_OTHERS],
    )


def setting_table(summary: Summary) -> Table[Texts]:
    """Return the best setting of each arm, and what the arm was given and took."""

    def searched(arm: Any) -> str:
        values = (f"{name} = {value:.4g}" for name, value in (arm.setting or {}).items())
        return "; ".join(values) or "nothing is searched"

    rows = [
        (
            arm.Index,
            Cell(str(arm.trials), f"{arm.failed_trials} failed, {arm.first_settings} given"),
            _hundredfold(arm.validation),
            Cell(words.NOTHING, arm.missing, withheld=True)
            if arm.setting is None
            else Cell(searched(arm), _shorter("; ".join(filter(None, (arm.loss, arm.penalty))))),
            f"{arm.trial_seconds:,.0f} + {arm.final_seconds:,.0f}",
        )
        for arm in summary.of_arms
    ]
    return text_table(
        "Best settings and costs",
        ("arm", "trials", "validation MAP@R, %", "searched values", "seconds, trials + final runs"),
        rows,
        words=("searched values",),
        remarks=["Chosen by the mean validation MAP@R over the folds, never by test classes."],
    )


def paired_trial_table(summary: Summary) -> Table[Texts] | None:
    """Return what the same settings gave with and without what the arm has besides."""
    rows: list[Texts] = []
    for arm in summary.arms.index:
        row = summary.row(arm, "trials", HEADLINE[1])
        if row is not None:
            cell = difference_cell(summary, arm, "trials", HEADLINE[1])
            pair = f"{arm} − {row.against}"
            rows.append((pair, str(row.n), cell, words.p_value(_known(row.p))))
    remark = (
        "Validation MAP@R of the same settings, tried with and without what the arm has besides, "
        "in points, with Student's interval and the sign-flip test over settings. The base's "
        "search proposed the settings, which favours the base."
    )
    headings = ("pair", "settings", "mean difference", "p")
    caption = "The same trials with and without"
    return text_table(caption, headings, rows, remarks=[remark]) if rows else None


def origin_table(summary: Summary) -> Table[Texts]:
    """Return the common protocol, and where the figures come from."""
    names = ("command", "versions", "device", "data", "comparison_sha256", "split_sha256", "seeds")
    manifest = {name: summary.results.manifest[name] for name in names}
    facts = {**to_dict(summary.comparison.protocol), **manifest, "report": provenance_of(None)}
    return facts_table("Protocol and origin", {k: words.setting(v) for k, v in facts.items()})


def to_latex(summary: Summary) -> str:
    """Return the headline table for LaTeX with the package booktabs."""
    table, metrics = headline_table(summary), headline_metrics(summary)
    width = len(metrics) * len(VIEWS)
    rows = [
        [_tex_cell(cell) for cell in cells] if len(cells) == width else ["--"] * width
        for _, *cells in table.cells
    ]
    frame = pd.DataFrame(
        rows,
        index=[name.text.translate(_TEX) for name, *_ in table.cells],
        columns=pd.MultiIndex.from_product(
            [VIEWS, [c.heading for c in table.columns[1:][: len(metrics)]]]
        ),
    )
    comment = (
        "% Needs booktabs. Percent, mean and half the interval over seeds; bold: the adjusted "
    )
    comment += "test declares a difference from the base.\n"
    return comment + frame.to_latex(multicolumn_format="c", column_format="l" + "c" * width)


def _tex_cell(cell: Cell) -> str:
    if cell.withheld:
        return "--"
    value, _, half = cell.text.partition(_PLUS_MINUS)
    text = f"\\textbf{{{value}}}" if cell.strong else value
    return f"{text} $\\pm$ {half}" if half else text


# ---------------------------------------------------------------- numbers as words


def missing(reason: str = "") -> Cell:
    """Return what stands where a figure cannot be given."""
    return Cell(words.NOTHING, reason, withheld=True)


def ends(row: Any, name: str, scale: float, form: str) -> str:
    """Return an interval of a row as ``[low, high]``; empty if there is none."""
    if row is None or math.isnan(row[f"{name}_low"]):
        return ""
    low, high = (words.number(scale * row[f"{name}_{end}"], form) for end in ("low", "high"))
    return f"[{low},\N{NO-BREAK SPACE}{high}]"


def difference_cell(summary: Summary, arm: str, view: str, metric: str) -> Cell:
    """Return a difference in points of percent with its interval."""
    row = summary.row(arm, view, metric)
    if row is None or math.isnan(row.difference):
        return missing()
    over = "joint" if not math.isnan(row.difference_joint_low) else "over_seeds"
    small = ends(row, f"difference_{over}", 100, "+.2f") or "n=1"
    return Cell(points(row.difference), small, strong=summary.declared(arm, view, metric))


def plus_minus(row: Any) -> str:
    """Return percent with half the interval over seeds: ``26.70 ± 0.23``; one run is marked."""
    text, half = f"{100 * row['mean']:.2f}", row.mean_over_seeds_high - row.mean_over_seeds_low
    if math.isnan(half):
        return f"{text} (n=1)" if row.n == 1 else text
    return f"{text}{_PLUS_MINUS}{50 * half:.2f}"


def points(share: float, decimals: int = 2) -> str:
    """Return a difference of shares in points of percent, with a sign, which a zero has not."""
    text = words.number(100 * share, f"+.{decimals}f")
    return text if text.strip("+−0.") else text.lstrip("+−")


def percent(summary: Summary) -> str:
    """Return the confidence of the intervals."""
    return f"{100 * summary.comparison.confidence:g} %"


def _known(value: float) -> float | None:
    return None if math.isnan(value) else value


def _hundredfold(share: float) -> str:
    return words.NOTHING if math.isnan(share) else words.number(100 * share, ".2f")


def _shorter(text: str) -> str:
    """Write long decimals of a recipe with six digits; results.json has all."""
    return re.sub(r"\d+\.\d{6,}(e-?\d+)?", lambda match: f"{float(match[0]):.6g}", text)
