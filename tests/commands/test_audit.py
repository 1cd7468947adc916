"""``facerec audit`` and ``facerec audit-scores``: flags, files, assertions and refusals."""

from __future__ import annotations

import csv
import itertools
import json
from pathlib import Path

import numpy as np
import pytest
from pytest import MonkeyPatch

from facerec.commands.audit import main
from facerec.commands.audit_scores import main as scores_main
from facerec.embedding.extraction import Embeddings
from facerec.embedding.file import read_embeddings, write_embeddings
from facerec.fairness import rows as names
from facerec.fairness.attributes import INFERRED
from facerec.fairness.rows import At
from tests.commands.conftest import Refused, Told

FAST = ["--permutations", "99", "--replicates", "40", "--fmr", "1e-1,1e-2"]
PERSONS, IMAGES = 40, 3


def write_people(path: Path) -> None:
    """Write embeddings of persons of two groups, whose norms differ."""
    generator = np.random.default_rng(0)
    subject = np.repeat(np.arange(PERSONS), IMAGES)
    base = generator.normal(size=(PERSONS, 16))
    rows = base[subject] + 0.9 * generator.normal(size=(subject.size, 16))
    norms = 20 + generator.normal(size=PERSONS)[subject] + 1.5 * (subject % 2)
    rows *= (norms / np.linalg.norm(rows, axis=1))[:, None]
    vectors = rows.astype(np.float32)
    ids = np.array([f"face-{row}.jpg" for row in range(subject.size)])
    subjects = np.array([f"person-{person}" for person in subject])
    note = {"model": {"name": "toy", "sha256": "ab" * 32}}
    lengths = np.linalg.norm(vectors, axis=1)
    write_embeddings(path, Embeddings(vectors, lengths, False, ids, subjects, note=note))


