"""Measure on this machine what facerec promises about speed and memory, and print its rows.

Nothing is imported before it is measured, so that the suite ``gpu`` runs in an image that has
little more than PyTorch.
"""

from __future__ import annotations

import argparse
import dataclasses
import importlib
import math
import os
import platform
import sys
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from rows import Row

from facerec import __version__
from facerec.base.errors import FacerecError, RecipeError
from facerec.base.files import write_json
from facerec.training.run import git_commit, processor

Act = Callable[..., Iterable[Row]]


def _measure(module: str, function: str) -> Act:
    def act(*arguments: Any, **options: Any) -> Iterable[Row]:
        return getattr(importlib.import_module(module), function)(*arguments, **options)

    return act


SUITES: dict[str, dict[str, Act]] = {
    suite: {name: _measure(module, name) for module, names in modules.items() for name in names}
    for suite, modules in {
        "core": {"measures": ("loader", "random_access", "training_step", "import_time")},
        "engine": {
            "measures_engine": ("head_update", "sampled_head", "utilization"),
            "measures_tile": ("host_tile",),
            "measures_faults": ("checkpoint",),
            "measures_sec": ("sec_weight",),
        },
        "verification": {
            "measures": ("figures",),
            "measures_intervals": ("coverage_designs", "coverage_independent", "rare_rates"),
            "measures_calibration": (
                *("calibration_carries", "calibration_coverage", "calibration_groups"),
            ),
            "measures_scoring": ("all_pairs", "many_pairs", "fixed_thresholds", "exact_answers"),
        },
        "export": {
            "measures_export": (
                *("parity", "consumers", "float_speed"),
                *("int8", "openvino", "micro_batching"),
            )
        },
        "fairness": {
            "measures_fairness": ("type_one_error", "audit_speed", "whole_audit"),
            "measures_differentials": ("differential_tests",),
        },
        "comparison": {
            "measures_comparison": ("retrieval", "null"),
            "measures_features": ("feature_null", "feature_power"),
        },
        "galleries": {
            "measures_galleries": (
                *("gallery_search", "gallery_memory", "gallery_threshold"),
                *("lfw_threshold", "gallery_coverage"),
            ),
            "measures_planted": ("cleaning_planted", "overlap_planted"),
            "measures_grouping": ("grouping",),
        },
        "faces": {"measures_faces": ("face_refusals", "quality_signals")},
        "gpu": {
            "measures_gpu": (
                *("gpu_rates", "gpu_training", "gpu_heads", "gpu_settings", "gpu_loader"),
            )
        },
    }.items()
}
"""What is measured, by suite and name."""

PLAIN = tuple(suite for suite in SUITES if suite != "gpu")


def run(
    what: Sequence[str] = PLAIN,
    json: Path | None = None,
    records: Path | None = None,
    toy: bool = False,
    minutes: float = 8.0,
    compiled: Path | None = None,
) -> None:
    """Measure, and compare with the bars.

    Ratios compare two things that ran in turn within this run and hold on a busy machine; seconds
    do not.

    Args:
        what: suites or single measures.
        json: also write the rows and the machine's facts to this file, after every row.
        records: record file or folder for loader and sec_weight; by default faces are generated.
        toy: measure the suite ``gpu`` at a size at which the figures mean nothing.
        minutes: time for the suite ``gpu``; what does not fit into it is not measured.
        compiled: take what the compiler made from this file if it is there, and write it there.
    """
    if compiled is not None and compiled.is_file():
        torch.compiler.load_cache_artifacts(compiled.read_bytes())
    acts = choose(what)
    for name in {"loader", "sec_weight"} & acts.keys():
        acts[name] = partial(acts[name], records)
    facts = machine()
    shared = [name for name in acts if name in SUITES["gpu"]]
    if shared:
        from measures_gpu import Session

        session = Session(toy=toy, minutes=minutes)
        facts["size"] = session.size
        acts |= {name: partial(acts[name], session) for name in shared}
    print(", ".join(f"{name} {value}" for name, value in facts.items()), flush=True)
    rows: list[Row] = []
    for act in acts.values():
        for row in act():
            rows.append(row)
            print(_line(row), file=sys.stderr, flush=True)  # at once: time may soon be over
            if json is not None:
                _write(json, facts, rows, complete=False)
    if json is not None:
        _write(json, facts, rows, complete=True)
    made = torch.compiler.save_cache_artifacts() if compiled is not None else None
    if compiled is not None and made is not None:
        compiled.write_bytes(made[0])


