"""Compile Triton's kernels for GPUs that are not there; run in a process of its own.

What the trainer launches for a size goes through Triton's compiler and NVIDIA's assembler, which
come with the wheel, down to machine code; nothing runs. Printed is what each kernel takes, for each
shape of its blocks.

Usage: ``python tests/heads/triton_compiled.py 90 bf16``
"""

from __future__ import annotations

import json
import sys
from functools import partial

import torch
import triton
import triton.language as tl
from helpers.triton_compiler import NoGPU, compiled
from triton.runtime import driver

from facerec.heads.tiles import Slopes, TileSettings, TileSums
from facerec.heads.triton_launch import Launcher
from facerec.heads.triton_softmax import SHAPES, TritonTiles


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


def visit(reduced: bool, shape: int) -> None:
    """Launch every kernel once, on tensors of the CPU."""
    samples, classes, dimensions = 1024, 4096, 512
    query, centers = torch.zeros(samples, dimensions), torch.zeros(classes, dimensions)
    figure, column = torch.zeros(samples), torch.zeros(samples, dtype=torch.int64)
    tiles = TritonTiles(query, column, TileSettings(reduced, classes, None, "triton", shape))
    lengths = torch.zeros(classes)
    tiles.add(0, centers, lengths, TileSums(figure, figure, figure))
    slopes = Slopes(figure, figure, figure, figure)
    tiles.spread(0, centers, lengths, slopes, tiles.new_shares(), centers.clone())


if __name__ == "__main__":
    reduced = sys.argv[2] == "bf16"
    shapes = range(len(SHAPES[reduced]))
    print(json.dumps([compiled(int(sys.argv[1]), partial(visit, reduced, s)) for s in shapes]))
