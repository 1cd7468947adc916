from __future__ import annotations

import csv
import hashlib
import io
import json
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.examples import examples
from helpers.toy_audit import EVIL, default_audit, toy_audit
from hypothesis import given, settings
from hypothesis import strategies as st

from facerec.errors import FacerecError
from facerec.fairness.no_comparison import NoComparison
from facerec.fairness.norms import NormSummary
from facerec.fairness.outputs import (
    MANIFEST,
    SCHEMA_FILE,
    check_audit_folder,
    csv_tables,
    model_card,
    to_csv,
    to_json,
    write_audit,
)
from facerec.fairness.plain import flat_rows
from facerec.fairness.rate_results import GroupRates
from facerec.fairness.result import Audit, InputFile

PAGES = {"report.html": b"<p>page</p>", "figures/a.svg": b"<svg/>"}


@pytest.fixture(scope="module")
def found() -> Audit:
    return default_audit()


@pytest.fixture(scope="module")
def document(found: Audit) -> dict[str, Any]:
    return to_json(found)


def schema_errors(document: dict[str, Any]) -> list[str]:
    jsonschema = pytest.importorskip("jsonschema")
    schema = json.loads(SCHEMA_FILE.read_text(encoding="utf-8"))
    jsonschema.Draft202012Validator.check_schema(schema)
    validator = jsonschema.Draft202012Validator(schema)
    return [f"{error.json_path}: {error.message}" for error in validator.iter_errors(document)]


