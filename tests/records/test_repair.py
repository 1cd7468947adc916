from __future__ import annotations

import json
from pathlib import Path

import pytest

from facerec.commands import make_records
from facerec.records import Data, open_dataset
from facerec.records.recordio import RecordFile, read_index, record_writer
from facerec.records.synthetic import SyntheticSet, write_synthetic

pytestmark = pytest.mark.integration


def main(arguments: list[str]) -> None:
    make_records.main([*arguments, "--repair"])


@pytest.fixture
def train(tmp_path: Path) -> Path:
    write_synthetic(tmp_path, SyntheticSet(0, 3, 2, pairs_per_fold=4), processes=1)
    return tmp_path / "train.rec"


def test_index_by_ids(train: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    index = train.with_suffix(".idx")
    before = [open_dataset(Data(tmp_path), 0).sample(i) for i in range(6)]
    index.write_bytes(b"rubbish")
    main([str(train)])
    assert [open_dataset(Data(tmp_path), 0).sample(i) for i in range(6)] == before
    assert train.with_suffix(".idx.old").read_bytes() == b"rubbish"
    assert f"{index}: 10 records" in capsys.readouterr().out
    # What was kept is not lost to a second try.
    with pytest.raises(SystemExit) as exit_:
        main([str(train)])
    assert exit_.value.code == 2 and "an older index is kept here" in capsys.readouterr().err


def test_index_in_file_order_where_ids_say_nothing(tmp_path: Path) -> None:
    with record_writer(tmp_path / "raw.rec") as writer:
        for number in range(5):
            writer.write(b"x" * number)
    (tmp_path / "raw.idx").unlink()
    main([str(tmp_path / "raw.rec")])
    assert read_index(tmp_path / "raw.idx", 1000).keys.tolist() == list(range(5))


@pytest.mark.parametrize("name", ["truncated", "bad_magic", "bad_cflag", "huge_length"])
def test_whole_records_of_damaged_files(
    shared_data: Path, tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    source = shared_data / "records" / "broken" / f"{name}.rec"
    expected = json.loads(source.with_suffix(".expected.json").read_text())["records"]
    out = tmp_path / "whole.rec"
    main([str(source), "--out", str(out)])
    payloads = [payload for _, payload in RecordFile(source).scan(salvage=True)]
    assert [payload for _, payload in RecordFile(out).scan()] == payloads
    assert len(read_index(out.with_suffix(".idx"), 1 << 30).keys) == len(expected)
    printed = capsys.readouterr().out
    assert "passed over" in printed and f"{len(expected)} whole records" in printed


@pytest.mark.parametrize("lost", [(2,), (0, 3), (6,), (1, 8)])
def test_whole_images_of_a_damaged_insightface_file_are_read_again(
    train: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], lost: tuple[int, ...]
) -> None:
    # Six images, three identity records, and the header, whose place in the file is the last.
    dataset = open_dataset(Data(tmp_path), 0)
    left = [dataset.sample(i) for i in range(6) if i not in lost]
    offsets = list(RecordFile(train).scan_offsets())
    content = bytearray(train.read_bytes())
    for i in lost:
        content[offsets[i]] ^= 1
    train.write_bytes(content)
    whole = tmp_path / "whole" / "whole.rec"
    whole.parent.mkdir()
    main([str(train), "--out", str(whole)])
    assert f"{len(left)} whole records" in capsys.readouterr().out
    saved = open_dataset(Data(whole), 0)
    assert [saved.sample(i) for i in range(len(saved))] == left
    assert saved.ids.tolist() == [str(i + 1) for i in range(6) if i not in lost]


@pytest.mark.parametrize("content", [b"", b"0\t0\n1\t64\n" * 40])
@pytest.mark.parametrize("arguments", [[], ["--out", "whole.rec"]])
def test_a_file_without_a_record_is_left_alone(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    content: bytes,
    arguments: list[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("train.rec").write_bytes(content)
    with pytest.raises(SystemExit) as exit_:
        main(["train.rec", *arguments])
    assert exit_.value.code == 2
    assert "train.rec" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["train.rec"]
