"""What a study of SEC and groups found, in sentences and tables, as Markdown."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import facerec
from facerec.fairness.association import Association
from facerec.fairness.baseline import BaselineComparison, Change
from facerec.fairness.findings import OF_A_PAGE
from facerec.fairness.study import ARMS, FairnessStudy, GroupExcess, KnownTruth, SetResult
from facerec.report import words
from facerec.report.table import Column, Table, escape_markdown
from facerec.statistics.intervals import Interval

QUESTION = (
    "Are raw embedding norms associated with {attribute}, and does SEC change that, or the error "
    "rates by group?"
)

_LIMITS = {
    "generated": "Generated faces are drawings with a planted difference in image quality: they "
    "show whether the audit finds what is known to be there, and say nothing about people.",
    "seeds": "A seed changes weights, order and augmentation of training, not the training "
    "images; other training images may give other changes.",
    "thresholds": "Thresholds are fixed on the same images; resamples take them as given.",
    "penalty": "One weight of the penalty, one backbone and one margin were tried.",
}


def answer(plan: FairnessStudy, result: SetResult) -> Iterator[str]:
    """Yield what was found on one set of images, one sentence each."""
    for arm, side in zip(ARMS, ("Without SEC", "With SEC"), strict=True):
        yield f"{side}, {_association(result, arm)}"
    changes = [result.comparison.find("η²")]
    changes += [
        result.comparison.find(f"max/geomean {of} at FMR={plan.target}", "raw")
        for of in ("FMR", "FNMR")
    ]
    names = ("the association (η²)", "the FMR differential", "the FNMR differential")
    for name, change in zip(names, changes, strict=True):
        yield f"Change of {name} with SEC: {_sentence(change)}"


def answer_page(
    plan: FairnessStudy,
    results: Sequence[SetResult],
    smoke: bool,
    command: str,
    cost: Mapping[str, Any],
) -> Iterator[str]:
    """Yield the lines of the whole answer, in Markdown.

    ``cost`` has ``seconds``, ``cores``, and the runs that were ``trained`` and ``complete_before``.
    """
    yield "# Does SEC change what norms and error rates have to do with groups?"
    if smoke:
        yield "\n**A smoke run: it shows that everything works. Its figures mean nothing.**"
    for result in results:
        faces, comparison = result.faces, result.comparison
        yield f"\n## {faces.title}\n"
        yield f"Question: {QUESTION.format(attribute=f'`{faces.attribute}`')}\n"
        yield from (f"- {line}" for line in answer(plan, result))
        yield (
            f"\n{comparison.images:,} images of {comparison.subjects:,} subjects; groups "
            f"{', '.join(comparison.groups)} where recorded; error rates by group from "
            f"{comparison.policy}. "
            f"{words.counted(len(plan.seeds), 'seed')} an arm, {comparison.replicates:,} joint "
            "resamples of subjects. Intervals are 95 %.\n"
        )
        yield from _table(comparison)
        yield from _known(plan, result)
        for note in comparison.notes:
            yield f"\nNote: {note}."
    yield "\n## How to read this\n"
    yield from (f"- {text}" for text in results[0].comparison.reading)
    yield "\n## Limits\n"
    yield from (f"- {text}" for text in _limits(results))
    yield "\n## Reproduce\n"
    yield f"```\n{command}\n```\n"
    yield (
        f"facerec {facerec.__version__}, {cost['cores']} cores; {cost['trained']} runs trained and "
        f"{cost['complete_before']} complete before, {cost['seconds']:.0f} seconds in all. "
        "Settings, figures of every seed and model hashes are in study.json."
    )


def _association(result: SetResult, arm: str) -> str:
    """Say how norms go with the groups in one arm, seed by seed."""
    estimates = []
    for run in result.runs:
        association = run.audit.groupings[0].association
        if run.trained.arm != arm:
            continue
        if not isinstance(association, Association):
            return f"norms by {result.faces.attribute} cannot be compared: {association.reason}"
        value = association.eta2.value
        shown = "undefined" if value is None else words.number(value)
        limits = _limits_of(association.eta2.interval)
        estimates.append(f"{shown} {limits} (seed {run.trained.seed}, p = {association.p:.2g})")
    association = result.runs[0].audit.groupings[0].association
    assert isinstance(association, Association)
    least = (
        ""
        if association.mde_eta2 is None
        else f"; detectable from {words.number(association.mde_eta2)}"
    )
    return (
        f"η² of subjects' mean norms by {result.faces.attribute} is {', '.join(estimates)}; "
        f"{association.subjects:,} subjects{least}."
    )


def _sentence(change: Change) -> str:
    """Say what became of a figure."""
    if change.value is None:
        return f"insufficient data ({change.remark})."
    count = len(change.seeds)
    signs = "" if count == 1 else f", the same sign in {change.same_sign} of {count} seeds"
    text = (
        f"{_signed(change.value)} {_limits_of(change.interval)} (from "
        f"{words.number(change.baseline)} to {words.number(change.treated)}{signs}): "
        f"{change.conclusion}"
    )
    if change.interval is None:
        return f"{text} ({change.remark})."
    return f"{text}{', of these two models alone' if count == 1 else ''}."


def _table(comparison: BaselineComparison) -> Iterator[str]:
    def known(show: Callable[[Change], str]) -> Callable[[Change], str]:
        return lambda change: "" if change.value is None else show(change)

    columns: list[Column[Change]] = [
        Column("figure", lambda change: change.name),
        Column("tells of", lambda change: change.role, words=True),
        Column("without SEC", known(lambda change: words.number(change.baseline))),
        Column("with SEC", known(lambda change: words.number(change.treated))),
        Column(
            "change [95 %]",
            known(lambda change: f"{_signed(change.value)} {_limits_of(change.interval)}"),
        ),
        Column("other subjects", known(lambda change: _limits_of(change.over_subjects))),
        Column("other seeds", known(lambda change: _limits_of(change.over_seeds))),
        Column("same sign", known(lambda change: f"{change.same_sign}/{len(change.seeds)}")),
        Column("conclusion", lambda change: change.conclusion, words=True),
    ]
    yield Table("", columns, comparison.changes).markdown()
    lacking = [change for change in comparison.changes if change.remark]
    if lacking:
        yield ""
    yield from (f"- {escape_markdown(f'{change.name}: {change.remark}')}" for change in lacking)


def _known(plan: FairnessStudy, result: SetResult) -> Iterator[str]:
    """Hold what every audit found against what was planted."""
    if not result.known:
        return
    harder = plan.harder
    yield (
        f"\n### Known truth\n\nOther people than above. Photos of group {harder.name} are far "
        f"worse than in training (contrast × {harder.contrast:g}, blur of {harder.blur:g} pixels, "
        f"noise of {harder.noise:g} grey levels), those of the control are all alike. Excess of "
        f"the error rates of {harder.name} over the others' at FMR {plan.target}:\n"
    )

    def own(run: KnownTruth, of: str) -> GroupExcess | None:
        wanted = (of, harder.name, plan.target)
        return next((one for one in run.excess if (one.of, one.group, one.target) == wanted), None)

    def excess(of: str, run: KnownTruth) -> str:
        one = own(run, of)
        return "none" if one is None else f"{_signed(one.value)} {_limits_of(one.interval)}"

    def detected_rates(run: KnownTruth) -> str:
        higher = [of for of in ("FMR", "FNMR") if (one := own(run, of)) and one.higher]
        return " and ".join(higher) or "no"

    columns: list[Column[KnownTruth]] = [
        Column("run", lambda run: run.run),
        Column(
            "photos",
            lambda run: f"{harder.name} harder" if run.faces == "harder" else "control",
            words=True,
        ),
        *(Column(f"excess {of}", partial(excess, of)) for of in ("FMR", "FNMR")),
        Column("told apart", detected_rates, words=True),
    ]
    yield Table("", columns, result.known).markdown()


def _limits(results: Sequence[SetResult]) -> Iterator[str]:
    """Yield the caveats of all audits and those of the study."""
    caveats = [text for result in results for text in result.runs[0].audit.caveats]
    yield from dict.fromkeys(text for text in caveats if text not in OF_A_PAGE)
    yield from _LIMITS.values()


def _signed(value: float | None) -> str:
    return words.number(value, "+.3g") if value else "0"


def _limits_of(interval: Interval | None) -> str:
    if interval is None or not all(map(math.isfinite, (interval.low, interval.high))):
        return "[–]"
    return f"[{_signed(interval.low)}, {_signed(interval.high)}]".replace("+", "")
