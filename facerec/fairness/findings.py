"""What an audit found, in at most eight sentences made by rule, and what goes with them.

A line counts comparisons, where it can, and has an estimate, its interval and what it rests on, and
one of three conclusions. There are no words of praise or blame: whether a difference matters is for
the reader to say.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from facerec.fairness import rows as names
from facerec.fairness.baseline import ETA2, geomean_of
from facerec.fairness.differentials import NAMES, RATIO, named
from facerec.fairness.groupings import ALL_GROUPS
from facerec.fairness.rates import Of
from facerec.fairness.result import Finding
from facerec.fairness.rows import At
from facerec.report import words
from facerec.report.conclusions import ALPHA, of_test
from facerec.report.estimate import Estimate
from facerec.report.tidy import Row, estimate_of, records, said
from facerec.statistics.operating_points import RULE_OF_30

Named = list[tuple[str, Estimate]]

MOST = 8
"""Findings of an audit."""

_USUAL = -3
"""Decimal logarithm of the FMR that systems are mostly compared at."""

_HAPPENS = {
    "FMR": ("comparisons of two people", "are wrongly accepted"),
    "FNMR": ("comparisons of two photos of one person", "are wrongly rejected"),
    "FPIR": ("searches of strangers", "raise an alarm"),
    "FNIR": ("searches of enrolled people", "miss them"),
}
"""What an error of each rate happens to, and what it is."""

_CAVEATS = (
    "Image quality, pose, age or the way images were collected may be the cause, as well as the "
    "model.",
    "Other people, cameras and thresholds give other figures. These certify nothing and do not "
    "predict a deployed system.",
    "Comparisons of two photos, and not people. Among rejected ones each person counts alike, "
    "however many photos there are; among accepted ones who has more photos counts more.",
    "Group labels are taken from {source}. Categories such as race or binary sex are coarse social "
    "categories and individual entries may be mistaken.",
    "Impostor pairs are drawn {policy}; other pairings would give other false-match rates.",
    "p-values of pairs of groups are Holm-adjusted. Only the test of norms between groups of the "
    "first attribute was declared in advance; all else is exploratory.",
)
BESIDE = ("Not said: why groups differ", "Not said: what holds elsewhere", "What is counted")
"""What the first caveats, which stand beside the findings, are about."""
_OF_NORMS = (
    "Under cosine scoring a norm difference cannot change a decision unless training, the fusion "
    "of raw embeddings, gating by norm or a norm shown as a confidence lets it.",
    "Not detecting a difference only excludes effects larger than the stated minimum detectable "
    "effect.",
)


def caveats(label_sources: Sequence[str], policy: str, *, norms: bool = True) -> tuple[str, ...]:
    """Return the fixed sentences of every report; ``policy`` says which impostors are compared."""
    source = "; ".join(label_sources)
    sentences = [text.format(source=source, policy=policy) for text in _CAVEATS]
    return (*sentences, *(_OF_NORMS if norms else ()))


def working_threshold(rows: pd.DataFrame, grouping: str) -> At:
    """Return the threshold of all sentences; without a target where there is none.

    It is the one that was given, or else of those at which the data carry ratios of both rates the
    nearest to 1e-3; of one rate, or of none, where there is no better.
    """
    known = names.places(names.select(rows, names.THRESHOLD, "threshold").dropna(subset=["value"]))
    given = [at for at in known if at.nominal is None]
    tested = rows["figure"].isin([named(of, RATIO) for of in NAMES]) & (rows["kind"] == "p")
    carried = names.places(rows[tested & (rows["grouping"] == grouping)])

    def order(at: At) -> tuple[int, float, float]:
        size = math.log10(at.nominal or 1)
        return -carried.count(at), abs(size - _USUAL), size

    return min(given or known, key=order, default=names.NOWHERE)


def working_searches(rows: pd.DataFrame, grouping: str) -> list[At]:
    """Return the threshold to look at first of each basis of thresholds of identification.

    It is the lowest target with 30 false alarms where the threshold was set, or else the highest.
    """
    found = names.select(rows, names.FPIR_THRESHOLD, "threshold", grouping=grouping)
    chosen = []
    for _, of in found.dropna(subset=["value"]).groupby("basis", sort=False):
        of = of.sort_values("numerator")
        enough = of[of["numerator"] >= RULE_OF_30]
        chosen += names.places(of.tail(1) if enough.empty else enough.head(1))
    return chosen


def at_threshold(rows: pd.DataFrame, at: At) -> str:
    """Say at which threshold error rates are; empty without any."""
    if not at.target:
        return ""
    (row,) = records(names.select(rows, names.THRESHOLD, "threshold", at))
    told, rate = words.threshold(row["value"]), at.nominal
    if rate:
        told += f", at which {rate.numerator:,} in {rate.denominator:,} {' '.join(_HAPPENS['FMR'])}"
    return f"Error rates are at one threshold for everybody: {told} ({row['remark']})."


def not_compared(rows: pd.DataFrame, grouping: str, at: At) -> Iterator[str]:
    """Say which groups are not compared, why, and their own rates."""
    for of, figure in NAMES.items():
        for group, why in names.estimates(rows, figure, grouping=grouping).items():
            own = dict[str, Any](grouping=grouping, group=group)
            told = [
                f"{rate} {_share(row)}"
                for rate in NAMES
                for row in records(names.select(rows, rate, at=at, **own))
            ]
            if group:
                yield (
                    f"{grouping}: {group} is left out where {of}s are compared ({figure}): "
                    f"{why.remark}. Its own rates: {', '.join(told) or 'none'}."
                )


def findings_of(rows: pd.DataFrame, groupings: Sequence[str]) -> tuple[Finding, ...]:
    """Return the findings, the largest ratio that is detected first, what is not known last.

    Of identification only differences that are detected make lines; so do changes from a baseline.
    If there are too many lines, those on later groupings are left out.
    """
    lines: list[Finding] = []
    at = working_threshold(rows, groupings[0])
    for number, grouping in enumerate(groupings):
        lines += _association(rows, grouping, exploratory=number > 0)
        for of in NAMES:
            lines += _rates(rows, grouping, of, at)
        lines += [*_searches(rows, grouping), *_changes(rows, grouping, at)]
    order = [of_test(p) for p in (0, 1, None)]
    lines = sorted(lines[:MOST], key=lambda line: -abs(np.log(line.ratio or 1)))
    return tuple(sorted(lines, key=lambda line: order.index(line.conclusion)))


def verdict(findings: Sequence[Finding]) -> str:
    """Return the sentence at the head of a report: what of it was detected."""
    detected = sum(finding.conclusion == "difference detected" for finding in findings)
    if not detected:
        few = sum(finding.conclusion == "insufficient data" for finding in findings)
        return (
            "No difference between groups is detected, which is no sign that there is none: "
            f"{few} of {words.counted(len(findings), 'finding')} had insufficient data."
        )
    return (
        f"A difference between groups is detected in {detected} of "
        f"{words.counted(len(findings), 'finding')}: one that would appear in fewer than 1 of 20 "
        "audits if there were none."
    )


def _association(rows: pd.DataFrame, grouping: str, *, exploratory: bool) -> Iterator[Finding]:
    eta2 = names.estimates(rows, names.ETA2, grouping=grouping).get("")
    if eta2 is None:
        return
    p = names.value_of(rows, names.ETA2, "p", grouping=grouping)
    people = words.counted(eta2.total or 0, "subject")
    if eta2.value is None or p is None:
        yield Finding(
            f"Norms cannot be compared between groups of {grouping}",
            "insufficient data",
            f"{people}; {eta2.remark}",
            exploratory=exploratory,
        )
        return
    detail = [people, f"η² {words.number(eta2.value)}", f"p = {words.p_value(p)}"]
    if p < ALPHA:
        means = names.estimates(rows, names.NORM, grouping=grouping)
        means.pop(ALL_GROUPS)
        (longest, high), (shortest, low) = _ends(means)
        detail.append(
            f"longest in {longest} {words.number(high.value, '.4g')}, "
            f"shortest in {shortest} {words.number(low.value, '.4g')}"
        )
    else:
        least = names.value_of(rows, names.DETECTABLE, grouping=grouping)
        detail.append(f"η² from {words.number(least, '.2g')} would mostly have been detected")
    yield Finding(
        f"{'' if p < ALPHA else 'Cannot tell whether norms differ: '}{_percent(eta2.value)} "
        f"{words.limits(eta2.interval, 100)} of the variance of people's mean norms (lengths of "
        f"embeddings) lies between groups of {grouping}",
        of_test(p),
        "; ".join(detail),
        exploratory=exploratory,
    )


def _rates(rows: pd.DataFrame, grouping: str, of: Of, at: At) -> Iterator[Finding]:
    """Yield the ratio of rates at a threshold, or why the data do not tell it."""
    figure, where = named(of, RATIO), dict[str, Any](grouping=grouping, at=at)
    absent = names.estimates(rows, NAMES[of], grouping=grouping)
    told = {
        group: rate
        for group, rate in names.estimates(rows, of, **where).items()
        if rate.value is not None and not rate.unresolved and group not in (ALL_GROUPS, *absent)
    }
    many, happens = _HAPPENS[of]
    detail: list[str] = []
    said = f"Cannot tell how many {many} {happens} by {grouping}"
    if several := len(told) > 1:
        said, detail = _counts(of, _ends(told))
        said += f", the most and the least of {len(told)} groups" * (len(told) > 2)
        detail.insert(0, at.said)
    lacking = names.estimates(rows, "FMR", grouping=grouping, group="") | absent
    none = lacking.get("", Estimate(None, remark="no threshold"))
    ratio = names.estimates(rows, figure, "ratio", **where).get("", none)
    p = names.value_of(rows, figure, "p", **where)
    if p is None:
        said += ": cannot tell how many times" * several
        reason = ratio.remark or "equal rates cannot be simulated"
        detail.append(f"{words.UNRESOLVED}: {reason}" if ratio.unresolved else reason)
    else:
        times = f"{words.number(ratio.value)} times {words.limits(ratio.interval)}"
        unknown = f"cannot tell, between 1 and {words.number(ratio.high)} times"
        said += f": {times if p < ALPHA else unknown}"
        detail.append(f"p = {words.p_value(p)}")
    yield Finding(said, of_test(p), "; ".join(detail), ratio.value)


def _ends(figures: Mapping[str, Estimate]) -> Named:
    """Return the highest figure of a group and the lowest."""
    ordered = sorted(figures.items(), key=lambda figure: figure[1].value or 0.0)
    return [ordered[-1], ordered[0]]


def _counts(rate: str, ends: Named) -> tuple[str, list[str]]:
    """Return a clause that counts the errors of two groups, and the limits of both."""
    many, happens = _HAPPENS[rate]
    least = min(share.value or 1.0 for _, share in ends)
    base = 100 if least >= 0.05 else 1000 if least >= 0.005 else 0
    clause, limits = [], []
    for (group, share), noun in zip(ends, (f"{many} recorded", ""), strict=True):
        # Of few comparisons all are said; without an error the rate is below its upper limit.
        said = f"at most {natural(share.high or 1.0, 0, noun)}"
        if share.value:
            said = natural(share.value, min(base, share.total or 0), noun)
        clause.append(f"{said} as {group}")
        span = " to ".join(natural(end, base) for end in (share.low, share.high) if end)
        span = "up to " * (share.low == 0) + span.replace(f" of {base:,} to", " to")
        limits.append(f"{group} {span or 'without an interval'} ({share.events:,}/{share.total:,})")
    return f"{' and '.join(clause)} {happens}", limits


def natural(share: float, of: int, many: str = "") -> str:
    """Return a share as a count of cases, or as 1 in a number of them where ``of`` is 0.

    Examples:
        >>> natural(0.354, 100, "searches"), natural(4.3e-5, 0, "comparisons")
        ('35 of 100 searches', '1 in 23,000 comparisons')
    """
    if of:
        return f"{of * share:.0f} of {of:,} {many}".rstrip()
    cases = float(f"{1 / share:.2g}")
    return f"1 in {cases:,.{0 if cases >= 10 else 1}f} {many}".rstrip()


def _searches(rows: pd.DataFrame, grouping: str) -> Iterator[Finding]:
    """Yield the largest detected ratio of FPIR and of FNIR to the group compared with."""
    for at in working_searches(rows, grouping)[:1]:
        for figure in ("FPIR", "FNIR"):
            where = dict[str, Any](grouping=grouping, at=at)
            ratios = names.select(rows, figure, "ratio", **where)
            ratios = ratios[(ratios["low"] > 1) | (ratios["high"] < 1)]
            if ratios.empty:
                continue
            (largest,) = records(ratios.loc[[np.log(ratios["value"]).abs().idxmax()]])
            ratio, of = estimate_of(largest), names.estimates(rows, figure, **where)
            ends = [(group, of[group]) for group in (largest["group"], largest["other"])]
            said, detail = _counts(figure, ends)
            yield Finding(
                f"{said}: {words.number(ratio.value)} times {words.limits(ratio.interval)}",
                "difference detected",
                f"{figure} at the {at.said}; {'; '.join(detail)}; the interval is that of this "
                "pair of groups alone",
                ratio.value,
            )


def _changes(rows: pd.DataFrame, grouping: str, at: At) -> Iterator[Finding]:
    """Yield what changes from the baseline in η² and in the differentials of FMR and FNMR."""
    for figure, target, *_ in (ETA2, *(geomean_of(of, at.target) for of in NAMES)):
        found = names.select(rows, figure, None, grouping=grouping, target=target)
        of = {row["model"]: estimate_of(row) for row in records(found)}
        change = of.get(names.CHANGE)
        if change is None or change.value is None or change.interval is None:
            continue
        inside = change.interval.low <= 0 <= change.interval.high
        what = " at ".join(filter(None, (figure, target)))
        yield Finding(
            f"From the baseline, {what} changes by {words.number(change.value, '+.3g')} "
            f"{words.limits(change.interval)}{': cannot tell it from none' * inside}",
            "none detected at this precision" if inside else "difference detected",
            f"from {words.number(of[names.BASELINE].value)} to {words.number(of[names.NEW].value)};"
            " same images",
        )


def _percent(share: float) -> str:
    """Say a share in percent, with two digits."""
    return f"{words.number(100 * share, '.2g' if share < 0.995 else '.3g')} %"


def _share(row: Row) -> str:
    """Say a rate in percent, with its interval and counts."""
    return " ".join(filter(None, (*said(row), words.counts(estimate_of(row)))))