def _write(path: Path, facts: dict[str, Any], rows: Sequence[Row], *, complete: bool) -> None:
    found = [{**dataclasses.asdict(row), "met": row.met} for row in rows]
    for row in found:
        if row["value"] is not None and not math.isfinite(row["value"]):
            row["value"] = str(row["value"])  # JSON has no such numbers
    write_json(path, {"machine": facts, "complete": complete, "rows": found})


def choose(names: Sequence[str]) -> dict[str, Act]:
    """Return the measures that suites and names mean, each once.

    Raises:
        RecipeError: a name is neither.
    """
    acts: dict[str, Act] = {}
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
    facts = {
        "CPU": processor() or platform.machine(),
        "cores": os.cpu_count(),
        "with": torch.backends.cpu.get_cpu_capability(),
        "load": round(os.getloadavg()[0], 1),
        "Python": platform.python_version(),
        "torch": torch.__version__,
        "OpenCV": _version("cv2"),
        "facerec": __version__,
        "commit": git_commit(),
    }
    if torch.cuda.is_available():
        card = torch.cuda.get_device_properties(0)
        facts |= {
            "GPU": card.name,
            "GPU memory in GB": round(card.total_memory / 1e9, 1),
            "multiprocessors": card.multi_processor_count,
            "CUDA": torch.version.cuda,
            "cuDNN": torch.backends.cudnn.version(),
            "Triton": _version("triton"),
        }
    return facts


def _version(module: str) -> str | None:
    try:
        return str(importlib.import_module(module).__version__)
    except ImportError:
        return None


# ---------------------------------------------------------------- what is shown


def _line(row: Row) -> str:
    bar = f" (bar {_bar(row)}: {'met' if row.met else 'not met'})" if row.met is not None else ""
    remark = f"; {row.remark}" if row.remark else ""
    return f"{row.measure}: {_measured(row)}{bar}{remark}"


def _measured(row: Row) -> str:
    return "not measured" if row.value is None else _figure(row.value, row.unit)


def _bar(row: Row) -> str:
    sign = "≥" if row.better == "higher" else "<"
    return "" if row.bar is None else f"{sign} {_figure(row.bar, row.unit)}"


def _figure(value: float, unit: str) -> str:
    if math.isfinite(value) and value >= 1000:
        return f"{value:,.0f} {unit}"
    return f"{value:.3g} {unit}"


def main(argv: Sequence[str] | None = None) -> None:
    """Run the benchmarks with ``argv``, or with the arguments of the process."""
    parser = argparse.ArgumentParser(
        description="Measure what facerec promises about speed and memory, and compare with bars."
    )
    add = parser.add_argument
    add("what", nargs="*", help=f"suites ({', '.join(SUITES)}) or measures; else all but gpu")
    add("--json", type=Path, help="also write rows and machine to this file, after every row")
    add("--records", type=Path, help="record file or folder for the loader; else generated faces")
    add("--toy", action="store_true", help="gpu: a size at which the figures mean nothing")
    add("--minutes", type=float, default=8.0, help="gpu: time for the suite (8)")
    add("--compiled", type=Path, help="file that keeps what torch.compile made for the next run")
    given = vars(parser.parse_args(argv))
    try:
        run(**given | {"what": given["what"] or PLAIN})
    except FacerecError as error:
        print(f"error: {error}", file=sys.stderr)
        raise SystemExit(2) from None


if __name__ == "__main__":
    main()
