"""Runs that are killed at any moment, on one rank or two, end as if nothing had happened."""

from __future__ import annotations

import functools
import json
import math
import random
import re
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path

import psutil
import pytest
import torch.distributed as dist
from helpers.lives import Command, Ranks, command, elastic, noisy_recipe
from helpers.tiny_training import write_training_set
from pytest import TempPathFactory

from facerec.backbones import create_backbone
from facerec.embedding.torch_model import save_model
from facerec.training import checkpoint
from facerec.training.distributed import own_space

RECIPES = {
    # Batch-norm, dropout and momentum: every kind of state.
    "arc": """
from pathlib import Path
from helpers.lives import noisy_recipe
from facerec.training import Checkpoints
recipe = noisy_recipe(Path("data"), epochs=EPOCHS, checkpoints=Checkpoints(every_steps=3, keep=2))
""",
    # From weights, at first at rest, with an average of the weights.
    "tuned": """
from pathlib import Path
from facerec.training import Checkpoints, Finetune, Init
from helpers.lives import noisy_recipe
recipe = noisy_recipe(
    Path("data"),
    init=Init(path=Path("data/start.safetensors"), head="class_means"),
    finetune=Finetune(rate_factor=0.5, freeze_steps=5, batch_norm="frozen"),
    ema=0.9,
    epochs=EPOCHS,
    checkpoints=Checkpoints(every_steps=3, keep=2),
)
""",
}
EPOCHS, STEPS_PER_EPOCH = 12, 4
"""Of most runs; an epoch is 56 images in batches of twelve."""
Whole = Callable[..., Path]


@pytest.fixture(scope="module")
def data(tmp_path_factory: TempPathFactory) -> Path:
    data = write_training_set(tmp_path_factory.mktemp("records"))
    recipe = noisy_recipe(data)
    network = create_backbone(recipe.backbone, seed=7)
    save_model(data / "start.safetensors", network, recipe.backbone, recipe.preprocessing, {}, {})
    return data


@pytest.fixture(scope="module")
def whole(data: Path, tmp_path_factory: TempPathFactory) -> Whole:
    """Return an uninterrupted run of a recipe on so many ranks."""

    @functools.cache
    def run(name: str, world: int, epochs: int = EPOCHS) -> Path:
        folder = workplace(tmp_path_factory.mktemp("whole"), data, epochs)
        ranks = Ranks(world, folder, command, [f"{name}.py", "--device", "cpu"])
        assert set(ranks.join()) == {0}, ranks.log.read_text()
        return folder / "runs" / name

    return run


def workplace(folder: Path, data: Path, epochs: int = EPOCHS) -> Path:
    (folder / "data").symlink_to(data)
    for name, text in RECIPES.items():
        (folder / f"{name}.py").write_text(text.replace("EPOCHS", str(epochs)))
    return folder


@pytest.fixture
def work(data: Path, tmp_path: Path) -> Path:
    return workplace(tmp_path, data)


def metrics(run: Path) -> list[dict[str, float]]:
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [{k: v for k, v in line.items() if k != "images_per_second"} for line in lines]


def assert_as_if_nothing_happened(run: Path, whole: Path, epochs: int = EPOCHS) -> None:
    assert (run / "model.safetensors").read_bytes() == (whole / "model.safetensors").read_bytes()
    assert metrics(run) == metrics(whole)
    steps = epochs * STEPS_PER_EPOCH
    assert [line["step"] for line in metrics(run)] == list(range(1, steps + 1))
    names = [path.name for path in sorted((run / "checkpoints").iterdir())]
    assert names == [f"step-{steps - 3:08d}", f"step-{steps:08d}"]
    assert [path.name for path in run.glob(".*")] == []


# ---------------------------------------------------------------- kill -9


def newest_run(work: Path) -> Path | None:
    runs = [run for run in (work / "runs").glob("*") if run.is_dir()]
    return max(runs, key=lambda run: int((run.name + "-1").split("-")[1]), default=None)


def newest_checkpoint(run: Path | None) -> int | None:
    found = checkpoint.latest(run / "checkpoints") if run else None
    return int(found.name[5:]) if found else None


def metrics_file(run: Path | None) -> tuple[int, int] | None:
    """Identify the file of a run's metrics, which each life makes anew, and count its lines."""
    try:
        path = run / "metrics.jsonl" if run else Path()
        return path.stat().st_ino, path.read_bytes().count(b"\n")
    except OSError:
        return None


def wait_for_the_moment(
    life: Ranks | Command, work: Path, steps: int, writing: bool = False, seconds: float = math.inf
) -> None:
    """Wait until this life has done so many steps, and then until it writes a checkpoint.

    Or until it has ended, or so many seconds have passed.
    """
    before = metrics_file(newest_run(work))
    first = newest_checkpoint(newest_run(work)) or 0
    end = time.monotonic() + seconds
    while life.alive() and time.monotonic() < end:
        now = metrics_file(newest_run(work))
        begun = now is not None and (before is None or now[0] != before[0])
        if begun and now[1] >= first + steps and (not writing or is_writing(work)):  # type: ignore
            return
        time.sleep(0.0005)


def is_writing(work: Path) -> bool:
    return any(work.glob("runs/*/checkpoints/.step-*.tmp/*"))


