"""``facerec convert``: what goes in comes out, in every form, whole or not at all."""

from __future__ import annotations

import csv
import tempfile
from pathlib import Path

import numpy as np
import pytest
from helpers.examples import examples
from helpers.pair_lists import draw, make_cfp, named_pairs, write
from helpers.toy_packs import make_pack
from hypothesis import given, settings
from hypothesis import strategies as st

from facerec.commands.convert import main
from facerec.records.images import SHARED_NAMES, MemoryImages
from facerec.records.packs import read_pack, write_pack
from facerec.verification.bench import Bench, Pairs, pack_bench
from facerec.verification.protocols import read_pairs
from facerec.verification.protocols.export import export_folder, export_pack


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


def refusal(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    with pytest.raises(SystemExit) as exit_:
        run(*arguments)
    assert exit_.value.code == 2
    return capsys.readouterr().err


def make_lfw(folder: Path, folds: int = 2) -> Path:
    """Write a small View 2 with its images; return the list."""
    text = f"{folds}\t1\n"
    for fold in range(folds):
        a, b = f"Ann_{fold}", f"Bo_{fold}"
        text += f"{a}\t1\t2\n{a}\t1\t{b}\t1\n"
        for seed, name in enumerate([f"{a}/{a}_0001", f"{a}/{a}_0002", f"{b}/{b}_0001"]):
            draw(folder / "images" / f"{name}.jpg", 3 * fold + seed)
    return write(folder / "pairs.txt", text)


# ---------------------------------------------------------------- round trips


@pytest.mark.integration
def test_the_real_lfw_round_trip(shared_data: Path, tmp_path: Path) -> None:
    """Pack → folder → list, and back to a pack: pairs, folds, bytes and files are the same."""
    pack = shared_data / "lfw" / "lfw.bin"
    run("--bench", pack, "--out", tmp_path / "lfw")
    original = (shared_data / "lfw" / "pairs.txt").read_bytes()
    assert (tmp_path / "lfw" / "pairs.txt").read_bytes() == original
    bench = read_pairs(tmp_path / "lfw" / "pairs.txt", "lfw", tmp_path / "lfw" / "images")
    before = pack_bench(pack)
    assert named_pairs(bench) == named_pairs(before)
    assert contents(bench) == contents(before)
    assert np.array_equal(bench.pairs.folds, before.pairs.folds)
    export_pack(bench, tmp_path / "back" / "lfw.npz")
    names = (shared_data / "lfw" / SHARED_NAMES).read_bytes()
    assert (tmp_path / "back" / "lfw_images.csv").read_bytes() == names
    after = read_pack(tmp_path / "back" / "lfw.npz")
    given = read_pack(pack)
    for field in ("data", "offsets", "issame"):
        assert np.array_equal(getattr(after, field), getattr(given, field))


@pytest.mark.parametrize("suffix", [".bin", ".npz"])
def test_a_pack_without_names(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], suffix: str
) -> None:
    pack = make_pack(tmp_path / "toy.bin")
    run("--bench", pack, "--out", tmp_path / "copy" / f"toy{suffix}")
    captured = capsys.readouterr()
    assert captured.out == (
        f"{tmp_path}/copy/toy{suffix}: 80 pairs, 40 same and 40 different, of 160 images\n"
    )
    assert ("pickle" in captured.err) == (suffix == ".bin")
    copy = pack_bench(tmp_path / "copy" / f"toy{suffix}")
    assert contents(copy) == contents(pack_bench(pack))
    assert [path.name for path in (tmp_path / "copy").iterdir()] == [f"toy{suffix}"]
    if suffix == ".bin":
        assert (tmp_path / "copy" / "toy.bin").read_bytes() == pack.read_bytes()


def test_entry_numbers_become_file_names(tmp_path: Path) -> None:
    pack = make_pack(tmp_path / "toy.bin")
    images = [read_pack(pack).encoded(i) for i in range(4)]
    images[1] = b"\x89PNG\r\n\x1a\n" + bytes(20)
    # Entry 3 is entry 0 once more.
    write_pack(tmp_path / "few.npz", [*images[:3], images[0]], [True, False])
    run("--bench", tmp_path / "few.npz", "--out", tmp_path / "few")
    folder = tmp_path / "few"
    assert sorted(path.name for path in (folder / "images").iterdir()) == [
        "000000.jpg", "000001.png", "000002.jpg",
    ]  # fmt: skip
    assert (folder / "pairs.csv").read_text() == (
        "000000.jpg,000001.png,1\n000002.jpg,000000.jpg,0\n"
    )
    back = read_pairs(folder / "pairs.csv", "flat", folder / "images")
    assert contents(back) == contents(pack_bench(tmp_path / "few.npz"))


