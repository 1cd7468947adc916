"""Names of shards: folders, braces as a shell has them, stars."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from facerec.base.errors import DatasetError
from facerec.records.shards import is_pattern, shard_paths


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("s-0.tar", "s-09.tar", "s-10.tar", "s-11.tar", "t-09.tar", "u.txt", ".h.tar"):
        (tmp_path / name).touch()
    (tmp_path / "inner.tar").mkdir()
    return tmp_path


def names(path: Path | str) -> list[str]:
    return [shard.name for shard in shard_paths(path, ".tar")]


@pytest.mark.parametrize(
    "text",
    ["s-{09..11}.tar", "{s,t}-09.tar", "s-{0,1}{9,0}.tar", "x{1..3}y{a,b}"],
)
def test_braces_mean_what_they_mean_in_bash(folder: Path, text: str) -> None:
    echo = subprocess.run(["bash", "-c", f"echo {text}"], capture_output=True, text=True)
    wanted = echo.stdout.split()
    for name in wanted:
        (folder / name).touch()
    if text.endswith(".tar"):
        assert names(folder / text) == wanted
    else:
        with pytest.raises(DatasetError, match=r"x1ya names no file, or one that is no \.tar"):
            names(folder / text)


def test_what_folders_files_and_stars_stand_for(folder: Path) -> None:
    assert names(folder) == ["s-0.tar", "s-09.tar", "s-10.tar", "s-11.tar", "t-09.tar"]
    assert names(folder / "s-0.tar") == ["s-0.tar"]
    assert names(folder / "u.txt") == names(folder / "gone.tar") == []
    assert names(folder / "s-1?.tar") == ["s-10.tar", "s-11.tar"]
    assert names(folder / "{t,s}-0*.tar") == ["t-09.tar", "s-0.tar", "s-09.tar"]
    (folder / "odd[1].tar").touch()
    assert not is_pattern(folder / "odd[1].tar") and names(folder / "odd[1].tar") == ["odd[1].tar"]


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("s-{09..12}.tar", r"s-12\.tar names no file"),
        ("z-*.tar", r"z-\*\.tar names no file"),
        ("u*", r"u\* .* no \.tar"),
    ],
)
def test_wrong_patterns_are_refused(folder: Path, text: str, sentence: str) -> None:
    with pytest.raises(DatasetError, match=sentence):
        names(folder / text)
