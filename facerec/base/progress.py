"""What long work tells whoever waits for it."""

from __future__ import annotations

from collections.abc import Callable

Progress = Callable[[str, int, int], None]
"""Called now and then with what is being done, how much of it is done, and how much there is; 0
where nobody knows yet.

`facerec.report.progress.progress_bar` shows it on a terminal.
"""


def section(
    progress: Progress | None, doing: str, start: int = 0, total: int | None = None
) -> Progress | None:
    """Return what a section of longer work is to call, so that ``progress`` hears of the whole.

    Args:
        progress: of the whole; None stays None.
        doing: what the whole does, in place of the section's own word for it.
        start: how much was done before the section.
        total: how much there is in all; by default what the section has.
    """
    if progress is None:
        return None

    def show(_: str, done: int, own: int) -> None:
        progress(doing, start + done, own if total is None else total)

    return show
