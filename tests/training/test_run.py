"""Run folders: names that overwrite nothing, and what may change when a run is resumed."""

from __future__ import annotations

import hashlib
import json
import shutil
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from helpers.tiny_training import tiny_recipe, write_training_set

import facerec
from facerec.base.errors import CheckpointError, RecipeError
from facerec.base.recipe import differences, to_dict
from facerec.heads import SEC, CosFace
from facerec.records import open_dataset
from facerec.training import SGD, Checkpoints, DataParallel, Distillation, Recipe, Validation
from facerec.training.checkpoint import STATE_FILE
from facerec.training.distributed import Processes
from facerec.training.run import (
    FREE_TO_CHANGE,
    check_same_run,
    find_folder,
    fingerprint,
    new_folder,
    write_manifest,
)

ALONE = Processes(0, 1, torch.device("cpu"))


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_training_set(tmp_path_factory.mktemp("records"), people=3, images=2)


def new(runs: Path, name: str = "arc", *, exact: bool = False) -> str:
    assert find_folder(runs, name, resume=False, exact=exact) is None
    folder = new_folder(runs, name, exact=exact)
    assert folder.is_dir()
    return folder.relative_to(runs).as_posix()


def with_checkpoint(folder: Path) -> None:
    step = folder / "checkpoints" / "step-00000003"
    step.mkdir(parents=True)
    (step / STATE_FILE).write_text("{}")


# ---------------------------------------------------------------- names


def test_taken_names_are_numbered(tmp_path: Path) -> None:
    runs = tmp_path / "new" / "runs"
    assert [new(runs) for _ in range(11)][:3] == ["arc", "arc-2", "arc-3"]
    assert new(runs) == "arc-12"  # by number, not by text
    assert new(runs, "arc-sec") == "arc-sec"
    assert new(runs, "ar") == "ar"


def test_a_name_given_by_the_user_is_never_changed(tmp_path: Path) -> None:
    assert new(tmp_path, "group/mine", exact=True) == "group/mine"
    assert new(tmp_path, "mine", exact=True) == "mine"
    with pytest.raises(RecipeError, match=r"mine exists already; use --resume or another --name"):
        new(tmp_path, "mine", exact=True)
    with pytest.raises(RecipeError, match="mine: cannot be made"):  # begun since it was looked for
        new_folder(tmp_path, "mine", exact=True)
    assert not (tmp_path / "mine-2").exists()


def test_the_newest_run_with_a_checkpoint_is_resumed(tmp_path: Path) -> None:
    def resumed(exact: bool = False) -> str:
        folder = find_folder(tmp_path, "arc", resume=True, exact=exact)
        return "new" if folder is None else folder.name

    assert resumed() == resumed(exact=True) == "new"
    for _ in range(11):
        new(tmp_path)
    assert resumed() == "arc-11"  # killed before anything was written into it
    (tmp_path / "arc-11" / "launch.json").write_text("{}")
    assert resumed() == "arc-11"
    for folder in tmp_path.iterdir():
        (folder / "photo.jpg").touch()
    assert resumed() == "new"
    for name in ("arc-3", "arc-5"):  # begun, and killed before the first checkpoint
        (tmp_path / name / "recipe.json").write_text("{}")
    assert resumed() == "arc-5"
    with_checkpoint(tmp_path / "arc-2")
    assert resumed() == "arc-2"
    with_checkpoint(tmp_path / "arc-10")
    with_checkpoint(tmp_path / "arc-sec")
    assert resumed() == "arc-10"
    # A checkpoint that was being written is none.
    (tmp_path / "arc" / "checkpoints" / "step-00000009").mkdir(parents=True)
    with pytest.raises(RecipeError, match=r"arc exists already; it holds no run"):
        resumed(exact=True)
    with_checkpoint(tmp_path / "arc")
    assert resumed(exact=True) == "arc"


# ---------------------------------------------------------------- the same run


def start(folder: Path, recipe: Recipe) -> None:
    dataset = open_dataset(recipe.data, recipe.seed)
    nothing = dict.fromkeys(("head", "start", "teacher"))
    engine = {"processes": ALONE, "precision": "fp32", "compiled": False}
    write_manifest(folder, SimpleNamespace(recipe=recipe, dataset=dataset, **engine, **nothing))


def changed(folder: Path, recipe: Recipe) -> str:
    with pytest.raises(CheckpointError) as caught:
        check_same_run(folder, recipe, open_dataset(recipe.data, recipe.seed))
    return str(caught.value)


FREE = [
    {"accumulation": 2},
    {"data_parallel": DataParallel(bucket_mb=3)},
    {"workers": 3},
    {"log_every": 7},
    {"logger": "mine:Logger"},
    {"compile": True},
    {"recompute": True},
    {"checkpoints": Checkpoints(every_steps=5, keep=9)},
    {"validation": Validation(benches=("lfw",), every_epochs=3)},
]


