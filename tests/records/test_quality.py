from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from facerec.base.errors import DatasetError
from facerec.records.quality import read_quality

PHOTOS = np.array(["a.jpg", "b.jpg", "c.jpg"])
OFIQ = """Filename;UnifiedQualityScore;Sharpness;UnifiedQualityScore.scalar;
other.jpg;1;2;3;\nb.jpg;0.5;7;21;\na.jpg;0.25;9;44;
"""


@pytest.mark.parametrize(
    ("text", "column", "expected", "name"),
    [
        (OFIQ, "", [44, 21, np.nan], "UnifiedQualityScore.scalar"),
        (OFIQ, ":Sharpness", [9, 7, np.nan], "Sharpness"),
        (
            "path\twhat\tmagface\nc.jpg\tx\t-1e1\nb.jpg\ty\tNA\n",
            "",
            [np.nan, np.nan, -10],
            "magface",
        ),
        ("id,quality,size\na.jpg,1,2\nb.jpg,3,4\nc.jpg,5,6\n", "", [1, 3, 5], "quality"),
    ],
)
def test_columns_are_found(
    tmp_path: Path, text: str, column: str, expected: list[float], name: str
) -> None:
    (tmp_path / "Q.csv").write_text(text)
    found = read_quality(f"{tmp_path / 'Q.csv'}{column}", PHOTOS)
    assert (found.path, found.column) == (tmp_path / "Q.csv", name)
    assert np.array_equal(found.values, expected, equal_nan=True)
    absent = PHOTOS[np.isnan(expected)].tolist()
    assert f"{len(absent)} of 3 images have no number in the column {name}" in found.note
    assert not absent or f"the first is {absent[0]!r}" in found.note


@pytest.mark.parametrize(
    ("text", "column", "words"),
    [
        ("who,q\na.jpg,1\n", "", "no column 'image_id', or there are two (of who, q)"),
        ("id,x,y\na.jpg,1,2\n", "", "2 columns hold numbers alone, of x, y"),
        ("id,x,y\na.jpg,u,v\n", "", "0 columns hold numbers alone, of x, y"),
        ("id,x,y\na.jpg,1,2\n", ":z", "no column 'z'"),
        (
            "id,x\nb.jpg,1\na.jpg,high\n",
            "",
            "line 3: image 'a.jpg' is no name or ['high'] no number",
        ),
        ("id,x\na.jpg,1\na.jpg,2\n", "", "line 3: image 'a.jpg' occurs twice"),
        ("id,x\nd.jpg,1\n", "", "3 of 3 images have no number in the column x"),
        ("id,x\n", "", "0 columns hold numbers alone, of x"),
    ],
)
def test_refusals(tmp_path: Path, text: str, column: str, words: str) -> None:
    (tmp_path / "Q.csv").write_text(text)
    with pytest.raises(DatasetError) as refused:
        read_quality(f"{tmp_path / 'Q.csv'}{column}", PHOTOS)
    assert words in str(refused.value)
