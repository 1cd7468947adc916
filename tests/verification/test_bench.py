from __future__ import annotations

from pathlib import Path

import pytest

from facerec.errors import PackError
from facerec.verification import find_pack


@pytest.fixture(autouse=True)
def nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder without packs, and no FACEREC_DATA from outside."""
    folder = tmp_path / "work"
    folder.mkdir()
    monkeypatch.chdir(folder)
    monkeypatch.delenv("FACEREC_DATA", raising=False)
    return folder


def touch(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"x")
    return path


@pytest.mark.parametrize("name", ["lfw.bin", "lfw.npz", "lfw/lfw.bin", "lfw/lfw.npz"])
def test_every_place_in_every_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    here = touch(Path("data") / name)
    assert find_pack("lfw") == here
    environment = touch(tmp_path / "environment" / name)
    monkeypatch.setenv("FACEREC_DATA", str(tmp_path / "environment"))
    assert find_pack("lfw") == environment
    given = touch(tmp_path / "given" / name)
    assert find_pack("lfw", tmp_path / "given") == given
    # A folder that lacks the pack does not hide the others.
    assert find_pack("lfw", tmp_path) == environment


def test_a_path_is_a_path(tmp_path: Path) -> None:
    file = touch(tmp_path / "my.pack" / "strange name.bin")
    assert find_pack(file) == find_pack(str(file)) == file
    assert find_pack(touch(Path("lfw.bin"))) == Path("lfw.bin")


def test_missing_name_lists_the_places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    touch(tmp_path / "given" / "cfp_fp.bin")
    touch(tmp_path / "given" / "agedb_30" / "agedb_30.npz")
    touch(tmp_path / "given" / "other" / "unreachable.bin")
    monkeypatch.setenv("FACEREC_DATA", "/srv/faces")
    with pytest.raises(PackError) as error:
        find_pack("lfw", tmp_path / "given")
    assert str(error.value) == (
        f"no pack for bench 'lfw': looked for lfw.bin and lfw.npz in {tmp_path}/given/ and "
        f"{tmp_path}/given/lfw/, /srv/faces/ and /srv/faces/lfw/, data/ and data/lfw/ (found "
        "there: agedb_30, cfp_fp); put an InsightFace-style lfw.bin there, or name its folder with "
        "--data or FACEREC_DATA"
    )


def test_missing_path() -> None:
    for path in ("gone.bin", "some/folder/lfw"):
        with pytest.raises(PackError) as error:
            find_pack(path)
        assert str(error.value) == (
            f"{path}: there is no such pack; give a .bin or .npz file or a bench name"
        )
