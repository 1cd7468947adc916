"""Coarse copies of rows, whose products are fast, and how far these can be off.

By Cauchy and Schwarz |⟨x, y⟩ − ⟨x̂, ŷ⟩| ≤ ‖x − x̂‖·‖ŷ‖ + ‖x‖·‖y − ŷ‖ for copies x̂ and ŷ of x and y.
What a copy lacks is measured row by row, so that the bound holds whatever the rows are; and how a
product of copies is rounded is bounded by the number of its terms.
"""

from __future__ import annotations

import functools
import time
from typing import TYPE_CHECKING, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from facerec.base.devices import exact_products
from facerec.base.large_arrays import empty

if TYPE_CHECKING:
    from facerec.cosines.unit_rows import UnitRows

Kind = Literal["int8", "bfloat16", "float32"]
"""The number format of a copy, from the coarsest to the finest."""

_STORED = {"int8": np.int8, "bfloat16": np.int16, "float32": np.float32}

_BLOCK = 1024
_MOST = 127
_SAMPLE = 4096
"""Rows that the scale of int8 is chosen on, at most."""


class Coarse:
    """A copy of rows in a number format.

    Attributes:
        values: ``(n, D)``, on the device of the rows.
        scale: of values that are whole numbers, one for all rows, so that products compare.
        lacks: how far each row is from its copy at most, ``(n,)``.
        lengths: of the rows, ``(n,)``: 1, unless they are not at length 1.
    """

    def __init__(self, rows: UnitRows, kind: Kind) -> None:
        count, size = len(rows), rows.matrix.shape[1]
        self.kind, self.size, self.scale = kind, size, 1.0
        if kind == "int8":
            every = np.linspace(0, count - 1, min(count, _SAMPLE)).astype(np.int64)
            self.scale = _scale(rows.unit(np.unique(every)))
        self.lacks, self.lengths = np.empty(count), np.empty(count)
        self._held = empty((count, size), _STORED[kind])
        copy = torch.from_numpy(self._held)
        copy = copy.view(torch.bfloat16) if kind == "bfloat16" else copy
        for start in range(0, count, _BLOCK):
            block = slice(start, start + _BLOCK)
            exact = torch.from_numpy(rows.unit(block))
            near = exact / self.scale if kind == "int8" else exact
            copy[block] = near.round_().clamp_(-_MOST, _MOST) if kind == "int8" else near
            self.lengths[block] = torch.linalg.vector_norm(exact, dim=1).numpy()
            lost = exact.sub_(copy[block], alpha=self.scale)
            self.lacks[block] = torch.linalg.vector_norm(lost, dim=1).numpy()
        self.lacks += 2.0**-40 * self.lengths
        self.values = copy.to(rows.device)

    def erase(self) -> None:
        """Overwrite the copy."""
        self._held[:] = 0
        self.values.zero_()


def _scale(sample: NDArray[np.float64]) -> float:
    """Return the scale of int8 that loses least: what is larger than 127 times that is cut off."""
    sizes = np.abs(sample)
    tried = np.quantile(sizes, [0.999, 0.9999, 0.99999, 1]) / _MOST
    tried = np.maximum(tried, np.finfo(np.float32).tiny)
    lost = [np.abs(sizes - np.minimum(np.rint(sizes / scale), _MOST) * scale) for scale in tried]
    return float(tried[np.argmin([np.sum(each**2) for each in lost])])


def product(
    left: Coarse, right: Coarse, rows: slice, columns: slice
) -> tuple[Tensor, float, float, float]:
    """Return products of two copies of a kind, and what they tell of those of the rows.

    Returns:
        the products p ``(R, C)``, int32 or float32; the number u that they are multiples of; and b
        and r: a product of the rows lies within b + r·|u·p| of u·p.
    """
    mine, theirs = left.values[rows], right.values[columns]
    lacks, others = left.lacks[rows].max(), right.lacks[columns].max()
    length, other = left.lengths[rows].max(), right.lengths[columns].max()
    most = (length + lacks) * (other + others)
    # Half a step of the grid, and what float32 does not hold of products above 1.
    bound = lacks * (other + others) + length * others + 2.0**-23 * max(1.0, most)
    if left.kind == "int8":
        return torch._int_mm(mine, theirs.T), left.scale * right.scale, bound, 0.0
    found, rounded = torch.mm(mine, theirs.T).float(), 0.0
    # Sums of D terms in float32, of which bfloat16's are rounded twice, and then to 8 bits.
    bound += (left.size + 4) * 2.0**-24 * most
    if left.kind == "bfloat16":
        bound += (left.size + 4) * 2.0**-24 * most
        rounded = 1.05 * 2.0**-8
    return found, 1.0, bound, rounded


@functools.cache
def fast_kinds() -> tuple[Kind, ...]:
    """Return the kinds that are worth their bounds on this processor, the coarsest first.

    A short timing tells, and a product of the largest numbers whether int8 is computed without
    saturation, which some processors without instructions for it have.
    """
    generator = np.random.default_rng(0)
    sides = generator.standard_normal((2, 128, 512)).astype(np.float32)
    whole = torch.from_numpy(np.where(sides > 0, _MOST, -_MOST).astype(np.int8))
    right = bool((torch._int_mm(whole[0], whole[1].T) == (whole[0].int() @ whole[1].int().T)).all())
    single = torch.from_numpy(sides)
    with exact_products():
        seconds = {
            "float32": _seconds(single, torch.mm),
            "bfloat16": _seconds(single.bfloat16(), torch.mm),
            "int8": _seconds(whole, torch._int_mm) if right else np.inf,
        }
    kinds: list[Kind] = ["float32"]
    for kind in ("bfloat16", "int8"):
        # A third is what a coarser bound may cost.
        if seconds[kind] < 0.75 * seconds[kinds[0]]:
            kinds.insert(0, kind)
    return tuple(kinds)


def _seconds(sides: Tensor, multiply: object) -> float:
    """Return the time of a product, the least of several."""
    assert callable(multiply)
    times = []
    for _ in range(8):
        start = time.perf_counter()
        multiply(sides[0], sides[1].T)
        times.append(time.perf_counter() - start)
    return min(times)
