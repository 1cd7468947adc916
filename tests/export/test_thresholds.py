from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from facerec.errors import ExportError
from facerec.export.thresholds import flip_mode, read_thresholds, result_thresholds
from facerec.files import sha256
from facerec.statistics.kfold import fold_indices
from facerec.verification import Pairs, VerificationResult, evaluate
from facerec.verification.page import write_report

MODEL = {"name": "toy", "sha256": "ab" * 32}


def result(name: str = "lfw", flip: bool | None = True, pairs: int = 400) -> VerificationResult:
    generator = np.random.default_rng(0)
    same = np.tile(np.repeat([True, False], pairs // 20), 10)
    scores = np.clip(generator.normal(0.5 * same, 0.15), -1, 1)
    people = np.arange(2 * pairs)
    found = evaluate(
        scores,
        Pairs(2 * np.arange(pairs), 2 * np.arange(pairs) + 1, same, people, fold_indices(pairs)),
        name=name,
        fpr=("1e-1", "1e-2", "1e-4"),
    )
    return replace(found, flip=flip, model=MODEL)


def write(path: Path, *results: VerificationResult) -> Path:
    path.write_text(json.dumps({"facerec": "0", "results": [r.to_json() for r in results]}))
    return path


def test_thresholds_are_those_of_the_report(tmp_path: Path) -> None:
    found = result()
    path = write(tmp_path / "lfw.json", found)
    rows = read_thresholds(path, MODEL["sha256"])
    # 200 different pairs cannot resolve 1e-4.
    assert [row["fpr"] for row in rows] == ["1e-1", "1e-2"]
    for row in rows:
        estimate = found.point(row["fpr"])
        interval = estimate.threshold.interval
        assert row["threshold"] == estimate.point.threshold
        limits = None if interval is None else [interval.low, interval.high]
        assert row["threshold_interval"] == (
            limits if np.isfinite(limits or np.nan).all() else None
        )
        assert row["fpr_realised"] == np.mean(found.non_mated_scores >= row["threshold"])
        assert row["tpr"] == np.mean(found.mated_scores >= row["threshold"])
        false_accepts = int((found.non_mated_scores >= row["threshold"]).sum())
        assert row["false_accepts"] == [false_accepts, 200]
        assert row["true_accepts"] == [int((found.mated_scores >= row["threshold"]).sum()), 200]
        assert row["flip"] is True and row["bench"] == "lfw"
        assert row["source"] == {"report": "lfw.json", "sha256": sha256(path)}
    assert flip_mode(rows) == "sum_raw"
    assert result_thresholds(found) == [
        {name: value for name, value in row.items() if name != "source"} for row in rows
    ]


def test_a_report_of_several_benches_and_a_report_folder(tmp_path: Path) -> None:
    first, second = result("lfw"), result("cfp_fp")
    rows = read_thresholds(write(tmp_path / "both.json", first, second), MODEL["sha256"])
    assert [row["bench"] for row in rows] == ["lfw", "lfw", "cfp_fp", "cfp_fp"]
    write_report(tmp_path / "report", {"lfw": first, "cfp_fp": second})
    assert [
        (row["bench"], row["fpr"], row["threshold"])
        for row in read_thresholds(tmp_path / "report", MODEL["sha256"])
    ] == [(row["bench"], row["fpr"], row["threshold"]) for row in rows]


@pytest.mark.parametrize("model", [None, {"name": "toy"}, {"sha256": "cd" * 32}])
def test_a_report_on_another_model(tmp_path: Path, model: Any) -> None:
    path = write(tmp_path / "r.json", replace(result(), model=model))
    with pytest.raises(ExportError, match=r"thresholds belong to one model"):
        read_thresholds(path, MODEL["sha256"])
    with pytest.raises(ExportError, match=r"thresholds belong to one model"):
        read_thresholds(path, None)
