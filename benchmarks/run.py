"""Measure on this machine what facerec promises about speed and memory, and print one table."""

from __future__ import annotations

import dataclasses
import platform
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import cv2
import measures
import measures_comparison
import measures_engine
import measures_export
import measures_fairness
import measures_fairness_levels
import measures_faults
import measures_intervals
import measures_scoring
import measures_verification
import psutil
import torch
import tyro
from measures import Row
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from facerec import __version__
from facerec.commands.cli import run_command
from facerec.errors import RecipeError
from facerec.files import write_json

SUITES: dict[str, dict[str, Callable[[], list[Row]]]] = {
    "core": {
        "loader": measures.loader,
        "faces": measures.faces,
        "random_access": measures.random_access,
        "training_step": measures.training_step,
        "import_time": measures.import_time,
    },
    "engine": {
        "head": measures_engine.head,
        "sampled_head": measures_engine.sampled_head,
        "utilization": measures_engine.utilization,
        "allocator": measures_engine.allocator,
        "checkpoint": measures_faults.checkpoint,
    },
    "verification": {
        "figures": measures.figures,
        "exact_figures": measures_verification.exact_figures,
        "bootstrap": measures_intervals.bootstrap_speed,
        "coverage": measures_intervals.coverage,
        "coverage_designs": measures_intervals.coverage_designs,
        "coverage_independent": measures_intervals.coverage_independent,
        "all_pairs": measures_scoring.all_pairs,
        "many_pairs": measures_scoring.many_pairs,
        "fixed_thresholds": measures_scoring.fixed_thresholds,
    },
    "export": {
        "parity": measures_export.parity,
        "consumers": measures_export.consumers,
        "float_speed": measures_export.float_speed,
        "int8": measures_export.int8,
        "openvino": measures_export.openvino,
        "micro_batching": measures_export.micro_batching,
    },
    "fairness": {
        "type_one_error": measures_fairness.type_one_error,
        "power": measures_fairness.power,
        "subject_tests": measures_fairness_levels.subject_tests,
        "eta2_coverage": measures_fairness_levels.eta2_coverage,
        "norm_coverage": measures_fairness_levels.norm_coverage,
        "differential_tests": measures_fairness_levels.differential_tests,
        "audit_speed": measures_fairness.audit_speed,
        "whole_audit": measures_fairness.whole_audit,
    },
    "comparison": {
        "retrieval": measures_comparison.retrieval,
        "null": measures_comparison.null,
        "smoke": measures_comparison.smoke,
    },
}
"""What is measured, by suite and name."""


def run(
    what: tyro.conf.Positional[tuple[str, ...]] = tuple(SUITES),
    json: Path | None = None,
    records: Path | None = None,
    compile: bool = False,
) -> None:
    """Measure, and compare with the bars.

    Ratios compare two things that ran in turn within this run and hold on a busy machine; seconds
    do not.

    Args:
        what: suites (core, engine, verification, export, fairness, comparison) or single measures
            such as loader; by default everything.
        json: also write the rows and the machine's facts to this file.
        records: record file or folder for the loader; by default faces are generated.
        compile: also measure the training step under torch.compile.
    """
    acts = choose(what)
    if "loader" in acts:
        acts["loader"] = partial(acts["loader"], records)
    if "training_step" in acts:
        acts["training_step"] = partial(acts["training_step"], compiled=compile)
    console = Console()
    facts = machine()
    console.print(", ".join(f"{name} {value}" for name, value in facts.items()), soft_wrap=True)
    rows: list[Row] = []
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task("", total=len(acts))
        for name, act in acts.items():
            bar.update(task, description=name)
            rows += act()
            bar.advance(task)
    console.print(table(rows))
    if json is not None:
        write_json(
            json,
            {
                "machine": facts,
                "rows": [{**dataclasses.asdict(row), "met": row.met} for row in rows],
            },
        )


def choose(names: Sequence[str]) -> dict[str, Callable[..., list[Row]]]:
    """Return the measures that suites and names mean, each once.

    Raises:
        RecipeError: a name is neither.
    """
    acts: dict[str, Callable[..., list[Row]]] = {}
    everything = {name: act for suite in SUITES.values() for name, act in suite.items()}
    for name in names:
        if name in SUITES:
            acts |= SUITES[name]
        elif name in everything:
            acts[name] = everything[name]
        else:
            known = ", ".join([*SUITES, *everything])
            raise RecipeError(f"there is no benchmark {name!r}; choose among {known}")
    return acts


def machine() -> dict[str, Any]:
    """Return what the figures depend on, as far as it can be asked for."""
    load = psutil.getloadavg()[0]
    return {
        "CPU": _processor(),
        "cores": psutil.cpu_count(),
        "with": torch.backends.cpu.get_cpu_capability(),
        "load": round(load, 1),
        "Python": platform.python_version(),
        "torch": torch.__version__,
        "OpenCV": cv2.__version__,
        "facerec": __version__,
    }


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(line.split(":")[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()


def table(rows: Sequence[Row]) -> Table:
    """Lay the rows out."""
    result = Table("measure", "measured", "bar", "met", "remark")
    for row in rows:
        sign = "≥" if row.better == "higher" else "<"
        result.add_row(
            row.measure,
            "not measured" if row.value is None else _figure(row.value, row.unit),
            "" if row.bar is None else f"{sign} {_figure(row.bar, row.unit)}",
            {True: "[green]yes[/]", False: "[red]no[/]", None: ""}[row.met],
            row.remark,
        )
    return result


def _figure(value: float, unit: str) -> str:
    if value >= 1000:
        return f"{value:,.0f} {unit}"
    return f"{value:.3g} {unit}"


def main(argv: Sequence[str] | None = None) -> None:
    """Run the benchmarks with ``argv``, or with the arguments of the process."""
    run_command(run, argv)


if __name__ == "__main__":
    main()
