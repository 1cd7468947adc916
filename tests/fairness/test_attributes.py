from __future__ import annotations

import itertools
import unicodedata
from pathlib import Path

import numpy as np
import pytest
from helpers.examples import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from facerec.base.errors import DatasetError
from facerec.embedding.extraction import Embeddings
from facerec.fairness.attributes import Attributes, Joined, check_raw, join, read_attributes
from facerec.fairness.groupings import HIDDEN, IN_POOL, POOLED, SHOWN, Grouping, protect

HEADER = "image_id,subject_id,race,sex,yaw,label_source"


def write(path: Path, lines: list[str], header: str = HEADER) -> Path:
    path.write_text("\n".join([header, *lines]) + "\n", encoding="utf-8")
    return path


def people(
    prefix: str, count: int, race: str, sex: str = "f", images: int = 2, source: str = "curator"
) -> list[str]:
    return [
        f"{prefix}{i}/{j}.jpg,{prefix}{i},{race},{sex},{i / 10},{source}"
        for i in range(count)
        for j in range(images)
    ]


def some(ids: object, failures: tuple[int, ...] = (), norms: object = None) -> Embeddings:
    """Return embeddings of which nothing but ids, norms and failures is looked at."""
    names = np.array(ids, np.str_)
    if norms is None:
        norms = np.random.default_rng(0).normal(20, 2, len(names))
    return Embeddings(np.empty((0, 1)), norms, True, names, failures=dict.fromkeys(failures, "x"))


def joined(
    tmp_path: Path,
    lines: list[str],
    groups: tuple[str, ...] = ("race",),
    failures: tuple[int, ...] = (),
    **options: object,
) -> Joined:
    attributes = read_attributes(write(tmp_path / "a.csv", lines), groups)
    ids = list(dict.fromkeys(attributes.images.tolist()))
    return join(attributes, some(ids, failures), **options)  # type: ignore[arg-type]


def counts(found: Joined, grouping: Grouping) -> list[tuple[int, int, int]]:
    """Return subjects, images and failures of each group."""
    members = [grouping.codes == code for code in range(len(grouping.names))]
    return [
        (len(set(found.subjects[of].tolist())), int(of.sum()), int((of & ~found.acquired).sum()))
        for of in members
    ]


def excluded(found: Joined) -> dict[tuple[str, str | None], tuple[int, int | None]]:
    return {(e.reason, e.attribute): (e.images, e.subjects) for e in found.exclusions}


def test_families_number_subjects_and_contradictions_are_named(tmp_path: Path) -> None:
    lines = [
        f"{line},{'twins' if line.startswith(('a0', 'a1')) else ''}"
        for line in people("a", 12, "x")
    ]
    path = write(tmp_path / "a.csv", lines, HEADER + ",family")
    attributes = read_attributes(path, ["race"])
    family = join(attributes, some(attributes.images)).family
    assert family is not None and family.shape == (12,)
    order = sorted(f"a{i}" for i in range(12))
    alike = {order[i] for i in range(12) if (family == family[i]).sum() > 1}
    assert alike == {"a0", "a1", "a10", "a11"}
    write(path, [lines[0].replace("twins", "others"), *lines[1:]], HEADER + ",family")
    attributes = read_attributes(path, ["race"])
    with pytest.raises(DatasetError, match="'others' and 'twins'"):
        join(attributes, some(attributes.images))


@pytest.mark.parametrize("word", ["", "None", "#N/A", "<NA>", "nan", "n.a.", "?", "NULL", "#REF!"])
def test_a_missing_value_is_no_group_and_no_number(tmp_path: Path, word: str) -> None:
    lines = [*people("a", 12, "A"), *people("b", 12, "B"), f"None/0.jpg,None,{word},f,{word},study"]
    path = write(tmp_path / "a.csv", lines)
    found = read_attributes(path, ["race"])
    assert set(found.groups["race"].tolist()) == {"A", "B", ""}
    assert found.subjects[-1] == "None"
    made = joined(tmp_path, lines)
    assert excluded(made)["no value", "race"] == (1, 1)
    assert made.groupings[0].names == ("A", "B")


