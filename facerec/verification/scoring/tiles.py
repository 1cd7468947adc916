"""The images that are compared, and their scores, computed tile by tile and handed to kernels."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from facerec.base.devices import exact_products
from facerec.base.errors import MetricError
from facerec.base.progress import Progress
from facerec.verification.unit_rows import real_matrix, row_norms, unit_rows

K = TypeVar("K", bound=Callable[[Tensor, slice, slice], None])
"""What takes what it needs from one tile after another: scores of two spans with each other."""


class Sample:
    """The usable images, sorted by subject, ``(N,)``."""

    def __init__(self, vectors: ArrayLike, subjects: ArrayLike) -> None:
        raw, names = real_matrix(vectors, "embeddings"), np.asarray(subjects)
        norms = row_norms(raw)
        usable = ~np.isnan(norms)
        self.failures = np.flatnonzero(~usable)
        self.labels, subject, self.images = np.unique(
            names[usable], return_inverse=True, return_counts=True
        )
        self.mated, self.non_mated = pair_counts(self.images)
        every = pair_counts(np.unique(names, return_counts=True)[1])
        self.lost = every[0] - self.mated, every[1] - self.non_mated
        if not self.mated or not self.non_mated:
            raise MetricError(
                f"{subject.size} usable images of {len(self.images)} subjects make {self.mated} "
                f"mated and {self.non_mated} non-mated pairs ({len(self.failures)} images have no "
                "usable embedding); error rates need at least one of each"
            )
        order = np.argsort(subject, kind="stable")
        self.subject = subject[order].astype(np.int32)
        self.unit = unit_rows(raw, norms, np.flatnonzero(usable)[order])


def pair_counts(images: NDArray[np.integer]) -> tuple[int, int]:
    """Return the numbers of mated and non-mated pairs, given the images of each subject."""
    total = int(images.sum())
    mated = int((images.astype(np.int64) * (images - 1) // 2).sum())
    return mated, total * (total - 1) // 2 - mated


class ScoreTiles:
    """Products of float32 rows, ``(R, D)`` by ``(C, D)``, tile by tile.

    The spans of rows and columns ``(T, 2, 2)`` are visited in their order; the first ``near`` tiles
    hold mated pairs. No tile has more rows or columns than ``size``.
    """

    def __init__(
        self,
        rows: Tensor,
        columns: Tensor,
        spans: NDArray[np.int64],
        near: int,
        size: int,
        progress: Progress | None,
    ) -> None:
        self._rows, self._columns, self.device = rows, columns, rows.device
        self._spans, self._near, self.size = spans, near, size
        self._progress = progress

    def visit(self, make: Callable[[], K], stage: str, near_only: bool = False) -> list[K]:
        """Hand every tile to one of the kernels that ``make`` makes, one a thread."""
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


class Tiles(ScoreTiles):
    """The score matrix on and above its diagonal, in square tiles."""

    def __init__(
        self, sample: Sample, device: torch.device, size: int, progress: Progress | None
    ) -> None:
        self.subject = sample.subject
        self.unit = torch.from_numpy(sample.unit).to(device)
        blocks = _blocks(len(sample.subject), size)
        first, second = np.triu_indices(len(blocks))
        near = self.subject[blocks[first, 1] - 1] == self.subject[blocks[second, 0]]
        near |= first == second
        # Tiles with mated pairs come first, so that those alone can be visited.
        order = np.argsort(~near, kind="stable")
        spans = np.stack([blocks[first], blocks[second]], axis=1)[order]
        super().__init__(self.unit, self.unit, spans, int(near.sum()), size, progress)

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
    """The products of every row ``(R, D)`` with every row ``(C, D)``, computed in float32."""

    def __init__(
        self,
        rows: NDArray[np.floating],
        columns: NDArray[np.floating],
        device: torch.device,
        size: int | None = None,
        progress: Progress | None = None,
    ) -> None:
        size = size or tile_size(device)
        sides = _blocks(len(rows), size), _blocks(len(columns), size)
        spans = [(span, other) for span in sides[0].tolist() for other in sides[1].tolist()]
        left, right = (
            torch.from_numpy(np.ascontiguousarray(side, np.float32)).to(device)
            for side in (rows, columns)
        )
        every = np.array(spans, np.int64).reshape(-1, 2, 2)
        super().__init__(left, right, every, 0, size, progress)


def tile_size(device: torch.device) -> int:
    """Return the rows and columns of a tile."""
    return 1024 if device.type == "cpu" else 8192


def _blocks(count: int, size: int) -> NDArray[np.int64]:
    """Return the spans that so many rows are cut into, ``(B, 2)``."""
    starts = np.arange(0, count, size)
    return np.stack([starts, np.minimum(starts + size, count)], axis=1)


def images_of(
    positions: NDArray[np.int64], rows: slice, columns: slice
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the two images of pairs given by their positions in a tile."""
    width = columns.stop - columns.start
    row = positions // width  # np.divmod takes ten times as long
    return row + rows.start, positions - row * width + columns.start


def total(kernels: Sequence[Any], name: str) -> NDArray[np.int64]:
    """Return the sum of the counts that all kernels have under a name."""
    counts: NDArray[np.int64] = sum(getattr(kernel, name) for kernel in kernels)
    return counts
