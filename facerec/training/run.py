"""Run folders: a name that overwrites nothing, and a manifest that makes a run repeatable."""

from __future__ import annotations

import contextlib
import os
import platform
import re
import subprocess
import sys
from collections.abc import Collection
from dataclasses import asdict
from datetime import datetime, timezone
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

import facerec
from facerec.base import recipe as recipes
from facerec.base.errors import CheckpointError, RecipeError
from facerec.base.files import (
    NOTE,
    check_no_links,
    parse_json,
    read_file,
    reading,
    remove,
    sha256,
    write_json,
)
from facerec.base.libraries import cv2
from facerec.records.dataset import FaceDataset
from facerec.records.shards import is_pattern, set_kind, shard_paths
from facerec.records.training_set import Data, Part
from facerec.training import checkpoint
from facerec.training.distributed import Processes
from facerec.training.recipe import Recipe

if TYPE_CHECKING:
    from facerec.training.learner import Learner

# Fields that may change when a run is resumed: they do not change what is learned, but for damaged
# images, and for what another number of processes changes too.
FREE_TO_CHANGE = (
    "data.path",
    "data.on_error",
    "distillation.teacher",
    "distillation.cache",
    "accumulation",
    "data_parallel.bucket_mb",
    "workers",
    "log_every",
    "logger",
    "validation",
    "checkpoints",
    "compile",
    "recompute",
)


LAUNCH_FILE = "launch.json"
"""File in a run's folder that names the launches of torchrun that started it last."""


def launch() -> str | None:
    """Name the launch of torchrun that this process belongs to; None without torchrun.

    All processes that one torchrun starts, and starts again after a failure, have the same name.
    """
    # torchrun makes a log folder of its own at every launch, with a folder for each restart.
    file = os.environ.get("TORCHELASTIC_ERROR_FILE")
    return str(Path(file).parents[2]) if file else None


def find_folder(
    runs: Path, name: str, *, resume: bool, exact: bool, launches: Collection[str] = ()
) -> Path | None:
    """Return the folder of a run to continue, or None where a new one is to be begun.

    Args:
        runs: the folder of all runs.
        name: the run's name; the recipe file's stem unless the user gave one.
        resume: continue the newest run of this name that has a checkpoint, else start the newest,
            of which a kill may have left no more than the folder, or none at all.
        exact: refuse an existing name rather than take ``name-2``, ``name-3``, …
        launches: the `launch` of every process; a run of this name that one of them has begun (see
            `remember_launches`) is continued, whether it has a checkpoint or not.

    Raises:
        RecipeError: the name is taken, or what is there is no run.
    """
    candidates = [runs / name] if exact else list(_of_name(runs, name).values())
    found = [path for path in candidates if not _launches(path).isdisjoint(launches)]
    if resume:
        found = found or [path for path in candidates if checkpoint.latest(path / "checkpoints")]
        found = found or [path for path in candidates if path.is_dir() and _is_begun(path)]
    if not found and exact and (runs / name).exists():
        how = "it holds no run; use" if resume else "use --resume or"
        raise RecipeError(f"{runs / name} exists already; {how} another --name")
    return found[-1] if found else None


def new_folder(runs: Path, name: str, *, exact: bool) -> Path:
    """Make the folder of a new run.

    Args:
        runs: the folder of all runs.
        name: the run's name.
        exact: refuse an existing name rather than take ``name-2``, ``name-3``, …

    Raises:
        RecipeError: the name is taken, or the folder cannot be made.
    """
    number = 1 if exact else max(_of_name(runs, name), default=0) + 1
    while True:
        folder = runs / (name if number == 1 else f"{name}-{number}")
        try:
            # Made at once: runs that start together each get a folder of their own.
            folder.mkdir(parents=True)
            return folder
        except OSError as error:
            if exact or not isinstance(error, FileExistsError):
                raise RecipeError(
                    f"{folder}: cannot be made ({error.strerror}); choose another --runs or --name"
                ) from error
            number += 1


def remember_launches(folder: Path, launches: Collection[str]) -> None:
    """Write into a run's folder by which launches it is trained now."""
    if launches:
        write_json(folder / LAUNCH_FILE, {"torchrun": sorted(launches)})


