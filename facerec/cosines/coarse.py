"""Coarse copies of rows, whose products are fast, and how far these can be off.

By Cauchy and Schwarz |⟨x, y⟩ − ⟨x̂, ŷ⟩| ≤ ‖x − x̂‖·‖ŷ‖ + ‖x‖·‖y − ŷ‖ for copies x̂ and ŷ of x and y.
What a copy lacks is measured row by row, so that the bound holds whatever the rows are; and how a
product of copies is rounded is bounded by the number of its terms.
"""

from __future__ import annotations

import functools
import timeit
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from facerec.base.devices import exact_products
from facerec.base.large_arrays import empty
from facerec.cosines.unit_rows import Kind, Pairs, UnitRows, row_norms

_STORED = {"int8": np.int8, "bfloat16": np.int16, "float32": np.float32}

_BLOCK = 1024
_MOST = 127
_SAMPLE = 2048
"""Rows that the scale of int8 is chosen on, at most."""


class Coarse:
    """A copy of rows in a number format.

    Attributes:
        values: ``(n, D)``, on the device of the rows.
        scale: of values that are whole numbers, one for all rows, so that products compare.
        lacks: how far each row is from its copy at most, ``(n,)``.
        lengths: of the rows, ``(n,)``: 1, unless they are not at length 1.
        held: the array of the copy, perhaps in a file; None where the rows are their own copy.
    """

    def __init__(self, rows: UnitRows, kind: Kind) -> None:
        count, size = len(rows), rows.matrix.shape[1]
        self.kind, self.scale = kind, 1.0
        self.lacks, self.lengths = np.empty((2, count), np.float32)
        if kind == "float32" and rows.are_single:
            # They are their own copies, but for what their norms lack to 1.
            self.held, self.values = None, torch.from_numpy(rows.matrix).to(rows.device)
            self.lengths[:] = np.nan_to_num(row_norms(rows.matrix)) / rows.norms * (1 + 2.0**-20)
            self.lacks[:] = np.abs(rows.norms - 1) * self.lengths * (1 + 2.0**-20)
            return
        if kind == "int8":
            every = np.linspace(0, count - 1, min(count, _SAMPLE)).astype(np.int64)
            self.scale = _scale(rows.unit(np.unique(every)))
        self.held = empty((count, size), _STORED[kind])
        copy = torch.from_numpy(self.held)
        copy = copy.view(torch.bfloat16) if kind == "bfloat16" else copy
        for start in range(0, count, _BLOCK):
            block = slice(start, start + _BLOCK)
            exact = torch.from_numpy(rows.unit(block))
            near = exact / self.scale if kind == "int8" else exact
            copy[block] = near.round_().clamp_(-_MOST, _MOST) if kind == "int8" else near
            self.lengths[block] = torch.linalg.vector_norm(exact, dim=1).numpy()
            lost = exact.sub_(copy[block], alpha=self.scale)
            self.lacks[block] = torch.linalg.vector_norm(lost, dim=1).numpy()
        for numbers in (self.lacks, self.lengths):  # upwards: they are bounds
            np.nextafter(numbers, np.float32(np.inf), out=numbers)
        self.values = copy.to(rows.device)

    def erase(self) -> None:
        """Overwrite the copy, where it is one."""
        if self.held is not None:
            self.held[:] = 0
            self.values.zero_()


def copy_of(rows: UnitRows, kind: Kind) -> Coarse:
    """Return the copy of rows in a number format, which is made when it is first asked for."""
    with rows.lock:
        copy: Coarse = rows.copies.get(kind) or Coarse(rows, kind)
        rows.copies[kind] = copy
        return copy


def _scale(sample: NDArray[np.float64]) -> float:
    """Return the scale of int8 with which nearly all rows lose little; larger numbers are cut off.

    A bound is that of the worst of many rows, and so the rows that lose most decide.
    """
    sizes, lost = np.abs(sample), []
    tried = np.quantile(sizes, [0.9999, 0.99999, 0.999999, 1]) / _MOST
    tried = np.maximum(tried, np.finfo(np.float32).tiny)
    for scale in tried:
        off = sizes - np.minimum(np.rint(sizes / scale), _MOST) * scale
        lost.append(np.quantile(np.einsum("nd,nd->n", off, off), 0.999))
    return float(tried[np.argmin(lost)])


