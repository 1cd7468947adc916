"""The benchmarks at tiny size: they run, count right, and compare with the bars as they say."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch

from facerec.backbones import Preprocessing, create_backbone, normalize
from facerec.errors import RecipeError
from facerec.records import RecordDataset
from facerec.records.synthetic import SyntheticSet, write_synthetic
from facerec.training import RMSprop

pytestmark = pytest.mark.integration

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"


@pytest.fixture
def measures(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(BENCHMARKS)
    import measures

    return measures


@pytest.fixture
def run(measures: ModuleType) -> ModuleType:
    import run

    return run


def test_a_bar_is_met_on_its_own_side(measures: ModuleType) -> None:
    def met(value: float, better: str, bar: float | None = 0.85) -> bool | None:
        return measures.Row("m", value, "×", bar, better).met

    assert met(0.85, "higher") is True and met(0.8499, "higher") is False
    assert met(0.8499, "lower") is True and met(0.85, "lower") is False
    assert met(1.0, "higher", None) is None
    assert met(float("nan"), "higher") is False and met(float("nan"), "lower") is False


def test_loader(measures: ModuleType, tmp_path: Path) -> None:
    write_synthetic(tmp_path, SyntheticSet(0, 2, 3, pairs_per_fold=4), processes=1)
    default, plain = measures.loader(tmp_path, batches=2, batch_size=4, repeats=2)
    assert default.bar == 0.92 and default.better == "higher" and plain.bar is None
    # Decoding is a part of loading, but at this size a disturbance can hide that.
    assert 0 < default.value < 20 and 0 < plain.value < 20
    data = RecordDataset(tmp_path)
    sizes = [len(data.encoded(i)) for i in range(len(data))]
    told = int(default.remark.split("JPEGs of ")[1].split()[0].replace(",", ""))
    assert min(sizes) <= told <= max(sizes)


def test_random_access(measures: ModuleType) -> None:
    opened, memory, reads = measures.random_access(count=3000, image_bytes=64, reads=50)
    assert "3,000 records of 96 bytes" in opened.measure
    assert opened.value > 0 and reads.value > 0
    assert memory.unit == "MB" and 0 <= memory.value < 100


def test_training_step(measures: ModuleType) -> None:
    threads = torch.get_num_threads()
    rows = measures.training_step(batch_size=2, width=0.125, steps=1)
    assert [row.measure.split(", ")[-2:] for row in rows] == [
        ["one thread", "CPU time"],
        [f"{threads} threads", "clock"],
    ]
    assert all(row.bar == 2.5 and row.better == "higher" for row in rows)
    assert all(0 < row.value < 1000 for row in rows)
    assert torch.get_num_threads() == threads


def test_the_fp32_step_computes_what_the_trainer_does(measures: ModuleType) -> None:
    backbone = create_backbone("iresnet18", width=0.125, seed=0).eval()
    generator = torch.Generator().manual_seed(0)
    images = torch.randint(256, (2, 112, 112, 3), dtype=torch.uint8, generator=generator)
    with torch.no_grad():
        expected = backbone(normalize(images, Preprocessing()))
        found = measures._Contiguous(backbone)(images)
    torch.testing.assert_close(found, expected, atol=1e-3, rtol=1e-3)
    assert all(p.is_contiguous() for p in backbone.parameters())


def test_faces(measures: ModuleType) -> None:
    (row,) = measures.faces(people=1, photos=2)
    assert row.value > 0 and row.bar == 300


def test_figures(measures: ModuleType) -> None:
    (row,) = measures.figures(pairs=200, dimensions=32, repeats=1)
    assert row.bar == 0.1 and 0 < row.value < 60 and "4 FPR targets" in row.remark


def test_import_time(measures: ModuleType) -> None:
    package, trainer = measures.import_time(repeats=1)
    assert 0 < package.value <= trainer.value and package.bar == 1.0 and trainer.bar is None


def test_the_command_prints_the_table_and_writes_json(
    run: ModuleType,
    measures: ModuleType,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    rows = [
        measures.Row("alpha", 0.9, "×", 0.85, "higher"),
        measures.Row("beta", np.pi, "s", 2.0),
        measures.Row("gamma", 123456.0, "1/s"),
    ]
    monkeypatch.setitem(run.SUITES["verification"], "figures", lambda: rows)
    monkeypatch.setattr(sys, "argv", ["run.py"])
    run.main(["figures", "--json", str(tmp_path / "found.json")])
    lines = capsys.readouterr().out.splitlines()
    assert "OpenCV" in lines[0] and "torch" in lines[0]
    cells = {
        line.split("│")[1].strip(): [cell.strip() for cell in line.split("│")[2:5]]
        for line in lines
        if line.startswith("│")
    }
    assert cells == {
        "alpha": ["0.9 ×", "≥ 0.85 ×", "yes"],
        "beta": ["3.14 s", "< 2 s", "no"],
        "gamma": ["123,456 1/s", "", ""],
    }
    saved = json.loads((tmp_path / "found.json").read_text())
    assert [row["met"] for row in saved["rows"]] == [True, False, None]
    assert saved["machine"]["cores"] >= 1 and saved["rows"][1]["value"] == np.pi


def test_suites_and_names(run: ModuleType) -> None:
    suites = run.SUITES
    assert list(run.choose(["figures", "core", "loader"])) == ["figures", *suites["core"]]
    with pytest.raises(RecipeError, match="there is no benchmark 'lodaer'; choose among core"):
        run.choose(["lodaer"])


def test_exact_figures(measures: ModuleType) -> None:
    from measures_verification import exact_figures

    (row,) = exact_figures(scores=20_000, repeats=2)
    assert row.bar == 5.0 and row.value > 0


def test_intervals(measures: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    import measures_intervals

    # The true rates are those of a far larger draw, which takes its time.
    monkeypatch.setattr(measures_intervals, "_truth", lambda generator: (0.44, 0.17, 0.7))
    rows = measures_intervals.coverage(3, 20)
    assert rows and all(0 <= row.value <= 100 for row in rows)
    assert all(row.value > 0 for row in measures_intervals.bootstrap_speed(20, 1))
    monkeypatch.setattr(measures_intervals.Population, "truth", lambda self, draws: {"FNMR 5 %": 0})
    rows = measures_intervals.coverage_mated(20, 30)
    assert [row.bar for row in rows] == [93, 97, None, None, None, None] * 2
    assert all(0 <= row.value <= 100 for row in rows)


def test_norm_audit(measures: ModuleType) -> None:
    import measures_fairness

    rows = measures_fairness.type_one_error(runs=4, permutations=19)
    assert len(rows) == 9 and all(0 <= row.value <= 100 for row in rows)
    assert [row.bar for row in rows[:3]] == [3, 7, None]
    rows = measures_fairness.power(runs=4, permutations=19)
    assert [row.bar for row in rows] == [90, None, None]
    rows = measures_fairness.audit_speed(subjects=60, images=3, repeats=1)
    assert [row.bar for row in rows] == [10, 10, None] and all(row.value >= 0 for row in rows)
    time, memory = measures_fairness.whole_audit(subjects=60, images=3, dimensions=16)
    assert time.value > 0 and time.bar == 300 and memory.value > 0 and memory.bar == 4000
    assert f"{180 * 179 // 2 - 60 * 3:,} non-mated pairs" in time.remark


def test_levels_of_the_norm_audit(measures: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    import measures_fairness_levels as levels

    rows = levels.subject_tests(runs=2, permutations=19)
    assert len(rows) == 4 * len(levels.EQUAL)
    assert [row.bar for row in rows[:4]] == [4, 6, None, None]
    rows = levels.eta2_coverage(runs=2, permutations=39, replicates=49)
    assert all("agree in 2" in row.remark for row in rows)
    rows += levels.norm_coverage(runs=3)
    assert {row.bar for row in rows} == {92, 93, 98} and all(0 <= row.value <= 100 for row in rows)
    rows = levels.spread_coverage(runs=40)
    assert len(rows) == 27 and all(row.value >= 70 for row in rows if "Bonett" in row.measure)
    monkeypatch.setattr(levels, "_EQUAL_FACES", levels._EQUAL_FACES[:1])
    rows = levels.differential_tests(runs=4, replicates=39)
    assert [row.bar for row in rows] == [3, 7, 3, 7, None, None]


def test_what_was_planted_in_embeddings(
    measures: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    import measures_planted

    generator = np.random.default_rng(0)
    people = np.repeat(np.arange(40), 8)
    vectors = generator.normal(size=(40, 32))[people] + 0.4 * generator.normal(size=(320, 32))
    names = np.char.add("p", people.astype(str))
    ids = np.arange(320).astype(str)
    np.savez(tmp_path / "e.npz", vectors=vectors.astype(np.float32), ids=ids, subjects=names)
    monkeypatch.setattr(measures_planted, "WRONG", ((0.05, 0),))
    monkeypatch.setattr(measures_planted, "SHARED", ((20, 8, 4), (20, 0, 4)))
    files = [tmp_path / "e.npz"]
    auc, score = measures_planted.cleaning_planted(embeddings=files, seeds=1)
    recall, precision, false = measures_planted.overlap_planted(embeddings=files, seeds=2)
    assert auc.met and score.met and recall.met and precision.met and false.value <= 1
    (missing,) = measures_planted.overlap_planted(embeddings=[tmp_path / "none.npz"])
    assert missing.value is None and "none.npz" in missing.remark


def test_identification_by_group(measures: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    import measures_one_to_many

    monkeypatch.setattr(measures_one_to_many, "WORLDS", measures_one_to_many.WORLDS[:1])
    rows = measures_one_to_many.search_coverage(runs=2, draws=4)
    assert {row.bar for row in rows} == {None, 93, 97}
    assert len(rows) == 14 and all(0 <= row.value <= 100 for row in rows)


def test_comparison_on_features(measures: ModuleType, tmp_path: Path) -> None:
    pytest.importorskip("pytorch_metric_learning", reason="needs the extra compare")
    import measures_features

    labels = np.arange(48).repeat(4)
    features = np.random.default_rng(0).normal(size=(48, 8))[labels]
    features += np.random.default_rng(1).normal(size=features.shape)
    path = tmp_path / "features.npz"
    np.savez(path, features=features, labels=labels, images=np.arange(len(labels)).astype(str))
    rows = measures_features.feature_null(path, pool=6, seeds=3, families=4, every=2, epochs=1)
    assert len(rows) == 4 and all(0 <= row.value <= 100 for row in rows)
    assert "of 12 comparisons" in rows[0].remark
    (missing,) = measures_features.feature_null(tmp_path / "none.npz")
    assert missing.value is None and "none.npz" in missing.remark
    with pytest.MonkeyPatch.context() as patch:
        quick = RMSprop(lr=1e-2)
        short = replace(measures_features.ON_FEATURES, epochs=2, steps_per_epoch=4, optimizer=quick)
        patch.setattr(measures_features, "ON_FEATURES", short)
        patch.setattr(measures_features, "SEC_LOSSES", measures_features.SEC_LOSSES[2:3])
        (row,) = measures_features.feature_power(path, seeds=2)
    assert row.value > 0 and "NPairNormalized" in row.measure


def test_comparison(measures: ModuleType) -> None:
    pytest.importorskip(
        "pytorch_metric_learning.utils.accuracy_calculator", reason="version 2 has it"
    )
    import measures_comparison

    rows = measures_comparison.retrieval(images=400, dimensions=16, per_class=8, batches=(64,))
    assert [row.bar for row in rows[-2:]] == [2.0, 0.5] and rows[-2].value > 0
    rows = measures_comparison.null(3, losses=2, seeds=4, classes=5, images=3, replicates=50)
    assert len(rows) == 4 and all(0 <= row.value <= 100 for row in rows)
    assert "of 6 comparisons" in rows[0].remark


def test_engine(measures: ModuleType) -> None:
    import measures_engine

    rows = measures_engine.head(batch=8, size=16, classes=(500,), memory_bars=(0.45,), repeats=1)
    assert len(rows) >= 2 and all(row.value >= 0 for row in rows)


@pytest.mark.integration
def test_head_update(measures: ModuleType) -> None:
    import measures_engine

    rows = measures_engine.head_update(batch=8, size=16, classes=500, repeats=1)
    assert {row.bar for row in rows} >= {2.0, 0.03} and rows[-1].bar == 0.03
    assert all(row.value > 0 for row in rows if row.better == "higher")


def test_sampled_head(measures: ModuleType) -> None:
    import measures_engine

    time, memory = measures_engine.sampled_head(batch=8, size=16, classes=400, rate=0.1)
    assert time.value > 0 and time.bar == 1.5 and "400 classes at rate 0.1" in time.measure
    assert 0.1 < memory.value < 12 and memory.unit == "GiB"


def test_checkpoint(measures: ModuleType, tmp_path: Path) -> None:
    import measures_faults

    written, stall = measures_faults.checkpoint(
        backbone="mbf", classes=50, repeats=1, folder=tmp_path
    )
    assert 0 < stall.value <= written.value
    assert not list(tmp_path.iterdir())


def test_utilization(measures: ModuleType) -> None:
    import measures_engine

    (row,) = measures_engine.utilization(backbone="mbf", batch_size=4, classes=50, steps=1)
    assert 0 < row.value < 200 and "50 classes" in row.measure and row.unit == "%"


def test_distillation(measures: ModuleType) -> None:
    import measures_engine

    (row,) = measures_engine.distillation(batch_size=8, size=16, steps=1)
    assert row.bar == 0.97 and 0 < row.value < 100


def test_allocator(measures: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    import measures_engine

    # Any library can be preloaded: here the allocator stays what it is.
    monkeypatch.setattr("ctypes.util.find_library", lambda name: "libm.so.6")
    time, memory = measures_engine.allocator(
        backbone="mbf", batch_size=4, classes=50, steps=1, turns=1
    )
    assert time.value > 0 and "CPU time" in time.measure
    assert 0.8 < memory.value < 1.25 and "MB" in memory.remark
    monkeypatch.setattr("ctypes.util.find_library", lambda name: None)
    (row,) = measures_engine.allocator()
    assert row.value is None and row.met is None and "tcmalloc_minimal was not found" in row.remark
