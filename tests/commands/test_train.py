"""What a user does with ``facerec train``: start, override, stop, resume, and get it wrong."""

from __future__ import annotations

import io
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

import numpy as np
import pytest
import torch
from helpers.tiny_training import write_training_set
from pytest import CaptureFixture, MonkeyPatch, TempPathFactory

import facerec
from facerec.base.files import exclusive
from facerec.base.recipe import from_dict
from facerec.commands.train import main
from facerec.embedding import load_model
from facerec.records import training_set
from facerec.training import Recipe, checkpoint
from facerec.training import run as run_module
from tests.commands.conftest import Refused, Told

DOOR = Path(facerec.__file__).parent.parent / "tools" / "train.py"

RECIPE = """
from pathlib import Path

from facerec.backbones import Backbone
from facerec.heads import SEC, ArcFace
from facerec.records import Data
from facerec.training import SGD, Checkpoints, Recipe

recipe = Recipe(
    data=Data(path=Path("data")),
    backbone=Backbone(name="iresnet18", embedding_size=16, width=0.25, dropout=0.2),
    margin=ArcFace(scale=16.0, margin=0.3),
    regularizer=SEC(weight=0.1),
    optimizer=SGD(lr=0.05),
    checkpoints=Checkpoints(every_steps=3, keep=9),
    batch_size=12,
    epochs=2,
    precision="fp32",
    workers=0,
    log_every=1,
)
"""
TRAIN = ("arc.py", "--device", "cpu")
STEPS = 8
"""Of a whole run: two epochs of 56 images."""


@pytest.fixture(scope="module")
def data(tmp_path_factory: TempPathFactory) -> Path:
    return write_training_set(tmp_path_factory.mktemp("records"))


def set_up(folder: Path, data: Path) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "arc.py").write_text(RECIPE)
    (folder / "data").symlink_to(data)
    return folder


@pytest.fixture
def workplace(data: Path, tmp_path: Path, monkeypatch: MonkeyPatch) -> Path:
    """A working folder with a recipe and data."""
    folder = set_up(tmp_path / "work", data)
    monkeypatch.chdir(folder)
    return folder


@pytest.fixture(scope="module")
def finished(data: Path, tmp_path_factory: TempPathFactory) -> tuple[Path, str]:
    """A working folder with a whole run in it, and what the command printed."""
    folder = set_up(tmp_path_factory.mktemp("finished") / "work", data)
    output, errors = io.StringIO(), io.StringIO()
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(output), redirect_stderr(errors):
        patch.chdir(folder)
        patch.setenv("COLUMNS", "100")
        patch.delenv("FACEREC_DATA", raising=False)
        patch.setattr(sys, "argv", [str(DOOR), "arc.py", "--device", "cpu"])
        train()
    assert errors.getvalue() == ""
    return folder, output.getvalue()


@pytest.fixture
def trained(finished: tuple[Path, str], workplace: Path) -> Path:
    """The working folder with a copy of the whole run."""
    shutil.copytree(finished[0] / "runs", workplace / "runs")
    return workplace


