"""Tables of a comparison: cells for people on a page, in a terminal and in LaTeX."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import pandas as pd

from facerec.comparison.protocol import FIGURES, UNTRAINED, figure_title
from facerec.comparison.summary import HEADLINE, Summary
from facerec.report import words
from facerec.report.table import Cell, Table, text_table

COLUMNS = ("precision_at_1", "r_precision", "map_at_r")
"""Of the headline table, in the Reality Check's order."""

Texts = Sequence[Cell | str]


def headline_table(summary: Summary) -> Table:
    """Return the retrieval figures of all arms."""
    asked = [name for name in summary.comparison.figures if name not in FIGURES]
    keys = [("concatenated", metric) for metric in (*COLUMNS, *asked)]
    keys += [("separated", metric) for metric in (*COLUMNS, *asked)]
    titles = {key: figure_title(key[1]) for key in keys}
    titles |= {
        key: f"{key[0]} {title}" for key, title in titles.items() if key[0] != "concatenated"
    }

    def cell(arm: str, view: str, metric: str) -> Cell:
        row = summary.row(arm, view, metric)
        if row is None:
            return missing()
        strong = summary.declared(arm, view, metric)
        return Cell(plus_minus(row), ends(row, "mean_joint", 100, ".2f"), strong=strong)

    def name(arm: str) -> Cell:
        row = summary.headline(arm)
        few = row is not None and row.n != summary.comparison.repetitions
        why = "" if arm == UNTRAINED else summary.arms.missing[arm]
        return Cell(arm, f"n={row.n}" if few and arm != UNTRAINED else why)

    return text_table(
        "Retrieval on the test classes",
        ("arm", *titles.values()),
        [
            [name(arm), *(cell(arm, *key) for key in keys)]
            for arm in [UNTRAINED, *summary.arms.index]
        ],
        page_only=[title for (view, _), title in titles.items() if view == "separated"],
        remarks=[
            f"Percent: mean ± half the {percent(summary)} interval over seeds, in the Reality "
            "Check's form; below it the interval over seeds and test classes. Bold: the adjusted "
            "test declares the arm different in this figure from the one it is compared with. "
            "Arms share test classes, so their differences are known better than each of them."
        ],
    )


def pair_table(summary: Summary) -> Table:
    """Return the headline differences with their tests."""

    def cells(pair: Any) -> list[Cell | str]:
        row = summary.headline(pair.Index)
        tested = ("p", "p_holm") if not pair.unpaired else ()
        p = [words.p_value(None if math.isnan(row[name]) else row[name]) for name in tested]
        why = "; ".join(filter(None, [pair.unfair, pair.declared and f"declared: {pair.declared}"]))
        return [
            f"{pair.Index} − {pair.against}",
            str(int(pair.seeds)),
            difference_cell(summary, pair.Index, *HEADLINE, pair.unpaired),
            *(p or [words.NOTHING] * 2),
            _hundredfold(pair.smallest),
            difference_cell(summary, pair.Index, "trials", HEADLINE[1]),
            Cell("fair" if pair.fair else "not fair", why),
        ]

    return text_table(
        "Concatenated MAP@R, arm − base",
        ("pair", "n", "difference", "p", "p, Holm", "found at 80 %", "same trials", "fair"),
        map(cells, summary.pairs),
        words=("fair",),
        page_only=("found at 80 %", "same trials"),
        remarks=[
            "Points of percent, paired by seed. The interval below the difference is the "
            f"{percent(summary)} one over seeds and test classes, not adjusted. p: two-sided "
            "sign-flip test over seeds; Holm: adjusted for the pairs that differ in the same way, "
            "in loss, penalty, protocol or search. Bold: adjusted p ≤ "
            f"{1 - summary.comparison.confidence:.2g}. Found at 80 %: the smallest true difference "
            "that as many seeds with this spread find four times in five, after the adjustment. "
            "Same trials: difference in validation of trials of the same settings, which the "
            "base's search proposed. Fair: equal protocols, or different in declared fields alone, "
            "and equally many trials and first settings."
        ],
    )


def arm_table(summary: Summary) -> Table:
    """Return norms of test embeddings, how many steps an arm takes, its best setting and costs."""
    others = ("models", "validation")
    keys = dict.fromkeys(key[1:] for key in summary.figures.index if key[1] in others)

    def cell(arm: str, view: str, metric: str) -> Cell:
        row = summary.row(arm, view, metric)
        if row is None:
            return missing()
        bound = "≥ " if "lower bound" in str(row.reason) else ""
        limits = ends(row, "mean_over_seeds", 1, "#.3g") or ("n=1" if row.n == 1 else "")
        return Cell(bound + words.number(row["mean"], "#.3g"), limits)

    def cells(arm: Any) -> list[Cell | str]:
        searched = "; ".join(f"{name} = {value:.4g}" for name, value in (arm.setting or {}).items())
        return [
            arm.Index,
            *(cell(arm.Index, *key) for key in keys),
            _hundredfold(arm.validation),
            Cell(searched or words.NOTHING, arm.missing),
            Cell(str(arm.trials), f"{arm.failed_trials} failed, {arm.first_settings} given"),
            f"{arm.trial_seconds:,.0f} + {arm.final_seconds:,.0f}",
        ]

    figures = (metric.replace("_", " ") for _, metric in keys)
    last = ("validation MAP@R, %", "searched values", "trials", "seconds, trials + final runs")
    return text_table(
        "Norms, speed, settings and costs",
        ("arm", *figures, *last),
        map(cells, summary.of_arms),
        words=("searched values",),
        remarks=[
            "Norms are those of raw test embeddings in evaluation mode, means over the folds' "
            "models, with intervals over seeds; norm cv2 is their variance over their squared "
            "mean. Steps to 90 %: those of the arm over those of its base until validation MAP@R "
            "comes to that share of the base's final one, median over seeds; below 1 the arm is "
            "quicker. Settings are chosen by the mean validation MAP@R over the folds, never by "
            "test classes."
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
    if math.isnan(row[f"{name}_low"]):
        return ""
    low, high = (words.number(scale * row[f"{name}_{end}"], form) for end in ("low", "high"))
    return f"[{low},\N{NO-BREAK SPACE}{high}]"


def difference_cell(summary: Summary, arm: str, view: str, metric: str, reason: str = "") -> Cell:
    """Return a difference in points of percent with its interval."""
    row = summary.row(arm, view, metric)
    if row is None or math.isnan(row.difference):
        return missing(reason)
    over = "over_seeds" if math.isnan(row.difference_joint_low) else "joint"
    text = words.number(100 * row.difference, "+.2f")
    if not text.strip("+−0."):
        text = text.lstrip("+−")  # a zero has no sign
    small = ends(row, f"difference_{over}", 100, "+.2f") or ("n=1" if row.n == 1 else "")
    return Cell(text, small, strong=summary.declared(arm, view, metric))


def plus_minus(row: Any) -> str:
    """Return percent with half the interval over seeds: ``26.70 ± 0.23``; one run is marked."""
    text, half = f"{100 * row['mean']:.2f}", row.mean_over_seeds_high - row.mean_over_seeds_low
    if math.isnan(half):
        return f"{text} (n=1)" if row.n == 1 else text
    return f"{text}\N{NO-BREAK SPACE}±\N{NO-BREAK SPACE}{50 * half:.2f}"


def percent(summary: Summary) -> str:
    """Return the confidence of the intervals."""
    return f"{100 * summary.comparison.confidence:g} %"


def _hundredfold(share: float) -> str:
    return words.NOTHING if math.isnan(share) else words.number(100 * share, ".2f")
