from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest
from helpers.toy_audit import default_audit

from facerec.fairness.association import Association
from facerec.fairness.channels import FusionChange, NormChannels
from facerec.fairness.differentials import Differentials
from facerec.fairness.findings import MOST, Finding, Topic, caveats, find, verdict
from facerec.fairness.no_comparison import NoComparison
from facerec.fairness.one_to_many import LargestRatio, OneToMany
from facerec.fairness.rate_results import GroupRates, error_rate
from facerec.fairness.result import Audit, GroupAudit
from facerec.report.conclusions import Conclusion
from facerec.report.estimate import Estimate
from facerec.statistics.intervals import Interval

VERDICTS = r"\b(fair|unfair|bias|biased|unbiased|good|bad|passe?s?|fails?|safe|discriminat\w*)\b"


@pytest.fixture(scope="module")
def found() -> Audit:
    return default_audit()


def primary(audit: Audit, **changes: Any) -> GroupAudit:
    (part,) = [part for part in audit.groupings if part.primary]
    return replace(part, **changes)


def with_p(part: GroupAudit, p: float, **changes: Any) -> GroupAudit:
    assert isinstance(part.association, Association)
    return replace(part, association=replace(part.association, p=p, **changes))


def with_rows(part: GroupAudit, **changes: Any) -> GroupAudit:
    """Change the headline rows of the differentials."""
    measures = part.differentials
    assert isinstance(measures, Differentials)
    rows = [replace(row, **changes) if row.measure == "max/min" else row for row in measures.rows]
    return replace(part, differentials=replace(measures, rows=tuple(rows)))


def test_eight_lines_at_most_the_primary_attribute_first(found: Audit) -> None:
    assert 3 < len(found.findings) <= MOST == 8
    first = found.findings[0]
    assert (first.topic, first.grouping, first.exploratory) == ("norm", "race", False)
    assert all(finding.exploratory for finding in found.findings[1:])
    order = [part.primary for part in found.groupings]
    assert order == [True, False, False]
    backwards = find(found.groupings[::-1], found.target)
    assert backwards[0] == first


def test_lines_have_estimate_interval_and_n_or_say_why(found: Audit) -> None:
    for finding in found.findings:
        assert f"{finding.total:,} {finding.unit}" in finding.text
        assert finding.text.endswith(" [E]") == finding.exploratory
        if finding.value is None:
            assert finding.conclusion == "insufficient data" and finding.remark
        else:
            # Shares and changes of rates are said in percent.
            said = (
                f"{scale * abs(finding.value):{form}}"
                for scale in (1, 100)
                for form in (".3g", ".2g")
            )
            assert any(number in finding.said for number in said)
            assert finding.interval is None or "[" in finding.said
        assert finding.text.startswith(f"{finding.said} ({finding.grouping}: {finding.figure}, ")


def test_no_verdicts(found: Audit) -> None:
    for text in [finding.text for finding in found.findings]:
        assert not re.search(VERDICTS, text, re.IGNORECASE)


@pytest.mark.parametrize(
    ("p", "equivalent", "ending"),
    [
        (0.049, False, "p = 0.049): difference detected (largest in {most}, smallest in {least})"),
        (0.05, False, "p = 0.05): none detected at this precision (MDE η² {mde})"),
        (0.5, True, "(MDE η² {mde}, all |δ| below 0.147)"),
    ],
)
def test_association(found: Audit, p: float, equivalent: bool, ending: str) -> None:
    part = with_p(primary(found), p, equivalent=equivalent)
    assert isinstance(part.association, Association) and part.norms is not None
    means = sorted((group.subject_mean.value or 0, group.name) for group in part.norms.groups)
    least, *_, most = (f"{name} {mean:.4g}" for mean, name in means)
    text = find([part], found.target)[0].text
    assert "% [" in text and "between groups of race (race: η² of subjects' mean norms, " in text
    mde = f"{part.association.mde_eta2:.2g}"
    assert text.endswith(ending.format(mde=mde, most=most, least=least))