def leaves(value: Any) -> Iterator[Any]:
    if isinstance(value, dict):
        for inner in value.values():
            yield from leaves(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from leaves(inner)
    else:
        yield value


def test_document_keeps_its_schema(document: dict[str, Any]) -> None:
    assert schema_errors(document) == []


@pytest.mark.integration
def test_schema_refuses_what_it_should(document: dict[str, Any]) -> None:
    for change in (
        {"schema": "facerec.audit/2"},
        {"surplus": 1},
        {"findings": document["findings"] * 7},
        {"warnings": None},
        {"rates": [{**document["rates"][0], "fmr_nominal": 0.01}]},
        {"norms": [{**document["norms"][0], "cv": 0.1}]},
        {"differentials": [{**document["differentials"][0], "value": None, "reason": None}]},
    ):
        assert schema_errors({**document, **change}), change


def test_audits_without_figures_keep_the_schema(found: Audit, tmp_path: Path) -> None:
    bare = toy_audit(tmp_path, names=("A",), sizes=(20,), targets=("1e-5",), compared=False)
    assert schema_errors(to_json(bare)) == []
    nothing = NoComparison("race", "no reason")
    missing = dict.fromkeys(
        ("association", "adjusted", "rates", "differentials", "channels", "fusion"), nothing
    )
    parts = tuple(
        replace(part, **missing, histograms=())  # type: ignore[arg-type]
        for part in found.groupings
    )
    empty = replace(
        found,
        groupings=parts,
        thresholds=(),
        target=None,
        skipped=(nothing,),
        one_to_many=NoComparison("one to many", "no search"),
    )
    bare_document = to_json(empty)
    assert schema_errors(bare_document) == []
    reasons = {(row["grouping"], row["what"]) for row in bare_document["not_computed"]}
    assert reasons >= {
        ("race", "everything"),
        ("race", "rates"),
        ("race × sex", "fusion"),
        ("", "one to many"),
    }
    assert "no reason" in model_card(replace(empty, warnings=("no reason",)))


def test_no_number_is_nan_and_targets_are_text(document: dict[str, Any]) -> None:
    text = json.dumps(document, allow_nan=False)
    assert not re.search(r"\b(NaN|Infinity)\b", text)
    targets = {row["fmr_nominal"] for row in document["rates"]}
    assert targets == {"1e-2", "1e-3", "1e-4", "1e-5"}
    assert {type(leaf) for leaf in leaves(document)} <= {str, int, float, bool, type(None)}


def test_figures_are_those_of_the_audit(found: Audit, document: dict[str, Any]) -> None:
    part = found.groupings[0]
    assert isinstance(part.rates, GroupRates)
    rows = [row for row in document["norms"] if row["grouping"] == "race"]
    summaries: list[NormSummary] = [*part.norms.groups, part.norms.overall]
    for row, summary in zip(rows, summaries, strict=True):
        assert row["mean"]["value"] == summary.mean.value
        assert row["mean"]["n"] == row["subjects"] == summary.subjects
        assert row["p95"]["value"] == summary.quantiles["p95"].value
    assert rows[-1]["slice"] is None and rows[0]["slice"] == {"race": part.names[0]}
    point = part.rates.points[0]
    (row,) = [
        row
        for row in document["rates"]
        if (row["grouping"], row["name"], row["fmr_nominal"])
        == ("race", part.names[1], point.threshold.target)
    ]
    assert (row["fmr"]["k"], row["fmr"]["n"]) == (
        point.groups[1].fmr.events,
        point.groups[1].fmr.total,
    )
    for row in document["differentials"]:
        assert row["value"] is not None or row["reason"]


def test_pooled_and_suppressed_cells_have_no_figures(document: dict[str, Any]) -> None:
    hidden = [row for row in document["groups"] if row["suppressed"]]
    assert {row["name"] for row in hidden} >= {"Dun"}
    for row in hidden:
        assert row["subjects"] is row["images"] is row["fta"] is None and row["reason"]
    named = {row["name"] for row in document["norms"] if row["grouping"] == "race"}
    assert "Dun" not in named


def test_tables_say_what_the_document_says(found: Audit, document: dict[str, Any]) -> None:
    tables = csv_tables(found, document)
    assert [name for name, rows in tables.items() if not rows] == ["not_computed"]
    rates = tables["rates"]
    assert len(rates) == 2 * len(document["rates"])
    assert rates[0]["error"] == "FMR" and rates[0]["k"] == document["rates"][0]["fmr"]["k"]
    assert rates[1]["ci_low"] == document["rates"][0]["fnmr"]["ci"][0]
    cells = tables["fmr_matrix"]
    matrix = document["fmr_matrix"][0]
    names = matrix["groups"]
    first = {(row["first"], row["second"]): row["k"] for row in cells[: len(names) * 5 // 2]}
    assert first[names[1], names[0]] == matrix["k"][1][0]
    norms = {(row["grouping"], row["group"], row["figure"]): row for row in tables["norms"]}
    row = norms["race", "all groups", "icc"]
    assert row["value"] == document["norms"][len(names)]["icc"]["value"]
    assert ("race", "all groups", "difference") not in norms
    assert len(tables["pairs"]) == sum(len(row["pairs"]) for row in document["association"])
    histogram = document["scores"][0]
    part = [row for row in tables["scores"] if row["group"] == histogram["name"]][:512]
    assert [row["genuine"] for row in part] == histogram["genuine"]
    assert part[256]["score_from"] == 0.0


@settings(max_examples=examples(60), deadline=None)
@given(
    st.lists(
        st.fixed_dictionaries(
            {
                "a": st.text(alphabet=st.characters(codec="utf-8", exclude_characters="\r")),
                "=b": st.integers() | st.none() | st.floats(allow_nan=False),
            }
        ),
        min_size=1,
    )
)
def test_csv_keeps_values_and_holds_no_formula(rows: list[dict[str, Any]]) -> None:
    ordered = [{"a": row["a"], "=b": row["=b"]} for row in rows]
    read = list(csv.reader(io.StringIO(to_csv(ordered).decode(), newline="")))
    assert read[0] == ["a", "'=b"]
    assert len(read) == len(rows) + 1
    for line, row in zip(read[1:], rows, strict=True):
        assert line[0] in (row["a"], f"'{row['a']}")
        assert line[0][:1] not in ("=", "+", "-", "@", "\t")
        # Numbers are no formulas, with a minus or without.
        assert line[1] == ("" if row["=b"] is None else str(row["=b"]))


def test_objects_that_some_rows_lack_are_no_columns(found: Audit) -> None:
    tables = csv_tables(found, to_json(found))
    columns = {name: {key for row in rows for key in row} for name, rows in tables.items()}
    assert columns["groups"] >= {"slice_race", "fta_k", "suppressed"}
    assert not columns["groups"] & {"slice", "fta"}
    rows = [{"a": 1, "ratio": {"value": 2, "ci": [1, 3]}}, {"a": None, "ratio": None}]
    assert flat_rows(rows) == [
        {"a": 1, "ratio_value": 2, "ratio_ci_low": 1, "ratio_ci_high": 3},
        {"a": None},
    ]


def test_names_cannot_break_the_model_card(found: Audit) -> None:
    text = model_card(found)
    assert "<script" not in text and "&lt;script&gt;" in text
    for heading in ("## Uses", "## Bias, Risks, and Limitations", "## Evaluation", "#### Factors"):
        assert f"\n{heading}\n" in text
    (entries,) = re.findall(r"```yaml\n(.*?)```", text, re.DOTALL)
    values = re.findall(r"metric_value: (.*)", entries)
    configurations = re.findall(r"dataset_config: (.*)", entries)
    assert len(values) == len(configurations) > 10
    assert f"race = {EVIL}" in [json.loads(text) for text in configurations]
    assert all(json.loads(value) is None or float(value) >= 0 for value in values)
    first = found.groupings[0]
    part = replace(first, grouping=replace(first.grouping, attributes=("a|b`c\n# d",)))
    lines = model_card(replace(found, groupings=(part,))).splitlines()
    assert any(line.startswith("| a\\|b\\`c \\# d |") for line in lines)
    assert not any(line.startswith("# d") for line in lines)


@pytest.mark.parametrize(
    ("files", "name"),
    [
        ([("embeddings", "e.npz", {"data": "lfw"}), ("attributes", "a.csv", {})], "lfw"),
        ([("embeddings", "crowd.npz", {}), ("attributes", "a.csv", {})], "crowd"),
        ([("model", "m.onnx", {}), ("pairs", "cfp_fp.bin", {}), ("attributes", "a", {})], "cfp_fp"),
        ([("scores", "gate-7.csv", {})], "gate-7"),
    ],
)
def test_the_card_names_the_data(
    found: Audit, files: list[tuple[Any, str, dict[str, Any]]], name: str
) -> None:
    inputs = tuple(InputFile(role, file, "0" * 64, details) for role, file, details in files)
    text = model_card(replace(found, inputs=inputs))
    assert set(re.findall(r'dataset_name: "(.*)"', text)) == {name}


def test_banner_is_everywhere(tmp_path: Path) -> None:
    audit = toy_audit(tmp_path, source="inferred", compared=False)
    assert audit.banner is not None
    assert to_json(audit)["banner"] == audit.banner
    assert "> **Some group labels were inferred" in model_card(audit)


def test_folder_is_whole_hashed_and_rewritten(found: Audit, tmp_path: Path) -> None:
    folder = tmp_path / "deep" / "report"
    page = write_audit(folder, found, PAGES, "facerec audit --out OUT")
    assert page == folder / "report.html" and page.read_bytes() == PAGES["report.html"]
    files = contents(folder)
    manifest = json.loads(files.pop(MANIFEST))
    assert manifest["outputs"] == {
        name: hashlib.sha256(content).hexdigest() for name, content in sorted(files.items())
    }
    assert {"audit.json", "model_card_section.md", "tables/norms.csv"} <= set(files)
    assert manifest["command"] == "facerec audit --out OUT"
    assert [file["role"] for file in manifest["inputs"]] == ["embeddings", "attributes"]
    assert json.loads(files["audit.json"]) == json.loads(json.dumps(to_json(found)))
    before = contents(folder)
    write_audit(folder, found, PAGES, "facerec audit --out OUT")
    assert contents(folder) == before
    write_audit(folder, replace(found, comparison=None), {"report.html": b"x"}, "")
    assert "tables/comparison.csv" not in contents(folder) and not (folder / "figures").exists()
    assert [path.name for path in folder.parent.iterdir()] == ["report"]


def contents(folder: Path) -> dict[str, bytes]:
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


def test_no_id_of_a_person_or_image_is_in_any_file(found: Audit, tmp_path: Path) -> None:
    write_audit(tmp_path / "report", found, {}, "")
    ids = re.compile(rb"\b\d{3}/\d+\.jpg\b|\bp(?!5\b|25\b|75\b|95\b)\d+\b")
    for name, content in contents(tmp_path / "report").items():
        assert not ids.search(content), name


def test_other_files_are_never_replaced(found: Audit, tmp_path: Path) -> None:
    check_audit_folder(tmp_path / "new")
    folder = tmp_path / "mine"
    folder.mkdir()
    check_audit_folder(folder)
    (folder / "thesis.txt").write_text("x")
    with pytest.raises(FacerecError, match=r"mine: it holds thesis.txt, which is no part"):
        write_audit(folder, found, PAGES, "")
    write_audit(tmp_path / "report", found, PAGES, "")
    (tmp_path / "report" / "tables" / "mine.csv").write_text("x")
    with pytest.raises(FacerecError, match=r"it holds tables/mine.csv"):
        check_audit_folder(tmp_path / "report")
    (tmp_path / "file").write_text("x")
    with pytest.raises(FacerecError, match="a report is a folder"):
        check_audit_folder(tmp_path / "file")
    assert np.all([path.name[0] != "." for path in tmp_path.iterdir()])
