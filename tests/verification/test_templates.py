from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
from helpers.examples import examples
from helpers.plain_rates import search
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from numpy.typing import NDArray
from scipy.io import savemat

from facerec.errors import DatasetError, FacerecError, ImageError, MetricError
from facerec.records.images import MemoryImages
from facerec.statistics.identification import Searches
from facerec.verification import identification, templates
from facerec.verification.identification import identify, nearest_entries, search_gallery
from facerec.verification.protocols import template_lists
from facerec.verification.protocols.template_lists import read_ijb, read_tinyface
from facerec.verification.templates import SearchSet, TemplateBench, template_vectors

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
    assert bench.points is not None
    assert bench.points.shape == (5, 5, 2)
    assert bench.points[0].tolist() == [[1, 2], [3, 4], [5.5, 6], [7, 8], [9, 10]]
    assert bench.detector_scores is not None
    np.testing.assert_array_equal(
        bench.detector_scores, np.array([0.1, 0.2, 0.3, 0.4, 0.5], np.float32)
    )
    assert bench.pairs is not None
    assert bench.pairs.first.tolist() == [3, 3, 1, 0]
    assert bench.pairs.second.tolist() == [1, 0, 2, 2]
    assert bench.pairs.issame.tolist() == [True, False, False, True]
    # Person 17 has templates 2 and 11, person 500 the other two.
    assert bench.subjects_from == "the list"
    assert bench.pairs.subjects is not None
    assert bench.pairs.subjects.tolist() == [0, 1, 0, 1]
    assert bench.probes is not None
    assert bench.probes.name == "probe"
    assert bench.probes.templates.tolist() == [1, 2]
    aligner = bench.aligner()
    assert aligner is not None and bench.points is not None
    found = aligner.find(np.zeros((9, 9, 3), np.uint8), str(bench.images.ids[2]), "here")
    np.testing.assert_array_equal(found, bench.points[2])
    assert bench.probes.subjects.tolist() == [1, 0]
    first, second = bench.galleries
    assert [first.name, second.name] == (["S1", "S2"] if name == "ijbb" else ["G1", "G2"])
    assert (first.templates.tolist(), first.subjects.tolist()) == ([3], [1])
    assert (second.templates.tolist(), second.subjects.tolist()) == ([0], [0])
    assert bench.notes == ()
    assert len(bench.source["files"]) == 6


def test_ijb_without_searches(tmp_path: Path) -> None:
    root = write_ijb(tmp_path)
    for path in (root / "meta").glob("*.csv"):
        path.unlink()
    bench = read_ijb(root, "ijbc")
    assert bench.probes is None
    assert bench.galleries == ()
    assert bench.subjects_from == "same pairs"
    assert bench.pairs is not None
    subjects = bench.pairs.subjects
    assert subjects is not None
    assert subjects[0] == subjects[2] != subjects[1] == subjects[3]
    assert bench.notes == (
        f"{root / 'meta'}: the lists of 1:N are not there, so nothing is searched",
    )
    with pytest.raises(MetricError, match="ijbc has no lists of probes and galleries"):
        identify(np.ones((4, 2), np.float32), bench)


def test_persons_of_some_templates_only(tmp_path: Path) -> None:
    root = write_ijb(tmp_path)
    replace_line(root / "meta" / "ijbc_1N_probe_mixed.csv", 2, "7,500,x")
    bench = read_ijb(root, "ijbc")
    assert bench.subjects_from == "same pairs"
    assert bench.probes is not None
    assert bench.probes.templates.tolist() == [1]


def test_labels_against_the_persons_of_the_lists(tmp_path: Path) -> None:
    root = write_ijb(tmp_path)
    path = root / "meta" / "ijbc_template_pair_label.txt"
    path.write_text("30 7 1\n\n30 2 1\n7 11 1\n")
    assert read_ijb(root, "ijbc").notes == (
        f"{path}: 2 labels against the subjects of the 1:N lists, the first in line 3",
    )


@pytest.mark.parametrize(
    "file",
    [
        "meta/ijbc_face_tid_mid.txt",
        "meta/ijbc_name_5pts_score.txt",
        "meta/ijbc_template_pair_label.txt",
        "meta/ijbc_1N_gallery_G2.csv",
        "meta/ijbc_1N_probe_mixed.csv",
    ],
)
@pytest.mark.parametrize("what", ["missing", "empty", "folder"])
def test_missing_and_empty_lists(tmp_path: Path, file: str, what: str) -> None:
    path = write_ijb(tmp_path) / file
    path.unlink()
    if what == "empty":
        path.write_text("\n \n")
    if what == "folder":
        path.mkdir()
    with pytest.raises(DatasetError) as error:
        read_ijb(tmp_path, "ijbc")
    assert str(error.value).startswith(str(path))