def survive(work: Path, recipe: str, world: int, kills: int, real: bool) -> Path:
    """Train, be killed so many times, go on each time; return the run."""
    seed = random.SystemRandom().randrange(10**6)
    print(f"seed {seed}")
    dice = random.Random(seed)
    moments = (["writing", "step", "start", "writing"] * kills)[:kills]
    for moment in [*moments, "never"]:
        step = newest_checkpoint(newest_run(work))
        arguments = [f"{recipe}.py", "--device", "cpu", *(["--resume"] if step else [])]
        life: Ranks | Command = (
            Command(world, work, arguments) if real else Ranks(world, work, command, arguments)
        )
        if moment == "never":
            assert set(life.join()) == {0}, life.log.read_text()
            continue
        if moment == "start":
            # The first step ends what is a start, or a fast machine would have done them all.
            wait_for_the_moment(life, work, 1, seconds=dice.uniform(0, 6.0 if real else 0.6))
        else:
            wait_for_the_moment(life, work, dice.randint(2, 7), moment == "writing")
            time.sleep(dice.uniform(0, 0.01))
        assert life.alive(), life.log.read_text()
        life.kill()
        print(f"{moment}: from step {step} to {newest_checkpoint(newest_run(work))}")
        for run in work.glob("runs/*"):
            assert_all_checkpoints_are_whole(run / "checkpoints")
    found = newest_run(work)
    assert found is not None
    return found


def assert_all_checkpoints_are_whole(folder: Path) -> None:
    visible = sorted(folder.glob("step-*"))
    assert visible == checkpoint.whole_checkpoints(folder)
    for path in visible:
        files = json.loads((path / checkpoint.STATE_FILE).read_text())["files"]
        assert {p.name for p in path.iterdir()} == set(files)
        for name, (size, _) in files.items():
            assert (path / name).stat().st_size == size or name == checkpoint.STATE_FILE


@pytest.mark.integration
@pytest.mark.parametrize(
    ("recipe", "world", "kills", "real"),
    [
        ("arc", 2, 2, False),
        ("tuned", 1, 4, False),
        pytest.param("arc", 1, 20, False, marks=pytest.mark.slow),
        pytest.param("arc", 1, 20, True, marks=pytest.mark.slow),
        pytest.param("arc", 2, 20, False, marks=pytest.mark.slow),
        pytest.param("arc", 2, 4, True, marks=pytest.mark.slow),
        pytest.param("tuned", 2, 20, False, marks=pytest.mark.slow),
    ],
    ids=lambda value: str(value),
)
def test_a_run_that_is_killed_goes_on_bit_for_bit(
    data: Path, tmp_path: Path, whole: Whole, recipe: str, world: int, kills: int, real: bool
) -> None:
    # A life goes on by some five steps, by more where real time decides.
    epochs = 4 * EPOCHS if kills >= 5 or real else EPOCHS
    run = survive(workplace(tmp_path, data, epochs), recipe, world, kills, real)
    printed = (tmp_path / "log.txt").read_text()
    assert "damaged" not in printed and "error: " not in printed
    assert_as_if_nothing_happened(run, whole(recipe, world, epochs), epochs)


# ---------------------------------------------------------------- torchrun starts again


@pytest.mark.integration
def test_torchrun_starts_a_run_again_where_it_was(work: Path, whole: Whole) -> None:
    # Dead before the first checkpoint, then after one.
    arguments = ["arc.py", "--device", "cpu", "--name", "mine"]
    launcher = Ranks(1, work, elastic, 2, [1, 7], arguments)
    assert launcher.join() == [0], launcher.log.read_text()
    assert [path.name for path in (work / "runs").iterdir()] == ["mine"]
    printed = launcher.log.read_text()
    assert printed.count("56 images of 7 subjects") == 3
    # The newest may be half written.
    assert re.findall(r"resumed at step (\d+)", printed) in (["3"], ["4"], ["6"])
    assert_as_if_nothing_happened(work / "runs" / "mine", whole("arc", 2))


@pytest.mark.integration
def test_torchrun_ends_well_if_its_processes_are_told_to_stop(work: Path) -> None:
    run = work / "runs" / "arc"
    launcher = Ranks(
        1, work, elastic, 2, [], ["arc.py", "--device", "cpu", "--epochs", str(40 * EPOCHS)]
    )
    while launcher.alive() and not (run / "metrics.jsonl").exists():
        time.sleep(0.01)
    for process in psutil.Process(launcher.processes[0].pid).children():
        process.terminate()
    assert launcher.join() == [0], launcher.log.read_text()
    printed = launcher.log.read_text()
    assert printed.count("stopped by SIGTERM at step") == 1 and "Traceback" not in printed
    newest = checkpoint.latest(run / "checkpoints")
    assert newest is not None and not (run / "model.safetensors").exists()


def test_lives_that_share_a_store_do_not_hear_each_other() -> None:
    store, ranks = dist.HashStore(), 3
    for rank in range(1, ranks):
        store.set(f"facerec/asks/{rank}", "dead before it was answered")
    lives = []
    for life in range(3):
        with ThreadPoolExecutor(ranks) as pool:
            joining = [
                pool.submit(own_space, store, rank, ranks, timedelta(seconds=60))
                for rank in reversed(range(ranks))
            ]
            lives.append([future.result() for future in joining])
        lives[-1][0].set("address", str(life))
    for life, spaces in enumerate(lives):
        assert [space.get("address").decode() for space in spaces] == [str(life)] * ranks
    with pytest.raises(dist.DistStoreError, match="not all of 2 processes came within 0 s"):
        own_space(dist.HashStore(), 0, 2, timedelta(milliseconds=50))
