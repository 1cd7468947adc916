"""Tables with named columns are read alike however they are written, or refused by their line."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from facerec.base.errors import DatasetError
from facerec.records.tables import TextTable

ROWS = [("Ann/1.jpg", "Ann"), ("Jürgen/2, rechts.jpg", "Jürgen"), ("c", "")]


def write(path: Path, content: str | bytes) -> Path:
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


@pytest.mark.parametrize("separator", [",", ";", "\t"])
@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
def test_all_ways_to_write_a_table_give_the_same(
    tmp_path: Path, separator: str, end: str, encoding: str
) -> None:
    with (tmp_path / "t.csv").open("w", encoding=encoding, newline="") as file:
        writer = csv.writer(file, delimiter=separator, lineterminator=end)
        writer.writerow(["subject_id", "more", "image_id"])
        writer.writerows([[subject, "x", image] for image, subject in ROWS])
    rows = TextTable(tmp_path / "t.csv").rows(["image_id", "subject_id"])
    assert list(rows) == list(zip([2, 3, 4], ROWS, strict=True))


def test_blanks_and_empty_lines_do_not_count(tmp_path: Path) -> None:
    path = write(tmp_path / "t.csv", "\n a , b \n\n 1 , \n , \n2,3\n")
    table = TextTable(path)
    assert (table.line, table.columns) == (2, ["a", "b"])
    assert list(table.rows(["b", "a"])) == [(4, ("", "1")), (6, ("3", "2"))]
    assert list(TextTable(path).rows(["a"])) == [(4, ("1",)), (6, ("2",))]


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (b"", r"t.csv, line 1: there is no column 'a'.*\(of none\)"),
        (b"b,c\n1,2\n", r"line 1: there is no column 'a'.*\(of b, c\)"),
        (b"a,a\n", "line 1: there is no column 'a', or there are two"),
        (b"a,b\n1,2\n1\n", "line 3: 1 fields where the first line has 2"),
        (b"a,b\n1,2,3\n", "line 2: 3 fields where the first line has 2"),
        (b'a,b\n1,2\n1,"2\n', "line 3: this is no CSV"),
        (b"a,b\n1,2\nM\xfcller,2\n", "line 3: byte 9 is no text"),
        (b"a,b\n1,2\n1,\0\n", "NUL bytes.* text in UTF-8"),
        (b"a,b\n" + b"x" * (1 << 18), "line 2: this is no CSV .*limit"),
    ],
)
def test_what_is_wrong_is_named_by_its_line(tmp_path: Path, content: bytes, sentence: str) -> None:
    path = write(tmp_path / "t.csv", content)
    with pytest.raises(DatasetError, match=sentence) as found:
        list(TextTable(path).rows(["a"]))
    assert len(str(found.value)) < 600 and "\n" not in str(found.value)


def test_what_is_no_file_is_refused(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "gone.csv"):
        with pytest.raises(DatasetError, match="cannot be read"):
            TextTable(path)