@pytest.mark.parametrize("header", [HEADER + "\n", f"TEMPLATE_ID,{HEADER}"])
def test_a_header_without_lines(tmp_path: Path, header: str) -> None:
    path = write_ijb(tmp_path) / "meta" / "ijbc_1N_gallery_G1.csv"
    path.write_text(header)
    with pytest.raises(DatasetError, match="the list is empty"):
        read_ijb(tmp_path, "ijbc")


def test_no_folder_of_images(tmp_path: Path) -> None:
    root = write_ijb(tmp_path)
    (root / "loose_crop").rename(root / "elsewhere")
    with pytest.raises(DatasetError, match="loose_crop: there is no such folder"):
        read_ijb(root, "ijbc")


def test_a_folder_above_or_below_the_right_one(tmp_path: Path) -> None:
    root = write_ijb(tmp_path / "ijbc")
    for wrong in (tmp_path, root / "meta"):
        with pytest.raises(DatasetError, match="name the folder that holds meta/"):
            read_ijb(wrong, "ijbc")
    with pytest.raises(DatasetError, match="name the folder that holds Testing_Set/"):
        read_tinyface(root)


def test_a_listed_image_that_is_not_there(tmp_path: Path) -> None:
    root = write_ijb(tmp_path)
    (root / "loose_crop" / "c.jpg").unlink()
    images = read_ijb(root, "ijbc").images
    with pytest.raises(ImageError, match=r"c\.jpg"):
        images.encoded(2)


FIVE = "1 2 3 4 5 6 7 8 9 10"
BAD_LINES = [
    ("face_tid_mid.txt", 3, "c.jpg 30", "it should hold 'image template media'"),
    ("face_tid_mid.txt", 1, "c.jpg 30", "it should hold 'image template media'"),
    ("face_tid_mid.txt", 6, "c.jpg 30 5 6", "it should hold 'image template media'"),
    ("face_tid_mid.txt", 1, "c.jpg 30 5 6", "it should hold 'image template media'"),
    ("face_tid_mid.txt", 2, "b.jpg x30 900", "it should hold 'image template media'"),
    ("face_tid_mid.txt", 2, "b.jpg 30 99999999999999999999", "should hold"),
    ("face_tid_mid.txt", 2, "b.jpg 30 9_00", "it should hold 'image template media'"),
    ("face_tid_mid.txt", 4, "z.jpg 7 1", "names an image that"),
    ("name_5pts_score.txt", 2, f"d.jpg {FIVE}", "it should hold 'image x1 y1"),
    ("name_5pts_score.txt", 2, f"d.jpg {FIVE} high", "it should hold 'image x1 y1"),
    ("name_5pts_score.txt", 2, f"d.jpg {FIVE} nan", "it should hold 'image x1 y1"),
    ("name_5pts_score.txt", 2, f"d.jpg {FIVE} inf", "has a number that is not finite"),
    ("name_5pts_score.txt", 2, f"d.jpg {FIVE} 1e99", "has a number that is not finite"),
    ("name_5pts_score.txt", 3, f"c.jpg {FIVE} -0.5", "a detector score below 0"),
    ("name_5pts_score.txt", 4, f"d.jpg {FIVE} 0.5", "names an image again"),
    ("template_pair_label.txt", 2, "30 2", "it should hold 'template template label'"),
    ("template_pair_label.txt", 4, "30 2 0.5", "it should hold 'template template label'"),
    ("template_pair_label.txt", 4, "2 11 -1", "has a label that is not 0 or 1"),
    ("template_pair_label.txt", 3, "7 12 0", "names a template that"),
    ("template_pair_label.txt", 3, "29 11 0", "names a template that"),
    ("1N_gallery_G1.csv", 1, "30,500,x.jpg,1", "should name the columns TEMPLATE_ID and SUBJECT"),
    ("1N_gallery_G1.csv", 3, "30,,x.jpg,1", "it should hold 'TEMPLATE_ID,SUBJECT_ID'"),
    ("1N_gallery_G1.csv", 3, "30", "it should hold 'TEMPLATE_ID,SUBJECT_ID'"),
    ("1N_gallery_G1.csv", 3, "31,500,x.jpg,1", "names a template that"),
    ("1N_gallery_G1.csv", 3, "30,501,x.jpg,1", r"to another subject than before \(500\)"),
    ("1N_probe_mixed.csv", 2, "30,17,x.jpg,1", r"to another subject than before \(500\)"),
]


@pytest.mark.parametrize("lines", [1 << 20, 2])
@pytest.mark.parametrize(("file", "number", "line", "fragment"), BAD_LINES)
def test_bad_lines(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    file: str,
    number: int,
    line: str,
    fragment: str,
    lines: int,
) -> None:
    monkeypatch.setattr(template_lists, "_LINES", lines)
    path = write_ijb(tmp_path) / "meta" / f"ijbc_{file}"
    replace_line(path, number, line)
    with pytest.raises(DatasetError, match=fragment) as error:
        read_ijb(tmp_path, "ijbc")
    assert str(error.value).startswith(f"{path}, line {number}: ")
    assert repr(line) in str(error.value)


