"""metrics.jsonl: one line of valid JSON for each step read, and no step twice after a resume."""

from __future__ import annotations

import io
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from helpers.tiny_training import tiny_recipe
from rich.console import Console

from facerec.training.distributed import Processes
from facerec.training.monitor import Monitor


def make_monitor(folder: Path, start: int = 0, **options: Any) -> Monitor:
    recipe = tiny_recipe(Path("nowhere"), log_every=options.pop("log_every", 1))
    device = torch.device("cpu")
    steps = {"total_steps": 8, "steps_per_epoch": 4, "step": start}
    processes = Processes(0, 1, device)
    learner = SimpleNamespace(recipe=recipe, processes=processes, device=device, **steps)
    return Monitor(folder, learner, **{"console": Console(quiet=True)} | options)  # type: ignore[arg-type]


def figures(**values: float) -> dict[str, float]:
    return {"loss": 2.0, "norm_mean": 4.0, "norm_variance": 1.0} | values


def lines(folder: Path) -> list[dict[str, object]]:
    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is no JSON")

    text = (folder / "metrics.jsonl").read_text()
    return [json.loads(line, parse_constant=refuse) for line in text.splitlines()]


def test_a_line_has_the_figures_and_the_mean_loss_since_the_last(tmp_path: Path) -> None:
    with make_monitor(tmp_path, log_every=3) as monitor:
        for step in range(1, 9):
            monitor.record(step, figures(loss=float(step), skipped=float(step)), lr=0.1 / step)
    first, end, second, last = lines(tmp_path)
    # The last step of an epoch always.
    assert [line["step"] for line in (first, end, second, last)] == [3, 4, 6, 8]
    assert [line["loss"] for line in (first, end, second, last)] == [2.0, 4.0, 5.5, 7.5]
    assert first["kind"] == "train"
    assert (first["lr"], first["skipped"]) == (pytest.approx(0.1 / 3), 3)
    assert first["norm_cv"] == pytest.approx(0.25)
    assert isinstance(first["images_per_second"], float) and first["images_per_second"] > 0


def test_resuming_drops_later_steps_and_a_half_line(tmp_path: Path) -> None:
    def line(kind: str, step: int, **more: int) -> str:
        return json.dumps({"kind": kind, "step": step, "loss": 1.5, **more})

    path = tmp_path / "metrics.jsonl"
    kept = [line("train", 3), line("validation", 3, epoch=1), line("train", 4)]
    rest = [line("validation", 4, epoch=2), line("train", 5), line("validation", 8, epoch=3)]
    rest += ["", "17", "null", '"step"', '{"step": "x"}']
    path.write_text("\n".join([*kept, *rest, line("train", 2)[:20]]))
    with path.open("ab") as file:
        file.write(b"\x00\xff")
    with make_monitor(tmp_path, start=4) as monitor:
        assert path.read_text().splitlines() == kept
        monitor.record(5, figures(), lr=0.1)
    assert [entry["step"] for entry in lines(tmp_path)] == [3, 3, 4, 5]
    assert [p.name for p in tmp_path.iterdir()] == ["metrics.jsonl"]


def test_a_resumed_run_averages_all_the_steps_that_its_line_stands_for(tmp_path: Path) -> None:
    with make_monitor(tmp_path, log_every=4) as monitor:
        for step, loss in enumerate((1.0, 2.0, 3.0), start=1):
            monitor.record(step, figures(loss=loss), lr=0.1)
        pending = list(monitor.losses)
    assert pending == [1.0, 2.0, 3.0] and not (tmp_path / "metrics.jsonl").exists()
    with make_monitor(tmp_path, log_every=4, start=3) as monitor:
        monitor.losses += pending
        monitor.record(4, figures(loss=6.0), lr=0.1)
        assert monitor.losses == []
    assert [line["loss"] for line in lines(tmp_path)] == [3.0]


def test_a_terminal_shows_the_figures_and_a_file_some_lines(tmp_path: Path) -> None:
    shown = {}
    for terminal in (True, False):
        output = io.StringIO()
        console = Console(file=output, force_terminal=terminal, width=120)
        with make_monitor(tmp_path, console=console) as monitor:
            for step in range(1, 5):
                monitor.record(step, figures(), lr=0.05)
        shown[terminal] = output.getvalue()
    lines = shown[False].splitlines()  # the second step came too soon after the first
    assert [line.split("  ")[0] for line in lines] == ["step 1/8", "epoch 1/2"]
    assert all("  loss 2.000  " in line for line in lines)
    assert "lr 0.05  ‖f‖ 4.00  CV 0.250" in shown[False]
    assert "4/8" in shown[True] and "ETA" in shown[True] and "loss 2.000" in shown[True]
