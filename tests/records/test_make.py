"""Folder to records and back: bytes unchanged, deterministic, every failure a sentence."""

from __future__ import annotations

import io
import json
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

import numpy as np
import pytest
from helpers.toy_files import picture, read_files, write_files

from facerec.base.errors import DatasetError
from facerec.commands.make_records import main
from facerec.records.decode import decode_image, image_kind
from facerec.records.images import SubjectFolders
from facerec.records.layout import RecordImages, write_image_records
from facerec.records.make import apply_proposals, export_folder, make_records
from facerec.records.proposals import Proposal, combine, read_proposals, write_proposals
from facerec.records.recordio import RecordFile, read_index
from facerec.records.training_set import Data, open_dataset

FACES = {
    **{f"person {c}/{n}.jpg": picture(10 * c + n) for c in range(12) for n in range(c % 4 + 1)},
    "Zoë/ärger 1.png": picture(500, suffix=".png"),
    **{f"many/{n:03d}.jpg": picture(1000 + n) for n in range(140)},
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_files(tmp_path_factory.mktemp("faces"), FACES)


@pytest.fixture(scope="module")
def made(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("made")
    seen: list[tuple[str, int, int]] = []
    summary = make_records(folder, out, progress=lambda *now: seen.append(now))
    assert summary.path == out / "train.rec"
    assert summary.images == len(FACES) == len(seen) and summary.subjects == 14
    assert not summary.skipped and summary.counts == {"left out": 0}
    return out


def test_records_hold_the_files_in_the_order_of_names(made: Path) -> None:
    dataset = RecordImages(made)
    names = sorted({name.split("/")[0] for name in FACES})
    assert dataset.class_names == names and dataset.num_classes == len(names)
    expected = sorted(FACES, key=lambda name: name.split("/"))
    for i, name in enumerate(expected):
        assert dataset.sample(i) == (FACES[name], names.index(name.split("/")[0]))
    assert (made / "property").read_text().splitlines()[0] == "14,112,112"
    lines = (made / "train.lst").read_text(encoding="utf-8").splitlines()
    assert [line.split("\t")[2] for line in lines] == expected


def test_the_way_back_gives_the_same_folder(made: Path, tmp_path: Path) -> None:
    out = tmp_path / "back"
    summary = export_folder(made, out)
    assert (summary.images, summary.subjects, len(summary.skipped)) == (len(FACES), 14, 0)
    assert read_files(out) == FACES
    assert [path.name for path in tmp_path.iterdir()] == ["back"]
    modes = {path.stat().st_mode & 0o777 for path in (out, *out.rglob("*"))}
    assert modes == {0o700, 0o600}


# Bad images


BAD = {
    "a/1.jpg": picture(0),
    "a/2.jpg": picture(1)[:-50],
    "b/1.jpg": b"no image",
    "c/1.jpg": picture(2, 96, 96),
    "c/2.jpg": picture(3),
}


def test_other_formats_are_stored_as_png_of_the_same_pixels(tmp_path: Path) -> None:
    """Readers of others know JPEG and PNG alone."""
    files = {f"{name}/0{name}": picture(7, suffix=name) for name in (".webp", ".bmp", ".tiff")}
    files = {f"a{name}": data for name, data in files.items()} | {"b/0.webp": picture(8)}
    folder = write_files(tmp_path / "in", files)
    summary = make_records(folder, tmp_path / "out")
    assert summary.images == 4 and not summary.notes
    dataset = RecordImages(tmp_path / "out")
    for i, (name, data) in enumerate(sorted(files.items())):
        stored = dataset.encoded(i)
        if name == "b/0.webp":  # what it is its content says
            assert stored == data
        else:
            assert image_kind(stored) == "png"
        np.testing.assert_array_equal(decode_image(stored, "x"), decode_image(data, "x"))
    export_folder(tmp_path / "out", tmp_path / "back")
    endings = {"b/0.webp": "b/0.webp.jpg"}
    assert sorted(read_files(tmp_path / "back")) == sorted(
        endings.get(name, f"{name}.png") for name in files
    )


def test_skip_leaves_bad_images_out_and_lists_them(tmp_path: Path) -> None:
    folder = write_files(tmp_path / "in", BAD)
    summary = make_records(folder, tmp_path / "out", on_error="skip")
    causes = ["lacks its end marker", "neither a JPEG nor a PNG", "96×96"]
    for item, cause in zip(summary.skipped, causes, strict=True):
        assert cause in item and item.startswith(str(folder))
    assert summary.images + len(summary.skipped) == len(BAD)
    dataset = RecordImages(tmp_path / "out")
    assert dataset.num_classes == 3 and dataset.labels.tolist() == [0, 2]
    assert len(summary.notes) == 1 and "1 of 3 subjects" in summary.notes[0]


# Names on the way back


def pack(folder: Path, names: list[tuple[int, str]]) -> Path:
    folder.mkdir()
    rows = [(label, name, picture(i)) for i, (label, name) in enumerate(names)]
    write_image_records(folder / "train", rows)
    return folder


@pytest.mark.parametrize(
    ("names", "files"),
    [
        # A list that tells the classes apart; deeper folders are joined.
        ([(0, "x/f/1.jpg"), (0, "x/p/1.jpg"), (1, "y/1")], ["x/f_1.jpg", "x/p_1.jpg", "y/1"]),
        # One folder for two classes, two folders for one class, no folder at all.
        ([(0, "x/1.jpg"), (1, "x/2.jpg")], ["0/x_1.jpg", "1/x_2.jpg"]),
        ([(0, "x/1.jpg"), (0, "y/2.jpg")], ["0/x_1.jpg", "0/y_2.jpg"]),
        ([(0, "1.jpg"), (1, "2.jpg")], ["0/1.jpg", "1/2.jpg"]),
    ],
)  # fmt: skip
def test_names_from_the_list(
    names: list[tuple[int, str]], files: list[str], tmp_path: Path
) -> None:
    export_folder(pack(tmp_path / "pack", names), tmp_path / "out")
    found = {name: picture(i) for i, name in enumerate(files)}
    assert read_files(tmp_path / "out") == found


def test_unsafe_names_are_refused(tmp_path: Path) -> None:
    folder = pack(tmp_path / "pack", [(0, "x/ok.jpg"), (1, "y/ok.jpg")])
    for name in ("/etc/a.jpg", "x/../../a.jpg", "C:/a.jpg", "x\\..\\a.jpg"):
        (folder / "train.lst").write_text(f"1\t0\tx/ok.jpg\n2\t1\t{name}\n")
        with pytest.raises(DatasetError, match=r"train\.lst, line 2: .* no path inside a folder"):
            export_folder(folder, tmp_path / "out")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["pack"]


# Commands


def run(*arguments: object) -> tuple[int, str, str]:
    """Run the command in this process and return its exit status, output and errors."""
    status, output, errors = 0, io.StringIO(), io.StringIO()
    with redirect_stdout(output), redirect_stderr(errors):
        try:
            main([str(argument) for argument in arguments])
        except SystemExit as end:
            status = end.code
    return status, output.getvalue(), errors.getvalue()


def test_the_commands_go_round(tmp_path: Path) -> None:
    folder = write_files(tmp_path / "in", {"a/1.jpg": picture(0), "b/1.jpg": picture(1)})
    records, back = tmp_path / "out", tmp_path / "back"
    status, output, errors = run(folder, "--out", records)
    assert status == 0, errors
    assert "2 images of 2 subjects" in output and "0 left out" in output
    status, output, errors = run(records, "--unpack", "--out", back)
    assert status == 0, errors
    assert "2 images of 2 subjects" in output
    assert read_files(back) == read_files(folder)
    before = read_files(records)
    status, _, errors = run(folder / "..", "--out", records)
    assert status == 2 and "holds a train.rec already" in errors and "--force" in errors
    assert read_files(records) == before
    assert run(folder, "--out", records, "--force")[0] == 0


@pytest.mark.parametrize("there", [False, True])
def test_stopped_between_its_last_moves_it_leaves_no_set_and_can_run_again(
    there: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A set is there when its records are: never without its names, nor beside those of another."""
    old = write_files(tmp_path / "old", {"x/1.jpg": picture(5), "y/1.jpg": picture(6)})
    new = write_files(tmp_path / "new", {f"{c}/1.jpg": picture(ord(c)) for c in "abc"})
    make_records(new, tmp_path / "whole")
    whole = read_files(tmp_path / "whole")
    move, done, limit = Path.replace, 0, 0

    def stopped(self: Path, target: Path) -> Path:
        nonlocal done
        if target.parent == out:
            if done == limit:
                raise KeyboardInterrupt
            done += 1
        return move(self, target)

    for limit in range(len(whole)):
        out, done = tmp_path / f"out{limit}", 0
        if there:
            make_records(old, out)
        with monkeypatch.context() as patch:
            patch.setattr(Path, "replace", stopped)
            with pytest.raises(KeyboardInterrupt):
                make_records(new, out)
        assert done == limit and not (out / "train.rec").exists()
        status, _, errors = run(new, "--out", out)
        assert status == 0, errors
        assert read_files(out) == whole


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["in"], "give --out"),
        (["in", "--out", "out"], "in/a/1.jpg: neither a JPEG"),
        (["in", "--out", "out", "--unpack", "--repair"], "give one of them"),
        (["none.rec", "--out", "out", "--unpack"], "no such record file"),
        (["none.rec", "--repair"], "no such record file"),
        (["in", "--out", "in"], "lies inside the folder of the images"),
    ],
)
def test_refusals(
    arguments: list[str], words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write_files(Path("in"), {"a/1.jpg": b"text", "a/2.jpg": picture(0)})
    status, _, errors = run(*arguments)
    assert status == 2 and words in errors.splitlines()[-1]
    assert [path.name for path in tmp_path.iterdir()] == ["in"]


# Damaged files


@pytest.fixture
def train(tmp_path: Path) -> Path:
    rows = [(i // 2, f"{i // 2}/{i}.jpg", picture(i)) for i in range(6)]
    write_image_records(tmp_path / "train", rows)
    return tmp_path / "train.rec"


def repair(*arguments: object) -> str:
    status, output, errors = run(*arguments, "--repair")
    assert status == 0, errors
    return output


def test_index_by_ids(train: Path, tmp_path: Path) -> None:
    index = train.with_suffix(".idx")
    before = index.read_bytes()
    index.write_bytes(b"rubbish")
    assert f"{index}: 10 records" in repair(train)
    assert index.read_bytes() == before
    assert train.with_suffix(".idx.old").read_bytes() == b"rubbish"
    # What was kept is not lost to a second try.
    status, _, errors = run(train, "--repair")
    assert status == 2 and "train.idx.old: is there already" in errors


@pytest.mark.parametrize("name", ["truncated", "bad_magic", "bad_cflag", "huge_length"])
def test_whole_records_of_damaged_files(shared_data: Path, tmp_path: Path, name: str) -> None:
    source = shared_data / "records" / "broken" / f"{name}.rec"
    expected = json.loads(source.with_suffix(".expected.json").read_text())["records"]
    out = tmp_path / "whole.rec"
    printed = repair(source, "--out", out)
    payloads = [payload for _, payload in RecordFile(source).scan(salvage=True)]
    assert [payload for _, payload in RecordFile(out).scan()] == payloads
    assert len(read_index(out.with_suffix(".idx"), 1 << 30).keys) == len(expected)
    assert "passed over" in printed and f"{len(expected)} whole records" in printed


@pytest.mark.parametrize("lost", [(2,), (0, 3), (6,), (1, 8)])
def test_whole_images_of_a_damaged_insightface_file_are_read_again(
    train: Path, tmp_path: Path, lost: tuple[int, ...]
) -> None:
    # Six images, three range records, and the header, whose place in the file is the last.
    dataset = open_dataset(Data(tmp_path), 0)
    left = [dataset.sample(i) for i in range(6) if i not in lost]
    offsets = [offset for offset, _ in RecordFile(train).scan()]
    content = bytearray(train.read_bytes())
    for i in lost:
        content[offsets[i]] ^= 1
    train.write_bytes(content)
    whole = tmp_path / "whole" / "whole.rec"
    whole.parent.mkdir()
    assert f"{len(left)} whole records" in repair(train, "--out", whole)
    saved = open_dataset(Data(whole), 0)
    assert [saved.sample(i) for i in range(len(saved))] == left
    assert saved.ids.tolist() == [str(i + 1) for i in range(6) if i not in lost]


# Proposals


def row(kind, image, label, proposed, accept=True, other=""):
    return Proposal(kind, image, label, proposed, other, 0.75, accept)


@pytest.fixture
def three(tmp_path):
    files = {
        f"{name}/{shot}.jpg": picture(10 * who + shot)
        for who, name in enumerate(("anna", "bert", "cleo"))
        for shot in range(3)
    }
    return write_files(tmp_path / "faces", files)


def test_a_table_comes_back_as_it_was(tmp_path):
    rows = [
        row("wrong_label", "=1+1.jpg", "-a", "'@b"),
        row("merge", "", "x", "'plain", accept=False),
        row("duplicate", "u", "v, w", "", other='"quoted"'),
    ]
    write_proposals(tmp_path / "p.csv", rows)
    assert read_proposals(tmp_path / "p.csv") == rows
    cells = (tmp_path / "p.csv").read_text().splitlines()[1].split(",")
    assert not any(cell.startswith(("=", "-", "@")) for cell in cells)


def test_what_proposals_do_together():
    """Chains of merged labels end in one, a dropped image is gone, errors come before mixtures."""
    labels = dict.fromkeys("ijk", "a")
    after, merged = combine(
        [
            row("wrong_label", "i", "a", "d"),
            row("mixture", "i", "a", "a~2"),
            row("mixture", "j", "a", "a~2"),
            row("duplicate", "j", "a", ""),
            row("wrong_label", "k", "a", "d", accept=False),
            *(row("merge", "", a, b) for a, b in (("a", "b"), ("b", "c"), ("c", "a"), ("x", "y"))),
        ],
        labels,
    )
    assert after == {"i": "d", "j": "", "k": "a"}
    assert merged == {"a": "c", "b": "c", "x": "y"}


@pytest.mark.parametrize("as_records", [False, True])
def test_applied_proposals_make_new_records(three, tmp_path, as_records):
    path, source = three, SubjectFolders(three)
    if as_records:
        make_records(three, tmp_path / "old")
        path, source = tmp_path / "old", RecordImages(tmp_path / "old")
    image = {
        (str(label), shot): source.name(3 * label + shot) for label in range(3) for shot in range(3)
    }
    content = {name: source.encoded(i) for i, name in enumerate(source.ids.tolist())}
    rows = [
        row("wrong_label", image["0", 0], "anna", "bert"),
        row("wrong_label", image["0", 1], "anna", ""),
        row("mixture", image["1", 2], "bert", "bert~2"),
        row("merge", "", "cleo", "anna"),
        row("merge", "", "bert", "anna", accept=False),
    ]
    write_proposals(tmp_path / "p.csv", rows)
    summary = apply_proposals(path, tmp_path / "p.csv", tmp_path / "new")
    new = RecordImages(tmp_path / "new")
    assert new.class_names == ["anna", "bert", "bert~2"]
    wanted = {
        "anna": [image["0", 2], *(image["2", shot] for shot in range(3))],
        "bert": [image["0", 0], image["1", 0], image["1", 1]],
        "bert~2": [image["1", 2]],
    }
    found = {name: [] for name in wanted}
    for i in range(len(new)):
        found[new.class_names[new.labels[i]]].append(new.encoded(i))
    assert found == {name: [content[i] for i in images] for name, images in wanted.items()}
    assert (summary.images, summary.subjects) == (8, 3)
    assert list(summary.counts.values()) == [1, 2, 1, 1, 0]


@pytest.mark.parametrize(
    ("rows", "word"),
    [
        ([row("wrong_label", "nobody/1.jpg", "anna", "")], "nobody"),
        ([row("wrong_label", "anna/1.jpg", "bert", "")], "anna/1.jpg"),
        ([row("merge", "", "dora", "anna")], "dora"),
    ],
)
def test_proposals_of_another_set_leave_nothing(three, tmp_path, rows, word):
    write_proposals(tmp_path / "p.csv", rows)
    with pytest.raises(DatasetError, match=word):
        apply_proposals(three, tmp_path / "p.csv", tmp_path / "new")
    assert not (tmp_path / "new" / "train.rec").exists()
    with pytest.raises(DatasetError, match="another folder"):
        apply_proposals(three, tmp_path / "p.csv", three)
