"""Pair lists: every form on small trees, against naive parsers and the real LFW."""

from __future__ import annotations

import codecs
import hashlib
import tempfile
import unicodedata
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from helpers.examples import examples
from helpers.pair_lists import NamedPair, draw, make_agedb, make_cfp, named_pairs, write
from helpers.toy_files import picture
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from scipy.io import loadmat

from facerec.base.errors import DatasetError, FacerecError, ImageError
from facerec.base.names import same_name
from facerec.verification.bench import Bench
from facerec.verification.protocols import read_pairs


def folds_of(bench: Bench) -> list[int]:
    return bench.pairs.folds.tolist()


# ---------------------------------------------------------------- LFW

people = (
    st.text(
        st.characters(exclude_categories=["Cs", "Cc"], exclude_characters="/\\:"),
        min_size=1,
        max_size=8,
    )
    .map(same_name)
    .filter(lambda name: name == name.strip() and name[0] != "\ufeff" and set(name) != {"."})
)


@st.composite
def view_2(draw: st.DrawFn) -> tuple[int, int, list[tuple[str, int, str, int]]]:
    """Folds, pairs a class, and pairs (person, number, other person, number)."""
    folds, size = draw(st.integers(2, 4)), draw(st.integers(1, 3))
    names = draw(st.lists(people, min_size=2, max_size=5, unique=True))
    number = st.integers(0, 99_999)
    pairs = []
    for _ in range(folds):
        for _ in range(size):
            person = draw(st.sampled_from(names))
            pairs.append((person, draw(number), person, draw(number)))
        for _ in range(size):
            first, second = draw(st.permutations(names))[:2]
            pairs.append((first, draw(number), second, draw(number)))
    return folds, size, pairs


def lfw_list(folds: int, size: int, pairs: list[tuple[str, int, str, int]]) -> str:
    lines = [f"{folds}\t{size}"]
    for person, i, other, j in pairs:
        lines.append(f"{person}\t{i}\t{j}" if person == other else f"{person}\t{i}\t{other}\t{j}")
    return "\n".join(lines) + "\n"


@settings(deadline=None, max_examples=examples(50))
@given(view_2())
def test_lfw_reads_what_was_written(drawn: tuple[int, int, Any]) -> None:
    folds, size, pairs = drawn
    text = lfw_list(folds, size, pairs)
    variants = [
        text.encode(),
        text.replace("\n", "\r\n").encode(),
        codecs.BOM_UTF8 + text.encode(),
        (text + "\n \n\t\n").encode(),
        text.rstrip("\n").encode(),
        text.encode("utf-16"),
    ]
    with tempfile.TemporaryDirectory() as folder:
        for i, content in enumerate(variants):
            path = Path(folder) / f"{i}.txt"
            path.write_bytes(content)
            bench = read_pairs(path, "lfw")
            assert named_pairs(bench) == [
                (f"{a}/{a}_{i:04d}.jpg", f"{b}/{b}_{j:04d}.jpg", a == b) for a, i, b, j in pairs
            ]
            assert folds_of(bench) == [fold for fold in range(folds) for _ in range(2 * size)]
            subjects = bench.pairs.subject_pairs()
            assert subjects is not None and bench.subjects_from == "the list"
            assert ((subjects[0] == subjects[1]) == bench.pairs.issame).all()
            assert bench.notes == () and bench.name == "lfw"
            assert bench.source["sha256"] == hashlib.sha256(content).hexdigest()


@pytest.mark.parametrize("suffix", ["jpg", "png"])
def test_images_under_another_suffix_keep_their_ids(tmp_path: Path, suffix: str) -> None:
    path = write(tmp_path / "pairs.txt", "1\nA 1 2\nA 1 B 1\n")
    contents = {
        name: draw(tmp_path / "faces" / f"{name}.{suffix}", seed)
        # The first image of the list is missing: another one gives the suffix.
        for seed, name in enumerate(["A/A_0002", "B/B_0001"])
    }
    bench = read_pairs(path, "lfw", tmp_path / "faces")
    assert bench.images.ids.tolist() == ["A/A_0001.jpg", "A/A_0002.jpg", "B/B_0001.jpg"]
    assert bench.images.encoded(1) == contents["A/A_0002"]
    assert bench.images.encoded(2) == contents["B/B_0001"]
    gone = tmp_path / "faces" / f"A/A_0001.{suffix}"
    assert bench.images.where(0) == str(gone)
    with pytest.raises(ImageError, match="cannot be read"):
        bench.images.encoded(0)


