"""What facerec decides for the libraries below it, before they are first used.

Only the standard library is needed here: importing the package sets all this before anything else,
and processes that this one starts inherit it.
"""

from __future__ import annotations

import contextlib
import ctypes
import math
import os
import sys
from collections.abc import Iterator
from pathlib import Path

VARIABLES = {
    # Read once, when the library is loaded; `disable_telemetry_events()` would come too late for
    # the id and the database that it writes below the user's cache folder.
    "ORT_DISABLE_TELEMETRY": "1",
    # insightface 0.7 imports albumentations, which asks a server for its newest version.
    "NO_ALBUMENTATIONS_UPDATE": "1",
    # timm imports huggingface_hub, and models named hf://… come by it.
    "HF_HUB_DISABLE_TELEMETRY": "1",
    # It warns of what it lacks on a processor, among answers.
    "OPENCV_LOG_LEVEL": "ERROR",
    "RAY_USAGE_STATS_ENABLED": "0",
    # Where somebody set DNNL_DEFAULT_FPMATH_MODE, as images for ARM servers do, torch would compute
    # float32 in bfloat16. oneDNN reads this once, when torch is loaded, and prefers this name.
    "ONEDNN_DEFAULT_FPMATH_MODE": "STRICT",
}
"""Environment variables that keep libraries from reports to their makers and among answers, and
float32 float32."""


def prepare() -> None:
    """Switch off every report that a library would send, and every hidden loss of precision."""
    os.environ.update(VARIABLES)
    # OpenVINO's front end reports its import, unless this package is missing: then it uses a stub.
    sys.modules.setdefault("openvino_telemetry", None)  # type: ignore[arg-type]


CONTROL_GROUPS = Path("/sys/fs/cgroup")
OWN_GROUPS = Path("/proc/self/cgroup")


def available_cores() -> int:
    """Return how many cores this process may keep busy.

    `os.cpu_count` tells what the machine has. Processes may be bound to some of its cores, and
    containers to a share of their time, which Linux states in the files of their control group.
    """
    bound = hasattr(os, "sched_getaffinity")
    cores = len(os.sched_getaffinity(0)) if bound else os.cpu_count() or 1
    return max(1, min([cores, *map(math.ceil, _quotas())]))


def bound_threads() -> None:
    """Keep libraries that are not loaded yet from more threads than there is time for.

    They follow the cores that a process is bound to, but not a container's share of time.
    ``OMP_NUM_THREADS`` stays as it is where somebody set it.
    """
    if any(_quotas()):
        os.environ.setdefault("OMP_NUM_THREADS", str(available_cores()))


def _quotas() -> Iterator[float]:
    """Yield the bounds of this process's control group and of those above it, in cores."""
    try:
        lines = OWN_GROUPS.read_text().splitlines()
    except OSError:
        return
    for line in lines:
        number, _, path = line.split(":", 2)
        group = Path(path.strip("/"))
        if number == "0":  # version 2
            for folder in (group, *group.parents):
                # The topmost group has no such file.
                with contextlib.suppress(OSError, ValueError, ZeroDivisionError):
                    quota, period = (CONTROL_GROUPS / folder / "cpu.max").read_text().split()
                    if quota != "max":
                        yield int(quota) / int(period)


def give_back_memory() -> None:
    """Give memory that was freed, but that the C library keeps for later, back to the system."""
    with contextlib.suppress(OSError, AttributeError, TypeError):  # glibc alone has it
        ctypes.CDLL(None).malloc_trim(0)
