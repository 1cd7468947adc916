"""The one progress bar: a line for each thing that is being done."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TaskID, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Display

from facerec.progress import Progress


@contextmanager
def progress_bar(console: Console, unit: str = "") -> Iterator[Progress]:
    """Show progress on a terminal while the block runs; nothing elsewhere, and nothing stays."""
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

    def show(doing: str, done: int, total: int) -> None:
        if doing not in tasks:
            tasks[doing] = display.add_task(doing, total=None)
        # A single step has no shares to show, only that it goes on.
        known = total > 1 or done
        display.update(tasks[doing], completed=done, total=total if known else None)

    with display:
        yield show
