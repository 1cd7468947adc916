"""Two releases of a model: what changed, what is paired, and what cannot be compared."""

from __future__ import annotations

import copy
import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.toy_audit import default_audit

from facerec.errors import DatasetError
from facerec.fairness import against
from facerec.fairness.against import (
    Release,
    ReleaseChange,
    check_settings,
    compare_releases,
    mover,
    read_release,
)
from facerec.fairness.against_page import against_table, notable
from facerec.fairness.one_to_many import SearchKey, SearchPlan
from facerec.fairness.outputs import to_json
from facerec.fairness.page import render
from facerec.fairness.plain import plain


@pytest.fixture(scope="module")
def new() -> dict[str, Any]:
    return to_json(replace(default_audit(), comparison=None))


@pytest.fixture
def old(new: dict[str, Any]) -> dict[str, Any]:
    return copy.deepcopy(new)


def release(document: dict[str, Any]) -> Release:
    return Release("old.json", "ab" * 32, document)


def find(rows: tuple[ReleaseChange, ...], figure: str, **keys: Any) -> ReleaseChange:
    (row,) = [
        row
        for row in rows
        if row.figure == figure and all(getattr(row, name) == key for name, key in keys.items())
    ]
    return row


def test_the_same_audit_has_not_changed(new: dict[str, Any], old: dict[str, Any]) -> None:
    found = compare_releases(release(old), new)
    assert not notable(found)
    assert {row.value for row in found.rows} <= {0.0, None}
    for row in found.rows:
        if row.interval is not None:
            assert row.interval.low <= 0 <= row.interval.high
    assert any(row.figure == "FNMR" and row.group == "Amber" for row in found.rows)


def test_a_verdict_that_changed_comes_first(new: dict[str, Any], old: dict[str, Any]) -> None:
    old["association"][0] |= {"p_perm": 0.4}
    old["association"][0]["eta2"] |= {"value": 0.01, "ci": [0.0, 0.03]}
    found = compare_releases(release(old), new)
    first = found.rows[0]
    assert (first.figure, first.grouping) == ("η²", "race") and first.verdict_changed
    assert first.old_verdict == "none detected at this precision"
    assert first.new_verdict == "difference detected"
    assert first.conclusion == "increase detected"
    assert found.summary.startswith("1 verdict changed, and of")
    assert notable(found)[0] is first
    assert "→" in against_table(found.rows).cells[0][-1].text


def test_intervals_of_changes_are_wide_enough_and_exact_for_normal_ones() -> None:
    found = mover(1.0, [0.8, 1.2], 2.0, [1.7, 2.3])
    assert found is not None
    half = math.hypot(0.2, 0.3)
    assert (found.low, found.high) == pytest.approx((1 - half, 1 + half))
    assert mover(1.0, None, 2.0, [1.0, 3.0]) is None
    # Correlated figures: the variance of a difference, and none where both err alike.
    paired = mover(1.0, [0.8, 1.2], 2.0, [1.7, 2.3], 0.5)
    assert paired is not None
    assert 1 - paired.low == pytest.approx(math.sqrt(0.2**2 + 0.3**2 - 2 * 0.5 * 0.2 * 0.3))
    same = mover(1.0, [0.8, 1.2], 1.0, [0.8, 1.2], 1.0)
    assert same is not None and same.low == same.high == 0
    rng = np.random.default_rng(0)
    # The same persons err in both releases: the interval is then wider than it need be.
    held = {0.0: 0, 0.6: 0}
    for correlation in held:
        for _ in range(2000):
            shared, *own = rng.standard_normal(3)
            one, other = (
                math.sqrt(correlation) * shared + math.sqrt(1 - correlation) * noise
                for noise in own
            )
            limits = mover(one, [one - 1.96, one + 1.96], other, [other - 1.96, other + 1.96])
            assert limits is not None
            held[correlation] += limits.low <= 0 <= limits.high
    assert 0.93 < held[0.0] / 2000 < 0.97 < held[0.6] / 2000


def test_figures_of_one_audit_alone_have_a_reason(new: dict[str, Any], old: dict[str, Any]) -> None:
    rate = old["rates"][0]["fmr"]
    rate |= {"value": None, "ci": None, "reason": "no comparison"}
    row = old["rates"][0]
    found = find(
        compare_releases(release(old), new).rows,
        "FMR",
        grouping=row["grouping"],
        group=row["name"],
        target=row["fmr_nominal"],
    )
    assert found.value is None and found.conclusion == "insufficient data"
    assert "earlier" in found.remark and "no comparison" in found.remark