def remove_leftovers(folder: Path) -> None:
    """Delete what a process that was killed had not written, or not deleted, in a run's folder.

    Raises:
        FacerecError: the folder, which may be another's, has links where a run writes.
    """
    check_no_links(folder, folder / "checkpoints")
    for path in (*folder.glob(".*.tmp"), *folder.glob("checkpoints/.*.tmp")):
        remove(path)


def _launches(folder: Path) -> set[str]:
    try:
        return set(parse_json(read_file(folder / LAUNCH_FILE, NOTE))["torchrun"])
    except (OSError, ValueError, TypeError, KeyError):
        return set()


def _is_begun(folder: Path) -> bool:
    """Tell whether a folder holds a run's recipe, or nothing but what is written before it."""
    visible = {path.name for path in folder.iterdir() if path.name[0] != "."}
    return "recipe.json" in visible or visible <= {LAUNCH_FILE}


def _of_name(runs: Path, name: str) -> dict[int, Path]:
    """Return the runs ``name``, ``name-2``, ``name-3``, … that exist, by number and in order."""
    pattern = re.compile(re.escape(name) + r"(?:-([2-9]|[1-9][0-9]+))?")
    versions = {
        int(match[1] or 1): path
        for path in runs.glob("*")
        if (match := pattern.fullmatch(path.name))
    }
    return dict(sorted(versions.items()))


def check_same_run(
    folder: Path, recipe: Recipe, dataset: FaceDataset, teacher: str | None = None
) -> None:
    """Refuse to resume a run with a recipe or data that would make it learn something else.

    Args:
        folder: of the run.
        recipe: to go on with.
        dataset: the images that it trains on.
        teacher: SHA-256 of the teacher's file; None without one.

    Raises:
        CheckpointError: names what differs.
        RecipeError: ``recipe.json`` is missing or damaged.
    """
    path = folder / "recipe.json"
    stored = recipes.to_dict(recipes.load_recipe(path, Recipe))
    changed = [
        name
        for name in recipes.differences(
            _without_paths(stored), _without_paths(recipes.to_dict(recipe))
        )
        if not recipes.is_within(name, FREE_TO_CHANGE)
    ]
    if changed:
        raise CheckpointError(
            f"{path}: the run was started with other values of {', '.join(changed)}; resume with "
            "the recipe that started it, start a new run, or train its weights further (also for "
            f"more epochs) by facerec train finetune --init.path {folder}"
        )
    path = folder / "manifest.json"
    with reading(path, CheckpointError, "start a new run", Exception):
        manifest = parse_json(read_file(path))
        other = _other_data(manifest["data"], _facts_of_data(recipe, dataset))
    if other is None and manifest.get("teacher") != teacher:
        other = f"{folder}: was started with another teacher"
    if other:
        raise CheckpointError(
            f"{other}, as {path} says; resume with what the run was started on, or start a new run"
        )


def _other_data(stored: dict[str, Any], present: dict[str, Any]) -> str | None:
    """Say in which training set what decides on images and labels is not as it was, if any.

    The data may have moved, but its number of images decides the order of all of them. Only record
    files and their indexes are compared, not what else lies in their folder.
    """
    for before, now in zip(
        [stored, *stored.get("also", [])], [present, *present["also"]], strict=True
    ):
        for name in ("images", "classes", "names", "subjects", "exclude"):
            if before.get(name) != now.get(name):
                return f"{now['path']}: its {name} are {now.get(name)} and were {before.get(name)}"
        old, new = (
            {
                (Path(name).suffix, *facts.values())
                for name, facts in entry["files"].items()
                if Path(name).suffix in (".rec", ".idx")
            }
            for entry in (before, now)
        )
        # A run may be started on a folder and resumed on the one of its files that was read.
        if bool(old) != bool(new) or not (old <= new or new <= old):
            return f"{now['path']}: record file or index are others than they were"
    return None