@pytest.mark.parametrize(("listed", "on_disk"), [("NFC", "NFD"), ("NFD", "NFC")])
def test_accents_of_a_list_and_of_file_names_may_be_composed_otherwise(
    tmp_path: Path, listed: str, on_disk: str
) -> None:
    def named(person: str, form: Any) -> str:
        return unicodedata.normalize(form, person)

    rows = [(named("José", listed), i, named("Zoë", listed), i) for i in (1, 2)]
    text = "".join(f"{a}\t1\t2\n" for a in (rows[0][0], rows[0][2]))
    text += "".join(f"{a}\t{i}\t{b}\t{j}\n" for a, i, b, j in rows)
    path = write(tmp_path / "pairs.txt", text)
    for person in ("José", "Zoë"):
        folder = tmp_path / named(person, on_disk)
        folder.mkdir()
        for i in (1, 2):
            (folder / f"{named(person, on_disk)}_{i:04d}.png").write_bytes(f"{person} {i}".encode())
    bench = read_pairs(path, "lfw")
    for i, name in enumerate(bench.images.ids.tolist()):
        assert unicodedata.is_normalized("NFC", name)
        person, number = name.split("/")[1].removesuffix(".jpg").split("_")
        assert bench.images.encoded(i).decode() == f"{named(person, 'NFC')} {int(number)}"


def test_the_real_view_2(shared_data: Path) -> None:
    bench = read_pairs(shared_data / "lfw" / "pairs.txt", "lfw")
    pairs = bench.pairs
    assert len(pairs) == 6000 and len(bench.images) == 7701
    assert pairs.subjects is not None and len(np.unique(pairs.subjects)) == 4281
    folds = np.array(folds_of(bench))
    assert np.bincount(folds, pairs.issame).tolist() == [300] * 10
    assert np.bincount(folds).tolist() == [600] * 10
    assert len(set(named_pairs(bench))) == 6000
    assert bench.source["sha256"].startswith("ea42330c62c92989")
    # The pack has the same pairs.
    pack = read_pairs(shared_data / "lfw" / "lfw.bin", "bin")
    assert named_pairs(pack) == named_pairs(bench)


# ---------------------------------------------------------------- two lines a pair