def test_line_numbers_count_blank_lines_and_long_lines_are_cut(tmp_path: Path) -> None:
    path = write_ijb(tmp_path) / "meta" / "ijbc_face_tid_mid.txt"
    path.write_text("\n".join(["", *MEDIA[:2], " ", "x" * 5000, *MEDIA[2:]]))
    with pytest.raises(DatasetError) as error:
        read_ijb(tmp_path, "ijbc")
    assert str(error.value).startswith(f"{path}, line 5: ")
    assert len(str(error.value)) < len(str(path)) + 250


def test_bytes_that_are_no_text(tmp_path: Path) -> None:
    path = write_ijb(tmp_path) / "meta" / "ijbc_face_tid_mid.txt"
    path.write_bytes(b"\xff\xfe\x00 30 1\n")
    with pytest.raises(DatasetError, match=r"ijbc_face_tid_mid\.txt"):
        read_ijb(tmp_path, "ijbc")


def test_a_name_in_latin_1(tmp_path: Path) -> None:
    path = write_ijb(tmp_path) / "meta" / "ijbc_face_tid_mid.txt"
    path.write_bytes(path.read_bytes().replace(b"c.jpg", b"\xe9.jpg"))
    with pytest.raises(DatasetError) as error:
        read_ijb(tmp_path, "ijbc")
    assert str(error.value).startswith(f"{path}, line 3: ")


def test_a_path_that_leaves_the_folder(tmp_path: Path) -> None:
    root = write_ijb(tmp_path)
    for file, number in (("face_tid_mid", 1), ("name_5pts_score", 5)):
        path = root / "meta" / f"ijbc_{file}.txt"
        line = path.read_text().splitlines()[number - 1]
        replace_line(path, number, line.replace("a.jpg", "../secret.jpg"))
    with pytest.raises(DatasetError, match="is no path inside a folder"):
        read_ijb(root, "ijbc")


def test_lists_read_some_lines_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = write_ijb(tmp_path)
    whole = read_ijb(root, "ijbc")
    monkeypatch.setattr(template_lists, "_LINES", 2)
    parts = read_ijb(root, "ijbc")
    assert whole.pairs is not None
    assert parts.pairs is not None
    for name in ("image_rows", "template_rows", "media_rows", "points", "detector_scores"):
        np.testing.assert_array_equal(getattr(whole, name), getattr(parts, name))
    for name in ("first", "second", "issame", "subjects"):
        np.testing.assert_array_equal(getattr(whole.pairs, name), getattr(parts.pairs, name))


# Vectors of templates.


def make_bench(
    image: Sequence[int],
    template: Sequence[int],
    media: Sequence[int],
    *,
    images: int,
    count: int,
    detector: NDArray[np.float32] | None = None,
) -> TemplateBench:
    names = [str(i) for i in range(images)]
    return TemplateBench(
        name="toy",
        images=MemoryImages("toy", names, [b""] * images),
        image_rows=np.array(image, np.int64),
        template_rows=np.array(template, np.int64),
        media_rows=np.array(media, np.int64),
        template_ids=np.arange(count).astype(np.str_),
        detector_scores=detector,
    )


def naive_vectors(
    vectors: NDArray[np.float32], bench: TemplateBench, unit: bool, detector: bool
) -> NDArray[np.float64]:
    result = []
    for template in range(len(bench.template_ids)):
        media: dict[int, list[NDArray[np.float64]]] = {}
        for row in range(len(bench.image_rows)):
            if bench.template_rows[row] != template:
                continue
            vector = vectors[bench.image_rows[row]].astype(np.float64)
            if not np.isfinite(vector).all() or not vector.any():
                continue
            if unit:
                vector = vector / np.linalg.norm(vector)
            if detector:
                assert bench.detector_scores is not None
                vector = vector * bench.detector_scores[bench.image_rows[row]]
            media.setdefault(int(bench.media_rows[row]), []).append(vector)
        missing = np.full(vectors.shape[1], np.nan)
        means = [np.mean(found, axis=0) for found in media.values()]
        result.append(np.sum(means, axis=0) if means else missing)
    return np.array(result)


