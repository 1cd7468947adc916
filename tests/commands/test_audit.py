from __future__ import annotations

import csv
import json
import re
import shutil
import unicodedata
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.toy_packs import make_pack

from facerec.backbones import Backbone, Preprocessing, create_backbone
from facerec.commands.audit import main
from facerec.commands.embed import main as embed
from facerec.embedding import read_embeddings, save_model
from facerec.embedding.extraction import Embeddings
from facerec.embedding.file import write_embeddings
from facerec.report import figures

FAST = ["--permutations", "99", "--replicates", "40", "--fmr", "1e-1,1e-2"]
PERSONS, IMAGES = 40, 3


def write_people(folder: Path, name: str = "E.npz", shift: float = 1.5, seed: int = 0) -> None:
    """Write embeddings of persons of two groups, whose norms differ by ``shift``."""
    generator = np.random.default_rng(seed)
    subject = np.repeat(np.arange(PERSONS), IMAGES)
    base = generator.normal(size=(PERSONS, 16))
    rows = base[subject] + 0.9 * generator.normal(size=(subject.size, 16))
    norms = 20 + generator.normal(size=PERSONS)[subject] + shift * (subject % 2)
    rows *= (norms / np.linalg.norm(rows, axis=1))[:, None]
    vectors = rows.astype(np.float32)
    lengths = np.linalg.norm(vectors, axis=1)
    ids = np.array([f"face-{row}.jpg" for row in range(subject.size)])
    subjects = np.array([f"person-{person}" for person in subject])
    found = Embeddings(
        vectors, lengths, False, ids, subjects, note={"model": {"name": "toy", "sha256": "ab" * 32}}
    )
    write_embeddings(folder / name, found)


