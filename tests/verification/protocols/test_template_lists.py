"""Lists of templates: IJB-B, IJB-C and TinyFace on small trees."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.io import savemat

from facerec.base.errors import DatasetError
from facerec.verification.identification import identify
from facerec.verification.protocols.template_lists import read_ijb, read_tinyface
from facerec.verification.templates import template_vectors

# Five images in four templates: 30 has two frames of one video, 7 shares an image with 2.
MEDIA = ["a.jpg 30 900", "b.jpg 30 900", "c.jpg 30 5", "d.jpg 7 1", "d.jpg 2 44", "e.jpg 11 1"]
POINTS = [f"{name}.jpg 1 2 3 4 5.5 6 7 8 9 10 0.{i}" for i, name in enumerate("edcba", 1)]
PAIRS = ["30 7 1", "30 2 0", "7 11 0", "2 11 1"]
SEARCHES = {
    "gallery_1": ["30,500,x.jpg,1", "30,500,y.jpg,1"],
    "gallery_2": ["2,17,x.jpg,1"],
    "probe_mixed": ["11,17,a.jpg,", "7,500,b.jpg,9"],
}
HEADER = "TEMPLATE_ID,SUBJECT_ID,FILENAME,SIGHTING_ID"


def write_ijb(root: Path, name: str = "ijbc", newline: str = "\n", bom: str = "") -> Path:
    letter = {"ijbb": "S", "ijbc": "G"}[name]
    meta = root / "meta"
    meta.mkdir(parents=True)
    lists = {
        f"{name}_face_tid_mid.txt": MEDIA,
        f"{name}_name_5pts_score.txt": POINTS,
        f"{name}_template_pair_label.txt": PAIRS,
        f"{name}_1N_gallery_{letter}1.csv": [HEADER, *SEARCHES["gallery_1"]],
        f"{name}_1N_gallery_{letter}2.csv": [HEADER, *SEARCHES["gallery_2"]],
        f"{name}_1N_probe_mixed.csv": [HEADER, *SEARCHES["probe_mixed"]],
    }
    for file, lines in lists.items():
        content = bom + newline.join([*lines, ""])
        (meta / file).write_bytes(content.encode())
    (root / "loose_crop").mkdir()
    for image in "abcde":
        (root / "loose_crop" / f"{image}.jpg").write_bytes(image.encode())
    return root


def replace_line(path: Path, number: int, line: str) -> None:
    lines = path.read_text().splitlines()
    lines[number - 1] = line
    path.write_text("\n".join(lines) + "\n")


@pytest.mark.parametrize(("newline", "bom"), [("\n", ""), ("\r\n", "\ufeff")])
@pytest.mark.parametrize("name", ["ijbb", "ijbc"])
def test_ijb(tmp_path: Path, name: Literal["ijbb", "ijbc"], newline: str, bom: str) -> None:
    bench = read_ijb(write_ijb(tmp_path / "ijb", name, newline, bom), name)
    assert bench.name == name
    assert bench.images.ids.tolist() == ["e.jpg", "d.jpg", "c.jpg", "b.jpg", "a.jpg"]
    assert bench.images.encoded(1) == b"d"
    assert bench.template_ids.tolist() == ["2", "7", "11", "30"]
    assert bench.image_rows.tolist() == [4, 3, 2, 1, 1, 0]
    assert bench.template_rows.tolist() == [3, 3, 3, 1, 0, 2]
    assert bench.media_rows.tolist() == [900, 900, 5, 1, 44, 1]
    np.testing.assert_array_equal(bench.detector_scores, np.arange(1, 6, dtype=np.float32) / 10)
    sides = bench.pairs.first.tolist(), bench.pairs.second.tolist()
    assert sides == ([3, 3, 1, 0], [1, 0, 2, 2])
    assert bench.pairs.issame.tolist() == [True, False, False, True]
    # Person 17 has templates 2 and 11, person 500 the other two.
    assert bench.subjects_from == "the list"
    assert bench.pairs.subjects.tolist() == [0, 1, 0, 1]
    assert bench.probes.name == "probe" and bench.probes.templates.tolist() == [1, 2]
    found = bench.aligner.faces(np.zeros((9, 9, 3), np.uint8), "here", "c.jpg")[0][0]
    assert found.tolist() == [[1, 2], [3, 4], [5.5, 6], [7, 8], [9, 10]]
    assert bench.probes.subjects.tolist() == [1, 0]
    first, second = bench.galleries
    assert [first.name, second.name] == (["S1", "S2"] if name == "ijbb" else ["G1", "G2"])
    assert (first.templates.tolist(), first.subjects.tolist()) == ([3], [1])
    assert (second.templates.tolist(), second.subjects.tolist()) == ([0], [0])
    assert bench.notes == () and len(bench.source["files"]) == 6


def test_ijb_without_searches(tmp_path: Path) -> None:
    root = write_ijb(tmp_path)
    for path in (root / "meta").glob("*.csv"):
        path.unlink()
    bench = read_ijb(root, "ijbc")
    assert bench.probes is None and bench.galleries == ()
    assert bench.subjects_from == "same pairs"
    subjects = bench.pairs.subjects
    assert subjects[0] == subjects[2] != subjects[1] == subjects[3]
    (note,) = bench.notes
    assert note.startswith(f"{root / 'meta'}: the lists of 1:N are not there")


FIVE = "1 2 3 4 5 6 7 8 9 10"
BAD_LINES = [
    ("face_tid_mid.txt", 3, "c.jpg 30", "image template media"),
    ("face_tid_mid.txt", 2, "b.jpg x30 900", "image template media"),
    ("face_tid_mid.txt", 4, "z.jpg 7 1", "row 4: .* no such image"),
    ("name_5pts_score.txt", 2, f"d.jpg {FIVE}", "image x1 y1"),
    ("name_5pts_score.txt", 4, f"d.jpg {FIVE} 0.5", "row 4: the image was named before"),
    ("template_pair_label.txt", 4, "2 11 -1", "row 4: its label is not 0 or 1"),
    ("template_pair_label.txt", 3, "7 12 0", "row 3: .* no such template"),
    ("1N_gallery_G1.csv", 1, "30,500,x.jpg,1", "must hold lines of 'TEMPLATE_ID,SUBJECT_ID'"),
    ("1N_gallery_G1.csv", 3, "30,501,x.jpg,1", "row 3: .* another subject's before"),
    ("1N_probe_mixed.csv", 2, "30,17,x.jpg,1", "row 2: .* another subject's before"),
]


@pytest.mark.parametrize(("file", "number", "line", "fragment"), BAD_LINES)
def test_bad_lines(tmp_path: Path, file: str, number: int, line: str, fragment: str) -> None:
    path = write_ijb(tmp_path) / "meta" / f"ijbc_{file}"
    replace_line(path, number, line)
    with pytest.raises(DatasetError, match=fragment) as error:
        read_ijb(tmp_path, "ijbc")
    assert str(error.value).startswith(str(path)) and len(str(error.value)) < 700


# TinyFace.


def cells(names: Sequence[str]) -> NDArray[np.object_]:
    array = np.empty((len(names), 1), object)
    array[:, 0] = names
    return array


def write_tinyface(root: Path, distractors: Sequence[str] = ("x2.jpg", "x1.JPG")) -> Path:
    folder = root / "Testing_Set"
    for name in ("Probe", "Gallery_Match", "Gallery_Distractor"):
        (folder / name).mkdir(parents=True)
    for name in distractors:
        (folder / "Gallery_Distractor" / name).write_bytes(b"x")
    (folder / "Gallery_Distractor" / "Thumbs.db").write_bytes(b"x")
    (folder / "Probe" / "7_1.jpg").write_bytes(b"probe")
    probes, matches = ["7_1.jpg", "9_1.jpg"], ["9_1.jpg", "7_3.jpg", "7_2.jpg"]
    who = {"probe_set": cells(probes), "probe_ids": np.array([[7], [9]], np.uint16)}
    savemat(folder / "probe_img_ID_pairs.mat", who)
    who = {"gallery_set": cells(matches), "gallery_ids": np.array([[9.0], [7.0], [7.0]])}
    savemat(folder / "gallery_match_img_ID_pairs.mat", who)
    return root


def test_tinyface(tmp_path: Path) -> None:
    bench = read_tinyface(write_tinyface(tmp_path))
    assert bench.images.ids.tolist() == [
        *("Probe/7_1.jpg", "Probe/9_1.jpg"),
        *(f"Gallery_Match/{name}.jpg" for name in ("9_1", "7_3", "7_2")),
        *("Gallery_Distractor/x1.JPG", "Gallery_Distractor/x2.jpg"),
    ]
    assert bench.images.encoded(0) == b"probe" and not len(bench.pairs)
    (gallery,) = bench.galleries
    assert bench.probes.templates.tolist() == bench.probes.subjects.tolist() == [0, 1]
    assert gallery.templates.tolist() == [2, 3, 4, 5, 6]
    assert gallery.subjects.tolist() == [1, 0, 0, -1, -1]

    vectors = np.array([[4, 0], [0, 1], [0, 2], [1, 1], [0, 1], [2, 2], [1, 0.5]], np.float32)
    found = template_vectors(vectors, bench, "raw")
    np.testing.assert_array_equal(found.vectors, vectors)
    result = identify(found.vectors, bench)
    # Person 7: its best image has a distractor of the same direction, and a better one above it.
    # Person 9: an image of person 7 has the direction of its mate.
    names = ("gallery", "figure", "target", "numerator", "denominator")
    found = [tuple(row[name] for name in names) for row in result.to_json()["rows"]]
    hits = {"1": 0, "5": 2, "10": 2, "20": 2}
    assert found == [("gallery", "rank", rank, hit, 2) for rank, hit in hits.items()]