@settings(deadline=None, max_examples=examples(25))
@given(data=st.data())
def test_any_bench_comes_back(data: st.DataObject) -> None:
    """Random benches with names in LFW's grammar or without, folds contiguous or not."""
    count = data.draw(st.integers(2, 6))
    people = data.draw(st.lists(st.sampled_from(["Ann", "Bo Lee", "Šárka"]), min_size=count,
                                max_size=count))  # fmt: skip
    pattern = data.draw(st.sampled_from(["{0}/{0}_{1:04d}.jpg", "{0}, {1}.jpg", "{1}"]))
    ids = [pattern.format(person, i) for i, person in enumerate(people)]
    images = MemoryImages("memory", ids, [b"\xff\xd8\xff" + bytes([i]) for i in range(count)])
    item = st.integers(0, count - 1)
    drawn = data.draw(st.lists(st.tuples(item, item), min_size=1, max_size=30))
    first, second = np.array(drawn).T
    subjects = np.unique(people, return_inverse=True)[1]
    issame = subjects[first] == subjects[second]
    folds = data.draw(
        st.none() | st.lists(st.integers(0, 2), min_size=len(drawn), max_size=len(drawn))
    )
    if folds is not None and set(folds) != {0, 1, 2}:
        folds = [0, 1, 2, *folds][: len(drawn)] if len(drawn) >= 3 else None
    fold_array = None if folds is None else np.array(folds)
    pairs = Pairs(first, second, issame, subjects, fold_array)
    bench = Bench("random", images, pairs, subjects_from="image names")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        notes = export_folder(bench, folder / "out")
        modes = {path.stat().st_mode & 0o777 for path in (folder / "out").rglob("*.*")}
        assert modes == {0o600} and (folder / "out").stat().st_mode & 0o777 == 0o700
        if (folder / "out" / "pairs.txt").exists():
            back = read_pairs(folder / "out/pairs.txt", "lfw", folder / "out/images")
            assert not notes and "Ann/" in pattern.format("Ann", 0)
            assert (back.pairs.folds is None) == (folds is None)
            if folds is not None and back.pairs.folds is not None:
                assert back.pairs.folds.tolist() == folds
        else:
            back = read_pairs(folder / "out/pairs.csv", "flat", folder / "out/images")
            assert notes
        assert contents(back) == contents(bench)
        notes = export_pack(bench, folder / "p" / "x.npz")
        order = np.argsort(fold_array, kind="stable") if folds else np.arange(len(drawn))
        back = pack_bench(folder / "p" / "x.npz")
        assert notes
        assert contents(back) == [contents(bench)[i] for i in order]
        named = [(ids[first[i]], ids[second[i]], bool(issame[i])) for i in order]
        assert (folder / "p" / "x_images.csv").exists() == (pattern != "{1}")
        if pattern != "{1}":
            assert named_pairs(back) == named