def start(arguments: Sequence[str], folder: Path) -> subprocess.Popen[str]:
    # One thread as in this process, else sums would be taken in another order.
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "COLUMNS": "100"}
    return subprocess.Popen(
        [sys.executable, *arguments],
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        # A shell in the background, where tests may run, has its children ignore Ctrl-C.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )


def finish(process: subprocess.Popen[str]) -> subprocess.CompletedProcess[str]:
    try:
        output, errors = process.communicate(timeout=240)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        output, errors = process.communicate()
        pytest.fail(f"still running after 240 seconds:\n{output}\n{errors}")
    return subprocess.CompletedProcess(process.args, process.returncode, output, errors)


def train(*arguments: str) -> None:
    main([*TRAIN, *arguments])


def read(path: Path) -> dict[str, object]:
    return json.loads(path.read_text())


def metrics(run: Path) -> list[dict[str, float]]:
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


def weights(run: Path) -> dict[str, torch.Tensor]:
    return load_model(run).backbone.state_dict()  # type: ignore[attr-defined]


def assert_same_model(first: Path, second: Path) -> None:
    wanted, found = weights(first), weights(second)
    assert wanted.keys() == found.keys()
    assert [name for name in wanted if not torch.equal(wanted[name], found[name])] == []


# ---------------------------------------------------------------- a whole run


def test_a_run_holds_everything(finished: tuple[Path, str], data: Path) -> None:
    folder, printed = finished
    run = folder / "runs" / "arc"
    recipe = from_dict(Recipe, read(run / "recipe.json"), "recipe.json")
    assert (recipe.optimizer.lr, recipe.backbone.width, recipe.epochs) == (0.05, 0.25, 2)
    manifest = read(run / "manifest.json")
    assert manifest["command"][1:] == ["arc.py", "--device", "cpu"]  # type: ignore[index]
    assert manifest["chosen"] == {
        "head.kernel": "torch",
        "precision": read(run / "recipe.json")["precision"],
        "compile": False,
    }
    rows = metrics(run)
    assert [row["step"] for row in rows] == list(range(1, STEPS + 1))
    assert rows[-1]["loss"] < rows[0]["loss"]
    names = [path.name for path in checkpoint.whole_checkpoints(run / "checkpoints")]
    assert names == [f"step-{step:08d}" for step in (3, 4, 6, 8)]  # an epoch has four
    model = load_model(run)
    assert model.recipe == read(run / "recipe.json")
    images = np.random.default_rng(0).integers(0, 255, (2, 112, 112, 3), np.uint8)
    vectors = model.embed(images)
    assert vectors.shape == (2, 16) and np.isfinite(vectors).all()
    assert "56 images of 7 subjects, data" in printed
    assert "model: runs/arc/model.safetensors" in printed
    names = {"recipe.json", "manifest.json", "metrics.jsonl", "checkpoints", "model.safetensors"}
    assert {p.name for p in run.iterdir()} == names


# ---------------------------------------------------------------- stopping and going on


def interrupt(
    arguments: Sequence[str], folder: Path, name: str, group: bool, number: int = signal.SIGTERM
) -> tuple[int, str]:
    """Start a run, send a signal after its second step; return exit status and output."""
    process = start(arguments, folder)
    path = folder / "runs" / name / "metrics.jsonl"
    deadline = time.monotonic() + 120
    while not path.is_file() or path.read_text().count("\n") < 2:
        if process.poll() is not None or time.monotonic() > deadline:
            os.killpg(process.pid, signal.SIGKILL) if process.poll() is None else None
            pytest.fail(f"the run did not start: {process.communicate()}")
        time.sleep(0.01)
    (os.killpg if group else os.kill)(process.pid, number)
    done = finish(process)
    # torchrun has a traceback of its own.
    assert "train.py" not in "".join(x for x in done.stderr.splitlines() if "File " in x)
    return done.returncode, done.stdout + done.stderr


def assert_saved(output: str, run: Path) -> None:
    """Check that what is printed of a stopped run is true."""
    found = re.search(r"at step (\d+) of 12; the state of step \1 is saved; go on with", output)
    assert found is not None and f"--name {run.name} --resume" in output, output
    newest = checkpoint.latest(run / "checkpoints")
    assert newest is not None and newest.name == f"step-{int(found[1]):08d}"
    assert not (run / "model.safetensors").exists()


@pytest.mark.integration
@pytest.mark.parametrize(
    ("group", "number", "wanted", "word"),
    [(False, signal.SIGTERM, 0, "SIGTERM"), (True, signal.SIGINT, 130, "Ctrl-C")],
    ids=["process", "group-with-worker"],
)
def test_a_stopped_run_goes_on_bit_for_bit(
    workplace: Path, capsys: CaptureFixture, group: bool, number: int, wanted: int, word: str
) -> None:
    flags = ["--epochs", "3", "--workers", str(int(group))]
    status, output = interrupt(
        [str(DOOR), "arc.py", "--device", "cpu", *flags], workplace, "arc", group, number
    )
    assert status == wanted and f"stopped by {word} " in output and "Traceback" not in output
    run = workplace / "runs" / "arc"
    assert_saved(output, run)
    # The number of workers is free; the order and the augmentation do not depend on it.
    train("--epochs", "3", "--workers", "0", "--name", "arc", "--resume")
    assert "(resumed at step " in capsys.readouterr().out
    assert [row["step"] for row in metrics(run)] == list(range(1, 13))
    train("--epochs", "3", "--name", "whole")
    assert_same_model(workplace / "runs" / "whole", run)


@pytest.mark.integration
def test_ctrl_c_reaches_all_ranks_and_is_repeated_by_torchrun(workplace: Path) -> None:
    arguments = torchrun("--epochs", "3", "--log-every", "1", "--name", "both")
    status, output = interrupt(arguments, workplace, "both", group=True, number=signal.SIGINT)
    assert status != 0 and output.count("stopped by Ctrl-C ") == 1
    assert_saved(output, workplace / "runs" / "both")
    done = finish(start([*arguments, "--resume"], workplace))
    assert done.returncode == 0 and "(resumed at step " in done.stdout, done.stderr
    assert "2 on cpu" in done.stdout and done.stdout.count("epoch 3/3  loss") == 1
    assert [path.name for path in (workplace / "runs").iterdir()] == ["both"]
    run = workplace / "runs" / "both"
    assert read(run / "manifest.json")["processes"] == 2
    assert [row["step"] for row in metrics(run)] == list(range(1, 13))
    assert load_model(run).embedding_size == 16


@pytest.mark.integration
@pytest.mark.parametrize("place", ["open_dataset", "check_same_run", "git_commit"])
def test_ctrl_c_before_the_first_step_says_what_is_there(
    workplace: Path, monkeypatch: MonkeyPatch, capsys: CaptureFixture, place: str
) -> None:
    def interrupted(*arguments: object) -> None:
        raise KeyboardInterrupt

    module = training_set if place == "open_dataset" else run_module
    begun = place != "open_dataset"
    if place == "check_same_run":
        train("--max-steps", "2")
    capsys.readouterr()
    flags = ["--resume"] if place == "check_same_run" else []
    with monkeypatch.context() as patch, pytest.raises(SystemExit) as exit_:
        patch.setattr(module, place, interrupted)
        train(*flags)
    assert exit_.value.code == 130
    said = capsys.readouterr()
    assert said.err == "" and said.out.count("\n") == 1 and "before any step" in said.out
    assert ("the state of step 2 is saved" in said.out) is (place == "check_same_run")
    assert ("nothing is saved" in said.out) is (place != "check_same_run")
    assert ("go on with the same command with --name arc --resume" in said.out) is begun
    if begun:
        train("--name", "arc", "--resume")
        assert [path.name for path in (workplace / "runs").iterdir()] == ["arc"]
    assert (workplace / "runs" / "arc" / "model.safetensors").is_file() is begun


def torchrun(*arguments: str) -> list[str]:
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    return [*launcher, str(DOOR), "arc.py", "--device", "cpu", *arguments]


def test_ranks_that_fail_alike_say_so_once(
    workplace: Path, monkeypatch: MonkeyPatch, capsys: CaptureFixture
) -> None:
    for rank in "10":  # as torchrun starts them, here one after the other
        file = workplace / "launch" / "attempt_0" / rank / "error.json"
        file.parent.mkdir(parents=True)
        monkeypatch.setenv("TORCHELASTIC_ERROR_FILE", str(file))
        monkeypatch.setenv("LOCAL_RANK", rank)
        with pytest.raises(SystemExit) as exit_:
            train("--optimizer.lr", "nan")
        assert exit_.value.code == 2
    assert capsys.readouterr().err.count("SGD.lr must be above 0") == 1


@pytest.mark.integration
def test_a_trial_stops_after_some_steps_and_a_damaged_image_is_skipped_on_resume(
    workplace: Path, told: Told, refused: Refused
) -> None:
    records = workplace / "mine"
    shutil.copytree(workplace / "data", records)
    flags = ["--data.path", "mine", "--epochs", "3"]
    printed = " ".join(told(main, *TRAIN, *flags, "--max-steps 2").split())
    assert "stopped by --max-steps at step 2 of 12; the state of step 2 is saved" in printed
    assert printed.endswith("--name arc --resume and without --max-steps")
    run = workplace / "runs" / "arc"
    newest = checkpoint.latest(run / "checkpoints")
    assert newest is not None and newest.name == "step-00000002"
    printed = " ".join(told(main, *TRAIN, *flags, "--resume --max-steps 1").split())  # and more
    assert "(resumed at step 2)" in printed and "stopped by --max-steps at step 2" in printed
    content = bytearray((records / "train.rec").read_bytes())
    for place in [match.start() for match in re.finditer(b"\xff\xd8\xff", content)][::3]:
        content[place : place + 3] = b"xyz"
    (records / "train.rec").write_bytes(content)
    sentence = refused(main, *TRAIN, *flags, "--resume")
    assert "train.rec" in sentence
    printed = told(main, *TRAIN, *flags, "--resume --data.on-error skip --accumulation 2")
    assert "images skipped; first" in " ".join(printed.split())
    assert [row["step"] for row in metrics(run)] == list(range(1, 13))


def test_a_run_that_is_being_trained_is_left_alone(trained: Path, refused: Refused) -> None:
    run = trained / "runs" / "arc"
    before = sorted(p for p in run.rglob("*"))
    leftover = run / ".metrics.jsonl.x.tmp"  # of the process that is at work
    leftover.write_text("")
    with exclusive(run):
        sentence = refused(main, *TRAIN, "--resume")
    assert sentence.startswith(f"runs/arc: process {os.getpid()} on ")
    assert leftover.exists()
    train("--resume")
    assert sorted(p for p in run.rglob("*")) == before


# ---------------------------------------------------------------- what is refused


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ([], "facerec train needs a recipe"),
        (["gone.py"], "gone.py: no such recipe file; did you mean"),
        (["wrong.py"], "wrong.py: line 4: Recipe got an unexpected keyword argument 'batchsize'"),
        (["arc.py", "--batch-size", "100"], "the training set has 56 images, fewer than one"),
        (["arc.py", "--backbone.name", "iresnet19"], "backbone.name: no backbone is called"),
        (["arc.py", "--name", "taken", "--resume"], "runs/taken exists already; it holds no run"),
        (["arc.py", "--name", "taken"], "runs/taken exists already; use --resume or another"),
        (["arc.py", "--runs", "arc.py"], "arc.py/arc: cannot be made (Not a directory)"),
    ],
)
def test_errors_are_sentences_and_leave_nothing(
    workplace: Path, refused: Refused, arguments: list[str], sentence: str
) -> None:
    wrong = "from facerec.training import Recipe\n\n\nrecipe = Recipe(batchsize=3)\n"
    (workplace / "wrong.py").write_text(wrong)
    (workplace / "empty").mkdir()
    (workplace / "runs" / "taken" / "photos").mkdir(parents=True)
    before = sorted(workplace.rglob("*"))
    found = refused(main, *arguments)
    assert found.startswith(sentence)
    assert sorted(workplace.rglob("*")) == before