def test_calfw_is_dealt_out_as_facexzoo_does(tmp_path: Path) -> None:
    """3,000 same pairs, then 3,000 different ones; labels of same pairs are any number but 0."""
    listed = [(f"P{i}_0001.jpg", f"P{i}_0002.jpg", 1 + i % 7) for i in range(3000)]
    listed += [(f"P{i}_0001.jpg", f"Q{i}_0001.jpg", 0) for i in range(3000)]
    text = "".join(f"{a} {label}\n{b} {label}\n" for a, b, label in listed)
    bench = read_pairs(write(tmp_path / "pairs_CALFW.txt", text), "calfw")
    expected = []
    for fold in range(10):
        expected += listed[300 * fold : 300 * (fold + 1)]
        expected += listed[3000 + 300 * fold : 3000 + 300 * (fold + 1)]
    assert named_pairs(bench) == [(a, b, label != 0) for a, b, label in expected]
    assert folds_of(bench) == [i // 600 for i in range(6000)]
    assert bench.subjects_from == "image names" and bench.notes == ()


# ---------------------------------------------------------------- CFP


@pytest.mark.parametrize(
    "level",
    [lambda person: "", lambda person: "train" if person < 4 else "test"],
    ids=["official", "one level deeper"],
)
def test_cfp(tmp_path: Path, level: Callable[[int], str]) -> None:
    contents = make_cfp(tmp_path, level)
    for path, images in (
        (tmp_path, None),
        (tmp_path / "Protocol", None),
        (tmp_path / "Protocol", tmp_path / "Data" / "Images"),
    ):
        bench = read_pairs(path, "cfp-fp", images)
        assert named_pairs(bench) == [
            ("001/frontal/01.jpg", "001/profile/02.jpg", True),
            ("002/frontal/01.jpg", "002/profile/02.jpg", True),
            ("001/frontal/01.jpg", "002/profile/01.jpg", False),
            ("003/frontal/01.jpg", "003/profile/02.jpg", True),
            ("004/frontal/01.jpg", "004/profile/02.jpg", True),
            ("003/frontal/01.jpg", "004/profile/01.jpg", False),
        ]
        assert folds_of(bench) == [0, 0, 0, 1, 1, 1]
        for i, name in enumerate(bench.images.ids.tolist()):
            assert bench.images.encoded(i) == contents[name]
            assert bench.name == "cfp_fp" and bench.subjects_from == "the list"
        # Frontal and profile images of one person are one subject.
        assert bench.pairs.subjects is not None and len(set(bench.pairs.subjects.tolist())) == 4
        root = tmp_path / "Data" / "Images"
        assert bench.notes == (
            () if not level(1) else (f"{root}: 4 subjects lie one folder deeper, in test, train",)
        )
    frontal = read_pairs(tmp_path, "cfp-ff")
    assert named_pairs(frontal)[0] == ("001/frontal/01.jpg", "001/frontal/02.jpg", True)
    assert frontal.name == "cfp_ff" and len(frontal.source["files"]) == 5


# ---------------------------------------------------------------- AgeDB


AGEDB = [
    [("0_Ann_20_f", "3_Ann_50_f", 1), ("1_Bob_30_m", "0_Ann_20_f", -1)],
    [("7_Cyd_20_f", "8_Cyd_50_f", 1), ("7_Cyd_20_f", "9_Dee_60_f", -1)],
]


def test_agedb(tmp_path: Path) -> None:
    path = make_agedb(tmp_path / "04_FINAL_protocol_30_years.mat", AGEDB)
    bench = read_pairs(path, "agedb")
    assert named_pairs(bench) == [
        (f"{first}.jpg", f"{second}.jpg", label == 1)
        for pairs in AGEDB
        for first, second, label in pairs
    ]
    assert folds_of(bench) == [0, 0, 1, 1] and bench.name == "agedb_30"
    assert bench.subjects_from == "image names" and bench.notes == ()
    # The indices that FaceX-Zoo's parser uses.
    splits = loadmat(path)["splits"]
    for k, pairs in enumerate(AGEDB):
        cells, labels = splits[k][0][0][0][0], splits[k][0][0][0][1][0]
        for i, (first, second, label) in enumerate(pairs):
            assert cells[0][i][0][0][0][0] == first and cells[1][i][0][0][0][0] == second
            assert labels[i] == label


# SciPy's reader leaves its memory where this byte is turned over, which ends its process.
def test_damage_to_an_agedb_file_is_a_sentence(tmp_path: Path) -> None:
    path = make_agedb(tmp_path / "a.mat", AGEDB)
    content = bytearray(path.read_bytes())
    content[440] ^= 255
    for damaged in (content, b"MATLAB 7.3 MAT-file"):
        path.write_bytes(damaged)
        with pytest.raises(FacerecError, match=r"a\.mat: SciPy cannot load it"):
            read_pairs(path, "agedb")


# ---------------------------------------------------------------- RFW


def make_rfw(root: Path) -> None:
    """Write three lists; m.shared occurs under two races, ids hold underscores and blanks."""
    for race in ("African", "Asian", "Indian"):
        lines = []
        for i in range(12):
            lines.append(f"m.{race[:2]}_0{i}\t1\t2")
            lines.append(f"m.{race[:2]}_0{i}\t1\tm.{race[:2]}_x{i}\t3")
        if race != "Indian":
            lines[6] = "m.shared\t1\t2"
            lines[7] = f"m.{race[:2]}_03\t1\tm.shared\t1"
        write(root / "test" / "txts" / race / f"{race}_pairs.txt", "\n".join(lines) + "\n")
    draw(root / "test/data/Asian/m.As_00/m.As_00_0002.jpg", 1)


def test_rfw_with_several_races(tmp_path: Path) -> None:
    make_rfw(tmp_path)
    bench = read_pairs(tmp_path / "test" / "txts", "rfw")
    assert bench.name == "rfw"
    # 3 × 24 pairs without two of African's and two of Asian's.
    assert len(bench.pairs) == 68
    assert bench.notes == ("1 subject under two races, dropped with 4 pairs: m.shared",)
    assert not any("m.shared" in name for name in bench.images.ids.tolist())
    assert named_pairs(bench)[:2] == [
        ("African/m.Af_00/m.Af_00_0001.jpg", "African/m.Af_00/m.Af_00_0002.jpg", True),
        ("African/m.Af_00/m.Af_00_0001.jpg", "African/m.Af_x0/m.Af_x0_0003.jpg", False),
    ]
    # Ten folds in every list, found before pairs were dropped.
    sizes = [3] * 4 + [2] * 6
    expected = np.repeat(np.arange(10), sizes).tolist()
    short = expected[:6] + expected[8:]
    assert folds_of(bench) == short + short + expected
    place = bench.images.ids.tolist().index("Asian/m.As_00/m.As_00_0002.jpg")
    assert (
        bench.images.encoded(place)
        == (tmp_path / "test/data/Asian/m.As_00/m.As_00_0002.jpg").read_bytes()
    )
    assert sorted(bench.source["files"]) == [
        f"{race}/{race}_pairs.txt" for race in ("African", "Asian", "Indian")
    ]


@pytest.mark.parametrize("images", [None, "test/data", "test/data/Asian"])
def test_rfw_with_one_race_keeps_all(tmp_path: Path, images: str | None) -> None:
    make_rfw(tmp_path)
    path = tmp_path / "test/txts/Asian/Asian_pairs.txt"
    bench = read_pairs(path, "rfw", None if images is None else tmp_path / images)
    assert len(bench.pairs) == 24 and bench.name == "Asian_pairs" and bench.notes == ()
    assert bench.images.ids[1] == "Asian/m.As_00/m.As_00_0002.jpg"
    assert bench.images.encoded(1).startswith(b"\xff\xd8\xff")


# ---------------------------------------------------------------- flat

paths = st.lists(people, min_size=1, max_size=2).map(lambda parts: "/".join(parts) + ".jpg")
SEPARATORS = {"\t": "\t", ",": ",", " ": "  "}
WORDS = [("0", "1"), ("-1", "1"), ("false", "True"), ("different", "same"), ("No", "Yes")]


@settings(deadline=None, max_examples=examples(100))
@given(
    st.lists(st.tuples(paths, paths, st.booleans()), min_size=1, max_size=12),
    st.sampled_from(list(SEPARATORS)),
    st.booleans(),
    st.sampled_from(WORDS),
    st.booleans(),
)
def test_flat_reads_what_was_written(
    pairs: list[NamedPair], mark: str, label_first: bool, words: tuple[str, str], header: bool
) -> None:
    forbidden = {" ": [*" \u00a0\u2003,;\t"], ",": [",", '"', "\t"], "\t": ['"', "\t"]}[mark]
    names = [name for first, second, _ in pairs for name in (first, second)]
    assume(not any(char in name for name in names for char in forbidden))
    assume(mark != " " or all(len(name.split()) == 1 for name in names))
    rows = [(first, second, words[same]) for first, second, same in pairs]
    if header:
        rows.insert(0, ("a", "b", "label"))
    if label_first:
        rows = [(label, first, second) for first, second, label in rows]
    text = "".join(SEPARATORS[mark].join(row) + "\n" for row in rows)
    with tempfile.TemporaryDirectory() as folder:
        benches = []
        for content in (text.encode(), codecs.BOM_UTF8 + text.replace("\n", "\r\n").encode()):
            path = Path(folder) / "list.txt"
            path.write_bytes(content)
            benches.append(read_pairs(path, "flat"))
    for bench in benches:
        composed = [(*(unicodedata.normalize("NFC", n) for n in row[:2]), row[2]) for row in pairs]
        assert named_pairs(bench) == composed
        assert (bench.pairs.folds is None) == (len(pairs) < 10)
        subjects = bench.pairs.subject_pairs()
        assert (subjects[0] == subjects[1])[bench.pairs.issame].all()


def test_a_folder_for_each_person_tells_persons(tmp_path: Path) -> None:
    path = write(tmp_path / "p.txt", "A/1.jpg A/2.jpg 1\nA/1.jpg B/1.jpg 0\nB/2.jpg A/1.jpg 0\n")
    bench = read_pairs(path, "flat")
    assert bench.subjects_from == "image names"
    assert bench.pairs.subjects is not None and bench.pairs.subjects.tolist() == [0, 0, 1, 1]
    path = write(tmp_path / "q.txt", "x/1.jpg x/2.jpg 1\nx/1.jpg x/3.jpg 0\n")
    assert read_pairs(path, "flat").subjects_from == "same pairs"


@pytest.mark.parametrize(
    "form",
    [
        ",image1,image2,label\n0,{0},{1},1\n1,{0},{2},0\n",
        "1 {0} {1} 1\n2 {0} {2} 0\n",
        "\tleft\tright\tkind\n0\t{0}\t{1}\tgenuine\n1\t{0}\t{2}\timpostor\n",
        "fold,image1,image2,is_same\n7,{0},{1},1\n9,{0},{2},0\n",
        "probe,reference,genuine\n{0},{1},1\n{0},{2},0\n",
        "same;a;b\n1;/data/{0};/data/{1}\n0;/data/{0};/data/{2}\n",
        "C:/x/{0} C:/x/{1} same\nC:/x/{0} C:/x/{2} different\n",
    ],
)
def test_other_forms_of_flat_lists(tmp_path: Path, form: str) -> None:
    path = write(tmp_path / "p.csv", form.format("A/1.jpg", "A/2.jpg", "B/1.jpg"))
    bench = read_pairs(path, "flat")
    assert named_pairs(bench) == [("A/1.jpg", "A/2.jpg", True), ("A/1.jpg", "B/1.jpg", False)]
    folds = bench.pairs.folds
    assert folds is None if "fold" not in form else folds is not None and folds.tolist() == [0, 1]


# ---------------------------------------------------------------- parquet


def test_rows_of_single_images_are_pairs_by_their_index(tmp_path: Path) -> None:
    """CVLface's tables: saved by `datasets` as streams of Arrow, or as Parquet, in any order."""
    pa = pytest.importorskip("pyarrow")
    pq = pytest.importorskip("pyarrow.parquet")
    pictures, order = [picture(i) for i in range(8)], [5, 0, 3, 6, 1, 7, 2, 4]

    def write(folder: str, index: list[int], same: list[bool]) -> Path:
        cells = [{"bytes": pictures[i], "path": None} for i in order]
        table = pa.table({"image": cells, "index": index, "is_same": same})
        (tmp_path / folder).mkdir()
        for number, part in enumerate((table.slice(0, 3), table.slice(3))):
            name = str(tmp_path / folder / f"data-0000{number}-of-00002")
            if folder == "arrow":
                with pa.ipc.new_stream(f"{name}.arrow", part.schema) as stream:
                    stream.write_table(part)
            else:
                pq.write_table(part, f"{name}.parquet")
        return tmp_path / folder

    same = [i // 2 % 2 == 0 for i in order]
    for folder in ("arrow", "parquet"):
        bench = read_pairs(write(folder, order, same), "parquet")
        assert bench.pairs.issame.tolist() == [True, False, True, False]
        sides = zip(bench.pairs.first, bench.pairs.second, strict=True)
        found = [bench.images.encoded(int(i)) for pair in sides for i in pair]
        assert found == pictures
    for name, index, labels in (("a", [0, *order[1:]], same), ("b", order, [*same[1:], True])):
        with pytest.raises(DatasetError, match="8 rows are no pairs"):
            read_pairs(write(name, index, labels), "parquet")


def test_parquet_in_two_shards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    a, b, c = (b"\xff\xd8\xff" + bytes([i]) for i in range(3))
    with_path = {"bytes": b, "path": "b.jpg"}
    names = [f"lfw-0000{i}-of-00002.parquet" for i in (0, 1)]
    frames = {
        names[0]: pd.DataFrame({"image1": [a, b], "image2": [with_path, c], "is_same": [1, 0]}),
        names[1]: pd.DataFrame({"image1": [a], "image2": [a], "is_same": [True]}),
    }
    for name in names:
        (tmp_path / name).write_bytes(b"PAR1")
    monkeypatch.setattr(pd, "read_parquet", lambda file: frames[Path(file).name])
    bench = read_pairs(tmp_path / names[1], "parquet")
    assert bench.images.ids.tolist() == ["0", "1", "2"]
    assert [bench.images.encoded(i) for i in range(3)] == [a, b, c]
    assert bench.pairs.first.tolist() == [0, 1, 0] and bench.pairs.second.tolist() == [1, 2, 0]
    assert bench.pairs.issame.tolist() == [True, False, True]
    assert bench.name == "lfw" and bench.subjects_from == "same pairs"


# ---------------------------------------------------------------- mistakes


@pytest.mark.parametrize(
    ("format", "text", "words"),
    [
        ("lfw", "", "list is empty"),
        ("lfw", "10\t300\n", "300 same .* in each of 10 folds, but there are 0"),
        ("lfw", "2\t1\nA 1 2\nA 1 B 2\nA 1 2\n", "each of 2 folds, but there are 2 and 1"),
        ("lfw", "2\t1\nA 1 2\nA 1 B 2\nA 1 2\nA 3 4\n", "not as many in each"),
        ("lfw", "A 1 2\nA 1\n", "line 2: 'A 1' where 'name i j'"),
        ("lfw", "A 1 2\nA 1 A 2\n", "line 2: 'A 1 A 2'"),
        ("lfw", "..\t1\t2\n", "line 1: .* no path inside"),
        ("lfw", "A\t1\t2\nB\0\t1\t2\n", "NUL"),
        ("calfw", "a_1.jpg 1\na_2.jpg 1\nb_1.jpg 1\n", "line 3: .* the same pair .* no more"),
        ("calfw", "a_1.jpg 1\nb_2.jpg 0\n", "line 1: .* the same kind"),
        ("flat", "a b 1\na b\n", "line 2: 'a b'"),
        ("flat", "a /etc/passwd 1\n", "line 1: '/etc/passwd'"),
        ("flat", "a,b,label\n", "no pairs"),
        ("ytf", "", "there is no format 'ytf'; give --format, one of lfw"),
    ],
)
def test_mistakes_in_lists(tmp_path: Path, format: str, text: str, words: str) -> None:
    path = write(tmp_path / "Asian_pairs.txt", text)
    with pytest.raises(DatasetError, match=f"^{path}.*{words}|{words}") as error:
        read_pairs(path, format)
    assert len(str(error.value)) < 600


@pytest.mark.parametrize(
    ("file", "text", "words"),
    [
        ("Split/FP/01/same.txt", "1,9\n", "same.txt, line 1: '1,9' where two numbers"),
        ("Split/FP/05/diff.txt", "1,2", "folders 01, 02, .* not all are there"),
        ("Pair_list_P.txt", "1 ../a/b/c/d.jpg\n3 x/y/z.jpg\n", "same.txt, line 1: '1,2'"),
        ("Pair_list_P.txt", "1 ../a/b/c/d.jpg\n2 y/z.jpg\n", "line 2: .* 'number folder"),
        ("Pair_list_F.txt", "1 ../a/b/c/d.jpg\n1 a/b/c/e.jpg\n", "a number stands in two lines"),
    ],
)
def test_mistakes_in_cfp(tmp_path: Path, file: str, text: str, words: str) -> None:
    make_cfp(tmp_path)
    write(tmp_path / "Protocol" / file, text)
    with pytest.raises(DatasetError, match=words):
        read_pairs(tmp_path, "cfp-fp")