def test_cfp_keeps_its_folds_and_persons(tmp_path: Path) -> None:
    make_cfp(tmp_path / "cfp")
    run("--pairs", tmp_path / "cfp", "--format", "cfp-fp", "--out", tmp_path / "p" / "cfp_fp.npz")
    bench = read_pairs(tmp_path / "cfp", "cfp-fp")
    back = pack_bench(tmp_path / "p" / "cfp_fp.npz")
    assert named_pairs(back) == named_pairs(bench)
    # The folders of ids are views of one person; a column says who it is.
    with (tmp_path / "p" / "cfp_fp_images.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["subject_id"] for row in rows[:6]] == ["0", "0", "1", "1", "0", "1"]


def test_pairs_of_a_pack_are_in_the_order_of_folds(tmp_path: Path) -> None:
    """Ten folds that are mixed in the list end as ten blocks, without a note."""
    ids = [str(i) for i in range(20)]
    images = MemoryImages("memory", ids, [b"\xff\xd8\xff" + bytes([i]) for i in range(20)])
    first = np.arange(20)
    folds = first % 10
    bench = Bench("mixed", images, Pairs(first, first, first < 10, None, folds))
    assert export_pack(bench, tmp_path / "mixed.npz") == ()
    assert [pair[0][3] for pair in contents(pack_bench(tmp_path / "mixed.npz"))] == [
        i for fold in range(10) for i in (fold, fold + 10)
    ]


def test_lists_become_folders(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = make_lfw(tmp_path / "lfw")
    arguments = ("--pairs", path, "--format", "lfw", "--images", tmp_path / "lfw" / "images")
    run(*arguments, "--out", tmp_path / "copy")
    assert (tmp_path / "copy" / "pairs.txt").read_bytes() == path.read_bytes()
    run(*arguments, "--out", tmp_path / "p" / "lfw.npz")
    assert capsys.readouterr().err == (
        "note: a pack is read in ten contiguous folds, which are not those of the protocol\n"
    )


# ---------------------------------------------------------------- refusals


def test_missing_images_are_counted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = make_lfw(tmp_path / "lfw")
    images = tmp_path / "lfw" / "images"
    for name in ("Ann_0/Ann_0_0002.jpg", "Bo_1/Bo_1_0001.jpg"):
        (images / name).unlink()
    arguments = ("--pairs", path, "--format", "lfw", "--images", images)
    for out in (tmp_path / "p" / "lfw.npz", tmp_path / "out"):
        assert refusal(capsys, *arguments, "--out", out) == (
            f"error: 2 of 6 images are missing, the first is {images}/Ann_0/Ann_0_0002.jpg; put "
            "them there or name their folder with --images\n"
        )
        assert not out.exists() and not out.with_name(f"{out.stem}_images.csv").exists()


def test_nothing_there_is_overwritten(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pack = make_pack(tmp_path / "toy.bin")
    before = pack.read_bytes()
    assert "is there already" in refusal(capsys, "--bench", pack, "--out", pack)
    assert pack.read_bytes() == before
    write(tmp_path / "full" / "x.txt", "x")
    error = refusal(capsys, "--bench", pack, "--out", tmp_path / "full")
    assert "holds something already; choose a new or empty folder" in error
    assert "holds something already" in refusal(
        capsys, "--bench", pack, "--out", tmp_path / "full" / "x.txt"
    )


def test_names_never_reach_another_pack(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    toy = make_pack(tmp_path / "packs" / "toy.bin")
    path = make_lfw(tmp_path / "lfw")
    arguments = ("--pairs", path, "--format", "lfw", "--images", tmp_path / "lfw" / "images")
    folder = tmp_path / "packs"
    run(*arguments, "--out", folder / "lfw.npz")
    # The same names serve two forms of one pack.
    run(*arguments, "--out", folder / "lfw.bin")
    assert pack_bench(toy).subjects_from == "same pairs"
    assert pack_bench(folder / "lfw.bin").subjects_from == "image names"
    (folder / "lfw.npz").unlink()
    capsys.readouterr()
    error = refusal(capsys, "--bench", toy, "--out", folder / "lfw.npz")
    assert "lfw_images.csv: it names the images of another pack" in error
    assert sorted(file.name for file in folder.iterdir()) == [
        "lfw.bin", "lfw_images.csv", "toy.bin",
    ]  # fmt: skip


def test_a_failure_leaves_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = make_lfw(tmp_path / "lfw")
    images = tmp_path / "lfw" / "images"
    last = images / "Bo_1" / "Bo_1_0001.jpg"
    last.write_bytes(b"no image")
    arguments = ("--pairs", path, "--format", "lfw", "--images", images)
    refusal(capsys, *arguments, "--out", tmp_path / "p" / "lfw.npz")
    assert list((tmp_path / "p").iterdir()) == []
    # A link that leads out is found only when it is read.
    last.unlink()
    last.symlink_to(write(tmp_path / "secret.jpg", "x"))
    error = refusal(capsys, *arguments, "--out", tmp_path / "o" / "out")
    assert "leads out of its folder through a symbolic link" in error
    assert not (tmp_path / "o").exists()


@pytest.mark.parametrize("name", ["../out.jpg", "/tmp/out.jpg", "a/../../out.jpg"])
def test_names_of_a_pack_stay_in_the_folder(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    images = [b"\xff\xd8\xff" + bytes([i]) for i in range(2)]
    write_pack(tmp_path / "evil.npz", images, [True])
    write(tmp_path / SHARED_NAMES, f"index,image_id\n0,a.jpg\n1,{name}\n")
    error = refusal(capsys, "--bench", tmp_path / "evil.npz", "--out", tmp_path / "o" / "out")
    assert "is no path inside a folder of images" in error
    assert not (tmp_path / "o").exists()


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ([], "give either --bench or --pairs"),
        (["--bench", "x.bin", "--pairs", "y.txt"], "give either --bench or --pairs"),
        (["--bench", "x.bin", "--format", "bin"], "--format and --images belong to --pairs"),
        (["--bench", "x.bin"], "x.bin: there is no such pack"),
        (["--pairs", "gone.txt"], "gone.txt: there is no such list of pairs; check the path"),
        (["--pairs", "pairs.txt"], "its name does not tell its form; give --format, one of lfw"),
        (["--pairs", "pairs.txt", "--format", "ytf"], "there is no format 'ytf'"),
        (["--pairs", "pairs.mat"], "pairs.mat: the file cannot be read"),
    ],
)
def test_unclear_arguments(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    sentence: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("pairs.txt").touch()
    assert sentence in refusal(capsys, *arguments, "--out", tmp_path / "out")
