"""What tests of several commands use."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

import pytest

Refused: TypeAlias = Callable[..., str]
Told: TypeAlias = Callable[..., str]


@pytest.fixture(autouse=True)
def _as_in_a_wide_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "160")
    monkeypatch.delenv("FACEREC_DATA", raising=False)


@pytest.fixture
def refused(capsys: pytest.CaptureFixture[str]) -> Refused:
    """Give what runs a command, expects exit status 2, and returns its one sentence."""

    def run(main: Callable[[list[str]], Any], *arguments: object) -> str:
        capsys.readouterr()
        with pytest.raises(SystemExit) as exit_:
            main([str(argument) for argument in arguments])
        assert exit_.value.code == 2
        error = capsys.readouterr().err
        assert error.startswith("error: ") and error.count("\n") == 1, error
        return error.removeprefix("error: ").strip()

    return run


@pytest.fixture
def told(capsys: pytest.CaptureFixture[str]) -> Told:
    """Give what runs a command, with flags parted by blanks, and returns what it printed."""

    def run(main: Callable[[list[str]], Any], *arguments: object) -> str:
        capsys.readouterr()
        main(" ".join(map(str, arguments)).split())
        return capsys.readouterr().out

    return run


@pytest.fixture
def workplace(template: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of a test file's own template, in which commands work."""
    folder = tmp_path / "work"
    shutil.copytree(template, folder, copy_function=shutil.copy2)
    monkeypatch.chdir(folder)
    return folder
