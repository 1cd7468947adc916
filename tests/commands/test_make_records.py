"""``facerec make-records``: there and back, stopped, refused, and what it saves."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from helpers.toy_files import picture, read_files, write_files

from facerec.commands.make_records import main
from facerec.records.layout import write_image_records
from facerec.records.make import make_records
from facerec.records.recordio import RecordFile, read_index
from facerec.records.training_set import Data, open_dataset
from tests.commands.conftest import Refused, Told


def test_the_commands_go_round(tmp_path: Path, told: Told, refused: Refused) -> None:
    folder = write_files(tmp_path / "in", {"a/1.jpg": picture(0), "b/1.jpg": picture(1)})
    records, back = tmp_path / "out", tmp_path / "back"
    output = told(main, folder, "--out", records)
    assert "2 images of 2 subjects" in output and "0 left out" in output
    assert "2 images of 2 subjects" in told(main, records, "--unpack --out", back)
    assert read_files(back) == read_files(folder)
    before = read_files(records)
    errors = refused(main, folder / "..", "--out", records)
    assert "holds a train.rec already" in errors and "--force" in errors
    assert read_files(records) == before
    told(main, folder, "--out", records, "--force")


@pytest.mark.parametrize("there", [False, True])
def test_stopped_between_its_last_moves_it_leaves_no_set_and_can_run_again(
    there: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, told: Told
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
        told(main, new, "--out", out)
        assert read_files(out) == whole


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["in"], "give --out"),
        (["in", "--out", "out"], "in/a/1.jpg: cannot be read (no JPEG"),
        (["in", "--out", "out", "--unpack", "--repair"], "one of --unpack, --repair"),
        (["none.rec", "--out", "out", "--unpack"], "none.rec: cannot be read"),
        (["none.rec", "--repair"], "none.rec: cannot be read"),
        (["in", "--out", "in"], "lies inside the folder of the images"),
    ],
)
def test_refusals(
    arguments: list[str],
    words: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    refused: Refused,
) -> None:
    monkeypatch.chdir(tmp_path)
    write_files(Path("in"), {"a/1.jpg": b"text", "a/2.jpg": picture(0)})
    assert words in refused(main, *arguments)
    assert [path.name for path in tmp_path.iterdir()] == ["in"]


# Damaged files


@pytest.fixture
def train(tmp_path: Path) -> Path:
    rows = [(i // 2, f"{i // 2}/{i}.jpg", picture(i)) for i in range(6)]
    write_image_records(tmp_path / "train", rows)
    return tmp_path / "train.rec"


def test_index_by_ids(train: Path, told: Told, refused: Refused) -> None:
    index = train.with_suffix(".idx")
    before = index.read_bytes()
    index.write_bytes(b"rubbish")
    assert f"{index}: 10 records" in told(main, train, "--repair")
    assert index.read_bytes() == before
    assert train.with_suffix(".idx.old").read_bytes() == b"rubbish"
    # What was kept is not lost to a second try.
    assert "train.idx.old: is there already" in refused(main, train, "--repair")


@pytest.mark.parametrize("name", ["truncated", "bad_magic", "bad_cflag", "huge_length"])
def test_whole_records_of_damaged_files(
    shared_data: Path, tmp_path: Path, told: Told, name: str
) -> None:
    source = shared_data / "records" / "broken" / f"{name}.rec"
    expected = json.loads(source.with_suffix(".expected.json").read_text())["records"]
    out = tmp_path / "whole.rec"
    printed = told(main, source, "--repair --out", out)
    payloads = [payload for _, payload in RecordFile(source).scan(salvage=True)]
    assert [payload for _, payload in RecordFile(out).scan()] == payloads
    assert len(read_index(out.with_suffix(".idx"), 1 << 30).keys) == len(expected)
    assert "passed over" in printed and f"{len(expected)} whole records" in printed


@pytest.mark.parametrize("lost", [(2,), (0, 3), (6,), (1, 8)])
def test_whole_images_of_a_damaged_insightface_file_are_read_again(
    train: Path, tmp_path: Path, told: Told, lost: tuple[int, ...]
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
    assert f"{len(left)} whole records" in told(main, train, "--repair --out", whole)
    saved = open_dataset(Data(whole), 0)
    assert [saved.sample(i) for i in range(len(saved))] == left
    assert saved.ids.tolist() == [str(i + 1) for i in range(6) if i not in lost]
