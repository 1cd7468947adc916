"""Compile what launches Triton's kernels for a GPU that is not there."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest


def run_script(script: Path, *arguments: str, **variables: str) -> Any:
    """Run a script in a process of its own; return what it prints."""
    pytest.importorskip("triton", reason="triton is not installed (extra gpu)")
    done = subprocess.run(
        [sys.executable, str(script), *arguments],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), **variables},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


class NoGPU:
    """Triton's driver, launcher and tools: says which GPU to compile for, and launches nothing."""

    def __init__(self, capability: int) -> None:
        from triton.backends.compiler import GPUTarget

        self.target, self.utils = GPUTarget("cuda", capability, 32), self
        self.launches: list[tuple[Any, ...]] = []

    def get_current_target(self) -> Any:
        return self.target

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int | None = None) -> int:
        return 0

    def get_device_properties(self, device: int) -> dict[str, int]:
        return {"max_shared_mem": 232_448}

    def load_binary(self, *_: Any) -> tuple[Any, ...]:
        return object(), object(), 0, 0, 1024  # module, function, registers, spills, threads

    def launcher_cls(self, *_: Any) -> Any:
        return lambda *launch: self.launches.append(launch)


def compiled(capability: int, launch: Callable[[], None]) -> list[tuple[str, dict[str, int]]]:
    """Return what each kernel that ``launch`` starts takes as machine code, by its name.

    That goes through Triton's compiler and NVIDIA's assembler, which come with the wheel; nothing
    runs.
    """
    from triton.runtime import driver
    from triton.runtime.jit import JITFunction

    driver.set_active(NoGPU(capability))
    found, run = [], JITFunction.run

    def compile_only(self: Any, *args: Any, **options: Any) -> Any:
        kernel = run(self, *args, **options | {"warmup": True})
        found.append((self.__name__, resources(kernel)))
        return kernel

    JITFunction.run = compile_only
    try:
        launch()
    finally:
        JITFunction.run = run
    return found


def resources(kernel: Any) -> dict[str, int]:
    """Return registers a thread, bytes of its stack (spills), shared memory, products."""
    import triton

    tools = Path(triton.__file__).parent / "backends" / "nvidia" / "bin"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        Path(file.name).write_bytes(kernel.asm["cubin"])
        command = [tools / "cuobjdump", "--dump-resource-usage", file.name]
        text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    used = dict(re.findall(r"\b(REG|STACK|LOCAL):(\d+)", text))
    return {
        "registers": int(used["REG"]),
        "spilled": int(used["STACK"]) + int(used["LOCAL"]),
        "shared": kernel.metadata.shared,
        "warps": kernel.metadata.num_warps,
        "wgmma": kernel.asm["ptx"].count("wgmma.mma_async"),
        "mma": kernel.asm["ptx"].count("mma.sync"),
    }
