"""Tables of a comparison, for people."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from facerec.comparison.protocol import FIGURES, UNTRAINED, figure_title
from facerec.comparison.summary import HEADLINE, Summary
from facerec.report import tidy, words
from facerec.report.table import Cell, Table

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
        return Cell(plus_minus(row), tidy.said(row)[1], strong=strong)

    def name(arm: str) -> Cell:
        if arm == UNTRAINED:
            return Cell(arm)
        row = summary.headline(arm)
        return Cell(arm, summary.arms.missing[arm] if row is None else f"n={row['denominator']}")

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
        row = summary.headline(pair.Index, change=True)
        seeds, *p = [0, None, None] if row is None else map(row.get, ("denominator", "p", "p_holm"))
        return [
            f"{pair.Index} − {pair.against}",
            str(seeds),
            difference_cell(summary, pair.Index, *HEADLINE, "no seed was scored in both"),
            *map(words.p_value, p),
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
    figures = summary.figures[summary.figures["view"].isin(others)]
    keys = dict.fromkeys(zip(figures["view"], figures["figure"], strict=True))

    def cell(arm: str, view: str, metric: str) -> Cell:
        row = summary.row(arm, view, metric)
        return missing() if row is None else tidy.cell(row, counted=False)

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

    titles = (metric.replace("_", " ") for _, metric in keys)
    last = ("validation MAP@R, %", "searched values", "trials", "seconds, trials + final runs")
    return Table(
        "Norms, speed, settings and costs",
        ("arm", *titles, *last),
        map(cells, summary.arms.itertuples()),
        words=("searched values",),
        remarks=[
            "Norms of raw test embeddings, with intervals over seeds; norm cv2 is their variance "
            "over their squared mean. Steps to 90 %: those of the arm over those of its base to "
            "that share of the base's final validation MAP@R, median over seeds. Settings are "
            "chosen by the mean validation MAP@R over the folds, never by test classes."
        ],
    )


# ---------------------------------------------------------------- numbers as words


def missing(reason: str = "") -> Cell:
    """Return what stands where a figure cannot be given."""
    return Cell(words.NOTHING, reason, withheld=True)


def difference_cell(summary: Summary, arm: str, view: str, metric: str, reason: str = "") -> Cell:
    """Return a difference in points of percent with its interval."""
    row = summary.row(arm, view, metric, change=True)
    if row is None:
        return missing(reason)
    strong = summary.declared(arm, view, metric)
    return replace(tidy.cell(row, counted=False), strong=strong)


def plus_minus(row: Any) -> str:
    """Return percent with half the interval over seeds: ``26.70 ± 0.23``."""
    after = ""
    if row["seeds_low"] is not None:
        half = 50 * (row["seeds_high"] - row["seeds_low"])
        after = f"\N{NO-BREAK SPACE}±\N{NO-BREAK SPACE}{half:.2f}"
    return f"{100 * row['value']:.2f}{after}"


def _level(summary: Summary) -> str:
    return f"{100 * summary.comparison.confidence:g} %"


def _hundredfold(share: float) -> str:
    return words.NOTHING if math.isnan(share) else words.number(100 * share, ".2f")
