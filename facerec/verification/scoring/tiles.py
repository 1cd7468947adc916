"""The scores of all pairs, computed tile by tile and handed to kernels."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from typing import Any, TypeVar

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from torch import Tensor

from facerec.devices import exact_products
from facerec.heads.collectives import all_reduce_, rank, world_size
from facerec.progress import Progress
from facerec.verification.scoring.sample import Sample

K = TypeVar("K", bound=Callable[[Tensor, slice, slice], None])
"""What takes what it needs from one tile after another: scores of two spans with each other."""


class ScoreTiles:
    """Products of float32 rows, ``(R, D)`` by ``(C, D)``, tile by tile; ranks share the tiles.

    This rank visits the spans of rows and columns ``(T, 2, 2)`` in their order; the first ``near``
    tiles hold mated pairs. No tile has more rows or columns than ``size``.
    """

    def __init__(
        self,
        rows: Tensor,
        columns: Tensor,
        spans: NDArray[np.int64],
        near: int,
        size: int,
        process_group: dist.ProcessGroup | None,
        progress: Progress | None,
    ) -> None:
        self._rows, self._columns, self.device = rows, columns, rows.device
        self._spans, self._near, self.size = spans, near, size
        self._process_group, self._progress = process_group, progress

    def visit(self, make: Callable[[], K], stage: str, near_only: bool = False) -> list[K]:
        """Hand every tile of this rank to one of the kernels that ``make`` makes, one a thread."""
        spans = self._spans[: self._near] if near_only else self._spans
        turn, lock, stop = iter(spans.tolist()), threading.Lock(), threading.Event()
        done = 0

        def work() -> K:
            nonlocal done
            torch.set_num_threads(1)  # OpenMP keeps a number for every thread
            kernel = make()
            buffer = torch.empty(self.size**2, device=self.device)
            while not stop.is_set():
                with lock:
                    tile = next(turn, None)
                if tile is None:
                    break
                rows, columns = (slice(*ends) for ends in tile)
                shape = rows.stop - rows.start, columns.stop - columns.start
                scores = buffer[: math.prod(shape)].view(shape)
                torch.mm(self._rows[rows], self._columns[columns].T, out=scores)
                kernel(scores, rows, columns)
                with lock:
                    done += 1
                    if self._progress is not None:
                        self._progress(stage, done, len(spans))
            return kernel

        with exact_products() as threads:
            workers = threads if self.device.type == "cpu" else 1
            with ThreadPoolExecutor(workers) as pool:
                futures = [pool.submit(work) for _ in range(workers)]
                try:
                    wait(futures, return_when=FIRST_EXCEPTION)
                finally:
                    stop.set()  # else leaving the pool waits until all tiles are done
                return [future.result() for future in futures]

    def total(self, counts: Sequence[NDArray[np.int64]]) -> NDArray[np.int64]:
        """Sum up the counts of all kernels on all ranks."""
        summed = torch.from_numpy(np.sum(counts, axis=0)).to(self.device)
        return all_reduce_(summed, self._process_group).cpu().numpy()

    def gather(self, values: list[Any]) -> list[Any]:
        """Return what the kernels of all ranks have, in the order of ranks."""
        ranks = world_size(self._process_group)
        if ranks == 1:
            return values
        gathered: list[Any] = [None] * ranks
        dist.all_gather_object(gathered, values, group=self._process_group)
        return [value for of_rank in gathered for value in of_rank]

    def agreed(self, value: Any) -> Any:
        """Return the value that the first rank has."""
        return self.gather([value])[0]


class Tiles(ScoreTiles):
    """The score matrix on and above its diagonal, in square tiles that are dealt to ranks."""

    def __init__(
        self,
        sample: Sample,
        device: torch.device,
        size: int,
        process_group: dist.ProcessGroup | None,
        progress: Progress | None,
    ) -> None:
        self.subject = sample.subject
        self.unit = torch.from_numpy(sample.unit).to(device)
        blocks = np.array(
            [
                (start, min(start + size, span.stop))
                for span in sample.spans()
                for start in range(span.start, span.stop, size)
            ]
        )
        first, second = np.triu_indices(len(blocks))
        near = self.subject[blocks[first, 1] - 1] == self.subject[blocks[second, 0]]
        near |= first == second
        # Tiles with mated pairs are dealt first, so that those alone are dealt evenly too.
        order = np.argsort(~near, kind="stable")[rank(process_group) :: world_size(process_group)]
        spans = np.stack([blocks[first], blocks[second]], axis=1)[order]
        mated = int(near[order].sum())
        super().__init__(self.unit, self.unit, spans, mated, size, process_group, progress)

    def mated(
        self, rows: slice, columns: slice
    ) -> tuple[NDArray[np.bool_], NDArray[np.bool_]] | None:
        """Return which pairs of a tile are mated and which are not to be counted as non-mated.

        The latter are mated pairs and, on the diagonal, pairs of an image with itself or an earlier
        one. None if all pairs are non-mated.
        """
        diagonal = rows.start == columns.start
        if not diagonal and self.subject[rows.stop - 1] != self.subject[columns.start]:
            return None
        mated = np.equal.outer(self.subject[rows], self.subject[columns])
        if not diagonal:
            return mated, mated
        later = np.triu(np.ones(mated.shape, bool), 1)
        mated &= later
        return mated, mated | ~later


class CrossTiles(ScoreTiles):
    """The products of every row ``(R, D)`` with every row ``(C, D)``, computed in float32.

    Tiles have at most ``size`` rows and columns: by default 1024 on the CPU, 8192 elsewhere.
    """

    def __init__(
        self,
        rows: NDArray[np.floating],
        columns: NDArray[np.floating],
        device: torch.device,
        size: int | None = None,
        progress: Progress | None = None,
    ) -> None:
        size = size or (1024 if device.type == "cpu" else 8192)
        first, second = (
            [(start, min(start + size, len(side))) for start in range(0, len(side), size)]
            for side in (rows, columns)
        )
        spans = np.array([(span, other) for span in first for other in second], np.int64)
        left, right = (
            torch.from_numpy(np.ascontiguousarray(side, np.float32)).to(device)
            for side in (rows, columns)
        )
        super().__init__(left, right, spans.reshape(-1, 2, 2), 0, size, None, progress)


def images_of(
    positions: NDArray[np.int64], rows: slice, columns: slice
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the two images of pairs given by their positions in a tile."""
    width = columns.stop - columns.start
    row = positions // width  # np.divmod takes ten times as long
    return row + rows.start, positions - row * width + columns.start
