"""What an audit found, in at most eight lines made by rule, and the caveats that belong to them.

A line has an estimate, its interval and what it rests on, and one of three conclusions. There are
no words of praise or blame: whether a difference matters is for the reader to say.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from fractions import Fraction
from typing import Literal, get_args

from facerec.fairness.association import Association
from facerec.fairness.baseline import BaselineComparison
from facerec.fairness.differentials import RATIO, Differential
from facerec.fairness.no_comparison import NoComparison
from facerec.fairness.one_to_many import OneToMany, SearchAudit
from facerec.fairness.result import Finding, GroupAudit, Topic
from facerec.report import words
from facerec.report.conclusions import ALPHA, Conclusion, of_interval, of_test
from facerec.report.estimate import Estimate

MOST = 8
"""Lines of the findings box."""

HEADLINE = "max/geomean"
"""The measure of error-rate differentials that summaries quote."""

_RATES: tuple[tuple[Literal["FMR", "FNMR"], str, str], ...] = (
    ("FMR", "non-mated pairs", "impostor pairs within {} and {} of those within {} are accepted"),
    ("FNMR", "mated pairs", "genuine pairs within {} and {} of those within {} are rejected"),
)

_NO_PARITY = "equal rates cannot be simulated"

_CAVEATS = (
    "Group labels are taken from {source}. Categories such as race or binary sex are coarse social "
    "categories and individual entries may be mistaken.",
    "A difference between groups may stem from image quality, pose, age or the way images were "
    "collected, and need not originate in the model.",
    "Figures describe this data set, this impostor policy and this threshold. They certify nothing "
    "and do not predict a deployed system.",
    "Impostor pairs are drawn {policy}; other pairings would give other false-match rates.",
    "p-values are Holm-adjusted within each family; rows marked E are exploratory.",
    "Under cosine scoring a norm difference cannot change a decision unless one of the channels in "
    "section 5 is active.",
    "Not detecting a difference only excludes effects larger than the stated minimum detectable "
    "effect.",
)

_OF_NORMS = _CAVEATS[-2:]

OF_A_PAGE = _CAVEATS[4:6]
"""Those that speak of marks and sections of the page of an audit."""

_LFW = (
    "This benchmark was not built for comparisons between subgroups; counts per subgroup are small."
)


def find(
    groupings: Sequence[GroupAudit],
    target: str | None,
    comparison: BaselineComparison | None = None,
    one_to_many: OneToMany | NoComparison | None = None,
) -> tuple[Finding, ...]:
    """Return the findings, those on the primary attribute first.

    Error rates of groups are those at the smallest target that all of them carry, see
    `Differentials.heading`; what compares no groups is at the ``target`` FMR. Lines on the change
    from a baseline come right after them; of identification only differences that are detected make
    lines.
    """
    searches: dict[str, SearchAudit] = {}
    if isinstance(one_to_many, OneToMany):
        searches = {audit.name: audit for audit in one_to_many.groupings}
    ordered = sorted(groupings, key=lambda grouping: not grouping.primary)
    first, others = ordered[0], ordered[1:]
    lines = [*_association(first), *_rates(first), *_searches(first, searches)]
    if comparison is not None:
        lines += _changes(comparison, target)
    lines += [*_adjusted(first), *_standardised(first), *_fusion(first, target)]
    lines += [line for grouping in others for line in _association(grouping)]
    for grouping in others:
        lines += [*_rates(grouping), *_searches(grouping, searches)]
    return tuple(lines[:MOST])


def verdict(findings: Sequence[Finding]) -> str:
    """Return the sentence at the head of a report: what was detected, what not, what is unknown."""
    sentences = []
    for conclusion in get_args(Conclusion):
        said = [
            f"{_topic(finding)} by {finding.grouping}"
            for finding in findings
            if finding.conclusion == conclusion
        ]
        if said:
            words = conclusion[0].upper() + conclusion[1:]
            sentences.append(f"{words}: {', '.join(dict.fromkeys(said))}.")
    return " ".join(sentences)


_TOPICS: dict[Topic, str] = {
    "adjusted norm": "norm at equal covariates",
    "norm and FNMR": "change of the FNMR gap at equal norms",
    "fusion": "change of FNMR with unit fusion",
}


def _topic(finding: Finding) -> str:
    """Return what a finding is about; of a change from the baseline the figure, without target."""
    if finding.topic == "baseline":
        return finding.figure.partition(" at ")[0].removesuffix(" from the baseline")
    return _TOPICS.get(finding.topic, finding.topic)


def caveats(
    label_sources: Sequence[str], policy: str, *, lfw: bool = False, norms: bool = True
) -> tuple[str, ...]:
    """Return the fixed sentences of every report; see `facerec.fairness.result.Audit.policy`."""
    source = "; ".join(label_sources)
    known = [caveat for caveat in _CAVEATS if norms or caveat not in _OF_NORMS]
    sentences = [caveat.format(source=source, policy=policy) for caveat in known]
    return (*sentences, _LFW) if lfw else tuple(sentences)


def _association(grouping: GroupAudit) -> Iterator[Finding]:
    if grouping.sample is None:
        return
    association = grouping.association
    figure = "η² of subjects' mean norms"
    subjects = len(grouping.sample.groups)
    if isinstance(association, NoComparison):
        yield _insufficient("norm", grouping, figure, (subjects, "subjects"), association.reason)
        return
    yield _line(
        f"{_share(association.eta2)} of the variance of people's mean norms lies between groups of "
        f"{grouping.name}",
        "norm",
        grouping.name,
        figure,
        association.eta2,
        (subjects, "subjects"),
        of_test(association.p),
        _extreme_means(grouping) if association.p < ALPHA else _undetected(association),
        p=association.p,
        exploratory=not grouping.primary,
    )


def _extreme_means(grouping: GroupAudit) -> str:
    """Name the groups whose subjects have the largest and the smallest mean norm."""
    if grouping.norms is None:
        return ""
    means = {group.name: group.subject_mean.value or 0.0 for group in grouping.norms.groups}
    high, low = (pick(means, key=lambda name: means[name]) for pick in (max, min))
    return f"largest in {high} {means[high]:.4g}, smallest in {low} {means[low]:.4g}"


def _undetected(association: Association) -> str:
    clauses = [] if association.mde_eta2 is None else [f"MDE η² {association.mde_eta2:.2g}"]
    if association.equivalent:
        clauses.append(f"all |δ| below {association.bound:g}")
    return ", ".join(clauses)


def _adjusted(grouping: GroupAudit) -> Iterator[Finding]:
    adjusted = grouping.adjusted
    if adjusted is None or grouping.sample is None:
        return
    figure = "partial η² of norms"
    if isinstance(adjusted, NoComparison) or adjusted.p is None:
        reason = adjusted.reason if isinstance(adjusted, NoComparison) else "errors have no inverse"
        basis = len(grouping.sample.groups), "subjects"
        yield _insufficient("adjusted norm", grouping, figure, basis, reason)
        return
    before, given = adjusted.eta2.value, ", ".join(adjusted.covariates)
    yield _line(
        f"With {given} held fixed, {_share(adjusted.partial_eta2)} of the variance of norms lies "
        f"between groups of {grouping.name}",
        "adjusted norm",
        grouping.name,
        f"{figure} given {given}",
        adjusted.partial_eta2,
        (adjusted.subjects, "subjects"),
        of_test(adjusted.p),
        "" if before is None else f"η² {before:.2g} before adjustment",
        p=adjusted.p,
    )


def _share(estimate: Estimate) -> str:
    """Say a share in percent with its interval."""
    interval = words.limits(estimate.interval, 100)
    return f"{_percent(estimate.value or 0.0)} {interval}".strip()


def _percent(share: float) -> str:
    return f"{words.number(100 * share, '.2g' if share < 0.995 else '.3g')} %"


def _rates(grouping: GroupAudit) -> Iterator[Finding]:
    """Yield the ratio of FMRs and of FNMRs at the smallest target that all groups carry."""
    rates, measures = grouping.rates, grouping.differentials
    for of, unit, happens in _RATES:
        figure = f"{RATIO} of {of}"
        if isinstance(rates, NoComparison) or isinstance(measures, NoComparison):
            reason = rates.reason if isinstance(rates, NoComparison) else ""
            yield _insufficient(of, grouping, figure, (0, unit), reason)
            continue
        pairs = sum(group.non_mated if of == "FMR" else group.mated for group in rates.composition)
        row = measures.heading(of)
        if row is None or row.p_value is None:
            why = (measures.reason if row is None else row.remark) or _NO_PARITY
            yield _insufficient(of, grouping, figure, (pairs, unit), why)
            continue
        point = next(point for point in rates.points if point.threshold.target == row.target)
        cells = {group.name: group.fmr if of == "FMR" else group.fnmr for group in point.groups}
        ordered = sorted(measures.groups, key=lambda name: cells[name].value or 0.0)
        ends = [(name, cells[name].events, cells[name].total) for name in ordered]
        high, low = ends[-1], ends[0]
        upper, lower = (_percent(events / total) for _, events, total in (high, low))
        target = Fraction(row.target)
        yield _line(
            f"At the threshold for {target.numerator:,} in {target.denominator:,}, {upper} of "
            f"{happens.format(high[0], lower, low[0])}: {words.number(row.value)} times "
            f"{words.limits(row.interval)}".strip(),
            of,
            grouping.name,
            f"{figure} at nominal FMR {row.target}",
            row,
            (pairs, unit),
            of_test(row.p_value),
            _ends(high, low) if row.p_value < ALPHA else _parity(row),
            p=row.p_value,
        )


def _searches(grouping: GroupAudit, audits: Mapping[str, SearchAudit]) -> Iterator[Finding]:
    """Yield the largest ratios of FPIR and of FNIR between groups that are detected."""
    if grouping.name not in audits:
        return
    for ratio in audits[grouping.name].largest:
        threshold, high, low = ratio.threshold, ratio.highest, ratio.lowest
        unit = "non-mated searches" if ratio.figure == "FPIR" else "mated searches"
        upper, lower = (_percent(events / total) for _, events, total in (high, low))
        yield _line(
            f"At the threshold for an FPIR of {threshold.target} of {threshold.basis}, "
            f"{ratio.figure} is {upper} for {high[0]} and {lower} for {low[0]}: "
            f"{words.number(ratio.value)} times {words.limits(ratio.interval)}".strip(),
            "FPIR" if ratio.figure == "FPIR" else "FNIR",
            grouping.name,
            f"largest ratio of {ratio.figure} between groups, threshold at FPIR "
            f"{threshold.target} of {threshold.basis}",
            ratio,
            (ratio.total, unit),
            "difference detected",
            _ends(high, low),
        )


def _ends(highest: tuple[str, int, int], lowest: tuple[str, int, int]) -> str:
    """Name the groups with the highest and the lowest rate, with their counts."""
    return ", ".join(
        f"{end} in {name} {events:,}/{total:,} = {events / total:.2g}"
        for end, (name, events, total) in (("highest", highest), ("lowest", lowest))
    )


def _parity(row: Differential) -> str:
    if row.at_parity is None:
        return ""
    return f"groups of equal rates exceed {row.at_parity:.3g} in 5 % of cases"


def _standardised(grouping: GroupAudit) -> Iterator[Finding]:
    """Yield what equal norms would change about the FNMR gap."""
    channels = grouping.channels
    figure = "change of the FNMR gap if all groups had the same norms"
    if isinstance(channels, NoComparison):
        return  # for the same reason as the rates
    standardised, pairs = channels.standardised, (channels.pairs, "mated pairs")
    if standardised.change is None or standardised.change.interval is None:
        reason = standardised.reason or "no interval"
        yield _insufficient("norm and FNMR", grouping, figure, pairs, reason)
        return
    yield _line(
        "If all groups had the same norms, the gap of FNMR between groups of "
        f"{grouping.name} would change by {_change(standardised.change)}",
        "norm and FNMR",
        grouping.name,
        figure,
        standardised.change,
        pairs,
        of_interval(standardised.change.interval),
        "" if standardised.raw_gap is None else f"gap {standardised.raw_gap.value:.3g} as it is",
    )


def _fusion(grouping: GroupAudit, target: str | None) -> Iterator[Finding]:
    """Yield how the FNMR of all changes with unit fusion."""
    if isinstance(grouping.fusion, NoComparison):
        return
    for change in grouping.fusion:
        if (change.group, change.of, change.target) != (None, "FNMR", target):
            continue
        if change.value is None or change.interval is None:
            continue
        figure = f"FNMR with unit less raw fusion at nominal FMR {target}"
        basis, conclusion = (change.raw.total, "mated pairs"), of_interval(change.interval)
        said = f"With unit in place of raw fusion, FNMR changes by {_change(change)}"
        yield _line(said, "fusion", grouping.name, figure, change, basis, conclusion)


def _change(estimate: Estimate) -> str:
    """Say a change of a rate, in percentage points, with its interval."""
    interval = words.limits(estimate.interval, 100, "+.2g")
    return f"{words.number(100 * (estimate.value or 0.0), '+.2g')} points {interval}".strip()


def _changes(comparison: BaselineComparison, target: str | None) -> Iterator[Finding]:
    """Yield what changes from the baseline: the association, and both differentials."""
    wanted = ["η²", *(f"{HEADLINE} {of} at FMR={target}" for of, *_ in _RATES)]
    for change in comparison.changes:
        if change.figure not in wanted or change.fusion == "unit":
            continue
        known = change.conclusion != "insufficient data"
        ends = (change.baseline, change.treated)
        shown = " to ".join(f"{end:.3g}" for end in ends if end is not None)
        by = f"{words.number(change.value, '+.3g')} {words.limits(change.interval)}".strip()
        yield _line(
            f"From the baseline, {change.figure} changes by {by}"
            if known
            else f"The data do not tell how {change.figure} changes from the baseline",
            "baseline",
            comparison.attribute,
            f"change of {change.figure} from the baseline",
            change if known else Estimate(None),
            (comparison.grouped, "subjects"),
            of_interval(change.interval if known else None),
            f"from {shown}" if known else change.remark.replace("insufficient data: ", ""),
        )


def _insufficient(
    topic: Topic, grouping: GroupAudit, figure: str, basis: tuple[int, str], reason: str
) -> Finding:
    return _line(
        f"The data do not tell: {_TOPICS.get(topic, topic)} by {grouping.name}",
        topic,
        grouping.name,
        figure,
        Estimate(None),
        basis,
        "insufficient data",
        reason.removeprefix("insufficient data: "),
        exploratory=topic != "norm" or not grouping.primary,
    )


def _line(
    said: str,
    topic: Topic,
    grouping: str,
    figure: str,
    estimate: Estimate,
    basis: tuple[int, str],
    conclusion: Conclusion,
    remark: str = "",
    *,
    p: float | None = None,
    exploratory: bool = True,
) -> Finding:
    """Return a line on an estimate; its basis is how many of what it rests on."""
    return Finding(
        value=estimate.value,
        interval=estimate.interval,
        total=basis[0],
        remark=remark,
        said=said.replace("\N{NO-BREAK SPACE}", " "),
        topic=topic,
        grouping=grouping,
        figure=figure,
        unit=basis[1],
        conclusion=conclusion,
        p=p,
        exploratory=exploratory,
    )