def write_attributes(folder: Path, source: str = "curator") -> None:
    with (folder / "A.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["image_id", "subject_id", "gender", "age", "label_source"])
        for row in range(PERSONS * IMAGES):
            person = row // IMAGES
            old = "old" if person % 4 > 1 else "young"
            line = f"person-{person}", ("female", "male")[person % 2], old, source
            writer.writerow([f"face-{row}.jpg", *line])


@pytest.fixture
def workplace(tmp_path: Path, monkeypatch: MonkeyPatch) -> Path:
    """Go where embeddings and attributes are."""
    monkeypatch.chdir(tmp_path)
    write_people(tmp_path / "E.npz")
    write_attributes(tmp_path)
    return tmp_path


def run(arguments: list[str]) -> None:
    given = ["--embeddings", "E.npz", "--attributes", "A.csv", "--group", "gender", "--out", "out"]
    main([*given, *FAST, *arguments])


def test_report_and_summary(workplace: Path, told: Told) -> None:
    text = told(run, "--one-to-many --fpir 1e-1 --reference male")
    flat = " ".join(text.split())
    assert "120 images of 40 subjects, 0 not acquired; labels: curator" in flat
    assert "A difference between groups is detected" in flat and "FPD (FMR max/min)" in flat
    assert "galleries of 20 and 20 subjects" in flat
    document = json.loads((workplace / "out" / "audit.json").read_text())
    assert document["inputs"][0]["model"]["name"] == "toy"


def test_thresholds_of_scores(workplace: Path) -> None:
    lines = ["label,score", *(f"{row % 2},{row / 1000}" for row in range(1000))]
    Path("S.csv").write_text("\n".join(lines))
    run(["--threshold-from", "S.csv"])
    rows = [
        row
        for row in json.loads(Path("out/audit.json").read_text())["rows"]
        if row["kind"] == "threshold"
    ]
    assert {row["target"]: row["denominator"] for row in rows}["1e-2"] == 500


def test_both_rates_are_at_one_threshold(workplace: Path, told: Told) -> None:
    """Of 14,900 impostor pairs 149 reach 0.5; the 14 of 1e-3 are all of one group."""
    accepted = {("women", "women"): (116, 4000, 0.9), ("men", "men"): (33, 4000, 0.6)}
    lines = ["label,score,gender_1,gender_2,label_source"]
    for (one, other), (count, pairs, top) in accepted.items():
        high = np.linspace(0.5, top, count)
        scores = np.concatenate([high, np.linspace(-0.4, 0.4, pairs - count)])
        lines += [f"0,{score},{one},{other},study" for score in scores]
        lines += [f"1,{score},{one},{other},study" for score in np.linspace(0.3, 1, 4 * count)]
    lines += [f"0,{score},women,men,study" for score in np.linspace(-0.5, 0.4, 6900)]
    Path("S.csv").write_text("\n".join(lines))
    flags = ["--scores", "S.csv", "--group", "gender", "--out", "out", "--replicates", "99"]
    for given, place, target, said in (
        ([], "1 in 100 comparisons", At("1e-2"), "29 of 1,000 comparisons of two people"),
        (
            ["--threshold", "0.55"],
            "0.55 (as given)",
            At("0.55", names.GIVEN),
            "1 in 40 comparisons of two people",
        ),
    ):
        text = " ".join(told(scores_main, *flags, *given).split())
        assert place in text and said in text and f"FNMR, {target.said}" in text
        assert place in Path("out/audit.html").read_text()
        assert f"{target.said} | FNMR, " in Path("out/model_card_section.md").read_text()
        assert json.loads(Path("out/audit.json").read_text())["headline"]["target"] == target.target


@pytest.mark.parametrize(
    ("lacks", "has"), [("FMR (FPD)", "FNMR (FND)"), ("FNMR (FND)", "FMR (FPD)")]
)
def test_a_group_with_one_kind_of_pairs_is_compared_by_it(
    workplace: Path, told: Told, lacks: str, has: str
) -> None:
    """Of groups A and B 7 of 200 pairs of each kind are wrong, of C 150, all of one kind."""
    lines = ["label,score,race,label_source"]
    for group, label, pair in itertools.product("ABC", (0, 1), range(200)):
        wrong = pair < (150 if group == "C" else 7)
        if group != "C" or label == (has == "FNMR (FND)"):
            lines.append(f"{label},{0.9 if wrong != label else 0.1},{group},study")
    Path("S.csv").write_text("\n".join(lines))
    flags = ["--scores", "S.csv", "--group", "race", "--threshold", "0.5", "--out", "out"]
    text = " ".join(told(scores_main, *flags, "--replicates 99").split())
    assert "150 of 200 comparisons" in text and "recorded as C and 7 of 200 as A" in text
    assert "21.4 times [" in text and "7 of 200 as A are wrongly" in text
    card, page = (Path("out", name).read_text() for name in ("model_card_section.md", "audit.html"))
    rate = has.split()[0]
    for place in (text, card, page):
        assert f"C is left out where {lacks.replace(' ', 's are compared ')}" in place
        assert f"{rate} 75.00 %" in place and "150/200" in place
    assert "reaches --threshold" not in text
    text = told(scores_main, *flags, "--replicates 99 --threshold 5")
    assert "no score of S.csv reaches --threshold 5" in text


def test_quality_that_holds_the_norms_has_their_figures(workplace: Path, told: Told) -> None:
    stored = read_embeddings(Path("E.npz"))
    assert stored.ids is not None
    lines = [
        f"{name};{norm!r}" for name, norm in zip(stored.ids, stored.norms.tolist(), strict=True)
    ]
    Path("Q.csv").write_text("\n".join(["Filename;UnifiedQualityScore.scalar", *lines]))
    text = " ".join(told(run, "--quality Q.csv").split())
    assert "no number in the column UnifiedQualityScore.scalar" in text
    by = {
        of: [
            (row["group"], row["target"], row["value"], row["numerator"])
            for row in json.loads(Path("out/audit.json").read_text())["rows"]
            if row["basis"] == of
        ]
        for of in (names.NORMS, names.QUALITY)
    }
    assert by[names.NORMS] == by[names.QUALITY] and len(by[names.NORMS]) == 3 * (10 + 4 + 1)
    page = Path("out/audit.html").read_text()
    assert "Quality and errors" in page and "lowest tenth of quality" in page
    (quality,) = [
        each
        for each in json.loads(Path("out/audit.json").read_text())["inputs"]
        if each["role"] == "quality"
    ]
    assert quality["name"] == "Q.csv"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--group", "race"], "no column 'race'"),
        (["--embeddings", "none.npz"], "none.npz"),
        (["--pairs", "none"], "no pack for bench 'none'"),
        (["--one-to-many", "--reference", "nobody"], "'nobody' is none of the groups"),
    ],
)
def test_refusals(workplace: Path, refused: Refused, arguments: list[str], words: str) -> None:
    assert words in refused(run, *arguments)


def test_spellings_and_values_that_change_are_named(
    workplace: Path, told: Told, refused: Refused
) -> None:
    text = Path("A.csv").read_text()
    Path("A.csv").write_text(text.replace(",female,old", ",F,old"))
    flat = " ".join(told(run).split())
    assert "gender: female and F look like one group" in flat and "female 10 subjects" in flat
    head, *lines = text.splitlines()
    ages = [
        f"{line[: line.index(',')]},{line.split(',')[1]},x,{row % 3},study"
        for row, line in enumerate(lines)
    ]
    Path("A.csv").write_text("\n".join([head, *ages]))
    assert "all 40 subjects stand in several groups" in refused(run, "--group", "age")


def test_inferred_labels_take_a_flag(workplace: Path, told: Told, refused: Refused) -> None:
    write_attributes(workplace, source="genderize.io")
    assert "120 lines do not say" in refused(run)
    assert INFERRED in " ".join(told(run, "--allow-inferred-labels").split())
    assert INFERRED in Path("out/audit.html").read_text()
    assert INFERRED in Path("out/model_card_section.md").read_text()
    lines = "label,score,gender,label_source\n1,0.9,f,model\n0,0.1,f,model\n"
    Path("S.csv").write_text(lines)
    flags = ["--scores", "S.csv", "--group", "gender", "--out", "other"]
    assert "2 lines do not say" in refused(scores_main, *flags)
