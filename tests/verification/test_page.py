from __future__ import annotations

import io
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from helpers.html_page import Page
from helpers.toy_files import read_files, read_table
from helpers.toy_results import make_result
from pytest import MonkeyPatch, TempPathFactory
from rich.console import Console

import facerec
from facerec.base.errors import FacerecError
from facerec.report import plotting
from facerec.verification import Pairs, VerificationResult, evaluate
from facerec.verification.compare import compare
from facerec.verification.page import check_report_folder, write_report
from facerec.verification.report import THRESHOLD_ADVICE, print_result

EVIL = "<script>alert('&')</script>"


def read(folder: Path) -> Page:
    return Page((folder / "report.html").read_text(encoding="utf-8"))


def words(text: str) -> str:
    return " ".join(text.split())


@pytest.fixture(scope="module")
def results() -> dict[str, VerificationResult]:
    one = make_result(2000, compat="insightface")
    two = make_result(2000, noise=2, strength=1.4, broken=60)
    two = replace(two, model={"name": "other", "sha256": "ef" * 32})
    evil = make_result(60, name=EVIL, persons=None, folds=False)
    stated = {"source": {"path": EVIL}, "notes": (f"a note on {EVIL}",)}
    return {"one": one, "two": two, EVIL: replace(evil, model=None, flip=None, **stated)}


@pytest.fixture(scope="module")
def report(results: dict[str, VerificationResult], tmp_path_factory: TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("place") / "new" / "report"
    comparison = compare(results["one"], results["two"])
    path = write_report(
        folder, results, comparisons=[comparison], command="facerec verify --bench lfw 'a & b'"
    )
    assert path == folder / "report.html"
    return folder


@pytest.fixture
def quick(monkeypatch: MonkeyPatch) -> None:
    """Write figures without drawing them, where they do not matter."""
    monkeypatch.setattr(plotting, "draw", lambda figure, kind: kind.encode())


# --- what is there ----------------------------------------------------------------------------


def test_json_holds_all_results_and_is_strict(
    report: Path, results: dict[str, VerificationResult]
) -> None:
    def refuse(name: str) -> None:
        raise AssertionError(name)

    text = (report / "report.json").read_text(encoding="utf-8")
    figures = json.loads(text, parse_constant=refuse)
    assert figures["kind"] == "facerec verification report"
    assert figures["facerec"] == facerec.__version__
    assert figures["command"] == "facerec verify --bench lfw 'a & b'"
    assert list(figures["results"]) == list(results)
    for name, result in results.items():
        assert figures["results"][name] == json.loads(json.dumps(result.to_json()))
    (found,) = figures["comparisons"]
    one, other, change = (each["value"] for each in found["rows"] if each["figure"] == "AUC")
    assert change == pytest.approx(other - one) and found["left_out"] > 60
    assert set(figures["files"]) == set(read_files(report))


def test_the_table_of_figures_is_what_terminal_and_page_show(
    report: Path, results: dict[str, VerificationResult]
) -> None:
    rows = {
        (row["bench"], row["figure"], row["target"], row["kind"]): row
        for row in read_table(report / "figures.csv")
    }
    for name, result in results.items():
        for found in result.points:
            row = rows[name, "TPR@FPR", found.point.target, "value"]
            if not found.point.resolvable:
                assert row["value"] == row["low"] == "" and row["status"] == "unresolved"
                continue
            assert float(row["value"]) == found.point.tpr
            assert float(row["high"]) == found.tpr.interval.high
            assert ("few errors" in row["remark"]) == (not found.point.reliable)
            assert int(row["numerator"]) == found.point.true_accepts
            realised = rows[name, "realised FPR", found.point.target, "value"]
            assert float(realised["low"]) == found.fpr.interval.low
            assert int(realised["numerator"]) == found.point.false_accepts
            threshold = rows[name, "threshold", found.point.target, "threshold"]
            assert float(threshold["value"]) == found.point.threshold
    one = results["one"]
    shown = read(report).rows("Figures with 95 % intervals")
    (accuracy,) = [
        row for row in shown if row[0] == "one" and row[1].startswith("accuracy 10 folds")
    ]
    assert accuracy[2].startswith(f"{100 * one.accuracy.value:.2f}")
    assert accuracy[4] == f"{one.accuracy.events}/2000"
    stream = io.StringIO()
    print_result(one, Console(file=stream, width=80))
    said = words(stream.getvalue())
    tenth = one.points[0].point
    for piece in (accuracy[2], f"{tenth.true_accepts}/1000", f"threshold 1e-1 {tenth.threshold}"):
        assert words(piece) in said
    assert "TPR@FPR 1e-4 not resolvable" in said and THRESHOLD_ADVICE in said
    assert max(map(len, stream.getvalue().splitlines())) <= 80 and "…" not in said
    change = rows["A: toy · toynet; B: toy · other", "accuracy", "", "change"]
    assert float(change["low"]) <= float(change["value"]) <= float(change["high"])


def test_pairs_that_err_most_and_those_without_a_score(
    report: Path, results: dict[str, VerificationResult]
) -> None:
    rows = read_table(report / "pairs.csv")
    for name, result in results.items():
        for kind, same in (("lowest mated", True), ("highest non-mated", False)):
            pairs = [
                pair
                for pair in range(len(result.pairs))
                if result.pairs.issame[pair] == same and not np.isnan(result.scores[pair])
            ]
            pairs.sort(key=lambda pair: (1 if same else -1) * float(result.scores[pair]))
            found = [row for row in rows if (row["bench"], row["list"]) == (name, kind)]
            assert [int(row["pair"]) for row in found] == pairs[:10]
        failed = [row for row in rows if (row["bench"], row["list"]) == (name, "failures")]
        assert [(int(row["pair"]), row["reason"]) for row in failed] == [
            (failure.pair, failure.reason) for failure in result.failures
        ]
    assert len(read(report).rows("Pairs that err most")) == 21


# --- the page ---------------------------------------------------------------------------------


def test_extreme_thresholds_and_scores(tmp_path: Path, quick: None) -> None:
    scores = np.array([np.inf, 0.5, 0.7, np.nan, -np.inf, np.inf, 0.2, 0.3])
    rows = np.arange(8)
    pairs = Pairs(2 * rows, 2 * rows + 1, rows < 4)
    result = evaluate(scores, pairs, name="odd", fpr=["0", "0.25", "1"])
    write_report(tmp_path / "r", {"odd": result})
    text = (tmp_path / "r" / "report.json").read_text()
    assert "NaN" not in text and "Infinity" not in text and '"-inf"' in text
    rows_ = {
        (row["figure"], row["target"]): row for row in read_table(tmp_path / "r" / "figures.csv")
    }
    assert float(rows_["threshold", "1"]["value"]) == -np.inf
    shown = {row[0]: row[1] for row in read(tmp_path / "r").rows("Figures with 95 % intervals")}
    assert "accept all" in {text for name, text in shown.items() if name.startswith("threshold 1")}


# --- the folder -------------------------------------------------------------------------------


def test_foreign_files_are_never_removed(tmp_path: Path, quick: None) -> None:
    results = {"x": make_result(60)}
    folder = write_report(tmp_path / "report", results).parent
    for name in ("figures/roc.pdf", "deep/er/file"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("mine")
        before = read_files(folder)
        for attempt in (check_report_folder, lambda path: write_report(path, results)):
            with pytest.raises(FacerecError, match=f"{folder}: it holds {name}, which is no part"):
                attempt(folder)
        assert read_files(folder) == before
        (folder / name).unlink()
