"""``facerec convert``: what goes in comes out, whole or not at all."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from helpers.pair_lists import draw, make_cfp, named_pairs, write
from helpers.toy_files import read_table
from helpers.toy_packs import make_pack
from pytest import CaptureFixture, MonkeyPatch

from facerec.commands.convert import main
from facerec.records.images import MemoryImages
from facerec.verification.bench import Bench, Pairs, pack_bench
from facerec.verification.protocols import read_pairs
from facerec.verification.protocols.export import export_pack
from tests.commands.conftest import Refused


def contents(bench: Bench) -> list[tuple[bytes, bytes, bool]]:
    """Return the images of every pair, and its label."""
    images = [bench.images.encoded(i) for i in range(len(bench.images))]
    pairs = bench.pairs
    return [
        (images[first], images[second], bool(same))
        for first, second, same in zip(pairs.first, pairs.second, pairs.issame, strict=True)
    ]


def run(*arguments: object) -> None:
    main([str(argument) for argument in arguments])


@pytest.fixture
def lfw(tmp_path: Path) -> tuple[object, ...]:
    """Write a small View 2 with its images; return the arguments that name it."""
    text = "2\t1\n"
    for fold in range(2):
        a, b = f"Ann_{fold}", f"Bo_{fold}"
        text += f"{a}\t1\t2\n{a}\t1\t{b}\t1\n"
        for seed, name in enumerate([f"{a}/{a}_0001", f"{a}/{a}_0002", f"{b}/{b}_0001"]):
            draw(tmp_path / "images" / f"{name}.jpg", 3 * fold + seed)
    path = write(tmp_path / "pairs.txt", text)
    return "--pairs", path, "--format", "lfw", "--images", tmp_path / "images"


@pytest.mark.parametrize("suffix", [".bin", ".npz"])
def test_a_pack_without_names(tmp_path: Path, capsys: CaptureFixture, suffix: str) -> None:
    pack = make_pack(tmp_path / "toy.bin")
    run("--bench", pack, "--out", tmp_path / "copy" / f"toy{suffix}")
    captured = capsys.readouterr()
    assert "80 pairs, 40 same and 40 different, of 160 images\n" in captured.out
    assert ("pickle" in captured.err) == (suffix == ".bin")
    copy = pack_bench(tmp_path / "copy" / f"toy{suffix}")
    assert contents(copy) == contents(pack_bench(pack))
    assert [path.name for path in (tmp_path / "copy").iterdir()] == [f"toy{suffix}"]
    if suffix == ".bin":
        assert (tmp_path / "copy" / "toy.bin").read_bytes() == pack.read_bytes()


def test_a_list_keeps_names_and_subjects(tmp_path: Path) -> None:
    make_cfp(tmp_path / "cfp")
    run("--pairs", tmp_path / "cfp", "--format", "cfp-fp", "--out", tmp_path / "p" / "cfp_fp.npz")
    bench = read_pairs(tmp_path / "cfp", "cfp-fp")
    back = pack_bench(tmp_path / "p" / "cfp_fp.npz")
    assert named_pairs(back) == named_pairs(bench) and contents(back) == contents(bench)
    assert back.subjects_from == "the file of names"
    rows = read_table(tmp_path / "p" / "cfp_fp_images.csv")
    assert [row["subject_id"] for row in rows[:6]] == ["0", "0", "1", "1", "0", "1"]


def test_pairs_of_a_pack_are_in_the_order_of_folds(tmp_path: Path) -> None:
    """Ten folds that are mixed in the list end as ten blocks, without a note."""
    ids = [str(i) for i in range(20)]
    images = MemoryImages("memory", ids, [b"\xff\xd8\xff" + bytes([i]) for i in range(20)])
    first = np.arange(20)
    bench = Bench("mixed", images, Pairs(first, first, first < 10, None, first % 10))
    assert export_pack(bench, tmp_path / "mixed.npz") == ()
    assert [pair[0][3] for pair in contents(pack_bench(tmp_path / "mixed.npz"))] == [
        i for fold in range(10) for i in (fold, fold + 10)
    ]


def test_names_never_reach_another_pack(
    tmp_path: Path, refused: Refused, lfw: tuple[object, ...]
) -> None:
    folder = tmp_path / "packs"
    toy = make_pack(folder / "toy.bin")
    before = toy.read_bytes()
    run(*lfw, "--out", folder / "lfw.npz")
    # The same names serve two forms of one pack.
    run(*lfw, "--out", folder / "lfw.bin")
    (folder / "lfw.npz").unlink()
    assert "is there already" in refused(main, "--bench", toy, "--out", toy)
    error = refused(main, "--bench", toy, "--out", folder / "lfw.npz")
    assert "lfw_images.csv: it names the images of another pack" in error
    assert toy.read_bytes() == before and not (folder / "lfw.npz").exists()


def test_a_failure_leaves_nothing(
    tmp_path: Path, refused: Refused, lfw: tuple[object, ...]
) -> None:
    last = tmp_path / "images" / "Bo_1" / "Bo_1_0001.jpg"
    out = tmp_path / "p" / "lfw.npz"
    last.write_bytes(b"no image")
    refused(main, *lfw, "--out", out)
    assert list((tmp_path / "p").iterdir()) == []
    last.unlink()
    assert f"{last}: cannot be read" in refused(main, *lfw, "--out", out)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ([], "give either --bench or --pairs"),
        (["--bench", "x.bin"], "looked for x.bin;"),
        (["--pairs", "pairs.txt"], "its name does not tell its form; give --format, one of lfw"),
        (["--bench", "x.bin", "--out", "folder"], "folder: a pack ends with .npz"),
    ],
)
def test_unclear_arguments(
    tmp_path: Path, monkeypatch: MonkeyPatch, refused: Refused, arguments: list[str], sentence: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("pairs.txt").touch()
    assert sentence in refused(main, "--out", tmp_path / "out.npz", *arguments)
