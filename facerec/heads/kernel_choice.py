"""Which form of the margin softmax's tiles a head uses: torch's, or the kernels of Triton.

All meet the same sums in another order, so a run keeps to one of them. Which is fastest, of torch's
and of Triton's with blocks of several shapes, is measured on the device that is there, once, before
the first step. Two runs of a recipe can come to different choices, and so to different bits; one
that is resumed keeps to the choice in its checkpoint. A deterministic recipe takes torch's form,
and where ``triton`` is asked for by name, that has blocks of the first shape.
"""

from __future__ import annotations

import functools
import importlib.util
from statistics import median
from typing import Literal

import torch

from facerec.base.errors import TrainingError
from facerec.heads.collectives import all_reduce_, rank
from facerec.heads.margin_softmax import create_tiles, default_chunk
from facerec.heads.margins import Margin
from facerec.heads.tiles import Kernel, Slopes, TileSettings, TileSums

KernelChoice = Literal["auto", "torch", "triton"]
"""``auto`` is what is faster here, by a short measurement on CUDA where there are thousands of
classes, and ``torch`` elsewhere."""

_REPETITIONS = 5
_TILES = 4
_FEW = 4096  # classes of a rank; with fewer no form saves what compiling and timing take


def obstacle(margin: Margin, weight: torch.Tensor, centers_per_class: int = 1) -> str | None:
    """Return why the kernels of Triton cannot be used, or None if they can.

    Args:
        margin: of the head.
        weight: the class centres.
        centers_per_class: of which the nearest counts.
    """
    if centers_per_class > 1:
        return "it takes each centre for a class; set head.centers_per_class to 1"
    if weight.device.type != "cuda":
        return f"the class centres lie on {weight.device.type}, and the kernels are for cuda"
    if weight.dtype != torch.float32:
        return f"the class centres are {weight.dtype}, and the kernels are for float32"
    if margin.changes_others:
        return f"{type(margin).__name__} here changes the cosines to all classes"
    if importlib.util.find_spec("triton") is None:
        return "the package triton is missing (pip install 'facerec[gpu]')"
    if torch.cuda.get_device_capability(weight.device) < (8, 0):
        return "the kernels need a GPU of compute capability 8.0 or later"
    return None


def choose_kernel(
    choice: KernelChoice,
    margin: Margin,
    weight: torch.Tensor,
    batch_size: int,
    settings: TileSettings,
) -> tuple[Kernel, int]:
    """Return the form to use and the shape of Triton's blocks, alike on all ranks; a collective.

    What is timed for the first time is compiled first, which takes seconds for each shape.

    Args:
        choice: of the recipe.
        margin: of the head.
        weight: this rank's class centres, ``(rows, D)``.
        batch_size: rows of a global batch that the head sees at once, N.
        settings: of the head.

    Raises:
        TrainingError: ``triton`` is asked for and cannot be used.
    """
    reason, reduced = obstacle(margin, weight, settings.centers_per_class), settings.reduced
    if choice == "triton" and reason is not None:
        raise TrainingError(
            f"the head cannot use kernel triton: {reason}; use kernel torch, or auto"
        )
    if choice != "auto":
        return choice, 0
    chosen = torch.zeros((), device=weight.device)
    if rank() == 0 and reason is None and len(weight) >= _FEW:
        from facerec.heads.triton_softmax import SHAPES

        sizes = (batch_size, weight.shape[1], len(weight), reduced, weight.device)
        times = [milliseconds("torch", 0, *sizes)]
        times += [milliseconds("triton", shape, *sizes) for shape in range(len(SHAPES[reduced]))]
        chosen.fill_(times.index(min(times)))
    found = int(all_reduce_(chosen))
    return ("triton", found - 1) if found else ("torch", 0)


@functools.cache
def milliseconds(
    kernel: Kernel,
    shape: int,
    batch_size: int,
    dimensions: int,
    classes: int,
    reduced: bool,
    device: torch.device,
) -> float:
    """Time both passes over a few tiles of random centres, per 1,000 classes, in ms; CUDA alone.

    Args:
        kernel: whose tiles.
        shape: of the blocks of Triton's kernels.
        batch_size: N.
        dimensions: D.
        classes: that a rank has; at most a few tiles of them are visited.
        reduced: whether products take bfloat16 operands.
        device: the GPU.
    """
    chunk = min(classes, default_chunk(batch_size, device, kernel))
    settings = TileSettings(reduced, chunk, None, kernel, shape)
    classes = min(classes, _TILES * chunk)
    random = torch.Generator(device).manual_seed(0)
    query = torch.randn(batch_size, dimensions, generator=random, device=device)
    centers = torch.randn(classes, dimensions, generator=random, device=device)
    column = torch.randint(classes, (batch_size,), generator=random, device=device)
    figures = query.new_zeros(4, batch_size)
    lengths = query.new_empty(classes)
    to_centers = torch.empty_like(centers[:chunk])

    chunks = list(zip(centers.split(chunk), lengths.split(chunk), strict=True))
    times = []
    for _ in range(1 + _REPETITIONS):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        tiles = create_tiles(query, column, settings)
        sums = TileSums(figures[0], figures[1], figures[2])
        for number, (tile, length) in enumerate(chunks):
            tiles.add(number * chunk, tile, length, sums)
        tiles = create_tiles(query, column, settings)
        slopes = Slopes(figures[3] + 100, figures[3], figures[3], figures[3])
        shares = tiles.new_shares()
        for number, (tile, length) in enumerate(chunks):
            out = to_centers[: len(tile)]
            tiles.spread(number * chunk, tile, length, slopes, shares, out)
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end))
    return median(times[1:]) / classes * 1000