def test_identification_is_told_where_a_difference_is_detected(found: Audit) -> None:
    searches = found.one_to_many
    assert isinstance(searches, OneToMany) and not isinstance(searches, NoComparison)
    (audit,) = [part for part in searches.groupings if part.name == "race"]
    (threshold, *_) = [one for one in audit.thresholds if one.value is not None]
    ratio = LargestRatio(
        value=3.25,
        interval=Interval(1.5, 7.04, 0.99),
        total=1234,
        figure="FNIR",
        threshold=threshold,
        highest=("Blue", 60, 600),
        lowest=("Coral", 19, 634),
    )
    planted = replace(searches, groupings=(replace(audit, largest=(ratio,)),))
    lines = find([primary(found)], found.target, None, planted)
    (line,) = [line for line in lines if line.topic in ("FPIR", "FNIR")]
    assert lines.index(line) == 3  # after norms, FMR and FNMR
    assert line.conclusion == "difference detected" and line.exploratory
    assert "3.25 times [1.5, 7.04]" in line.said and "1,234 mated searches" in line.text
    assert "10 % for Blue and 3 % for Coral" in line.said
    assert "highest in Blue 60/600 = 0.1, lowest in Coral 19/634 = 0.03" in line.text
    assert threshold.target in line.text and "FNIR by race" in verdict(lines)
    silent = replace(searches, groupings=(replace(audit, largest=()),))
    for nothing in (silent, None, NoComparison("one to many", "no search")):
        assert find([primary(found)], found.target, None, nothing) == find(
            [primary(found)], found.target
        )


def test_association_without_comparison(found: Audit) -> None:
    part = primary(found, association=NoComparison("race", "all subjects are in one group"))
    line = find([part], found.target)[0]
    assert line.text.endswith("subjects): insufficient data (all subjects are in one group)")
    assert line.value is None and not line.exploratory


def test_rates_at_the_smallest_target_that_all_groups_carry(found: Audit) -> None:
    """Of each figure by itself; the sentence has the rates of the groups at both ends."""
    part = with_rows(primary(found), value=2.5, p_value=0.001, interval=Interval(1.5, 4.0))
    assert isinstance(part.differentials, Differentials) and isinstance(part.rates, GroupRates)
    rows = [
        row
        if row.target == "1e-2" or (row.target, row.of) == ("1e-3", "FNMR")
        else replace(row, value=None, p_value=None, remark="insufficient data: few")
        for row in part.differentials.rows
    ]
    part = replace(part, differentials=replace(part.differentials, rows=tuple(rows[::-1])))
    lines = {line.topic: line for line in find([part], found.target)}
    for topic, unit, target, said in (
        ("FMR", "non-mated pairs", "1e-2", "1 in 100, "),
        ("FNMR", "mated pairs", "1e-3", "1 in 1,000, "),
    ):
        line = lines[topic]  # type: ignore[index]
        (point,) = [one for one in part.rates.points if one.threshold.target == target]
        cells = {one.name: one.fmr if topic == "FMR" else one.fnmr for one in point.groups}
        ordered = sorted(cells.items(), key=lambda item: item[1].value or 0.0)
        (least, low), (most, high) = ordered[0], ordered[-1]
        assert line.said.startswith(f"At the threshold for {said}")
        assert line.said.endswith(": 2.5 times [1.5, 4]")
        for name, cell in ((most, high), (least, low)):
            assert f"{100 * (cell.value or 0):.2g} % of" in line.said and f" {name}" in line.said
        assert (
            f"(race: max/min of {topic} at nominal FMR {target}, {line.total:,} {unit}, p"
            in line.text
        )
        assert line.conclusion == "difference detected"
        assert line.remark == (
            f"highest in {most} {high.events:,}/{high.total:,} = {high.value:.2g}, "
            f"lowest in {least} {low.events:,}/{low.total:,} = {low.value:.2g}"
        )


def test_rates_that_do_not_differ_or_are_withheld(found: Audit) -> None:
    part = with_rows(primary(found), value=1.2, p_value=0.4, at_parity=1.7)
    line = find([part], "1e-2")[1]
    assert line.conclusion == "none detected at this precision"
    assert line.remark == "groups of equal rates exceed 1.7 in 5 % of cases"
    withheld = "false matches 2/300 in Blue"
    reason = f"insufficient data: {withheld}"
    part = with_rows(primary(found), value=None, p_value=None, remark=reason)
    line = find([part], "1e-2")[1]
    assert (line.value, line.conclusion) == (None, "insufficient data")
    assert line.remark == withheld and "FMR by race" in line.said
    line = find([primary(found, rates=NoComparison("race", "0 mated pairs"))], None)[1]
    assert (line.total, line.remark) == (0, "0 mated pairs")


@pytest.mark.parametrize(
    ("limits", "conclusion"),
    [
        ((-0.2, -0.1), "difference detected"),
        ((-0.2, 0.1), "none detected at this precision"),
        (None, "insufficient data"),
    ],
)
def test_equal_norms_and_the_gap(
    found: Audit, limits: tuple[float, float] | None, conclusion: str
) -> None:
    part = primary(found)
    assert isinstance(part.channels, NormChannels)
    change = Estimate(-0.15, None if limits is None else Interval(*limits))
    gap = replace(part.channels.standardised, change=change)
    part = replace(part, channels=replace(part.channels, standardised=gap))
    (line,) = [x for x in find([part], found.target) if x.topic == "norm and FNMR"]
    assert line.conclusion == conclusion
    assert line.total == part.channels.pairs  # type: ignore[union-attr]


