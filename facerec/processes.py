"""Worker processes that end with the process that started them, however that ends."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from typing import Any

from facerec.errors import FacerecError


@contextlib.contextmanager
def process_pool(
    count: int, initializer: Callable[..., None], initargs: tuple[Any, ...] = ()
) -> Iterator[ProcessPoolExecutor]:
    """Give a pool of spawned processes, none of which outlives the block or this process.

    Where the block ends with a `FacerecError`, work under way is finished and the rest cancelled.
    Any other exception, such as the `SystemExit` of a SIGTERM, kills the processes at once; work
    must therefore leave only what is whole, as `facerec.files` does.

    Args:
        count: number of processes, ≥ 1.
        initializer: called once in every process.
        initargs: its arguments.
    """
    # Spawned, since forking a process with threads (progress bar, torch, OpenCV) may lock up.
    context = multiprocessing.get_context("spawn")
    others = set(multiprocessing.active_children())
    pool = ProcessPoolExecutor(count, context, _start, (initializer, initargs))
    try:
        yield pool
    except FacerecError:
        pool.shutdown(cancel_futures=True)
        raise
    except BaseException:
        for process in set(multiprocessing.active_children()) - others:
            process.kill()
        pool.shutdown(cancel_futures=True)
        raise
    pool.shutdown()


def _start(initializer: Callable[..., None], initargs: tuple[Any, ...]) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to handle
    end_with_parent()
    initializer(*initargs)


def end_with_parent() -> None:
    """End this process when its parent is gone, even if that was killed and could tell nobody."""
    threading.Thread(target=_follow_parent, daemon=True).start()


def _follow_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)