@pytest.mark.parametrize("rows", [1, 7, 4096])
@pytest.mark.parametrize("detector", [False, True])
@pytest.mark.parametrize("weighting", ["raw", "unit"])
def test_vectors_as_in_naive_loops(
    monkeypatch: pytest.MonkeyPatch, weighting: Literal["raw", "unit"], detector: bool, rows: int
) -> None:
    monkeypatch.setattr(templates, "_ROWS", rows)
    rng = np.random.default_rng(3)
    images, count, length = 60, 12, 150
    vectors = (rng.normal(size=(images, 5)) * rng.uniform(1, 30, (images, 1))).astype(np.float32)
    vectors[[3, 17]] = np.nan
    vectors[8, 2] = np.inf
    vectors[21] = 0
    bench = make_bench(
        rng.integers(0, images, length).tolist(),
        rng.integers(0, count - 2, length).tolist(),
        rng.integers(-2, 2, length).tolist(),
        images=images,
        count=count,
        detector=rng.uniform(0.1, 1, images).astype(np.float32),
    )
    found = template_vectors(vectors, bench, norm_weighting=weighting, detector_score=detector)
    expected = naive_vectors(vectors, bench, weighting == "unit", detector)
    assert found.vectors.dtype == np.float32
    assert np.isnan(found.vectors).any(axis=1).tolist() == [False] * 10 + [True] * 2
    np.testing.assert_allclose(found.vectors, expected, rtol=2e-6, atol=2e-6)
    failed = np.isin(bench.image_rows, [3, 17, 8, 21])
    assert (
        found.left_out.tolist() == np.bincount(bench.template_rows[failed], minlength=12).tolist()
    )
    assert found.used.tolist() == np.bincount(bench.template_rows[~failed], minlength=12).tolist()
    again = template_vectors(vectors, bench, norm_weighting=weighting, detector_score=detector)
    np.testing.assert_array_equal(found.vectors, again.vectors)


def test_raw_and_unit_norms_are_two_protocols() -> None:
    vectors = np.array([[10, 0], [0, 1], [0, 3]], np.float32)
    # Images 1 and 2 are frames of one video.
    bench = make_bench([0, 1, 2], [0, 0, 0], [1, 2, 2], images=3, count=1)
    raw = template_vectors(vectors, bench, norm_weighting="raw", detector_score=False)
    unit = template_vectors(vectors, bench, norm_weighting="unit", detector_score=False)
    assert raw.vectors.tolist() == [[10, 2]]
    assert unit.vectors.tolist() == [[1, 1]]
    assert (raw.norm_weighting, unit.norm_weighting) == ("raw", "unit")


def test_detector_scores_do_not_divide_the_mean() -> None:
    vectors = np.array([[1, 0], [0, 1]], np.float32)
    scores = np.array([1, 0.5], np.float32)
    bench = make_bench([0, 1], [0, 0], [9, 9], images=2, count=1, detector=scores)
    found = template_vectors(vectors, bench, norm_weighting="unit", detector_score=True)
    assert found.vectors.tolist() == [[0.5, 0.25]]


def test_failed_images_are_left_out_of_their_media_too() -> None:
    vectors = np.array([[2, 0], [np.nan, 0], [0, 0]], np.float32)
    bench = make_bench([0, 1, 2, 2], [0, 0, 0, 1], [5, 5, 5, 5], images=3, count=2)
    found = template_vectors(vectors, bench, norm_weighting="raw", detector_score=False)
    assert found.vectors[0].tolist() == [2, 0]
    assert np.isnan(found.vectors[1]).all()
    assert found.notes == (
        "3 of 4 images of templates have no usable embedding and are left out; 1 of 2 templates "
        "have no image left",
    )
    whole = template_vectors(
        np.ones((3, 2), np.float32), bench, norm_weighting="raw", detector_score=False
    )
    assert whole.notes == ()


def test_all_images_failed() -> None:
    bench = make_bench([0, 1], [0, 1], [1, 1], images=2, count=2)
    vectors = np.full((2, 3), np.nan, np.float32)
    found = template_vectors(vectors, bench, norm_weighting="unit", detector_score=False)
    assert np.isnan(found.vectors).all()
    assert found.vectors.shape == (2, 3)


def test_what_template_vectors_refuses() -> None:
    bench = make_bench([0, 1], [0, 1], [1, 1], images=2, count=2)
    good = np.ones((2, 3), np.float32)
    cases: list[tuple[Any, Any, bool, str]] = [
        (np.ones((3, 3), np.float32), "raw", False, "3 embeddings for 2 images"),
        (np.ones(3, np.float32), "raw", False, "rows of real numbers"),
        (good.astype(np.int64), "raw", False, "rows of real numbers"),
        (good, "N1", False, "'raw' or 'unit', not 'N1'"),
        (good, "raw", True, "no detector scores"),
    ]
    for vectors, weighting, detector, fragment in cases:
        with pytest.raises(MetricError, match=fragment):
            template_vectors(vectors, bench, norm_weighting=weighting, detector_score=detector)
    with pytest.raises(DatasetError, match="give one each a row"):
        make_bench([0, 1], [0], [1, 1], images=2, count=2)


# Searches.


