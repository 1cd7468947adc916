"""Progress on a terminal and in a log file."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from facerec.report import progress


def _counted(console: Console) -> None:
    with progress.progress_bar(console, "images") as show:
        for done in range(4):
            show("embed", done, 3000)


def test_a_log_file_gets_lines(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out = io.StringIO()
    _counted(Console(file=out))
    assert capsys.readouterr().err == ""  # short work leaves none
    monkeypatch.setattr(progress, "LOG_SECONDS", 0.0)
    _counted(Console(file=out))
    lines = capsys.readouterr().err.splitlines()
    assert lines == [f"embed: {done} of 3,000 images" for done in range(4)]
    assert out.getvalue() == ""


@pytest.mark.parametrize("options", [{"quiet": True}, {"force_terminal": True}])
def test_a_quiet_console_and_a_terminal_get_no_lines(
    options: dict[str, bool], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(progress, "LOG_SECONDS", 0.0)
    _counted(Console(file=io.StringIO(), **options))
    assert capsys.readouterr().err == ""
