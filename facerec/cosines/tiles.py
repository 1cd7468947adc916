"""Cosines of two sets of rows, tile by tile: coarse products first, and what they leave open.

A tile is a product of two coarse copies (`facerec.cosines.coarse`), which is within a bound of the
cosines. Only pairs that this bound leaves open are computed again from the rows themselves, so
that what a tile tells is what float64 would tell, whatever the copies are. If it leaves too many
open, finer copies take their place, and at last float64.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from facerec.base.progress import Progress
from facerec.cosines.unit_rows import Kind, Pairs, UnitRows, cosines, on_grid

if TYPE_CHECKING:  # few products need no torch
    from facerec.cosines.coarse import Coarse

SMALL = 2**21
"""Products up to which copies do not pay, nor importing torch."""

_OPEN = 1 / 16
"""Share of a tile's pairs that may be left open before finer copies pay, and at last float64."""

_FEW, _MANY = 1 / 2, 4096
"""Pairs a row or column up to which each is computed by itself, and pairs from which on single
products in float32 pay."""


class Tile:
    """Some rows of one side and some of the other."""

    def __init__(self, tiles: Tiles, rows: slice, columns: slice) -> None:
        self._tiles, self.rows, self.columns = tiles, rows, columns
        self.shape = rows.stop - rows.start, columns.stop - columns.start

    def exact(self) -> NDArray[np.float32]:
        """Return all cosines."""
        mine, theirs = self._units
        return on_grid(mine @ theirs.T)

    def of(self, row: NDArray[np.int64], column: NDArray[np.int64]) -> NDArray[np.float32]:
        """Return the cosines of pairs of this tile, row by row, ``(n,)``."""
        if len(row) <= _FEW * sum(self.shape):
            left, right = self._tiles.left, self._tiles.right
            return cosines(left, right, self.rows.start + row, self.columns.start + column)
        if not self._tiles.kinds or len(row) > _OPEN * self.shape[0] * self.shape[1]:
            return self.exact()[row, column]
        import torch

        from facerec.cosines.coarse import some_products

        mine, theirs = map(torch.from_numpy, self._units)
        return on_grid(some_products(mine, theirs, row, column))

    def reaching(
        self,
        low: NDArray[np.floating],
        high: NDArray[np.floating],
        without: NDArray[np.bool_] | None = None,
        most: int = 0,
    ) -> Pairs:
        """Return all pairs that score at least the lowest edge, and perhaps some that do not.

        Scores from ``low`` to ``high`` are cosines. Others are on that side of every edge on which
        their cosine is.

        Args:
            low: edges of W windows, ``(W, R)``, or ``(W, 1)`` for edges that all rows share.
            high: upper edges of the windows, in the same form.
            without: pairs to leave out, ``(R, C)``.
            most: with one window, raise its lower edge to where so many of a row surely are, if
                that is much more than reach it.
        """
        if not self._tiles.kinds:
            scores = self.exact()
            if without is not None:
                scores[without] = -np.inf
            row, column = np.nonzero(scores >= low.min(axis=0)[:, None])
            return row, column, scores[row, column].astype(np.float64)
        most_open = max(_MANY, _OPEN * self.shape[0] * self.shape[1])
        for kind in self._tiles.kinds:
            (row, column, values), low = self._coarse(kind, low, without, most)
            open_ = np.flatnonzero(self._open(kind, row, values, low, high))
            if self._tiles.judge(kind, open_.size <= most_open):
                break
        if kind != "float32" and open_.size > _MANY:
            from facerec.cosines.coarse import some_products

            # Single products in float32 leave but a few to float64.
            mine, theirs = (side.values[span] for side, span in self._copies("float32"))
            again = row[open_], column[open_]
            values[open_] = some_products(mine, theirs, *again)
            open_ = open_[self._open("float32", again[0], values[open_], low, high)]
        values[open_] = self.of(row[open_], column[open_])
        return row, column, values

    @functools.cached_property
    def _units(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        return self._tiles.left.unit(self.rows), self._tiles.right.unit(self.columns)

    def _copies(self, kind: Kind) -> list[tuple[Coarse, slice]]:
        from facerec.cosines.coarse import copy_of

        sides = (self._tiles.left, self.rows), (self._tiles.right, self.columns)
        return [(copy_of(side, kind), span) for side, span in sides]

    def _edges(
        self, kind: Kind, low: NDArray[np.floating], high: NDArray[np.floating]
    ) -> tuple[NDArray[np.floating], NDArray[np.floating]]:
        """Return the products of copies that cosines of windows may have, the ends included."""
        from facerec.cosines.coarse import bounds

        (left, rows), (right, columns) = self._copies(kind)
        bound, rounded = bounds(left, right, rows, columns)
        return _lower(low - bound, rounded), -_lower(-high - bound, rounded)

    def _coarse(
        self,
        kind: Kind,
        low: NDArray[np.floating],
        without: NDArray[np.bool_] | None,
        most: int,
    ) -> tuple[Pairs, NDArray[np.floating]]:
        """Return the pairs that may reach the lowest edge, with coarse scores, and the edges."""
        from facerec.cosines.coarse import at_least, highest, leave_out, products

        (left, rows), (right, columns) = self._copies(kind)
        found, unit = products(left.values[rows], right.values[columns]), left.scale * right.scale
        if without is not None:
            leave_out(found, without)
        row, column, values = at_least(found, self._edges(kind, low, low)[0].min(axis=0) / unit)
        if 0 < most < self.shape[1] and row.size > 4 * most * self.shape[0]:
            likely, lines = highest(found, most), np.arange(self.shape[0])
            exact = self.of(np.repeat(lines, most), likely.ravel())
            sure = exact.reshape(likely.shape).min(axis=1)
            if without is not None:
                sure[without[lines[:, None], likely].any(axis=1)] = -np.inf
            low = np.maximum(low, sure)
            row, column, values = at_least(found, self._edges(kind, low, low)[0][0] / unit)
        return (row, column, values * unit), low

    def _open(
        self,
        kind: Kind,
        row: NDArray[np.int64],
        values: NDArray[np.float64],
        low: NDArray[np.floating],
        high: NDArray[np.floating],
    ) -> NDArray[np.bool_]:
        """Return which of some pairs may lie in a window, given products of copies of a kind."""
        least, greatest = (
            edges[:, row] if edges.shape[1] > 1 else edges for edges in self._edges(kind, low, high)
        )
        return np.asarray(((values >= least) & (values <= greatest)).any(axis=0))


def _lower(values: NDArray[np.floating], rounded: float) -> NDArray[np.floating]:
    """Return what scores are at least, once rounding took its part."""
    return values * (1 - rounded * np.sign(values)) if rounded else values  # infinite ones stay


K = TypeVar("K", bound=Callable[[Tile], None])
"""What takes what it needs from one tile after another."""


class Tiles:
    """All products of two sides, in tiles of so many rows and columns at most.

    Args:
        left: rows, ``(R, D)``.
        right: the columns, ``(C, D)``.
        shape: of a tile.
        spans: of rows and columns, ``(T, 2, 2)``, in the order in which tiles are visited; by
            default of all.
        progress: see `facerec.base.progress.Progress`.
    """

    def __init__(
        self,
        left: UnitRows,
        right: UnitRows,
        shape: tuple[int, int],
        spans: NDArray[np.int64] | None = None,
        progress: Progress | None = None,
    ) -> None:
        self.left, self.right, self._progress = left, right, progress
        if spans is None:
            sides = [
                blocks(len(side), size) for side, size in zip((left, right), shape, strict=True)
            ]
            first, second = np.indices([len(side) for side in sides]).reshape(2, -1)
            spans = np.stack([sides[0][first], sides[1][second]], axis=1)
        self._spans = spans
        self.kinds: tuple[Kind, ...] = ("float32",) if left.device != "cpu" else ()
        if not self.kinds and len(left) * len(right) > SMALL:
            from facerec.cosines.coarse import fast_kinds

            self.kinds = fast_kinds()
        self._tried = dict.fromkeys(self.kinds, (0, 0))

    def judge(self, kind: Kind, settled: bool) -> bool:
        """Take note of whether copies of a kind settled a tile; tell whether to go on with it.

        A kind that does not settle many tiles is not tried any more.
        """
        tiles, failures = self._tried[kind]
        self._tried[kind] = tiles + 1, failures + (not settled)
        if kind == self.kinds[-1]:
            return True
        if failures > 2 + tiles / 8 and kind in self.kinds:
            self.kinds = self.kinds[self.kinds.index(kind) + 1 :]
        return settled

    def visit(
        self, make: Callable[[], K], stage: str, spans: NDArray[np.int64] | None = None
    ) -> list[K]:
        """Hand every tile to one of the kernels that ``make`` makes, one a thread."""
        every = self._spans if spans is None else spans
        turn, lock, stop = iter(every.tolist()), threading.Lock(), threading.Event()
        done = 0

        def work() -> K:
            nonlocal done
            kernel = make()
            while not stop.is_set():
                with lock:
                    ends = next(turn, None)
                if ends is None:
                    break
                kernel(Tile(self, *(slice(*each) for each in ends)))
                with lock:
                    done += 1
                    if self._progress is not None:
                        self._progress(stage, done, len(every))
            return kernel

        if not self.kinds:
            return [work()]
        import torch

        from facerec.base.devices import exact_products

        with exact_products() as threads:
            workers = (min(threads, len(every)) or 1) if self.left.device == "cpu" else 1
            # OpenMP keeps a number of threads for every thread.
            with ThreadPoolExecutor(
                workers, initializer=torch.set_num_threads, initargs=(1,)
            ) as pool:
                futures = [pool.submit(work) for _ in range(workers)]
                try:
                    wait(futures, return_when=FIRST_EXCEPTION)
                finally:
                    stop.set()  # else leaving the pool waits until all tiles are done
                return [future.result() for future in futures]


def blocks(count: int, size: int) -> NDArray[np.int64]:
    """Return the spans that so many rows are cut into, ``(B, 2)``."""
    starts = np.arange(0, count, size)
    return np.stack([starts, np.minimum(starts + size, count)], axis=1)


def total(kernels: Sequence[Any], name: str) -> NDArray[np.int64]:
    """Return the sum of the counts that all kernels have under a name."""
    counts: NDArray[np.int64] = sum(getattr(kernel, name) for kernel in kernels)
    return counts
