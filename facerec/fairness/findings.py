"""What an audit found, in at most eight sentences made by rule, and what goes with them.

A line has an estimate, its interval and what it rests on, and one of three conclusions. There are
no words of praise or blame: whether a difference matters is for the reader to say.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from fractions import Fraction
from typing import Any

import numpy as np
import pandas as pd

from facerec.fairness import rows as names
from facerec.fairness.differentials import NAMES, RATIO, Of
from facerec.fairness.groupings import ALL_GROUPS
from facerec.fairness.result import Finding
from facerec.fairness.rows import estimate
from facerec.report import words
from facerec.report.conclusions import ALPHA, of_test
from facerec.statistics.operating_points import RULE_OF_30, parse_rate

MOST = 8
"""Findings of an audit."""

_HAPPENS: dict[Of, str] = {
    "FMR": "{upper} of the impostor pairs of {high} and {lower} of those of {low} are accepted",
    "FNMR": "{upper} of the genuine pairs of {high} and {lower} of those of {low} are rejected",
}

_CAVEATS = (
    "Group labels are taken from {source}. Categories such as race or binary sex are coarse social "
    "categories and individual entries may be mistaken.",
    "A difference between groups may stem from image quality, pose, age or the way images were "
    "collected, and need not originate in the model.",
    "Figures describe this data set, this impostor policy and this threshold. They certify nothing "
    "and do not predict a deployed system.",
    "Impostor pairs are drawn {policy}; other pairings would give other false-match rates.",
    "p-values of pairs of groups are Holm-adjusted; findings marked E are exploratory.",
)
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


def heading(rows: pd.DataFrame, grouping: str, of: Of) -> str | None:
    """Return the smallest target at which all groups carry a ratio of this rate; None without."""
    figure = names.p_of(f"{NAMES[of]} ({of} {RATIO})")
    targets = names.select(rows, figure, grouping=grouping)["target"]
    return min(targets, key=parse_rate, default=None)


def working_targets(rows: pd.DataFrame, grouping: str) -> list[str]:
    """Return the target to look at first of each basis of thresholds of identification.

    It is the lowest one with 30 false alarms where the threshold was set, or else the highest.
    """
    found = names.select(rows, names.FPIR_THRESHOLD, grouping=grouping).dropna(subset=["value"])
    chosen = []
    bases = found["target"].map(lambda target: target.partition(" of ")[2])
    for basis in dict.fromkeys(bases):
        of = found[bases == basis].sort_values("numerator")
        enough = of[of["numerator"] >= RULE_OF_30]
        chosen.append(str((of.iloc[-1] if enough.empty else enough.iloc[0])["target"]))
    return chosen


def headline(rows: pd.DataFrame, grouping: str) -> dict[str, Any]:
    """Return the target to look at first of FMR and FNMR, and those of ``searches``.

    It is that of `heading`, or else the largest one; empty without any.
    """
    known = names.select(rows, names.THRESHOLD).dropna(subset=["value"])["target"]
    largest = max(known, key=parse_rate, default="")
    first: dict[str, Any] = {of: heading(rows, grouping, of) or largest for of in _HAPPENS}
    return first | {"searches": working_targets(rows, grouping)}


def findings_of(rows: pd.DataFrame, groupings: Sequence[str]) -> tuple[Finding, ...]:
    """Return the findings, those on the first grouping first.

    Of identification only differences that are detected make lines; so do changes from a baseline.
    """
    lines: list[Finding] = []
    for number, grouping in enumerate(groupings):
        lines += [*_association(rows, grouping, exploratory=number > 0)]
        for of in _HAPPENS:
            lines += [*_rates(rows, grouping, of)]
        lines += [*_searches(rows, grouping), *_changes(rows, grouping)]
    return tuple(lines[:MOST])


def verdict(findings: Sequence[Finding]) -> str:
    """Return the sentence at the head of a report: what of it was detected."""
    detected = sum(finding.conclusion == "difference detected" for finding in findings)
    return f"{detected} of {words.counted(len(findings), 'question')}: difference detected."


def _association(rows: pd.DataFrame, grouping: str, *, exploratory: bool) -> Iterator[Finding]:
    found = names.select(rows, names.ETA2, grouping=grouping)
    if found.empty:
        return
    eta2 = estimate(found.iloc[0])
    p = names.value_of(rows, names.p_of(names.ETA2), grouping=grouping)
    people = words.counted(eta2.total or 0, "subject")
    if eta2.value is None or p is None:
        yield Finding(
            f"Norms cannot be compared between groups of {grouping}",
            "insufficient data",
            f"{people}; {eta2.remark}",
            exploratory,
        )
        return
    detail = [people, f"η² {words.number(eta2.value)}", f"p = {words.p_value(p)}"]
    if p < ALPHA:
        means = names.select(rows, names.NORM, grouping=grouping)
        means = means[means["group"] != ALL_GROUPS].sort_values("value")
        ends = [means.iloc[-1], means.iloc[0]]
        detail.append(
            ", ".join(
                f"{word} in {end.group} {words.number(end.value, '.4g')}"
                for word, end in zip(("longest", "shortest"), ends, strict=True)
            )
        )
    else:
        least = names.value_of(rows, names.DETECTABLE, grouping=grouping)
        detail.append(f"η² from {words.number(least, '.2g')} would mostly have been detected")
    yield Finding(
        f"{_percent(eta2.value)} {words.limits(eta2.interval, 100)} of the variance of people's "
        f"mean norms lies between groups of {grouping}",
        of_test(p),
        "; ".join(detail),
        exploratory,
    )


def _rates(rows: pd.DataFrame, grouping: str, of: Of) -> Iterator[Finding]:
    """Yield the ratio of rates at the smallest target that all groups carry, or why not."""
    figure = f"{NAMES[of]} ({of} {RATIO})"
    target = heading(rows, grouping, of)
    if target is None:
        ratios = names.select(rows, figure, grouping=grouping)
        if ratios.empty:
            lacking = rows["figure"].isin(["FMR", "FPD and FND"]) & rows["value"].isna()
            reasons = rows[lacking & (rows["grouping"] == grouping)]
            why = "no threshold" if reasons.empty else str(reasons["remark"].iloc[0])
        else:
            largest = max(ratios.itertuples(), key=lambda row: parse_rate(str(row.target)))
            why = str(largest.remark) or "equal rates cannot be simulated"
        said = f"The data do not tell how {of} differs between groups of {grouping}"
        yield Finding(said, "insufficient data", why.removeprefix("insufficient data: "), True)
        return
    ratio = estimate(names.select(rows, figure, grouping=grouping, target=target).iloc[0])
    p = names.value_of(rows, names.p_of(figure), grouping=grouping, target=target)
    rates = names.select(rows, of, grouping=grouping, target=target)
    rates = rates[rates["group"] != ALL_GROUPS].sort_values("value")
    high, low = (rates.iloc[place] for place in (-1, 0))
    one = Fraction(target)
    happens = _HAPPENS[of].format(
        upper=_percent(high.value), high=high.group, lower=_percent(low.value), low=low.group
    )
    counts = "; ".join(
        f"{end.group} {int(end.numerator):,}/{int(end.denominator):,}" for end in (high, low)
    )
    yield Finding(
        f"At the threshold for {one.numerator:,} in {one.denominator:,}, {happens}: "
        f"{words.number(ratio.value)} times {words.limits(ratio.interval)}".strip(),
        of_test(p),
        f"{counts}; p = {words.p_value(p)}",
        True,
    )


def _searches(rows: pd.DataFrame, grouping: str) -> Iterator[Finding]:
    """Yield the largest detected ratio of FPIR and of FNIR to the group compared with."""
    target = next(iter(working_targets(rows, grouping)), "")
    for figure in ("FPIR", "FNIR"):
        begin = names.ratio_of(figure, "")
        ratios = rows[rows["figure"].str.startswith(begin) & (rows["grouping"] == grouping)]
        ratios = ratios[(ratios["target"] == target) & ((ratios["low"] > 1) | (ratios["high"] < 1))]
        if ratios.empty:
            continue
        largest = ratios.loc[np.log(ratios["value"]).abs().idxmax()]
        ratio, other = estimate(largest), largest.figure.removeprefix(begin)
        rates = [
            names.value_of(rows, figure, grouping=grouping, target=target, group=group) or 0.0
            for group in (largest.group, other)
        ]
        yield Finding(
            f"Searched at the threshold for an FPIR of {target}, {figure} is {_percent(rates[0])} "
            f"for {largest.group} and {_percent(rates[1])} for {other}: "
            f"{words.number(ratio.value)} times {words.limits(ratio.interval)}",
            "difference detected",
            "the interval is that of this pair of groups alone",
            True,
        )


def _changes(rows: pd.DataFrame, grouping: str) -> Iterator[Finding]:
    """Yield what changes from the baseline in η² and in the differentials of FMR and FNMR."""
    wanted = ["change: η²"]
    for of in _HAPPENS:
        target = heading(rows, grouping, of)
        wanted += [] if target is None else [f"change: max/geomean {of} at FMR={target}"]
    for figure in wanted:
        for row in names.select(rows, figure, grouping=grouping).itertuples():
            change = estimate(row)
            if change.value is None or change.interval is None:
                continue
            what = figure.removeprefix("change: ")
            before, after = (
                names.value_of(rows, f"{side}: {what}", grouping=grouping)
                for side in ("baseline", "new")
            )
            inside = change.interval.low <= 0 <= change.interval.high
            yield Finding(
                f"From the baseline, {what} changes by {words.number(change.value, '+.3g')} "
                f"{words.limits(change.interval)}",
                "none detected at this precision" if inside else "difference detected",
                f"from {words.number(before)} to {words.number(after)}; same images",
                True,
            )


def _percent(share: float) -> str:
    """Say a share in percent, with two digits."""
    return f"{words.number(100 * share, '.2g' if share < 0.995 else '.3g')} %"
