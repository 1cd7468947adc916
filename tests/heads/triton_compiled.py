"""Compile Triton's kernels for GPUs that are not there; run in a process of its own.

What the trainer launches for a size goes through Triton's compiler and NVIDIA's assembler, which
come with the wheel, down to machine code; nothing runs. Printed is what each kernel takes, for each
shape of its blocks.

Usage: ``python tests/heads/triton_compiled.py 90 bf16``
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.runtime import driver
from triton.runtime.jit import JITFunction

from facerec.heads.margin_softmax import Slopes, TileSettings, TileSums
from facerec.heads.triton_softmax import SHAPES, TritonTiles
from facerec.triton_launch import Launcher

TOOLS = Path(triton.__file__).parent / "backends" / "nvidia" / "bin"


class NoGPU:
    """Triton's driver, launcher and tools: says which GPU to compile for, and launches nothing."""

    def __init__(self, capability: int) -> None:
        self.target, self.utils = GPUTarget("cuda", capability, 32), self
        self.launches: list[tuple[Any, ...]] = []

    def get_current_target(self) -> GPUTarget:
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


@triton.jit(do_not_specialize=["count"])
def multiply(values, size, count, factor, BLOCK: tl.constexpr):
    here = tl.program_id(0) * size + tl.arange(0, BLOCK)
    mask = here < count
    tl.store(values + here, tl.load(values + here, mask=mask) * factor, mask=mask)


def launched() -> list[bool]:
    """Tell of some launches, twice each, whether they are those that Triton makes by itself."""
    driver.set_active(card := NoGPU(90))
    values, launch = torch.zeros(64), Launcher(multiply)
    for number in range(2):
        for tensor in (values, values[1:], values.bfloat16(), values.to(torch.int64)):
            for size, count, factor, warps in ((1, 2, 0.5, 4), (16, 1, 2.0, 4), (7, 32, 2.0, 8)):
                for way in (launch, lambda grid, *a, **c: multiply[grid](*a, **c)):
                    way((3, 2), tensor, size, count + number, factor, BLOCK=16, num_warps=warps)
    # Grid, stream, function and all arguments; metadata of a launch is new every time.
    launches = [(*launch[:6], *launch[9:]) for launch in card.launches]
    return [own == plain for own, plain in zip(launches[::2], launches[1::2], strict=True)]


def compiled(capability: int, reduced: bool, shape: int) -> dict[str, Any]:
    """Return each kernel of both passes by its name, compiled, with blocks of a shape."""
    driver.set_active(NoGPU(capability))
    found, run = {}, JITFunction.run

    def compile_only(self: JITFunction, *args: Any, **options: Any) -> Any:
        found[self.__name__] = kernel = run(self, *args, **options | {"warmup": True})
        return kernel

    JITFunction.run = compile_only
    try:
        visit(reduced, shape)
    finally:
        JITFunction.run = run
    return found


def visit(reduced: bool, shape: int) -> None:
    """Launch every kernel once, on tensors of the CPU."""
    samples, classes, dimensions = 1024, 4096, 512
    query, centers = torch.zeros(samples, dimensions), torch.zeros(classes, dimensions)
    figure, column = torch.zeros(samples), torch.zeros(samples, dtype=torch.int64)
    tiles = TritonTiles(query, column, TileSettings(None, reduced, classes, None, "triton", shape))
    lengths = torch.zeros(classes)
    tiles.add(0, centers, lengths, TileSums(figure, figure, figure))
    slopes = Slopes(figure, figure, figure, figure)
    tiles.spread(0, centers, lengths, slopes, tiles.new_shares(), centers.clone())


def resources(kernel: Any) -> dict[str, int]:
    """Return registers a thread, bytes of its stack (spills), shared memory, products."""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        Path(file.name).write_bytes(kernel.asm["cubin"])
        command = [TOOLS / "cuobjdump", "--dump-resource-usage", file.name]
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


if __name__ == "__main__":
    reduced = sys.argv[2] == "bf16"
    shapes = [compiled(int(sys.argv[1]), reduced, shape) for shape in range(len(SHAPES[reduced]))]
    print(json.dumps([{n: resources(kernel) for n, kernel in each.items()} for each in shapes]))
