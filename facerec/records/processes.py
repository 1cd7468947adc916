"""Worker processes that end with the process that started them, however that ends."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import resource_tracker
from multiprocessing.context import SpawnContext, SpawnProcess
from typing import Any

from facerec.base.errors import FacerecError


@contextlib.contextmanager
def process_pool(
    count: int, initializer: Callable[..., None] | None = None, initargs: tuple[Any, ...] = ()
) -> Iterator[ProcessPoolExecutor]:
    """Give a pool of spawned processes, none of which outlives the block or this process.

    Where the block ends, also with a `FacerecError`, work under way is finished and the rest is
    cancelled. Any other exception, such as the `SystemExit` of a SIGTERM, kills the processes at
    once; work must therefore leave only what is whole, as `facerec.base.files` does.

    Args:
        count: number of processes, ≥ 1.
        initializer: called once in every process.
        initargs: its arguments.

    Raises:
        FacerecError: one of the processes died.
    """
    others = set(multiprocessing.active_children())
    pool = ProcessPoolExecutor(count, _Context(), _start, (initializer, initargs))
    try:
        yield pool
    except BrokenProcessPool as problem:
        raise FacerecError(
            f"one of the {count} processes that share the work died, perhaps for want of memory; "
            "run the same command again, with fewer --processes"
        ) from problem
    except BaseException as problem:
        if not isinstance(problem, FacerecError):
            for process in set(multiprocessing.active_children()) - others:
                process.kill()
        raise
    finally:
        pool.shutdown(cancel_futures=True)


class Spawned(SpawnProcess):
    """A spawned process that Ctrl-C does not reach, which is the parent's to handle."""

    def start(self) -> None:
        """Start it with the signal held back: its imports take seconds, before any code of ours."""
        resource_tracker.ensure_running()  # would let the signal through when it starts
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            super().start()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)


class _Context(SpawnContext):
    """Spawns, since forking a process with threads (progress bar, torch, OpenCV) may lock up."""

    Process = Spawned


def _start(initializer: Callable[..., None] | None, initargs: tuple[Any, ...]) -> None:
    threading.Thread(target=_follow_parent, daemon=True).start()
    if initializer is not None:
        initializer(*initargs)


def _follow_parent() -> None:
    """End this process when its parent is gone, even if that was killed and could tell nobody."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)