def test_names_and_columns_join_in_any_form(tmp_path: Path) -> None:
    forms = ("NFC", "NFD")
    composed, decomposed = (
        [unicodedata.normalize(form, line) for line in people("Zoë", 12, "é", "ü")]
        for form in forms
    )
    heads = [unicodedata.normalize(form, HEADER.replace("race", "région")) for form in forms]
    found = [
        read_attributes(write(tmp_path / "a.csv", lines, head), [asked])
        for lines, head, asked in (
            (composed, heads[0], "re\u0301gion"),
            (decomposed, heads[1], "r\xe9gion"),
            (composed[:5] + decomposed[5:], heads[1], "re\u0301gion"),
        )
    ]
    for one in found:
        assert one.images.tolist() == found[0].images.tolist()
        assert len(set(one.subjects.tolist())) == 12
        assert {value for values in one.groups.values() for value in values.tolist()} == {"é"}


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"image_id,subject,race\na,b,c\n", ["line 1", "no column 'subject_id'"]),
        (b"image_id,subject_id,race\na,b,c\n", ["1 lines", "no label_source"]),
        (b"image_id,subject_id,race,race,label_source\n", ["'race'", "two"]),
        (b"image_id,subject_id,race,label_source\n", ["no line below"]),
        (b"image_id,subject_id,race,label_source\na,,c,d\n", ["line 2", "subject_id is empty"]),
        (b"image_id,subject_id,race,label_source\na,b,other (pooled),d\n", ["rename"]),
        (b"image_id,subject_id,race,label_source\na,b,c,Inferred\n", ["1 lines", "inferred"]),
        (b"", ["line 1", "no column 'image_id'"]),
    ],
)
def test_malformed_files_end_in_a_sentence(
    tmp_path: Path, content: bytes, words: list[str]
) -> None:
    path = tmp_path / "bad.csv"
    path.write_bytes(content)
    with pytest.raises(DatasetError) as caught:
        read_attributes(path, ["race"])
    assert str(path) in str(caught.value)
    for word in words:
        assert word in str(caught.value)


@pytest.mark.parametrize(
    ("recorded", "sources"),
    [
        (True, ["self-reported", "Self reported: enrolment form 2024", "self", "study: visit 3"]),
        (True, ["annotated by people", "ANNOTATED BY PEOPLE: crowd", "annotators", "curator"]),
        (True, ["document", "documents (passports)", "birth dates", "A & B, hand-checked twice"]),
        (False, ["", "inferred from images", "predicted by the FairFace model", "deepface"]),
        (False, ["genderize.io", "estimated", "FairFace", "model", "annotated by FairFace"]),
        (False, ["curator: GPT-4", "annotators (CNN)", "self-reported; missing ones by FairFace"]),
        (False, ["document: derived from first names", "FairFace, hand-checked on a sample of 50"]),
        (True, ["study: FERET (Face Recognition Technology)"]),
        (False, ["annotated by a model", "document: ages guessed", "study of deepface", "selfie"]),
    ],
)
def test_a_source_says_who_recorded(tmp_path: Path, recorded: bool, sources: list[str]) -> None:
    for source in sources:
        path = write(tmp_path / "a.csv", people("a", 2, "A", source=f'"{source}"'))
        assert read_attributes(path, ["race"], allow_inferred=True).inferred != recorded, source
        if not recorded:
            with pytest.raises(DatasetError, match=r"4 lines .*self-reported.*--allow-inferred"):
                read_attributes(path, ["race"])


def test_numbers_are_no_groups_until_they_are_binned(tmp_path: Path) -> None:
    def read(values: list[str]) -> Attributes:
        lines = [f"{i},{i},{value},f,{i},curator" for i, value in enumerate(values)]
        return read_attributes(write(tmp_path / "a.csv", lines), ["race"])

    ages = [str(18 + i) for i in range(13)]
    for values in (ages, [f'"{i},5"' for i in range(20)]):
        with pytest.raises(DatasetError, match=r"column race has \d+ different numbers"):
            read(values)
    assert len(np.unique(read(ages[:12]).groups["race"])) == 12
    assert len(np.unique(read([f"{i}-{i + 9}" for i in range(0, 200, 10)]).groups["race"])) == 20


