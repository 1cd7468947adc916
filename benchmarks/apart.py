"""Measure in a process of its own, whose peak memory is that of the work and of its libraries."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

NOTHING: Mapping[str, str] = MappingProxyType({})

_CALL = """
import importlib, json, sys
sys.path.insert(0, sys.argv[1])
function = getattr(importlib.import_module(sys.argv[2]), sys.argv[3])
print(json.dumps(function(*json.loads(sys.argv[4]))))
"""


def apart(
    function: Callable[..., Any], *arguments: object, variables: Mapping[str, str] = NOTHING
) -> Any:
    """Return what a function of one of these files returns in a new process.

    Args:
        function: of JSON's types, returning them.
        arguments: of it.
        variables: of the environment, besides those of this process.
    """
    where = str(Path(__file__).parent), Path(sys.modules[function.__module__].__file__).stem
    return run_program(_CALL, *where, function.__name__, json.dumps(arguments), variables=variables)


def run_program(program: str, *arguments: str, variables: Mapping[str, str] = NOTHING) -> Any:
    """Run a program in a new Python process and return what it prints as JSON."""
    done = subprocess.run(
        [sys.executable, "-c", program, *arguments],
        check=True,
        stdout=subprocess.PIPE,
        env={**os.environ, **variables},
    )
    return json.loads(done.stdout)


def peak() -> int:
    """Return the bytes that this process held at most, whatever its parent took."""
    found = _status("VmHWM")
    assert found, "only Linux tells"
    return found


def own_memory(process: int | str = "self") -> int:
    """Return the bytes that belong to a process alone, without pages of files; 0 if not Linux."""
    return _status("RssAnon", process)


def _status(name: str, process: int | str = "self") -> int:
    try:
        lines = Path(f"/proc/{process}/status").read_text().splitlines()
    except OSError:
        return 0
    # A process that has just ended has no such line.
    return next((int(line.split()[1]) << 10 for line in lines if line.startswith(f"{name}:")), 0)


def clusters(
    person: NDArray[np.integer],
    dimensions: int,
    generator: np.random.Generator,
    noise: float,
    shift: float = 0.0,
) -> NDArray[np.float32]:
    """Return vectors about a centre of each person, made in parts that take little memory."""
    centres = generator.standard_normal((person.max() + 1, dimensions), np.float32)
    vectors = np.empty((person.size, dimensions), np.float32)
    for start in range(0, person.size, 4096):
        who = person[start : start + 4096]
        drawn = generator.standard_normal((who.size, dimensions), np.float32)
        vectors[start : start + 4096] = centres[who] + noise * drawn + shift
    return vectors