def test_fusion_of_all_groups_at_the_target(found: Audit) -> None:
    rate = error_rate(None, 5, 100)
    changes = tuple(
        FusionChange(
            0.02, Interval(0.01, 0.03), target=target, of=of, group=group, raw=rate, unit=rate
        )
        for target in ("1e-2", "1e-3")
        for of in ("FMR", "FNMR")
        for group in (None, "Amber")
        if of == "FNMR" or group is not None
    )
    lines = [x for x in find([primary(found, fusion=changes)], "1e-2") if x.topic == "fusion"]
    assert [line.figure for line in lines] == ["FNMR with unit less raw fusion at nominal FMR 1e-2"]
    assert lines[0].conclusion == "difference detected" and lines[0].total == 100


def test_baseline_comes_after_the_rates(found: Audit) -> None:
    assert found.comparison is not None
    lines = find(found.groupings, "1e-2", found.comparison)
    assert [line.topic for line in lines[:6]] == ["norm", "FMR", "FNMR"] + 3 * ["baseline"]
    association = found.comparison.find("η²")
    assert lines[3].value == association.value
    # As many as the figure itself is of, without those of no group.
    assert lines[3].total == lines[0].total < found.comparison.subjects


def test_a_change_without_a_value_says_once_that_data_are_few(found: Audit) -> None:
    assert found.comparison is not None
    change = replace(
        found.comparison.find("η²"), value=None, interval=None, remark="new: insufficient data: few"
    )
    comparison = replace(found.comparison, changes=(change,))
    (line,) = [x for x in find(found.groupings, "1e-2", comparison) if x.topic == "baseline"]
    assert (line.conclusion, line.remark) == ("insufficient data", "new: few")


def test_adjustment_names_its_covariates(found: Audit) -> None:
    lines = [line for line in found.findings if line.topic == "adjusted norm"]
    assert [line.figure for line in lines] == ["partial η² of norms given blur"]
    part = primary(found, adjusted=NoComparison("race", "nothing varies"))
    (line,) = [x for x in find([part], found.target) if x.topic == "adjusted norm"]
    assert line.remark == "nothing varies"


def test_caveats_are_those_that_were_agreed() -> None:
    found = caveats(["curator", "document"], "from all pairs")
    assert len(found) == 7
    assert found[0].startswith("Group labels are taken from curator; document. Categories such")
    assert found[3].startswith("Impostor pairs are drawn from all pairs; other pairings")
    assert found[6].startswith("Not detecting a difference only excludes effects larger than")
    assert len(caveats(["{x}"], "{y}", lfw=True)) == 8


def test_text_of_a_line() -> None:
    finding = Finding(
        said="12 % [10, 25] of the variance",
        topic="norm",
        grouping="race",
        figure="η²",
        value=0.12345,
        interval=Interval(0.1, 0.25),
        total=1234,
        unit="subjects",
        conclusion="difference detected",
        p=0.00012,
        exploratory=True,
    )
    measured = "race: η², 1,234 subjects, p = 0.00012"
    assert finding.text == f"{finding.said} ({measured}): difference detected [E]"


def test_the_verdict_names_what_was_found_in_three_classes() -> None:
    def line(topic: Topic, figure: str, conclusion: Conclusion, grouping: str = "g") -> Finding:
        return Finding(
            0.1,
            total=9,
            said="",
            topic=topic,
            grouping=grouping,
            figure=figure,
            unit="subjects",
            conclusion=conclusion,
            p=None,
            exploratory=True,
        )

    lines = [
        line("norm", "η²", "difference detected"),
        line("norm", "η²", "none detected at this precision", "control"),
        line("baseline", "change of η² from the baseline", "difference detected"),
        line("baseline", "change of max/geomean FMR at FMR=1e-3 from the baseline",
             "insufficient data"),
    ]  # fmt: skip
    assert verdict(lines) == (
        "Difference detected: norm by g, change of η² by g. None detected at this precision: norm "
        "by control. Insufficient data: change of max/geomean FMR by g."
    )
    assert verdict(lines[:1]) == "Difference detected: norm by g."
    # What is not detected is a change, not a difference of what remains.
    changes = [
        line(topic, "change", "none detected at this precision")
        for topic in ("norm and FNMR", "fusion")
    ]
    assert verdict(changes) == (
        "None detected at this precision: change of the FNMR gap at equal norms by g, change of "
        "FNMR with unit fusion by g."
    )
