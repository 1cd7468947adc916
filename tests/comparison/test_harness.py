"""A whole comparison: shared by workers, killed and resumed, null effects, refusals."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers.tiny_comparison import BASE, comparison, protocol, write_images

from facerec.backbones import Backbone, Preprocessing, create_backbone
from facerec.base.errors import ComparisonError, DatasetError, RecipeError
from facerec.base.recipe import to_dict
from facerec.comparison import Arm, Comparison, FaceTransform, Trunk
from facerec.comparison.harness import Harness, Results
from facerec.comparison.losses import MetricLoss
from facerec.embedding.torch_model import save_model
from facerec.records import Data
from facerec.training import SGD

pytestmark = pytest.mark.integration

pytest.importorskip("optuna")


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_images(tmp_path_factory.mktemp("images"))


def run(plan: Comparison, folder: Path, progress: Any = None, **options: Any) -> Results:
    return Harness(plan, folder, torch.device("cpu"), **options).run(progress)


def figures(results: Results) -> Any:
    """Return everything that was measured, without times."""
    found = {}
    for arm in results.arms:
        runs = arm.runs.values()
        scores = [{"/".join(k): values.tolist() for k, values in r.scores.items()} for r in runs]
        fits = [[replace(fit, seconds=0.0) for fit in r.fits] for r in runs]
        trials = [(t.number, t.setting, t.score) for t in arm.trials]
        found[arm.arm.name] = (arm.best and arm.best.setting, trials, scores, fits)
    return found


@pytest.fixture(scope="module")
def whole(images: Path, tmp_path_factory: pytest.TempPathFactory) -> Results:
    return run(comparison(images), tmp_path_factory.mktemp("whole"))


def test_what_a_comparison_holds(whole: Results) -> None:
    base, sec = whole.arms
    assert [len(arm.trials) for arm in whole.arms] == [3, 3]
    assert [len(arm.runs) for arm in whole.arms] == [2, 2] and len(whole.untrained) == 2
    for arm in whole.arms:
        best = max(t.score for t in arm.trials if t.score is not None)
        assert arm.best == next(t for t in arm.trials if t.score == best)
        for trial in arm.trials:
            assert len(trial.folds) == 4 and None not in trial.folds
            assert trial.score == np.mean(trial.folds)  # type: ignore[arg-type]
        assert all(len(r.fits) == 4 and len(r.labels) == 48 for r in arm.runs.values())
    # The second setting of the arm with SEC is the base's best without SEC.
    assert sec.trials[1].score == max(t.score for t in base.trials if t.score is not None)
    first, second = base.runs.values()
    assert first.mean("concatenated", "map_at_r") != second.mean("concatenated", "map_at_r")


CODE = """
import json, sys
from pathlib import Path
import torch
from facerec.comparison import Comparison
from facerec.comparison.harness import Harness
from facerec.base.recipe import from_dict
torch.set_num_threads(1)
plan = from_dict(Comparison, json.loads(Path(sys.argv[1]).read_text()), sys.argv[1])
Harness(plan, Path(sys.argv[2]), torch.device("cpu")).run()
"""


def started(plan: Comparison, folder: Path) -> subprocess.Popen[bytes]:
    """Start a worker of the comparison in ``folder / "out"``."""
    (folder / "recipe.json").write_text(json.dumps(to_dict(plan)))
    (folder / "run.py").write_text(CODE)
    return subprocess.Popen(
        [sys.executable, str(folder / "run.py"), str(folder / "recipe.json"), str(folder / "out")],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )


def test_workers_share_a_comparison(images: Path, whole: Results, tmp_path: Path) -> None:
    plan = comparison(images)
    with started(plan, tmp_path) as process:
        found = run(plan, tmp_path / "out")
        assert process.wait(timeout=120) == 0
    assert figures(found) == figures(whole)


def test_a_killed_comparison_ends_in_the_same_table(
    images: Path, whole: Results, tmp_path: Path
) -> None:
    plan = comparison(images)
    generator = np.random.default_rng(0)
    kills = 0
    while True:
        process = started(plan, tmp_path)
        try:
            # Importing takes seconds; then it dies anywhere.
            process.wait(timeout=6 + 3 * generator.random() if kills < 3 else 300)
        except subprocess.TimeoutExpired:
            os.kill(process.pid, signal.SIGKILL)
            process.wait()
            kills += 1
            continue
        assert process.returncode == 0
        break
    assert figures(run(plan, tmp_path / "out")) == figures(whole)
    assert not list((tmp_path / "out").rglob("*.tmp"))


def test_an_arm_that_diverges_does_not_end_the_comparison(images: Path, tmp_path: Path) -> None:
    wild = Arm(
        "wild",
        MetricLoss("Contrastive"),
        protocol=replace(comparison(images).protocol, optimizer=SGD(lr=1e12)),
    )
    plan = comparison(images, arms=(wild, BASE), declared=("optimizer",), trials=2)
    seen: dict[str, tuple[int, int]] = {}
    bad, good = run(plan, tmp_path, progress=lambda arm, *count: seen.update({arm: count})).arms
    assert bad.best is None and not bad.runs
    assert all(t.score is None and t.failure for t in bad.trials) and len(bad.trials) == 2
    assert len(good.runs) == 2
    assert seen == {"untrained": (2, 2), "wild": (2, 2), "CosFace": (4, 4)}


def test_a_folder_of_another_comparison_is_refused(images: Path, tmp_path: Path) -> None:
    plan = comparison(images, arms=(BASE,), trials=1, repetitions=1)
    run(plan, tmp_path)
    with pytest.raises(ComparisonError, match=r"manifest\.json: .* comparison\.trials; take"):
        run(replace(plan, trials=2), tmp_path)
    with pytest.raises(ComparisonError, match=r"arms\.CosFace\.loss_lr, comparison\.arms\.more;"):
        more = (replace(BASE, loss_lr=0.5), replace(BASE, name="more"))
        run(replace(plan, arms=more), tmp_path)
    (images / "class03" / "0.png").rename(images / "class03" / "moved.png")
    try:
        with pytest.raises(ComparisonError, match=r"with another data\.labels_sha256"):
            run(plan, tmp_path)
    finally:
        (images / "class03" / "moved.png").rename(images / "class03" / "0.png")


def test_a_storage_that_is_lost_ends_in_a_sentence(
    images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    errors = pytest.importorskip("sqlalchemy.exc")

    def lost(*given: Any) -> Any:
        raise errors.OperationalError("SELECT 1", {}, Exception("the server closed the connection"))

    harness = Harness(comparison(images), tmp_path / "out", torch.device("cpu"))
    monkeypatch.setattr(harness.search, "finished", lost)
    with pytest.raises(ComparisonError, match="closed the connection"):
        harness.run()


def test_what_is_refused_before_work_begins(images: Path, tmp_path: Path) -> None:
    bench = write_images(tmp_path / "lfw")
    with pytest.raises(DatasetError, match="lfw"):
        run(comparison(bench), tmp_path / "b")
    cut = comparison(images, protocol=protocol(folds=9))
    with pytest.raises(DatasetError, match=rf"{images}: 8 of 16 classes"):
        run(cut, tmp_path / "cut")
    lost = protocol(trunk=Trunk("foo"), transform=FaceTransform())
    unknown = comparison(images, protocol=lost)
    with pytest.raises(RecipeError, match="no backbone is called 'foo'"):
        run(unknown, tmp_path / "unknown")
    assert {path.name for path in tmp_path.iterdir()} == {"lfw"}


def test_weights_trained_on_these_images_are_refused(images: Path, tmp_path: Path) -> None:
    def opened(name: str, recipe: dict[str, Any]) -> list[str]:
        weights, backbone = tmp_path / name, Backbone("mbf", 8, width=0.25, embedding_bn="none")
        save_model(weights, create_backbone(backbone), backbone, Preprocessing(), recipe)
        trunk = Trunk("mbf", 8, width=0.25, weights=weights)
        plan = comparison(images, protocol=protocol(trunk=trunk, transform=FaceTransform()))
        harness = Harness(plan, tmp_path / f"{name}-out", torch.device("cpu"))
        assert list(harness.manifest["weights_sha256"]) == [str(weights)]
        return list(harness.manifest["notes"])

    with pytest.raises(ComparisonError, match=r"trained on .*, test classes among"):
        opened("same.safetensors", {"data": to_dict(Data(images))})
    (note,) = opened("other.safetensors", {})
    assert "whether it was trained on test identities is not known" in note