def naive_search(
    probes: NDArray[np.floating],
    probe_subjects: NDArray[np.int64],
    gallery: NDArray[np.floating],
    gallery_subjects: NDArray[np.int64],
) -> list[list[float]]:
    """Return the best other score, the mate's score and its rank, entry by entry."""
    result = []
    for probe, subject in zip(probes.astype(float), probe_subjects, strict=True):
        mates, others = [], []
        for entry, person in zip(gallery.astype(float), gallery_subjects, strict=True):
            product = np.linalg.norm(probe) * np.linalg.norm(entry)
            score = -np.inf
            if product > 0:
                score = round(float(probe @ entry / product) * 2**24) / 2**24
            (mates if person == subject and person >= 0 else others).append(score)
        other = max(others, default=-np.inf)
        mate = max(mates, default=np.nan)
        result.append([other, mate, 1 + sum(s >= mate for s in others) if mates else 0])
    return result


def as_rows(found: Searches) -> NDArray[np.float64]:
    return np.stack([found.best_other, found.mate, found.rank], axis=1).astype(np.float64)


def check_nearest(
    probes: NDArray[np.floating],
    mine: NDArray[np.int64],
    gallery: NDArray[np.floating],
    theirs: NDArray[np.int64],
) -> None:
    """Compare the two best entries of every probe with all scores, entry by entry."""
    found = nearest_entries(probes, mine, gallery, theirs)
    for row, subject in enumerate(mine):
        alone = [
            naive_search(probes[[row]], np.array([-9]), gallery[[entry]], np.array([-8]))[0][0]
            for entry in range(len(gallery))
        ]
        mate = (theirs == subject) & (theirs >= 0)
        others = sorted((alone[entry] for entry in np.flatnonzero(~mate)), reverse=True)
        best, second = [*others, -np.inf, -np.inf][:2]
        mates = [alone[entry] for entry in np.flatnonzero(mate)]
        assert (found.best[row], found.second[row]) == (best, second)
        assert found.mate[row] == max(mates, default=-np.inf)
        entry = found.entry[row]
        if best > -np.inf:
            assert not mate[entry] and alone[entry] == best
        else:
            assert entry == -1


# Few small whole numbers give many equal cosines, zero vectors and NaN among them.
ENTRIES = st.sampled_from([-1.0, 0.0, 1.0, 2.0]) | st.just(np.nan)


@settings(max_examples=examples(150), deadline=None)
@given(st.data(), st.integers(0, 12), st.integers(1, 12), st.integers(1, 5))
def test_search_as_by_brute_force(data: st.DataObject, size: int, others: int, tile: int) -> None:
    def draw(rows: int) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
        vectors = arrays.arrays(np.float32, (rows, 2), elements=ENTRIES)
        subjects = arrays.arrays(np.int64, rows, elements=st.integers(-2, 4))
        return data.draw(vectors), data.draw(subjects)

    probes, mine = draw(size)
    gallery, theirs = draw(others)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(identification, "_TILE", tile)
        found = search_gallery(probes, mine, gallery, theirs)
        check_nearest(probes, mine, gallery, theirs)
    expected = naive_search(probes, mine, gallery, theirs)
    np.testing.assert_array_equal(as_rows(found), np.reshape(expected, (size, 3)))
    assert found.gallery == others


@settings(max_examples=examples(40), deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(1, 40))
def test_search_of_random_vectors_as_by_brute_force(seed: int, tile: int) -> None:
    rng = np.random.default_rng(seed)
    probes, gallery = rng.normal(size=(17, 6)), rng.normal(size=(23, 6)) * 9
    mine, theirs = rng.integers(0, 9, 17), rng.integers(-1, 9, 23)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(identification, "_TILE", tile)
        found = search_gallery(probes, mine, gallery, theirs)
        check_nearest(probes, mine, gallery, theirs)
    expected = naive_search(probes, mine, gallery, theirs)
    np.testing.assert_array_equal(as_rows(found), expected)


def test_search_agrees_with_a_matrix_of_scores() -> None:
    rng = np.random.default_rng(5)
    probes, gallery = rng.normal(size=(50, 9)), rng.normal(size=(70, 9))
    mine, theirs = rng.integers(0, 30, 50), rng.integers(0, 30, 70)
    units = [side / np.linalg.norm(side, axis=1, keepdims=True) for side in (probes, gallery)]
    dense = search(units[0] @ units[1].T, mine, theirs)
    found = search_gallery(probes, mine, gallery, theirs)
    np.testing.assert_array_equal(found.rank, dense.rank)
    np.testing.assert_allclose(found.mate, dense.mate, atol=1e-7)
    np.testing.assert_allclose(found.best_other, dense.best_other, atol=1e-7)


