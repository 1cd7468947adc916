"""What long work tells whoever waits for it."""

from __future__ import annotations

from collections.abc import Callable

Progress = Callable[[str, int, int], None]
"""Called now and then with what is being done, how much of it is done, and how much there is; 0
where nobody knows yet.

`facerec.report.progress.progress_bar` shows it on a terminal.
"""