def bounds(left: Coarse, right: Coarse, rows: slice, columns: slice) -> tuple[float, float]:
    """Return b and r: products of rows lie within b + r·|p| of the p of their copies."""
    lacks, others = float(left.lacks[rows].max()), float(right.lacks[columns].max())
    length, other = float(left.lengths[rows].max()), float(right.lengths[columns].max())
    most = (length + lacks) * (other + others)
    # Half a step of the grid, and what float32 does not hold of products above 1.
    bound = lacks * (other + others) + length * others + 2.0**-23 * max(1.0, most)
    if left.kind == "int8":
        return bound, 0.0
    # Sums of D terms in float32, of which bfloat16's are rounded twice, and then to 8 bits.
    sums = (left.values.shape[1] + 4) * 2.0**-24 * most
    return (bound + 2 * sums, 1.05 * 2.0**-8) if left.kind == "bfloat16" else (bound + sums, 0.0)


def products(left: Tensor, right: Tensor) -> Tensor:
    """Return the products of values of copies of one kind, ``(R, C)``, int32 or float32."""
    if left.dtype == torch.int8:
        return torch._int_mm(left, right.T)
    return torch.mm(left, right.T).float()


def leave_out(values: Tensor, pairs: NDArray[np.bool_]) -> None:
    """Put products of some pairs below all others."""
    least = torch.iinfo(values.dtype).min if values.dtype == torch.int32 else -torch.inf
    values.masked_fill_(torch.from_numpy(pairs).to(values.device), least)


def highest(values: Tensor, count: int) -> NDArray[np.int64]:
    """Return the columns of so many highest products of each row, ``(R, count)``."""
    return torch.topk(values, count, dim=1).indices.cpu().numpy()


def at_least(values: Tensor, edge: NDArray[np.floating]) -> Pairs:
    """Return rows and columns of values from the edge of their row on, row by row, and these."""
    # What is left out is below the limits.
    whole = values.dtype == torch.int32
    limit = 2.0**30 if whole else 1e38
    edges = np.clip(np.floor(edge) if whole else edge, -limit, limit)
    edges = edges if whole else np.nextafter(edges.astype(np.float32), np.float32(-np.inf))
    limits = torch.from_numpy(edges[:, None]).to(values.device, values.dtype)
    if values.device.type == "cpu":  # where numpy is ten times as fast as torch
        places = np.flatnonzero(values.numpy() >= limits.numpy())
        found = values.numpy().reshape(-1)[places]
    else:
        hits = (values >= limits).view(-1).nonzero().view(-1)
        places, found = hits.cpu().numpy(), values.view(-1)[hits].cpu().numpy()
    row = places // values.shape[1]  # np.divmod takes ten times as long
    return row, places - row * values.shape[1], found.astype(np.float64)


def some_products(
    left: Tensor, right: Tensor, row: NDArray[np.int64], column: NDArray[np.int64]
) -> NDArray[Any]:
    """Return the products of some pairs of rows, given row by row, ``(n,)``."""
    starts = np.searchsorted(row, np.arange(len(left) + 1))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # sparse tensors may change, says torch
        pairs = torch.sparse_csr_tensor(
            torch.from_numpy(starts),
            torch.from_numpy(column),
            torch.zeros(len(row), dtype=left.dtype),
            (len(left), len(right)),
        )
    return torch.sparse.sampled_addmm(pairs, left, right.T, beta=0).values().numpy()


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


def _seconds(sides: Tensor, multiply: Callable[[Tensor, Tensor], Tensor]) -> float:
    """Return the time of a product, the least of several."""
    return min(timeit.repeat(lambda: multiply(sides[0], sides[1].T), number=1, repeat=8))
