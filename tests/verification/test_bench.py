from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from helpers.toy_packs import make_pack
from pytest import MonkeyPatch

from facerec.base.errors import PackError
from facerec.records.packs import read_pack
from facerec.verification import Pairs, find_pack, pack_bench
from facerec.verification.bench import infer_subjects


@pytest.fixture(autouse=True)
def nowhere(tmp_path: Path, monkeypatch: MonkeyPatch) -> Path:
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
def test_every_place_in_every_folder(tmp_path: Path, monkeypatch: MonkeyPatch, name: str) -> None:
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


def test_missing_packs(tmp_path: Path, monkeypatch: MonkeyPatch) -> None:
    monkeypatch.setenv("FACEREC_DATA", "/srv/faces")
    with pytest.raises(PackError, match="no pack for bench 'lfw'") as error:
        find_pack("lfw", tmp_path / "given")
    for place in (f"{tmp_path}/given/lfw/", "/srv/faces/", "data/lfw/"):
        assert place in str(error.value)


# --- what a bench is --------------------------------------------------------------------------


def test_pack_without_names(tmp_path: Path) -> None:
    path = make_pack(tmp_path / "toy.npz", per_fold=2)
    bench = pack_bench(path)
    pack = read_pack(path)
    pairs = bench.pairs
    assert (bench.name, bench.subjects_from) == ("toy", "same pairs")
    assert pairs.folds is not None and pairs.folds.tolist() == np.repeat(range(10), 4).tolist()
    for i in range(len(pairs)):
        assert bench.images.encoded(int(pairs.first[i])) == pack.images[2 * i]
        assert bench.images.encoded(int(pairs.second[i])) == pack.images[2 * i + 1]
    sides = pairs.subject_pairs()
    np.testing.assert_array_equal(sides[0] == sides[1], pack.issame)


def test_pack_with_names(tmp_path: Path) -> None:
    path = make_pack(tmp_path / "toy.npz", per_fold=1)
    # Pairs are same and different in turn.
    people = np.repeat(np.arange(30), [2, 1, 1] * 10)
    names = [f"{i},p{n:02}/{i}.jpg" for i, n in enumerate(people)]
    (tmp_path / "pairs_images.csv").write_text("\n".join(["index,image_id", *names]))
    bench = pack_bench(path)
    assert bench.subjects_from == "image names"
    assert bench.pairs.subjects.tolist() == people.tolist()


def test_persons_from_a_column(tmp_path: Path) -> None:
    path = make_pack(tmp_path / "toy.npz", per_fold=1)
    issame = read_pack(path).issame
    people = [n for pair, same in enumerate(issame) for n in (2 * pair, 2 * pair + (not same))]
    rows = [f"{i},{i}.jpg,subject {n}" for i, n in enumerate(people)]
    names = tmp_path / "toy_images.csv"
    names.write_text("\n".join(["index,image_id,subject_id", *rows]))
    # A file for the pack alone goes before one for the folder.
    (tmp_path / "pairs_images.csv").write_text("rubbish")
    bench = pack_bench(path)
    assert (bench.subjects_from, bench.notes) == ("the file of names", ())
    sides = bench.pairs.subject_pairs()
    np.testing.assert_array_equal(sides[0] == sides[1], issame)
    # Names that contradict the labels are not believed.
    names.write_text("\n".join(["index,image_id,subject_id", *(r[:-1] + "9" for r in rows)]))
    doubted = pack_bench(path)
    assert doubted.subjects_from == "same pairs"
    assert "subjects that the file of names name" in doubted.notes[0]


def test_persons_inferred_from_same_pairs() -> None:
    first, second = np.array([0, 1, 4, 5]), np.array([1, 2, 0, 6])
    same = np.array([True, True, False, True])
    found = infer_subjects(Pairs(first, second, same), 8)
    assert len(set(found[[0, 1, 2]].tolist())) == 1 and found[5] == found[6]
    assert len(set(found.tolist())) == 5
