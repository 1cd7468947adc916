"""The one progress bar: a line for each thing that is being done."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TaskID, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Display

from facerec.base.progress import Progress

LOG_SECONDS = 30.0
"""Between two lines of a log file."""


@contextmanager
def progress_bar(console: Console, unit: str = "") -> Iterator[Progress]:
    """Show progress while the block runs: a bar that goes at its end, or lines of a log file.

    Args:
        console: a terminal shows the bar. For another one, which is a file or a pipe, a line goes
            to stderr every ``LOG_SECONDS``. A quiet one shows nothing.
        unit: of what is counted, such as "images".
    """
    display = Display(
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        *([TextColumn(unit, markup=False)] if unit else []),
        TimeRemainingColumn(),
        console=console,
        transient=True,
        disable=console.quiet or not console.is_terminal,
    )
    tasks: dict[str, TaskID] = {}
    logged = time.monotonic()

    def show(doing: str, done: int, total: int) -> None:
        nonlocal logged
        if display.disable:
            if not console.quiet and time.monotonic() - logged >= LOG_SECONDS:
                logged = time.monotonic()
                counts = f"{done:,} of {total:,}" if total else f"{done:,}"
                print(f"{doing}: {counts} {unit}".rstrip(), file=sys.stderr, flush=True)
            return
        if doing not in tasks:
            tasks[doing] = display.add_task(doing, total=None)
        # A single step has no shares to show, only that it goes on.
        known = total > 1 or done
        display.update(tasks[doing], completed=done, total=total if known else None)

    with display:
        yield show