def write_attributes(
    folder: Path, names: Sequence[str] = ("female", "male"), source: str = "curator"
) -> None:
    with (folder / "A.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["image_id", "subject_id", "gender", "age", "yaw", "label_source"])
        for row in range(PERSONS * IMAGES):
            person = row // IMAGES
            old = "old" if person % 4 > 1 else "young"
            line = f"person-{person}", names[person % len(names)], old, row * 7 % 11, source
            writer.writerow([f"face-{row}.jpg", *line])


@pytest.fixture
def workplace(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Path:
    """Go where embeddings and attributes are; only tests that ask for ``drawn`` draw figures."""
    if "drawn" not in request.fixturenames:
        monkeypatch.setattr(figures, "draw", lambda figure, kind: kind.encode())
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.delenv("FACEREC_DATA", raising=False)
    write_people(tmp_path)
    write_attributes(tmp_path)
    return tmp_path


@pytest.fixture
def drawn() -> None:
    """Ask for real figures."""


def run(*arguments: str, out: str = "out") -> None:
    main([*arguments, "--attributes", "A.csv", "--group", "gender", "--out", out, *FAST])


def refused(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """Run the command, expect exit status 2, and return its one sentence."""
    with pytest.raises(SystemExit) as exit_:
        main(list(arguments))
    assert exit_.value.code == 2
    error = capsys.readouterr().err
    assert error.startswith("error: ") and error.count("\n") == 1
    return error.removeprefix("error: ").strip()


def refused_run(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    return refused_run_in(capsys, "out", *arguments)


def refused_run_in(capsys: pytest.CaptureFixture[str], out: str, *arguments: str) -> str:
    flags = ["--attributes", "A.csv", "--group", "gender", "--out", out, *FAST]
    message = refused(capsys, *flags, *arguments)
    assert not Path(out).exists()
    return message


def contents(folder: Path) -> dict[str, bytes]:
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


def test_report_and_summary(workplace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run("--embeddings", "E.npz", "--covariates", "yaw")
    text = capsys.readouterr().out
    assert "120 images of 40 subjects, 0 failures to acquire; labels: curator" in text
    flat = " ".join(text.split())
    assert "between groups of gender (gender: η² of subjects' mean norms, 40 subjects" in flat
    assert "p = 0.01): difference detected (largest in male 2" in flat
    assert "gender: max/min of FMR" in flat
    assert re.search(r"female +20 +60 +\d", text) and "Norms by group" in text
    assert "by gender" in text.splitlines()
    assert "Rates at the global threshold of FMR 1e-2" in text
    assert max(map(len, text.split("report: ")[0].splitlines())) <= 80
    assert str(workplace / "out" / "report.html") in text
    files = contents(workplace / "out")
    assert {"report.html", "audit.json", "MANIFEST.json", "model_card_section.md"} <= set(files)
    assert "tables/rates.csv" in files
    assert any(name.startswith("figures/") for name in files)
    document = json.loads(files["audit.json"])
    assert document["inputs"]["embeddings"]["details"]["model"]["name"] == "toy"
    assert document["inputs"]["attributes"]["details"]["label_source"] == ["curator"]
    assert document["settings"]["impostors"] == "all"
    assert document["adjusted"][0]["covariates"] == ["yaw"]
    for name, content in files.items():
        assert b"person-1" not in content and b"face-1" not in content, name


def test_identification_by_group(workplace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flags = ["--one-to-many", "--fpir", "1e-1,5e-2", "--reference", "male", "--template", "mean"]
    run("--embeddings", "E.npz", *flags)
    text = " ".join(capsys.readouterr().out.split())
    assert "two halves by seed 0" in text and "rank-1 identification rate" in text
    assert "set at FPIR 1e-1 of everybody" in text and "ratio to male" in text
    files = contents(workplace / "out")
    found = json.loads(files["audit.json"])["one_to_many"]
    assert (found["reference"], found["template"], found["fpir"]) == (
        "male",
        "mean",
        ["1e-1", "5e-2"],
    )
    assert found["entries"] == [20, 20] and found["non_mated"] == 120
    (part,) = found["groupings"]
    assert {row["basis"] for row in part["thresholds"]} == {"everybody", "male"}
    table = list(csv.DictReader(files["tables/one_to_many_rates.csv"].decode().splitlines()))
    assert len(table) == len(part["rates"])
    for line, row in zip(table, part["rates"], strict=True):
        assert (line["figure"], line["group"]) == (row["figure"], row["group"])
        assert int(line["k"]) == row["k"] and int(line["n"]) == row["n"]
    assert b"identification by group" in files["report.html"]
    assert "--one-to-many" in json.loads(files["MANIFEST.json"])["command"]
    # Without the flag nothing is computed, and its companions are refused.
    run("--embeddings", "E.npz", out="plain")
    assert json.loads(Path("plain/audit.json").read_text())["one_to_many"] is None
    capsys.readouterr()
    message = refused_run_in(capsys, "none", "--embeddings", "E.npz", "--reference", "male")
    assert "--one-to-many" in message
    message = refused_run_in(
        capsys, "none", "--embeddings", "E.npz", "--one-to-many", "--reference", "nobody"
    )
    assert "nobody" in message and "female" in message


def test_quality_as_ofiq_writes_it(workplace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = [f"in/face-{row}.jpg;{row % 13};{row % 17};90" for row in range(PERSONS * IMAGES)]
    header = "Filename;UnifiedQualityScore;UnifiedQualityScore.scalar;assessment_time_in_ms"
    (workplace / "q.csv").write_text("\n".join([header, *lines]) + "\n")
    run("--embeddings", "E.npz", "--quality", "q.csv", "--covariates", "yaw")
    assert "MagFace" in capsys.readouterr().out
    found = json.loads(Path("out/audit.json").read_text())
    assert found["adjusted"][0]["covariates"] == ["yaw", "UnifiedQualityScore.scalar"]
    assert found["inputs"]["quality"]["name"] == "q.csv"


def write_scores(path: Path, sign: int = 1) -> None:
    """Write scores of pairs of persons with their groups."""
    generator = np.random.default_rng(3)
    lines = ["label,score,gender_1,gender_2"]
    for pair in range(600):
        same = pair % 3 == 0
        first = "female" if pair % 2 else "male"
        second = first if same or pair % 5 else "male"
        score = sign * (0.5 * same + 0.2 * generator.normal())
        lines.append(f"{int(same)},{score!r},{first},{second}")
    path.write_text("\n".join(lines) + "\n")


def accented(text: str, form: Any) -> str:
    return unicodedata.normalize(form, text.replace("person-", "Zoë-").replace("face-", "é-"))


def test_names_join_in_any_form(workplace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    stored = read_embeddings(workplace / "E.npz")
    lines = Path("A.csv").read_text()
    said = []
    for place, forms in enumerate((("NFC", "NFC"), ("NFC", "NFD"), ("NFD", "NFC"))):
        Path("A.csv").write_text(accented(lines, forms[0]), encoding="utf-8")
        ids, subjects = (
            np.array([accented(str(name), forms[1]) for name in names])
            for names in (stored.ids, stored.subjects)
        )
        write_embeddings(workplace / "E.npz", replace(stored, ids=ids, subjects=subjects))
        run("--embeddings", "E.npz", "--pairs", "all", out=f"out{place}")
        document = json.loads(Path(f"out{place}/audit.json").read_text())
        said.append({**document, "inputs": None})
        assert "left out" not in capsys.readouterr().out
    assert said[0] == said[1] == said[2]


@pytest.mark.parametrize("word", ["None", "#N/A", "nil", "-"])
def test_a_missing_group_is_counted_before_any_finding(
    workplace: Path, capsys: pytest.CaptureFixture[str], word: str
) -> None:
    figures_of = []
    for place, nothing in (("empty", ""), ("word", word)):
        write_attributes(workplace, ("female", "male", "female", "male", nothing))
        run("--embeddings", "E.npz", out=place)
        text = " ".join(capsys.readouterr().out.split())
        groups = (
            "gender: female (16 subjects, 48 images), male (16 subjects, 48 images), "
            "no recorded value (8 subjects, 24 images)"
        )
        assert text.index(groups) < text.index("•")
        page = Path(place, "report.html").read_text()
        assert page.index(groups) < page.index('class="verdict"') < page.index('id="findings"')
        document = json.loads(Path(place, "audit.json").read_text())
        figures_of.append({**document, "inputs": None})
    assert figures_of[0] == figures_of[1]


def test_scores_with_groups(workplace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_scores(workplace / "s.csv")
    write_scores(workplace / "d.csv", sign=-1)
    flags = ["--group", "gender", "--fmr", "1e-1", "--replicates", "40"]
    main(["--scores", "s.csv", *flags, "--out", "out"])
    said = " ".join(capsys.readouterr().out.split())
    assert "600 scored pairs of subjects who are not named" in said
    assert "norm audit is impossible" in said and "take its pairs as independent" in said
    assert "threshold of FMR 1e-1" in said and "Norms by group" not in said
    found = json.loads(Path("out/audit.json").read_text())
    assert found["inputs"]["scores"]["name"] == "s.csv"
    assert {row["name"] for row in found["rates"]} == {"female", "male", "all groups"}
    command = json.loads(Path("out/MANIFEST.json").read_text())["command"]
    assert "--scores s.csv" in command
    # Distances are the same thing the other way round, and are noticed without the flag.
    main(["--scores", "d.csv", "--distances", *flags, "--out", "far"])
    capsys.readouterr()
    assert json.loads(Path("far/audit.json").read_text())["rates"] == found["rates"]
    main(["--scores", "d.csv", *flags, "--out", "wrong"])
    assert "--distances" in capsys.readouterr().out
    # An assertion on a figure that scores do not have fails.
    with pytest.raises(SystemExit):
        main(["--scores", "s.csv", *flags, "--out", "out", "--assert", "eta2<1"])
    assert "no such figure" in " ".join(capsys.readouterr().out.split())


def test_scores_at_a_threshold_from_shards_of_embeddings(workplace: Path) -> None:
    pytest.importorskip("pyarrow")
    write_scores(workplace / "s.csv")
    (workplace / "shards").mkdir()
    write_embeddings(workplace / "shards" / "0.parquet", read_embeddings("E.npz"))
    documents = []
    for others in ("E.npz", "shards"):
        flags = ["--group", "gender", "--fmr", "1e-1", "--replicates", "40", "--out", others[:1]]
        main(["--scores", "s.csv", *flags, "--threshold-from", others])
        documents.append(json.loads(Path(others[:1], "audit.json").read_text()))
    one, sharded = documents
    assert sharded["rates"] == one["rates"]
    assert sharded["thresholds"][0]["value"] == one["thresholds"][0]["value"]
    assert sharded["inputs"]["calibration"]["name"] == "shards"


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        (["--scores", "s.csv", "--bench", "lfw"], "--bench belongs to an audit of embeddings"),
        (["--scores", "s.csv", "--embeddings", "E.npz"], "give one of --embeddings, --model and"),
        (["--scores", "t.csv"], "t.csv: it holds embeddings; name it with --embeddings"),
        (["--embeddings", "E.npz"], "name the table of groups with --attributes"),
        (["--scores", "s.csv", "--intersect"], "s.csv: an intersection needs two attributes"),
        (
            ["--embeddings", "E.npz", "--attributes", "A.csv", "--distances"],
            "--distances says what scores are",
        ),
    ],
)
def test_flags_that_scores_do_not_go_with(
    workplace: Path, capsys: pytest.CaptureFixture[str], flags: list[str], sentence: str
) -> None:
    write_scores(workplace / "s.csv")
    (workplace / "t.csv").write_text("image_id,e0\na,1\n")
    assert refused(capsys, "--group", "gender", "--out", "out", *flags).startswith(sentence)
    assert not Path("out").exists()


def test_a_table_of_embeddings_is_audited_like_the_file(workplace: Path) -> None:
    stored = read_embeddings("E.npz")
    assert stored.ids is not None
    size = stored.vectors.shape[1]
    lines = ["image_id," + ",".join(f"e{k}" for k in range(size))]
    for image, vector in zip(stored.ids.tolist(), stored.vectors.tolist(), strict=True):
        lines.append(",".join([image, *map(repr, vector)]))
    Path("E.csv").write_text("\n".join(lines) + "\n")
    run("--embeddings", "E.npz", out="one")
    run("--embeddings", "E.csv", "--baseline", "E.csv", out="other")
    one, other = (json.loads(Path(f"{name}/audit.json").read_text()) for name in ("one", "other"))
    assert one["rates"] == other["rates"]
    assert other["comparison"] is not None and other["inputs"]["baseline"]["name"] == "E.csv"


@pytest.mark.integration
def test_same_inputs_and_seed_give_the_same_bytes(drawn: None, workplace: Path) -> None:
    run("--embeddings", "E.npz", out="first")
    run("--embeddings", "E.npz", out="second")
    first, second = contents(workplace / "first"), contents(workplace / "second")
    assert first == second
    command = json.loads(first["MANIFEST.json"])["command"]
    assert command.startswith("facerec audit --group gender --out OUT --attributes A.csv")
    assert "--embeddings E.npz" in command and "--permutations 99" in command
    # A report takes the place of the one before it.
    run("--embeddings", "E.npz", "--seed", "1", out="first")
    third = contents(workplace / "first")
    assert set(third) == set(second) and third["audit.json"] != second["audit.json"]


@pytest.mark.integration
def test_intersections_and_commas(workplace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flags = ["--attributes", "A.csv", "--out", "out", "--embeddings", "E.npz", *FAST]
    main([*flags, "--group", "gender,age", "--intersect", "--pairs", "all"])
    text = capsys.readouterr().out
    assert "by gender × age" in text.splitlines()
    document = json.loads((workplace / "out" / "audit.json").read_text())
    assert document["settings"]["groups"] == ["gender", "age"]
    slices = [row["slice"] for row in document["groups"] if row["grouping"] == "gender × age"]
    assert {"gender": "female", "age": "old"} in slices


def test_threshold_from_other_data(workplace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_people(workplace, "C.npz", seed=5)
    other = read_embeddings(workplace / "C.npz")
    assert other.ids is not None
    kept = np.arange(len(other.ids)) >= 30
    moved = np.where(np.arange(len(kept)) < 40, other.ids, np.char.add("c", other.ids))
    parts = {"ids": moved, "vectors": other.vectors, "norms": other.norms}
    assert other.subjects is not None
    write_embeddings(
        workplace / "C.npz",
        Embeddings(
            flip=False,
            subjects=other.subjects[kept],
            note=dict(other.note),
            **{name: array[kept] for name, array in parts.items()},
        ),
    )
    searches = ["--one-to-many", "--fpir", "1e-1", "--homogeneous"]
    run("--embeddings", "E.npz", "--threshold-from", "C.npz", *searches)
    text = " ".join(capsys.readouterr().out.split())
    assert "10 images of C.npz are audited too" in text
    document = json.loads((workplace / "out" / "audit.json").read_text())
    source = document["thresholds"][0]["source"]
    assert re.fullmatch(r"calibration on C\.npz: [\d,]+ non-mated pairs pooled", source)
    found = document["one_to_many"]
    (mixed, homogeneous) = found["groupings"][0]["thresholds"]
    assert mixed["basis"] == homogeneous["basis"] == "other people"
    # 30 persons of 3 images: one gallery of 20 and ten outside, or three of 10.
    assert found["entries"] == [20, 20] and "30 subjects of C.npz" in found["protocol"]
    assert mixed["non_mated"] == 30 and homogeneous["non_mated"] == 3 * 60
    scores = [
        "label,score",
        *(f"{row % 2},{0.1 + 0.5 * (row % 2) + row / 1e4}" for row in range(200)),
    ]
    (workplace / "scores.csv").write_text("\n".join(scores))
    run("--embeddings", "E.npz", "--threshold-from", "scores.csv")
    document = json.loads((workplace / "out" / "audit.json").read_text())
    # Ten of a hundred impostors are at or above 0.118, the next one has 0.1178.
    assert document["thresholds"][0]["value"] == 0.1179
    shutil.rmtree(workplace / "out")
    # A threshold of searches is one on the best score in a gallery of the audited size.
    both = ["--embeddings", "E.npz", "--one-to-many", "--threshold-from"]
    assert "scores.csv" in refused_run(capsys, *both, "scores.csv")
    few = np.arange(len(kept)) >= 60
    write_embeddings(
        workplace / "C.npz",
        Embeddings(
            other.vectors[few], other.norms[few], False, other.ids[few], other.subjects[few]
        ),
    )
    message = refused_run(capsys, *both, "C.npz")
    assert "20 subjects" in message and "more than 20" in message


def test_calibration_of_another_model(workplace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = read_embeddings(workplace / "E.npz")
    other = Embeddings(
        found.vectors,
        found.norms,
        False,
        found.ids,
        found.subjects,
        note={"model": {"sha256": "x"}},
    )
    write_embeddings(workplace / "C.npz", other)
    error = refused_run(capsys, "--embeddings", "E.npz", "--threshold-from", "C.npz")
    assert error.startswith("C.npz ") and "two networks" in error
    other = Embeddings(
        found.vectors, found.norms, True, found.ids, found.subjects, note=dict(found.note)
    )
    write_embeddings(workplace / "C.npz", other)
    error = refused_run(capsys, "--embeddings", "E.npz", "--threshold-from", "C.npz")
    assert "mirror images took part in one" in error


def test_calibration_on_nobody_known(workplace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = read_embeddings(workplace / "E.npz")
    write_embeddings(workplace / "C.npz", replace(found, subjects=None))
    error = refused_run(capsys, "--embeddings", "E.npz", "--threshold-from", "C.npz")
    assert "C.npz" in error and "threshold" in error and "scores" in error


def test_baseline(workplace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_people(workplace, "E0.npz", shift=4.0)
    run("--embeddings", "E.npz", "--baseline", "E0.npz")
    text = " ".join(capsys.readouterr().out.split())
    assert "From the baseline, η² changes by −0." in text
    document = json.loads((workplace / "out" / "audit.json").read_text())
    assert document["inputs"]["baseline"]["name"] == "E0.npz"
    row = next(row for row in document["comparison"]["rows"] if row["figure"] == "η²")
    assert row["change"] < 0
    assert "tables/comparison.csv" in contents(workplace / "out")


@pytest.mark.integration
def test_against_an_earlier_release(workplace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_people(workplace, "new.npz", shift=0.2)
    searches = ["--one-to-many", "--fpir", "1e-1"]
    run("--embeddings", "E.npz", *searches, out="old")
    capsys.readouterr()
    run("--embeddings", "new.npz", "--against", "old/audit.json")
    printed = capsys.readouterr().out
    told = json.loads((workplace / "out" / "audit.json").read_text())["against"]
    assert "against audit.json" in printed and "take them as independent" in printed
    assert any("--one-to-many" in note for note in told["notes"])
    assert not [row for row in told["rows"] if "FPIR" in row["figure"]]
    # A table of what changed has rows, or is not there.
    assert "old" in printed.split()
    shutil.rmtree(workplace / "out")
    run("--embeddings", "E.npz", "--against", "old/audit.json")
    assert "old" not in capsys.readouterr().out.split()
    shutil.rmtree(workplace / "out")
    # With the earlier embeddings changes come from the same persons; of other files nothing does.
    both = ["--embeddings", "new.npz", "--against", "old/audit.json", "--baseline", "E.npz"]
    run(*both, *searches)
    paired = json.loads((workplace / "out" / "audit.json").read_text())["against"]
    assert told != paired and "paired" in json.dumps(paired)
    # Norms alone have changed, so both models find the same.
    found = [row for row in paired["rows"] if row["figure"].startswith(("FPIR", "FNIR", "rank-1"))]
    assert {row["group"] for row in found} == {"female", "male", None}
    assert {row["change"] for row in found} == {0.0} and any(row["paired"] for row in found)
    shutil.rmtree(workplace / "out")
    message = refused_run(capsys, *both, "--one-to-many", "--fpir", "2e-1")
    assert "1e-1" in message and "--fpir" in message
    both = ["--embeddings", "E.npz", "--against", "old/audit.json", "--baseline", "new.npz"]
    assert "SHA-256" in refused_run(capsys, *both)
    assert "A.csv" in refused_run(capsys, "--embeddings", "E.npz", "--against", "A.csv")


def test_embeddings_are_deleted_when_asked(
    workplace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = "--embeddings", "E.npz", "--delete-embeddings"
    assert "no column 'blur'" in refused_run(capsys, *flags, "--covariates", "blur")
    assert (workplace / "E.npz").exists()
    run(*flags)
    assert not (workplace / "E.npz").exists() and (workplace / "out" / "report.html").exists()
    assert "deleted: E.npz" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("assertion", "failure"),
    [
        ("eta2<0.9", None),
        ("p<=0.01", None),
        ("eta2 < 1e-9", "eta2<1e-09, found 0."),
        ("fnmr_ratio<0.5", "fnmr_ratio<0.5"),
    ],
)
def test_assertions(
    workplace: Path, capsys: pytest.CaptureFixture[str], assertion: str, failure: str | None
) -> None:
    if failure is None:
        run("--embeddings", "E.npz", "--assert", assertion)
        return
    with pytest.raises(SystemExit) as exit_:
        run("--embeddings", "E.npz", "--assert", assertion)
    assert exit_.value.code == 1
    assert f"assertion failed: {failure}" in capsys.readouterr().out
    # The report is there all the same.
    assert (workplace / "out" / "report.html").is_file()


def test_the_smallest_target_that_all_groups_carry_heads(
    workplace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of 14,900 impostor pairs 149 reach 0.5; the 14 of 1e-3 are all of one group."""
    accepted = {("women", "women"): (116, 4000, 0.9), ("men", "men"): (33, 4000, 0.6)}
    lines = ["label,score,gender_1,gender_2"]
    for (one, other), (count, pairs, top) in accepted.items():
        high = np.linspace(0.5, top, count)
        scores = np.concatenate([high, np.linspace(-0.4, 0.4, pairs - count)])
        lines += [f"0,{score},{one},{other}" for score in scores]
        lines += [f"1,{score},{one},{other}" for score in np.linspace(0.3, 1, count)]
    lines += [f"0,{score},women,men" for score in np.linspace(-0.5, 0.4, 6900)]
    Path("S.csv").write_text("\n".join(lines))
    flags = ["--scores", "S.csv", "--group", "gender", "--out", "out", "--replicates", "99"]
    main([*flags, "--assert", "fmr_ratio<3.52", "--assert", "fmr_ratio>3.51"])
    text = " ".join(capsys.readouterr().out.split())
    assert (
        "for 1 in 100, 2.9 % of impostor pairs within women and 0.83 % of those within men" in text
    )
    assert ": 3.52 times [" in text and "Insufficient data: FMR" not in text
    assert "Rates at the global threshold of FMR 1e-2" in text
    assert "insufficient data" not in text.partition("for 1 in 100")[0]
    page = Path("out/report.html").read_text()
    assert "Difference detected: FMR by gender" in page
    card = Path("out/model_card_section.md").read_text()
    assert 'dataset_name: "S"' in card and "FMR at nominal FMR 1e-2" in card
    with pytest.raises(SystemExit):
        main([*flags, "--assert", "fmr_ratio<3.5"])
    assert "fmr_ratio<3.5, found 3.51515" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ([], "give one of --embeddings, --model and --scores"),
        (
            ["--embeddings", "E.npz", "--model", "m"],
            "give one of --embeddings, --model and --scores",
        ),
        (["--embeddings", "E.npz", "--assert", "eta3<1"], "not of the form eta2<0.01"),
        (["--embeddings", "E.npz", "--assert", "eta2<x"], "not of the form eta2<0.01"),
        (["--embeddings", "E.npz", "--intersect"], "an intersection needs two attributes"),
        (["--embeddings", "E.npz", "--format", "lfw"], "--format belongs to"),
        (["--embeddings", "E.npz", "--data", "data"], "--data belongs to"),
        (["--embeddings", "E.npz", "--no-flip"], "--no-flip says how a model embeds"),
        (["--embeddings", "E.npz", "--align", "p.csv"], "--align says how a model embeds"),
        (["--embeddings", "E.npz", "--covariates", "blur"], "no column 'blur'"),
        (["--embeddings", "E.npz", "--subject", "name"], "no column 'name'"),
        (["--embeddings", "none.npz"], "none.npz"),
        (["--embeddings", "E.npz", "--bench", "none"], "no pack for bench 'none'"),
        (["--embeddings", "E.npz", "--fmr", "7"], "not a rate"),
        (["--embeddings", "E.npz", "--seed", "-1"], "--seed must be at least 0"),
        (["--embeddings", "E.npz", "--replicates", "1"], "--replicates must be at least 40"),
        (["--embeddings", "E.npz", "--permutations", "3"], "--permutations must be at least 19"),
    ],
)
def test_impossible_flags(
    workplace: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], error: str
) -> None:
    assert error in refused_run(capsys, *arguments)


def test_attributes_that_do_not_join(workplace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = (workplace / "A.csv").read_text().splitlines()
    half = [lines[0], *(line.replace("face-", "x/face-") for line in lines[1:31]), *lines[31:]]
    (workplace / "A.csv").write_text("\n".join(half))
    run("--embeddings", "E.npz")
    text = capsys.readouterr().out
    assert "left out: 30 × embedding without attributes" in text
    assert "left out: 30 × attributes without embedding" in text
    assert b"attributes without embedding" in (workplace / "out" / "report.html").read_bytes()
    (workplace / "A.csv").write_text((workplace / "A.csv").read_text().replace(",face", ",x/face"))
    none = [lines[0], *(line.replace("face-", "x/face-") for line in lines[1:])]
    (workplace / "A.csv").write_text("\n".join(none))
    flags = ["--attributes", "A.csv", "--group", "gender", "--out", "new"]
    error = refused(capsys, "--embeddings", "E.npz", *flags)
    assert "none of its 120 images (as 'x/face-0.jpg') can be joined with the 120" in error


def test_inferred_labels(workplace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_attributes(workplace, source="inferred by a model")
    assert "120 lines have inferred labels" in refused_run(capsys, "--embeddings", "E.npz")
    run("--embeddings", "E.npz", "--allow-inferred-labels")
    banner = "Some group labels were inferred"
    assert banner in capsys.readouterr().out
    files = contents(workplace / "out")
    for name in ("report.html", "audit.json", "model_card_section.md"):
        assert banner in files[name].decode()


def test_normalised_embeddings(workplace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = read_embeddings(workplace / "E.npz")
    vectors = found.vectors / found.norms[:, None]
    unit = Embeddings(vectors, np.linalg.norm(vectors, axis=1), False, found.ids)
    write_embeddings(workplace / "E.npz", unit)
    error = refused_run(capsys, "--embeddings", "E.npz")
    assert "already normalised and a norm audit is impossible" in error


def test_strange_attributes(workplace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    good = (workplace / "A.csv").read_text()
    (workplace / "A.csv").write_bytes(good.replace("female", "fémale").encode("latin-1"))
    assert "A.csv" in refused_run(capsys, "--embeddings", "E.npz")
    lines = good.splitlines()
    many = [f"face-{row}.jpg,s{row},g{row},old,1,curator" for row in range(10_000)]
    (workplace / "A.csv").write_text("\n".join([lines[0], *many]))
    error = refused_run(capsys, "--embeddings", "E.npz")
    assert "gender has 10,000 different values, more than 100 groups" in error
    contradiction = lines[1].replace("female", "male")
    (workplace / "A.csv").write_text("\n".join([*lines, lines[2], contradiction]))
    run("--embeddings", "E.npz")
    text = capsys.readouterr().out
    assert "left out: 1 × line repeats another one" in text
    assert "left out: 1 × lines of one image contradict each other" in text
    assert "left out: gender: 2 × subject in several groups" in text


def test_failures_and_duplicate_ids(workplace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = read_embeddings(workplace / "E.npz")
    vectors = found.vectors.copy()
    vectors[:2] = np.nan
    np.savez(workplace / "F.npz", vectors=vectors, ids=found.ids)
    run("--embeddings", "F.npz")
    assert "120 images of 40 subjects, 2 failures to acquire" in capsys.readouterr().out
    ids = found.ids.copy()  # type: ignore[union-attr]
    ids[1] = ids[0]
    np.savez(workplace / "D.npz", vectors=found.vectors, ids=ids)
    flags = ["--attributes", "A.csv", "--group", "gender", "--out", "new"]
    assert "face-0.jpg" in refused(capsys, "--embeddings", "D.npz", *flags)


def test_group_names_are_never_markup(workplace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_attributes(workplace, names=("<script>alert(1)</script>", "=cmd [bold]"))
    run("--embeddings", "E.npz")
    assert "=cmd [bold]" in " ".join(capsys.readouterr().out.split())
    files = contents(workplace / "out")
    assert b"<script>alert" not in files["report.html"]
    for name, content in files.items():
        if name.endswith(".csv"):
            cells = [cell for row in csv.reader(content.decode().splitlines()) for cell in row]
            assert not any(cell.startswith("=") for cell in cells), name


def test_one_group(workplace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_attributes(workplace, names=("all", "all"))
    run("--embeddings", "E.npz")
    text = " ".join(capsys.readouterr().out.split())
    assert "40 subjects): insufficient data" in text
    document = json.loads((workplace / "out" / "audit.json").read_text())
    assert document["association"] == []
    assert {row["what"] for row in document["not_computed"]} >= {"association", "differentials"}


def test_ages_that_nobody_shares(workplace: Path) -> None:
    write_attributes(workplace, names=[str(20 + person // 4) for person in range(40)])
    run("--embeddings", "E.npz")
    document = json.loads((workplace / "out" / "audit.json").read_text())
    shown = [group["name"] for group in document["groups"] if not group["suppressed"]]
    assert shown == ["other (pooled)"]
    assert any("join values to bins" in warning for warning in document["warnings"])


def test_other_files_stay(workplace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (workplace / "out").mkdir()
    (workplace / "out" / "thesis.txt").write_text("x")
    flags = ["--attributes", "A.csv", "--group", "gender", "--out", "out"]
    error = refused(capsys, "--embeddings", "E.npz", *flags)
    assert "it holds thesis.txt" in error
    assert [path.name for path in (workplace / "out").iterdir()] == ["thesis.txt"]


@pytest.fixture
def pack(workplace: Path) -> Path:
    """A pack of 40 persons, its attributes by image id, and a run that embeds it."""
    (workplace / "data").mkdir()
    path = make_pack(workplace / "data" / "toy.npz", folds=10, per_fold=2)
    # Ten folds of two same pairs and two different ones: 80 images of 60 persons.
    names, lines = ["index,image_id,subject_id"], ["image_id,subject_id,gender,label_source"]
    person = 0
    for fold in range(10):
        for pair in range(4):
            for side in range(2):
                entry = fold * 8 + pair * 2 + side
                person += pair >= 2 or side == 0
                group = ("female", "male")[person % 2]
                names.append(f"{entry},q{person}/{entry}.jpg,q{person}")
                lines.append(f"q{person}/{entry}.jpg,q{person},{group},curator")
    (workplace / "data" / "toy_images.csv").write_text("\n".join(names))
    (workplace / "A.csv").write_text("\n".join(lines))
    config = Backbone(name="iresnet18", width=0.125, embedding_size=16)
    backbone = create_backbone(config, seed=0)
    save_model(workplace / "run" / "model.safetensors", backbone, config, Preprocessing(), {})
    return path


@pytest.mark.integration
def test_model_and_bench_on_the_way(
    pack: Path, workplace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run("--model", "run", "--bench", "toy", "--data", "data", "--device", "cpu")
    text = capsys.readouterr().out
    assert "80 images of 60 subjects" in text
    document = json.loads((workplace / "out" / "audit.json").read_text())
    assert document["settings"]["impostors"] == "list"
    assert set(document["inputs"]) == {"model", "attributes", "pairs"}
    details = document["inputs"]["model"]["details"]
    assert details["flip"] is True and details["dim"] == 16
    # Both views are known, so that raw and unit fusion are compared.
    assert {row["of"] for row in document["fusion"]} == {"FMR", "FNMR"}
    everyone = [row for row in document["rates"] if row["name"] == "all groups"]
    assert {(row["fmr"]["n"], row["fnmr"]["n"]) for row in everyone} == {(20, 20)}
    embed(["--model", "run", "--bench", "toy", "--data", "data", "--out", "E.npz"])
    run("--embeddings", "E.npz", "--bench", "toy", "--data", "data", out="again")
    again = json.loads((workplace / "again" / "audit.json").read_text())
    for part in ("norms", "association", "rates", "differentials"):
        assert again[part] == document[part]
    assert "the sum of two views" in str(again["not_computed"])
    run(
        "--model", "run", "--bench", "toy", "--data", "data", "--pairs", "all", "--no-flip", out="c"
    )
    every = json.loads((workplace / "c" / "audit.json").read_text())
    assert every["settings"]["impostors"] == "all"
    rows = [row for row in every["rates"] if row["name"] == "all groups"]
    assert {(row["fmr"]["n"], row["fnmr"]["n"]) for row in rows} == {(80 * 79 // 2 - 20, 20)}


def test_model_needs_images(pack: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "--model needs --bench or --pairs" in refused_run(capsys, "--model", "run")


@pytest.mark.integration
def test_model_against_a_baseline_model(
    pack: Path, workplace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bench = ["--bench", "toy", "--data", "data"]
    embed(["--model", "run", *bench, "--out", "E.npz"])
    message = refused_run(capsys, "--embeddings", "E.npz", "--baseline", "run", "--seed", "1")
    assert message.startswith("run: with --embeddings the baseline is a file of embeddings")
    run("--model", "run", *bench, "--baseline", "run/model.safetensors")
    document = json.loads((workplace / "out" / "audit.json").read_text())
    described = document["inputs"]["baseline"]
    assert described["sha256"] == document["inputs"]["model"]["sha256"]
    # The same model twice: nothing changes.
    changes = [row["change"] for row in document["comparison"]["rows"]]
    assert {change for change in changes if change is not None} == {0.0}