def test_normalised_embeddings_are_refused(tmp_path: Path) -> None:
    generator = np.random.default_rng(0)
    vectors = generator.normal(size=(500, 64)).astype(np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    norms = np.linalg.norm(vectors, axis=1)
    with pytest.raises(DatasetError, match="already normalised"):
        check_raw(norms)
    norms[::50] = 0
    with pytest.raises(DatasetError, match="already normalised"):
        check_raw(64 * norms)
    check_raw(np.zeros(10))
    check_raw(1 + 2e-4 * generator.standard_normal(500))
    attributes = read_attributes(write(tmp_path / "a.csv", people("a", 12, "A")), ["race"])
    with pytest.raises(DatasetError, match=r"E\.npz: .*already normalised"):
        join(attributes, some(attributes.images, norms=np.ones(24)), source="E.npz")


def test_both_sides_of_the_join_are_counted(tmp_path: Path) -> None:
    lines = [*people("a", 12, "A"), *people("b", 12, "B"), *people("lost", 2, "B", images=3)]
    attributes = read_attributes(write(tmp_path / "a.csv", lines), ["race"])
    known = attributes.images[:48][::-1].tolist()
    ids = ["stranger 1", *known, "stranger 2"]
    embeddings = some(ids, (3, 4))
    norms = embeddings.norms
    found = join(attributes, embeddings)
    assert excluded(found) == {
        ("embedding without attributes", None): (2, None),
        ("attributes without embedding", None): (6, 2),
    }
    assert found.exclusions[0].kind == "row" and found.exclusions[0].positions == (0, 49)
    assert found.exclusions[1].positions == (50, 51, 52, 53, 54, 55)
    rows = list(range(1, 49))
    assert np.flatnonzero(found.subjects >= 0).tolist() == rows
    position = {name: i for i, name in enumerate(attributes.images.tolist())}
    for row in rows:
        grouping = found.groupings[0]
        race = attributes.groups["race"][position[ids[row]]]
        assert grouping.names[grouping.codes[row]] == race
    assert np.array_equal(found.norms[found.acquired], norms[[r for r in rows if r not in (3, 4)]])
    assert counts(found, found.groupings[0]) == [(12, 24, 0), (12, 24, 2)]
    names = [ids[row].split("/")[0] for row in rows]
    assert len(set(zip(names, found.subjects[rows].tolist(), strict=True))) == 24
    assert sorted(set(found.subjects[rows].tolist())) == list(range(24))


def test_contradictions_are_counted_and_never_resolved(tmp_path: Path) -> None:
    lines = [*people("a", 12, "A"), *people("b", 12, "B")]
    lines += [lines[0], lines[0]]  # repeated to the letter
    lines += ["b0/0.jpg,b1,B,f,0.0,curator"]  # another subject
    lines += ["torn/0.jpg,torn,A,f,0,curator", "torn/1.jpg,torn,B,f,0,curator"]
    lines += ["a1/9.jpg,a1,,f,0,curator"]
    found = joined(tmp_path, lines, ("race", "sex"))
    assert excluded(found) == {
        ("line repeats another one", None): (2, None),
        ("lines of one image contradict each other", None): (1, 2),
        ("subject in several groups", "race"): (2, 1),
        ("no value", "race"): (1, 1),
    }
    race, sex = found.groupings
    assert [images for _, images, _ in counts(found, race)] == [24, 23]
    # What is wrong with one attribute leaves the others alone.
    assert [images for _, images, _ in counts(found, sex)] == [50]


A30, B20, C9 = ("a", 30, "A"), ("b", 20, "B"), ("c", 9, "C")


@pytest.mark.parametrize(
    ("members", "race", "sex"),
    [
        # Two small groups are pooled.
        ([A30, ("b", 6, "B"), ("c", 4, "C")], {"A": 30, POOLED: 10}, {"f": 40}),
        # The subjects of one alone leave the audit, and nothing counted over all holds them.
        ([A30, B20, C9, ("d", 40, "D")], {"A": 30, "B": 20, "D": 40, "C": 0}, {"f": 90}),
        # They leave other attributes too.
        (
            [A30, ("b", 20, "A", "m"), ("c", 9, "C", "m"), ("d", 5, "", "m"), ("e", 12, "A", "x")],
            {"A": 62, "C": 0},
            {"f": 30, "m": 25, "x": 12},
        ),
        # A group that becomes small by it goes too.
        ([A30, ("b", 8, "A", "m"), ("c", 6, "C", "m")], {"A": 30, "C": 0}, {"f": 30, "m": 0}),
    ],
)
def test_small_groups_are_pooled_or_leave_the_audit(
    tmp_path: Path, members: list[tuple], race: dict[str, int], sex: dict[str, int]
) -> None:
    found = joined(tmp_path, [line for each in members for line in people(*each)], ("race", "sex"))
    for grouping, sizes in zip(found.groupings, (race, sex), strict=True):
        assert grouping.names == tuple(name for name, size in sizes.items() if size)
        assert grouping.suppressed == tuple(name for name, size in sizes.items() if not size)
        assert grouping.pooled == (("B", "C") if POOLED in sizes else ())
        assert [one for one, *_ in counts(found, grouping)] == [*filter(None, sizes.values())]
    assert found.subjects.max() + 1 == sum(sex.values())


def test_failures_count_for_the_group_but_not_towards_ten_subjects(tmp_path: Path) -> None:
    lines = [*people("a", 30, "A"), *people("b", 20, "B"), *people("c", 10, "C", images=1)]
    found = joined(tmp_path, lines, failures=(100, 0))
    assert found.groupings[0].suppressed == ("C",)
    found = joined(tmp_path, lines, failures=(0, 1))
    assert counts(found, found.groupings[0]) == [(30, 60, 2), (20, 40, 0), (10, 10, 0)]


def test_a_small_intersection_is_not_given_away_by_its_margins(tmp_path: Path) -> None:
    sizes = {("A", "f"): 40, ("A", "m"): 35, ("B", "f"): 30, ("B", "m"): 4}
    sizes |= {("C", "f"): 25, ("C", "m"): 20}
    lines = [line for cell, size in sizes.items() for line in people("".join(cell), size, *cell)]
    found = joined(tmp_path, lines, ("race", "sex"), intersections=[("race", "sex")])
    assert [g.suppressed for g in found.groupings[:2]] == [(), ()]
    # B × f would follow from B, C × m from the men: four corners of a rectangle must go.
    suppressed = set(found.groupings[2].suppressed)
    assert {"B × m", "B × f"} < suppressed and len(suppressed) >= 4


def small_tables() -> st.SearchStrategy[np.ndarray]:
    """Subjects in two attributes, the first sometimes unlabelled, and in their intersection."""

    def build(counts: list[int]) -> np.ndarray:
        rows = []
        cells = itertools.product((-1, 0, 1, 2), (0, 1))
        for (race, sex), count in zip(cells, counts, strict=True):
            cross = -1 if race < 0 else 2 * race + sex
            rows += [(race, sex, cross)] * count
        return np.array(rows, dtype=np.int64).reshape(-1, 3)

    sizes = st.one_of(st.integers(0, 12), st.sampled_from([0, 20, 50]))
    return st.lists(sizes, min_size=8, max_size=8).map(build).filter(len)


@settings(max_examples=examples(150), deadline=None)
@given(small_tables())
def test_no_small_cell_follows_from_what_is_shown(members: np.ndarray) -> None:
    cells = [3, 2, 6]
    states = protect(members, cells)
    shown = [np.ones(len(members))]
    for k, state in enumerate(states):
        for cell in np.flatnonzero(state == SHOWN):
            inside = members[:, k] == cell
            assert inside.sum() >= 10
            shown.append(inside.astype(float))
        pool = np.isin(members[:, k], np.flatnonzero(state == IN_POOL))
        if pool.any():
            assert pool.sum() >= 10 and (state == IN_POOL).sum() >= 2
            shown.append(pool.astype(float))
    published = np.array(shown)
    rank = np.linalg.matrix_rank(published)
    for k, state in enumerate(states):
        for cell in range(cells[k]):
            inside = members[:, k] == cell
            if 0 < inside.sum() < 10:
                assert state[cell] in (IN_POOL, HIDDEN)
                everyone = inside.all()  # fewer than ten subjects in all, so nothing is shown
                more = np.linalg.matrix_rank(np.vstack([published, inside]))
                assert more > rank or everyone or len(published) == 1