def test_equal_vectors_tie_wherever_they_lie() -> None:
    rng = np.random.default_rng(1)
    vectors = rng.normal(size=(5, 127)).astype(np.float32)
    copies = 1301  # more than one tile, and not a multiple of any vector width
    gallery = np.repeat(vectors, copies, axis=0)
    gallery[1:] *= 2  # one vector at another length is the same direction
    persons = np.arange(len(gallery))
    probes = vectors + rng.normal(size=vectors.shape).astype(np.float32)
    mates = np.arange(5) * copies + 1
    found = search_gallery(probes, mates, gallery, persons)
    np.testing.assert_array_equal(found.mate, found.best_other)
    assert found.rank.tolist() == [copies] * 5


def test_search_does_not_depend_on_order_or_length() -> None:
    rng = np.random.default_rng(2)
    probes, gallery = rng.normal(size=(40, 8)), rng.normal(size=(60, 8))
    mine, theirs = rng.integers(0, 20, 40), rng.integers(0, 20, 60)
    found = search_gallery(probes, mine, gallery, theirs)
    order, shuffle = rng.permutation(40), rng.permutation(60)
    again = search_gallery(
        probes[order] * 16, mine[order] + 100, gallery[shuffle] / 4, theirs[shuffle] + 100
    )
    np.testing.assert_array_equal(as_rows(found)[order], as_rows(again))


def test_half_precision_is_widened_first() -> None:
    # The squares are beyond the range of half precision.
    probes = np.array([[300, 400]], np.float16)
    gallery = np.array([[3, 4], [4, 3]], np.float16)
    found = search_gallery(probes, [1], gallery, [1, 2])
    assert found.mate.tolist() == [1]
    assert found.best_other.tolist() == [pytest.approx(0.96)]


def test_a_mate_without_a_vector_is_enrolled_but_never_found() -> None:
    nan = np.nan
    gallery = np.array([[nan, nan], [1, 0]], np.float32)
    found = search_gallery(np.ones((3, 2), np.float32), [5, 6, 7], gallery, [5, 6])
    assert found.rank.tolist() == [2, 1, 0]  # the last one of two, the first, non-mated
    np.testing.assert_array_equal(found.mate, np.array([-np.inf, np.sqrt(0.5), nan], np.float32))
    assert found.best_other[1] == -np.inf


def test_what_a_search_refuses() -> None:
    good = np.ones((2, 3), np.float32)
    cases: list[tuple[Any, Any, Any, Any, str]] = [
        (good, [1, 2], good[:, :2], [1, 2], "one length of vectors"),
        (good, [1, 2], good[:0], [], "gallery that is not empty"),
        (good, [1], good, [1, 2], r"probes: \(1,\) subjects for 2 vectors"),
        (good, [1, 2], good, [1, 2, 3], r"the gallery: \(3,\) subjects for 2 vectors"),
        (good[0], [1, 2], good, [1, 2], "probes: rows of real numbers"),
    ]
    for probes, mine, gallery, theirs, fragment in cases:
        with pytest.raises(MetricError, match=fragment):
            search_gallery(probes, mine, gallery, theirs)


def test_ijb_from_images_to_scores(tmp_path: Path) -> None:
    from facerec.verification.evaluation import score_pairs

    bench = read_ijb(write_ijb(tmp_path), "ijbc")
    vectors = np.array([[np.nan, 0], [1, 1], [1, 0], [3, 0], [1, 2]], np.float32)
    found = template_vectors(vectors, bench, norm_weighting="raw", detector_score=True)
    weights = np.array([0.3, 0.4, 0.5], np.float32)
    expected = weights[0] * vectors[2] + (weights[1] * vectors[3] + weights[2] * vectors[4]) / 2
    np.testing.assert_allclose(found.vectors[3], expected, rtol=1e-6)
    assert bench.pairs is not None
    scores = score_pairs(found.vectors, bench.pairs.first, bench.pairs.second)
    cosine = float(expected @ [1, 1] / np.linalg.norm(expected) / np.sqrt(2))
    np.testing.assert_allclose(scores, [cosine, cosine, np.nan, np.nan], rtol=1e-6)

    # Probes are templates 7 (person of G1) and 11 (person of G2, without a vector).
    result = identify(found.vectors, bench, fpir=["1"], ranks=[1])
    first, second = result.galleries
    assert [first.name, second.name] == ["G1", "G2"]
    assert first.searches.rank.tolist() == [1, 0]
    assert first.searches.mate[0] == pytest.approx(cosine)
    assert second.searches.rank.tolist() == [0, 1]
    assert second.searches.mate[1] == -np.inf
    assert second.searches.best_other[0] == 1
    with pytest.raises(MetricError, match="3 vectors for 4 templates"):
        identify(found.vectors[:3], bench)
    with pytest.raises(MetricError, match="rank 0 is no length"):
        identify(found.vectors, bench, ranks=[1, 0])


