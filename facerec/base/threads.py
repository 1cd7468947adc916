"""Work that threads do ahead of the one that waits for it."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from facerec.base.environment import available_cores

_Result = TypeVar("_Result")


def batches_ahead(
    work: Callable[[int], _Result], indices: npt.NDArray[np.int64], size: int
) -> Iterator[tuple[int, list[Future[_Result]]]]:
    """Yield the first row and the results of each batch, while those of the next are worked on.

    Args:
        work: called with each index, by several threads at once; it gains where it leaves Python's
            lock, as decoding an image does.
        indices: what it is called with, in this order.
        size: of a batch; the last one may be smaller.
    """
    pool = ThreadPoolExecutor(min(8, available_cores()))
    waiting: deque[tuple[int, list[Future[_Result]]]] = deque()
    try:
        for start in range(0, len(indices), size):
            batch = indices[start : start + size].tolist()
            waiting.append((start, [pool.submit(work, index) for index in batch]))
            if len(waiting) == 2:
                yield waiting.popleft()
        yield from waiting
    finally:
        pool.shutdown(cancel_futures=True)