def test_rates_at_a_threshold_that_is_not_resolvable_are_not_compared(
    new: dict[str, Any], old: dict[str, Any]
) -> None:
    changed = copy.deepcopy(new)
    for document in (old, changed):
        document["thresholds"][0]["resolvable"] = False
    target = new["thresholds"][0]["fmr_nominal"]
    figures = ("FMR", "FNMR")
    rows = [row for row in compare_releases(release(old), changed).rows if row.figure in figures]
    assert rows and target not in {row.target for row in rows}
    before = compare_releases(release(new), new).rows
    assert target in {row.target for row in before if row.figure in figures}


def test_changes_are_paired_where_the_earlier_embeddings_are_given(old: dict[str, Any]) -> None:
    audit = default_audit()
    assert audit.comparison is not None
    new = to_json(audit)
    new["inputs"]["baseline"] = {"name": "old.npz", "sha256": "ab" * 32, "details": {}}
    found = compare_releases(release(old), new, audit.comparison)
    row = find(found.rows, "η²", grouping="race")
    change = audit.comparison.find("η²")
    assert row.paired and row.interval == change.interval
    assert not find(found.rows, "η²", grouping="sex").paired
    # Thresholds from other data are not those of the comparison, so nothing of it fits the rates.
    ratios = [row for row in found.rows if row.paired and row.target is not None]
    assert ratios
    for document in (new, old):
        document["inputs"]["calibration"] = {"name": "c.npz", "sha256": "ef" * 32, "details": {}}
    elsewhere = compare_releases(release(old), new, audit.comparison).rows
    assert {row.figure for row in elsewhere if row.paired} >= {"η²"}
    assert all(row.target is None for row in elsewhere if row.paired)
    assert any("joint resamples" in note for note in found.notes)
    new["inputs"]["baseline"]["sha256"] = "cd" * 32
    with pytest.raises(DatasetError, match="--baseline"):
        compare_releases(release(old), new, audit.comparison)


FNIR = "FNIR at FPIR=1e-1 of everybody"


def test_identification_is_compared_like_the_rest(new: dict[str, Any], old: dict[str, Any]) -> None:
    part = old["one_to_many"]["groupings"][0]
    base, group = part["compared_with"], "Blue"
    keys = {"galleries": "mixed", "basis": "everybody", "target": "1e-1", "group": group}
    (row,) = [
        row
        for row in part["rates"]
        if row["figure"] == "FNIR" and not row["stratum"] and keys.items() <= row.items()
    ]
    before = dict(row)
    row |= {"value": 0.01, "ci": [0.005, 0.02]}
    row["ratio"] = {"value": 8.0, "ci": [4.0, 16.0], "reason": None}
    key = SearchKey("race", **keys, figure="FNIR", ratio=False)
    independent = compare_releases(release(old), new).rows
    paired = compare_releases(release(old), new, correlations={key: 0.6}).rows
    found = [find(rows, FNIR, grouping="race", group=group) for rows in (independent, paired)]
    for change in found:
        assert change.value == pytest.approx(before["value"] - 0.01)
        assert change.old_verdict is None and change.conclusion == "increase detected"
    assert [change.paired for change in found] == [False, True]
    widths = [change.high - change.low for change in found]
    assert widths[1] < widths[0]
    ratio = find(independent, f"ratio of FNIR to {base} at FPIR=1e-1 of everybody", group=group)
    assert ratio.old == 8 and ratio.old_verdict == "difference detected"
    figures = {row.figure for row in independent}
    assert "rank-1 miss rate" in figures and f"FPIR at FPIR=1e-1 of {base}" in figures
    assert any("homogeneous" in figure for figure in figures)
    assert all(
        find(independent, FNIR, grouping="race", group=name) for name in (None, "Amber", "Coral")
    )


