"""Tables of a comparison: cells for people on a page, in a terminal and in LaTeX."""

from __future__ import annotations

import math
from typing import Any

import pandas as pd

from facerec.comparison.protocol import FIGURES, UNTRAINED, figure_title
from facerec.comparison.summary import HEADLINE, Summary
from facerec.report import words
from facerec.report.table import Cell, Table
from facerec.statistics.intervals import Interval

COLUMNS = ("precision_at_1", "r_precision", "map_at_r")
"""Of the headline table, in the Reality Check's order."""


def headline_table(summary: Summary) -> Table:
    """Return the retrieval figures of all arms."""
    asked = [name for name in summary.comparison.figures if name not in FIGURES]
    metrics = (*COLUMNS, *asked)
    keys = [(view, metric) for view in ("concatenated", "separated") for metric in metrics]
    titles = [figure_title(metric) for metric in metrics]
    separated = [f"separated {title}" for title in titles]

    def cell(arm: str, view: str, metric: str) -> Cell:
        row = summary.row(arm, view, metric)
        if row is None:
            return missing()
        strong = summary.declared(arm, view, metric)
        return Cell(plus_minus(row), ends(row, "mean_joint", 100, ".2f"), strong=strong)

    def name(arm: str) -> Cell:
        if arm == UNTRAINED:
            return Cell(arm)
        row = summary.headline(arm)
        return Cell(arm, summary.arms.missing[arm] if row is None else f"n={row.n}")

    return Table(
        "Retrieval on the test classes",
        ("arm", *titles, *separated),
        [
            [name(arm), *(cell(arm, *key) for key in keys)]
            for arm in [UNTRAINED, *summary.arms.index]
        ],
        page_only=separated,
        remarks=[
            f"Percent: mean ± half the {_level(summary)} interval over n seeds; below it the "
            "interval over seeds and test classes. Bold: the adjusted test declares a difference "
            "from the base. Arms share test classes: differences are known better than each arm."
        ],
    )


def pair_table(summary: Summary) -> Table:
    """Return the headline differences with their tests."""

    def cells(pair: Any) -> list[Cell | str]:
        row = summary.headline(pair.Index)
        p = [math.nan] * 2 if pair.unpaired else [row["p"], row["p_holm"]]
        return [
            f"{pair.Index} − {pair.against}",
            str(int(pair.seeds)),
            difference_cell(summary, pair.Index, *HEADLINE, pair.unpaired),
            *(words.p_value(None if math.isnan(each) else each) for each in p),
            _hundredfold(pair.smallest),
            difference_cell(summary, pair.Index, "trials", HEADLINE[1]),
            Cell("not fair" if pair.unfair else "fair", pair.unfair or pair.declared),
        ]

    return Table(
        "Concatenated MAP@R, arm − base",
        ("pair", "n", "difference", "p", "p, Holm", "found at 80 %", "same trials", "fair"),
        map(cells, summary.pairs),
        words=("fair",),
        page_only=("found at 80 %", "same trials"),
        remarks=[
            f"Points of percent, paired by seed; {_level(summary)} interval over seeds and test "
            "classes, not adjusted. p: two-sided sign-flip test over seeds; Holm: adjusted for the "
            "pairs that differ in the same way, in loss, penalty, protocol or search. Found at "
            "80 %: the smallest true difference that as many seeds with this spread find, after "
            "the adjustment. Same trials: difference in validation at the same settings. Fair: "
            "protocols differ in declared fields at most, and trials are equally many."
        ],
    )


def arm_table(summary: Summary) -> Table:
    """Return norms of test embeddings, how many steps an arm takes, its best setting and costs."""
    others = ("models", "validation")
    keys = dict.fromkeys(key[1:] for key in summary.figures.index if key[1] in others)

    def cell(arm: str, view: str, metric: str) -> Cell:
        row = summary.row(arm, view, metric)
        if row is None or math.isnan(row["mean"]):
            return missing("" if row is None else row.reason)
        return Cell(words.number(row["mean"], "#.3g"), ends(row, "mean_over_seeds", 1, "#.3g"))

    def cells(arm: Any) -> list[Cell | str]:
        searched = "; ".join(f"{name} = {value:.4g}" for name, value in (arm.setting or {}).items())
        return [
            arm.Index,
            *(cell(arm.Index, *key) for key in keys),
            _hundredfold(arm.validation),
            Cell(searched or words.NOTHING, arm.missing),
            Cell(str(arm.trials), f"{arm.failed_trials} failed"),
            f"{arm.trial_seconds:,.0f} + {arm.final_seconds:,.0f}",
        ]

    figures = (metric.replace("_", " ") for _, metric in keys)
    last = ("validation MAP@R, %", "searched values", "trials", "seconds, trials + final runs")
    return Table(
        "Norms, speed, settings and costs",
        ("arm", *figures, *last),
        map(cells, summary.arms.itertuples()),
        words=("searched values",),
        remarks=[
            "Norms of raw test embeddings, with intervals over seeds; norm cv2 is their variance "
            "over their squared mean. Steps to 90 %: those of the arm over those of its base to "
            "that share of the base's final validation MAP@R, median over seeds. Settings are "
            "chosen by the mean validation MAP@R over the folds, never by test classes."
        ],
    )


def to_latex(summary: Summary) -> str:
    """Return the headline table for LaTeX with the package booktabs."""
    table = headline_table(summary)
    rows = [[cell.text for cell in cells] for cells in table.cells]
    frame = pd.DataFrame(rows, columns=list(table.headings))
    style = "l" + "c" * (len(table.headings) - 1)
    return frame.to_latex(index=False, escape=True, column_format=style)


# ---------------------------------------------------------------- numbers as words


def missing(reason: str = "") -> Cell:
    """Return what stands where a figure cannot be given."""
    return Cell(words.NOTHING, reason, withheld=True)


def ends(row: Any, name: str, scale: float, form: str) -> str:
    """Return an interval of a row as ``[low, high]``; empty if there is none."""
    low, high = row[f"{name}_low"], row[f"{name}_high"]
    return "" if math.isnan(low) else words.limits(Interval(low, high), scale, form)


def difference_cell(summary: Summary, arm: str, view: str, metric: str, reason: str = "") -> Cell:
    """Return a difference in points of percent with its interval."""
    row = summary.row(arm, view, metric)
    if row is None or math.isnan(row.difference):
        return missing(reason)
    over = "over_seeds" if math.isnan(row.difference_joint_low) else "joint"
    text = words.number(100 * row.difference, "+.2f")
    if not text.strip("+−0."):
        text = text.lstrip("+−")  # a zero has no sign
    limits = ends(row, f"difference_{over}", 100, "+.2f")
    return Cell(text, limits, strong=summary.declared(arm, view, metric))


def plus_minus(row: Any) -> str:
    """Return percent with half the interval over seeds: ``26.70 ± 0.23``."""
    half = 50 * (row.mean_over_seeds_high - row.mean_over_seeds_low)
    after = "" if math.isnan(half) else f"\N{NO-BREAK SPACE}±\N{NO-BREAK SPACE}{half:.2f}"
    return f"{100 * row['mean']:.2f}{after}"


def _level(summary: Summary) -> str:
    return f"{100 * summary.comparison.confidence:g} %"


def _hundredfold(share: float) -> str:
    return words.NOTHING if math.isnan(share) else words.number(100 * share, ".2f")