def test_what_does_not_change_learning_may_change(tmp_path: Path, data: Path) -> None:
    taught = Distillation(Path("teacher.onnx"))
    recipe = tiny_recipe(data, distillation=taught)
    start(tmp_path, recipe)
    moved = tmp_path / "moved"
    moved.symlink_to(data)
    freed = [replace(recipe, data=replace(recipe.data, path=moved))]
    freed += [replace(recipe, data=replace(recipe.data, on_error="skip"))]
    freed += [replace(recipe, **change) for change in FREE]
    elsewhere = Distillation(Path("there/teacher.onnx"), cache=Path("there"))
    freed += [replace(recipe, distillation=elsewhere)]
    for other in freed:
        check_same_run(tmp_path, other, open_dataset(other.data, other.seed))
    touched = {name for other in freed for name in differences(to_dict(recipe), to_dict(other))}
    named = {name if name in FREE_TO_CHANGE else name.split(".")[0] for name in touched}
    assert named == set(FREE_TO_CHANGE)


@pytest.mark.parametrize(
    ("change", "fields"),
    [
        ({"optimizer": SGD(lr=0.06)}, "optimizer.lr"),
        ({"seed": 1, "batch_size": 6}, "batch_size, seed"),
        ({"margin": CosFace(scale=16.0, margin=0.3)}, "margin.type, "),
        ({"regularizer": SEC(weight=0.4, rho=0.5)}, "regularizer.weight"),
        ({"regularizer": None}, "regularizer"),
        ({"precision": "bf16"}, "precision"),
    ],
)
def test_what_changes_learning_is_named(
    tmp_path: Path, data: Path, change: dict[str, object], fields: str
) -> None:
    start(tmp_path, tiny_recipe(data))
    sentence = changed(tmp_path, tiny_recipe(data, **change))
    assert sentence.startswith(
        f"{tmp_path}/recipe.json: the run was started with other values of {fields}"
    )
    assert sentence.endswith(f"facerec train finetune --init.path {tmp_path}")


def copied(data: Path, to: Path) -> Path:
    shutil.copytree(data, to)
    return to


def test_other_data_of_the_same_size_is_refused(tmp_path: Path, data: Path) -> None:
    run = tmp_path / "run"
    run.mkdir()
    start(run, tiny_recipe(data))
    same = copied(data, tmp_path / "same")
    (same / "lfw.bin").write_bytes(b"what else lies there does not matter")
    (same / "train.rec").rename(same / "faces.rec")
    (same / "train.idx").rename(same / "faces.idx")
    for path in (same, same / "faces.rec", data / "train.rec"):
        recipe = tiny_recipe(path)
        check_same_run(run, recipe, open_dataset(recipe.data, 0))

    index = copied(data, tmp_path / "index")
    lines = (index / "train.idx").read_text().splitlines()
    (index / "train.idx").write_text("\n".join(reversed(lines)) + "\n")
    assert "record file or index are others than they were" in changed(run, tiny_recipe(index))


# ---------------------------------------------------------------- manifest


@pytest.mark.parametrize("suffix", [".tar", ".parquet"])
def test_all_files_of_a_pattern_are_identified(tmp_path: Path, suffix: str) -> None:
    names = [f"train-{number}{suffix}" for number in range(2)]
    for name in names:
        (tmp_path / name).write_bytes(b"abc")
    found = fingerprint(tmp_path / f"train-*{suffix}")
    assert found["files"] == {name: {"bytes": 3} for name in names}


def test_the_manifest_says_what_a_repetition_needs(tmp_path: Path, data: Path) -> None:
    recipe = tiny_recipe(data, seed=5)
    start(tmp_path, recipe)
    manifest = json.loads((tmp_path / "manifest.json").read_text())
    assert manifest["facerec"] == facerec.__version__
    assert manifest["packages"]["torch"] == torch.__version__
    assert {"numpy", "opencv", "safetensors"} <= manifest["packages"].keys()
    assert (manifest["seed"], manifest["processes"]) == (5, 1)
    assert manifest["hardware"]["device"] == "cpu" and manifest["hardware"]["cores"] >= 1
    assert manifest["git"] is None or len(manifest["git"].rstrip("+")) == 40
    assert (manifest["data"]["images"], manifest["data"]["classes"]) == (6, 3)
    files = manifest["data"]["files"]
    assert {"train.rec", "train.idx", "property"} <= files.keys()
    assert files["train.rec"] == {"bytes": (data / "train.rec").stat().st_size}
    index = (data / "train.idx").read_bytes()
    assert files["train.idx"]["sha256"] == hashlib.sha256(index).hexdigest()