def test_identification_of_one_audit_alone_is_a_sentence(
    new: dict[str, Any], old: dict[str, Any]
) -> None:
    for value in (None, ...):
        old["one_to_many"] = value
        if value is ...:
            del old["one_to_many"]  # as audits of earlier versions are
        found = compare_releases(release(old), new)
        assert any("--one-to-many" in note for note in found.notes)
        assert not [row for row in found.rows if "FPIR" in row.figure]
    both = compare_releases(release(old), {**new, "one_to_many": None})
    assert not any("--one-to-many" in note for note in both.notes)


def spoil(document: dict[str, Any], path: str, value: object) -> None:
    *names, last = path.split(".")
    place: Any = document
    for name in names:
        place = place[int(name)] if isinstance(place, list) else place[name]
    place[last] = value


@pytest.mark.parametrize(
    ("path", "value", "said"),
    [
        ("settings.fmr", ["1e-2"], "nominal FMRs"),
        ("settings.groups", ["sex"], "groups"),
        ("settings.intersect", False, "intersection"),
        ("settings.policy", "from a list", "impostors"),
        ("inputs.attributes.sha256", "cd" * 32, "attributes"),
        ("inputs.pairs", {"name": "lfw.bin", "sha256": "cd" * 32, "details": {}}, "pairs"),
        ("inputs.calibration", {"name": "c.npz", "sha256": "cd" * 32, "details": {}}, "threshold"),
        ("counts.images", 700, "images"),
        ("counts.images", None, "scores"),
        ("counts.subjects", 3, "subjects"),
        ("groups.0.subjects", 25, "subjects and images"),
        ("association", [{}], "facerec audit writes"),
        ("one_to_many.fpir", ["1e-3"], "--fpir"),
        ("one_to_many.template", "mean", "--template"),
        ("one_to_many.seed", 7, "--seed"),
        ("one_to_many.groupings", [{}], "facerec audit writes"),
        ("settings", None, "facerec audit writes"),
    ],
)
def test_other_audits_are_refused(
    path: str, value: object, said: str, new: dict[str, Any], old: dict[str, Any]
) -> None:
    spoil(old, path, value)
    with pytest.raises(DatasetError, match=said):
        compare_releases(release(old), new)


def test_other_settings_are_refused_before_anything_is_computed(old: dict[str, Any]) -> None:
    settings, labels = old["settings"], old["inputs"]["attributes"]["sha256"]
    groups, targets = tuple(settings["groups"]), tuple(settings["fmr"])
    check_settings(release(old), groups, True, targets, labels)
    plan = SearchPlan(("1e-1", "2e-2", "1e-5"), reference="Amber", homogeneous=True)
    check_settings(release(old), groups, True, targets, labels, plan)
    for other in (replace(plan, reference=None), replace(plan, homogeneous=False)):
        with pytest.raises(DatasetError, match=r"old\.json"):
            check_settings(release(old), groups, True, targets, labels, other)
    for wrong in (
        (groups[:1], True, targets, labels),
        (groups, False, targets, labels),
        (groups, True, targets[:1], labels),
        (groups, True, targets, None),
    ):
        with pytest.raises(DatasetError, match=r"old\.json"):
            check_settings(release(old), *wrong)


def test_other_files_are_refused(tmp_path: Path) -> None:
    for number, text in enumerate(("", "[]", '{"schema": "facerec.audit-plan/1"}')):
        path = tmp_path / f"{number}.json"
        path.write_text(text)
        with pytest.raises(DatasetError, match=path.name):
            read_release(path)
    with pytest.raises(DatasetError, match="missing"):
        read_release(tmp_path / "missing.json")


@pytest.mark.integration
def test_the_page_and_the_files_have_it(old: dict[str, Any], new: dict[str, Any]) -> None:
    old["association"][0] |= {"p_perm": 0.4}
    found = compare_releases(release(old), new)
    page = render(replace(default_audit(), comparison=None, against=found))["report.html"].decode()
    assert "Against the earlier release" in page and found.summary in page
    assert page.index("Against the earlier release") < page.index("Norm distributions")
    document = plain(found)
    assert json.loads(json.dumps(document)) == document
    jsonschema = pytest.importorskip("jsonschema")
    schema = json.loads(
        (Path(against.__file__).with_name("schema") / "audit.schema.json").read_text("utf-8")
    )
    jsonschema.validate({**new, "against": document}, schema)
    assert {row["conclusion"] for row in document["rows"]} <= {
        "none detected at this precision",
        "insufficient data",
    }