def _without_paths(recipe: dict[str, Any]) -> dict[str, Any]:
    """Leave out where further training sets and lists lie; like the first set, they may move.

    Of lists it counts whether there are any; what is in them is compared with the manifest.
    """
    first, *also = (
        entry | {name: entry.get(name) is not None for name in ("subjects", "exclude")}
        for entry in (recipe["data"], *({**part, "path": None} for part in recipe["data"]["also"]))
    )
    return {**recipe, "data": {**first, "also": also}}


def write_manifest(folder: Path, learner: Learner) -> None:
    """Write ``recipe.json``, and ``manifest.json`` with everything else that a repetition needs."""
    recipe, head, start = learner.recipe, learner.head, learner.start
    write_json(folder / "recipe.json", recipes.to_dict(recipe))
    packages = ("numpy", "safetensors", "scipy")
    manifest = {
        "facerec": facerec.__version__,
        "git": git_commit(),
        "python": platform.python_version(),
        "packages": {name: metadata.version(name) for name in packages}
        # OpenCV comes under several names of distributions, torch in builds that only it can name.
        | {"opencv": cv2.__version__, "torch": torch.__version__},
        "command": sys.argv,
        "started": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "seed": recipe.seed,
        # What fields of the recipe came to mean that are ``auto``.
        "chosen": {
            "head.kernel": "torch" if head is None else head.kernel,
            "precision": learner.precision,
            "compile": learner.compiled,
        },
        "processes": learner.processes.world_size,
        "threads": torch.get_num_threads(),
        "hardware": _hardware(learner.processes),
        "data": _facts_of_data(recipe, learner.dataset),
        "teacher": learner.teacher,
        **({} if start is None else {"init": asdict(start)}),
    }
    write_json(folder / "manifest.json", manifest)


def _facts_of_data(recipe: Recipe, dataset: FaceDataset) -> dict[str, Any]:
    """Identify the first training set, and under ``also`` the further ones."""
    configs: list[Data | Part] = [recipe.data, *recipe.data.also]
    first, *also = (
        fingerprint(config.path)
        | ({"names": names} if (names := source.images.names_sha256()) else {})
        | ({"subjects": sha256(config.subjects)} if config.subjects else {})
        | ({"exclude": sha256(config.exclude)} if config.exclude else {})
        for config, source in zip(configs, dataset.sources, strict=True)
    )
    sizes = {"images": len(dataset), "classes": dataset.num_classes}
    return first | {"also": also} | sizes


def fingerprint(path: Path) -> dict[str, Any]:
    """Identify a training set without reading all of it: sizes, and hashes of the small files."""
    if is_pattern(path):
        files = shard_paths(path, set_kind(path))
    else:
        files = sorted(path.iterdir()) if path.is_dir() else [path, path.with_suffix(".idx")]
    return {
        "path": str(path.resolve()),
        "files": {
            f.name: {"bytes": f.stat().st_size}
            | ({"sha256": sha256(f)} if f.suffix in (".idx", "") else {})
            for f in files
            if f.is_file() and not f.name.startswith(".")
        },
    }


def _hardware(processes: Processes) -> dict[str, Any]:
    facts: dict[str, Any] = {
        "device": str(processes.device),
        "machine": platform.machine(),
        "system": platform.platform(),
        "cores": os.cpu_count(),
        "cpu": processor(),
    }
    if processes.device.type == "cuda":
        facts["gpu"] = torch.cuda.get_device_name(processes.device)
        facts["cuda"] = torch.version.cuda
    return facts


def processor() -> str | None:
    """Return the name of the processor, where the system tells it."""
    with contextlib.suppress(OSError):
        found = re.search(r"model name\s*:(.*)", Path("/proc/cpuinfo").read_text(errors="replace"))
        return found and found[1].strip()
    return None


def git_commit() -> str | None:
    """Return the commit of an editable installation, with ``+`` when it has local changes."""
    describe = ["describe", "--always", "--dirty=+", "--abbrev=40", "--exclude=*"]
    command = ["git", "-C", str(Path(facerec.__file__).parent), *describe]
    try:
        result = subprocess.run(command, capture_output=True, text=True, timeout=10, check=False)
    except OSError:
        return None
    return result.stdout.strip() if result.returncode == 0 else None
