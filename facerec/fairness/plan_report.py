"""What a plan says: its table, and the curves of its power."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from facerec.fairness.plan import Answer, Curve, Plan
from facerec.report import words
from facerec.report.figures import SMALL, legend, new_figure, note, styles
from facerec.report.table import Cell, Column, Table
from facerec.statistics.intervals import wilson


def answer_table(plan: Plan) -> Table[Answer]:
    """Return what is needed, or what is found, for each number of images a subject."""
    question = plan.question

    def subjects(answer: Answer) -> Cell:
        if answer.reason:
            return Cell(words.NOTHING, answer.reason, withheld=True)
        by_group = " + ".join(f"{size:,}" for size in answer.sizes)
        small = by_group if len(answer.sizes) > 1 else ""
        if plan.searched == "people":
            small = f"{small}\n{words.limits(answer.limits, form=',.0f')}".strip()
        return Cell(f"{answer.subjects:,}", small)

    def effect(answer: Answer) -> Cell:
        if answer.effect is None:
            return Cell(words.NOTHING, withheld=True)
        small = words.limits(answer.limits, form=".4g") if plan.searched == "effect" else ""
        return Cell(question.said(answer.effect), small)

    def count(number: int | None) -> str:
        return words.NOTHING if number is None else f"{number:,}"

    columns: list[Column[Answer]] = [
        Column("images a subject", lambda row: f"{row.images:,}", lambda row: row.images, "images"),
        Column("subjects", subjects, lambda row: row.subjects or None, "people"),
        Column("images", lambda row: count(row.subjects * row.images or None)),
        Column("mated", lambda row: count(row.mated), lambda row: row.mated, "mated"),
        Column(
            "non-mated", lambda row: count(row.non_mated), lambda row: row.non_mated, "nonmated"
        ),
        Column(question.effect, effect, lambda row: row.effect, "effect"),
        Column(
            "power [95 %]",
            lambda row: Cell(
                words.percent(row.power.value, 1), words.percent_limits(row.power.interval)
            ),
            lambda row: row.power,
            "power",
        ),
    ]
    return Table("", columns, plan.answers)


def power_figure(plan: Plan) -> Figure | None:
    """Draw the power by subjects or effect, a curve for each number of images; None without any.

    Whiskers are Wilson's intervals of what was simulated; lines are the fits.
    """
    drawn = [answer for answer in plan.answers if answer.trials]
    if not drawn:
        return None
    figure, axes = new_figure(6.4, 4.2)
    named = styles([f"{words.counted(answer.images, 'image')} a subject" for answer in drawn])
    offset = plan.question.effect_of(0.0) if plan.searched == "effect" else 0.0
    axes.axhline(plan.power, color="0.2", linewidth=0.9)
    for style, answer in zip(named, drawn, strict=True):
        at = np.array([trial.at - offset for trial in answer.trials])
        values = np.array([trial.successes / trial.audits for trial in answer.trials])
        ends = [wilson(trial.successes, trial.audits) for trial in answer.trials]
        below = values - [end.low for end in ends]
        above = [end.high for end in ends] - values
        axes.errorbar(
            at,
            values,
            [below, above],
            color=style.colour,
            marker=style.marker,
            linestyle="",
            markersize=4,
            elinewidth=1,
        )
        shifted = [replace(trial, at=trial.at - offset) for trial in answer.trials]
        curve = Curve.through(shifted, plan.power)
        if curve is not None:
            grid = np.geomspace(at.min(), at.max(), 100)  # no further than was simulated
            axes.plot(
                grid, [curve.power(x) for x in grid], color=style.colour, linestyle=style.line
            )
    axes.set_xscale("log")
    # Often less than a decade, and subjects are read as numbers, not as powers of ten.
    axes.xaxis.set_major_locator(LogLocator(subs=(1, 1.5, 2, 3, 4, 5, 7)))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,g}"))
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.set_ylim(0, 1.02)
    label = "subjects in all groups"
    if plan.searched == "effect":
        label = plan.question.effect + (f" − {offset:g}" if offset else "")
    axes.set_xlabel(label, fontsize=SMALL)
    axes.set_ylabel("share of drawn audits that find it", fontsize=SMALL)
    axes.tick_params(labelsize=SMALL)
    note(axes, f"{plan.question.text} Line: a power of {plan.power:g}.")
    legend(figure, named)
    return figure