def identification_bench(
    probe_subjects: NDArray[np.int64], gallery_subjects: Sequence[NDArray[np.int64]]
) -> TemplateBench:
    """Templates are the probes, then the galleries one after the other; an image each."""
    ends = np.cumsum([len(probe_subjects), *map(len, gallery_subjects)])
    places = np.arange(ends[-1])
    return TemplateBench(
        name="toy",
        images=MemoryImages("toy", [str(i) for i in places], [b""] * len(places)),
        image_rows=places,
        template_rows=places,
        media_rows=places,
        template_ids=places.astype(np.str_),
        probes=SearchSet("probe", places[: ends[0]], probe_subjects),
        galleries=tuple(
            SearchSet(f"G{i}", places[ends[i - 1] : ends[i]], subjects)
            for i, subjects in enumerate(gallery_subjects, 1)
        ),
    )


def test_figures_are_averaged_over_the_galleries() -> None:
    rng = np.random.default_rng(8)
    persons = rng.normal(size=(60, 16))
    probe_subjects = rng.integers(0, 60, 400)
    galleries = [np.arange(40), np.arange(40, 55)]  # five persons are in neither
    bench = identification_bench(probe_subjects, galleries)
    subjects = np.concatenate([probe_subjects, *galleries])
    vectors = (persons[subjects] + rng.normal(size=(len(subjects), 16))).astype(np.float32)
    vectors[[0, 7, 410]] = np.nan
    result = identify(vectors, bench, fpir=["1e-1", "1e-2", "1e-6"], ranks=[1, 5])

    units = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    tpir, rates = [], []
    start = 400
    for gallery in galleries:
        scores = units[:400] @ units[start : start + len(gallery)].T
        start += len(gallery)
        scores[np.isnan(scores)] = -np.inf
        mated = np.isin(probe_subjects, gallery)
        places = probe_subjects[mated] - gallery[0]
        mates = scores[mated, places]
        others = scores[mated].copy()
        others[np.arange(len(others)), places] = -np.inf
        rank = 1 + (others >= mates[:, None]).sum(axis=1)
        rank[np.isneginf(mates)] = len(gallery)
        alarms = np.sort(scores[~mated].max(axis=1))[::-1]
        limit = alarms[len(alarms) // 10]  # one alarm more would be too many
        tpir.append(float(np.mean((rank == 1) & (mates > limit))))
        rates.append([float(np.mean(rank <= r)) for r in (1, 5)])
    assert [g.points[0].point.tpir for g in result.galleries] == pytest.approx(tpir)
    assert [[e.value for e in g.ranks.values()] for g in result.galleries] == rates
    assert [e.point.resolvable for e in result.galleries[0].points] == [True, True, False]
    assert list(result.tpir) == ["1e-1", "1e-2"]
    assert result.tpir["1e-1"].value == pytest.approx(np.mean(tpir))
    assert result.rank_rates[1].value == pytest.approx(np.mean(rates, axis=0)[0])
    assert result.rank_rates[5].value == pytest.approx(np.mean(rates, axis=0)[1])
    for mean in [*result.tpir.values(), *result.rank_rates.values()]:
        assert 0 <= mean.interval.low < mean.value < mean.interval.high <= 1
    for gallery_result in result.galleries:
        for estimate in gallery_result.points:
            point = estimate.point
            assert (estimate.tpir.interval is None) == (not point.resolvable)
            if point.resolvable:
                assert estimate.tpir.low <= point.tpir < estimate.tpir.high
                assert "order statistics" in estimate.tpir.interval.method
            assert estimate.fpir.interval.low <= point.fpir_realised < estimate.fpir.interval.high
            assert point.fpir_realised <= float(point.target)
            assert point.mated + point.non_mated == 400
    assert [(g.failed_probes, g.failed_entries) for g in result.galleries] == [(2, 1), (2, 0)]
    assert result.notes[0] == (
        "toy, gallery G1: 2 of 400 probes and 1 of 40 entries have no vector; they find nobody and "
        "are never found"
    )


def test_one_gallery_that_holds_every_person_leaves_no_mean_tpir() -> None:
    bench = identification_bench(np.array([0, 1, 0]), [np.array([0, 1]), np.array([1, 2])])
    vectors = np.random.default_rng(0).normal(size=(7, 4)).astype(np.float32)
    result = identify(vectors, bench, fpir=["1/2"], ranks=[1])
    assert [len(g.points) for g in result.galleries] == [0, 1]
    assert result.tpir == {}
    assert list(result.rank_rates) == [1]
    assert result.notes == ("toy, gallery G1: every search is mated, so there is no FPIR",)


def test_a_bench_without_mated_searches() -> None:
    bench = identification_bench(np.array([0, 1]), [np.array([2, 3])])
    with pytest.raises(MetricError, match="mated"):
        identify(np.ones((4, 3), np.float32), bench)


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
    savemat(
        folder / "probe_img_ID_pairs.mat",
        {"probe_set": cells(probes), "probe_ids": np.array([[7], [9]], np.uint16)},
    )
    savemat(
        folder / "gallery_match_img_ID_pairs.mat",
        {"gallery_set": cells(matches), "gallery_ids": np.array([[9.0], [7.0], [7.0]])},
    )
    return root


def test_tinyface(tmp_path: Path) -> None:
    bench = read_tinyface(write_tinyface(tmp_path))
    assert bench.images.ids.tolist() == [
        "Probe/7_1.jpg",
        "Probe/9_1.jpg",
        "Gallery_Match/9_1.jpg",
        "Gallery_Match/7_3.jpg",
        "Gallery_Match/7_2.jpg",
        "Gallery_Distractor/x1.JPG",
        "Gallery_Distractor/x2.jpg",
    ]
    assert bench.images.encoded(0) == b"probe"
    assert bench.pairs is None
    assert bench.probes is not None
    (gallery,) = bench.galleries
    assert bench.probes.templates.tolist() == [0, 1]
    assert bench.probes.subjects.tolist() == [0, 1]
    assert gallery.templates.tolist() == [2, 3, 4, 5, 6]
    assert gallery.subjects.tolist() == [1, 0, 0, -1, -1]

    vectors = np.array([[4, 0], [0, 1], [0, 2], [1, 1], [0, 1], [2, 2], [1, 0.5]], np.float32)
    found = template_vectors(vectors, bench, norm_weighting="raw", detector_score=False)
    np.testing.assert_array_equal(found.vectors, vectors)
    result = identify(found.vectors, bench, ranks=[1, 2, 5, 20])
    (only,) = result.galleries
    # Person 7: its best image has a distractor of the same direction, and a better one above it.
    # Person 9: an image of person 7 has the direction of its mate.
    assert only.searches.rank.tolist() == [3, 2]
    assert only.searches.mate.tolist() == [pytest.approx(np.sqrt(0.5)), 1]
    assert [(rank, e.events, e.total) for rank, e in only.ranks.items()] == [
        (1, 0, 2),
        (2, 1, 2),
        (5, 2, 2),
        (20, 2, 2),
    ]
    assert only.points == ()
    assert result.tpir == {}
    assert result.rank_rates[2].value == 0.5
    assert result.rank_rates[2].interval == only.ranks[2].interval


def test_tinyface_errors(tmp_path: Path) -> None:
    folder = write_tinyface(tmp_path) / "Testing_Set"
    path = folder / "probe_img_ID_pairs.mat"
    two = cells(["a.jpg", "b.jpg"])
    cases: list[tuple[dict[str, Any] | bytes, str]] = [
        ({"probe_set": two}, "version 4 to 7 that holds probe_set, probe_ids .KeyError"),
        ({"probe_set": two, "probe_ids": "ab"}, "it should hold names in 'probe_set' and numbers"),
        ({"probe_set": two, "probe_ids": [[1]]}, "2 names in 'probe_set' and 1 numbers"),
        ({"probe_set": cells([]), "probe_ids": []}, "0 names"),
        ({"probe_set": two, "probe_ids": [[1], [1.5]]}, "entry 1 of 'probe_ids' is 1.5"),
        ({"probe_set": two, "probe_ids": [[-100], [1]]}, "entry 0 of 'probe_ids' is -100"),
        ({"probe_set": [[1, 2]], "probe_ids": [[1], [2]]}, "'1' is no|it should hold|no such"),
        (b"not a MATLAB file", "no sound MATLAB file of version 4 to 7"),
        (b"", "no sound MATLAB file of version 4 to 7"),
        (
            b"MATLAB 7.3 MAT-file".ljust(124) + b"\x00\x02IM",
            "no sound MATLAB file of version 4 to 7",
        ),
    ]
    for content, fragment in cases:
        if isinstance(content, bytes):
            path.write_bytes(content)
        else:
            savemat(path, content)
        with pytest.raises(FacerecError, match=fragment) as error:
            read_tinyface(tmp_path)
        assert str(error.value).startswith(str(path))
    path.unlink()
    with pytest.raises(DatasetError, match=r"probe_img_ID_pairs\.mat: the file cannot be read"):
        read_tinyface(tmp_path)


def test_tinyface_without_distractors(tmp_path: Path) -> None:
    root = write_tinyface(tmp_path, distractors=())
    with pytest.raises(DatasetError, match="Gallery_Distractor: it holds no images"):
        read_tinyface(root)
    folder = root / "Testing_Set" / "Gallery_Distractor"
    folder.rename(root / "gone")
    with pytest.raises(DatasetError, match="Gallery_Distractor: there is no such folder"):
        read_tinyface(root)
