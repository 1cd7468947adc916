"""The command calibrate, and everybody who takes what it leaves: same, verify, an export."""

from __future__ import annotations

import csv
import json
from dataclasses import replace
from pathlib import Path

import cv2
import helpers.tiny_training  # noqa: F401  (its backbone)
import numpy as np
import pytest
from helpers.toy_packs import make_pack
from pytest import CaptureFixture, MonkeyPatch

import facerec
from facerec.backbones import Backbone, Preprocessing, create_backbone
from facerec.base.files import sha256, write_json
from facerec.commands.calibrate import main
from facerec.commands.embed import main as embed
from facerec.commands.same import main as same
from facerec.commands.verify import main as verify
from facerec.embedding import recognizer, save_model
from facerec.embedding.calibration import ModelCalibration
from facerec.embedding.extraction import Embeddings
from facerec.embedding.file import write_embeddings
from facerec.verification import score_pairs
from tests.commands.conftest import Refused, Told

SMALL = Backbone("tiny_linear", embedding_size=16)
WHO = np.repeat(np.arange(60), 3)
IDS = np.array([f"p{person}/{image}.jpg" for image, person in enumerate(WHO)])
SUBJECTS = np.array([f"p{person}" for person in WHO])


def toy(spread: float = 0.6, keep: slice = slice(None)) -> Embeddings:
    """Embeddings of 60 people with three images each."""
    generator = np.random.default_rng(0)
    vectors = generator.standard_normal((60, 12))[WHO]
    vectors = (vectors + spread * generator.standard_normal((WHO.size, 12))).astype(np.float32)
    model = {"name": "toy", "sha256": "a" * 64, "preprocessing": vars(Preprocessing())}
    norms = np.linalg.norm(vectors, axis=1)
    note, rows = {"model": model}, (vectors[keep], norms[keep])
    return Embeddings(*rows, True, ids=IDS[keep], subjects=SUBJECTS[keep], note=note)


@pytest.fixture
def place(tmp_path: Path, monkeypatch: MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    write_embeddings("toy.npz", toy())
    with Path("who.csv").open("w", encoding="utf-8", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["image_id", "subject_id", "kind"])
        # One person alone is a group that has no pairs of two.
        kinds = np.append("c", np.tile(["b", "a"], 30)[:59])[WHO]
        rows.writerows(zip(IDS, SUBJECTS, kinds, strict=True))
    return tmp_path


def test_ratios_and_groups_are_told(place: Path, told: Told) -> None:
    printed = told(main, "--people toy.npz --subjects who.csv --group kind --out c.json")
    whole = ModelCalibration.read(place / "c.json")
    found = whole.score_calibration
    assert found is not None and whole.faces is None and "limits of faces" in printed
    assert found.source == "toy.npz" and found.ratio.subjects == 60 and found.flip
    assert found.ratio.mated == 180 and found.ratio.non_mated == 180 * 179 // 2 - 180
    assert [row["subjects"] for row in found.groups] == [29, 30]
    # Both groups are made alike, and one test compares them.
    assert found.groups[0]["p_holm"] == pytest.approx(found.groups[1]["p_holm"]) != 0
    assert (
        "no difference between groups" in printed
        and "too few people or pairs" in printed
        and f"{found.cllr:.4f}" in printed
    )
    assert found.cllr >= found.least_cllr


@pytest.fixture
def people(place: Path) -> Path:
    """Return photos of 30 people, with a model beside them."""
    recognizer.loaded.cache_clear()
    save_model("m/model.safetensors", create_backbone(SMALL, seed=1), SMALL, Preprocessing(), {})
    generator = np.random.default_rng(1)
    for person in range(30):
        pattern = generator.random((7, 7, 3))
        for image in range(2):
            noisy = np.clip(pattern + 0.25 * generator.standard_normal(pattern.shape), 0, 1)
            path = Path("people", f"p{person}", f"{image}.png")
            path.parent.mkdir(parents=True, exist_ok=True)
            cv2.imwrite(str(path), cv2.resize((255 * noisy).astype(np.uint8), (112, 112)))
    return place / "people"


def test_what_it_leaves_decides_everywhere(
    people: Path, refused: Refused, capsys: CaptureFixture
) -> None:
    main(["--people", "people", "--model", "m", "--shift", "2", "-1", "--fpr", "1e-1"])
    printed, file = capsys.readouterr().out, Path("m/model.safetensors.facerec.json")
    known = ModelCalibration.read(file)
    assert str(file) in printed and known.faces is not None
    assert known.score_calibration is not None
    assert (known.sha256, known.source) == (sha256("m/model.safetensors"), "people")
    assert (known.shift, known.flip, known.align) == ((2, -1), True, None)
    (row,) = known.thresholds
    mine = facerec.load("m", device="cpu")
    assert mine.flip and mine.model.shift == (2, -1) and mine.model.cut == (-2, 1)
    ids = sorted(path for path in people.rglob("*.png"))
    vectors, who = mine.embed(ids), np.repeat(np.arange(30), 2)
    first, second = np.triu_indices(60, 1)
    scores = score_pairs(vectors, first, second)
    accepted, others = scores >= row.threshold, who[first] != who[second]
    assert row.false_accepts == ((accepted & others).sum(), others.sum())
    assert row.true_accepts == ((accepted & ~others).sum(), (~others).sum())
    assert row.fpr_realised == (accepted & others).sum() / others.sum() <= 0.1
    # Five pictures in a thousand of its own are refused, of 60 none.
    assert known.faces.faces == 60
    assert known.faces.limit == pytest.approx(known.faces(vectors).min(), abs=1e-3)
    photos = ["people/p0/0.png", "people/p0/1.png", "--model", "m"]
    same([*photos, "--json"])
    answer = json.loads(capsys.readouterr().out)
    told = known.score_calibration.evidence(answer["similarity"])
    assert answer["evidence"]["likelihood_ratio"] == told.likelihood_ratio
    assert answer["threshold"] == row.threshold and answer["model"]["shift"] == [2, -1]
    same(photos)
    assert str(told) in capsys.readouterr().out
    for flags in (["--no-flip"], ["--mean", "0"], ["--std", "1,2,3"], ["--channels", "bgr"]):
        assert "contradicts" in refused(same, *photos, *flags)
    # It is made anew whatever it said before, from these embeddings too.
    embed(["--images", "people", "--model", "m", "--out", "e.npz"])
    assert "name the model" in refused(main, "--people", "e.npz")
    main(["--people", "e.npz", "--model", "m"])
    again = ModelCalibration.read(file)
    assert again.shift == (2, -1) and again.source == "e.npz" and again.faces is not None
    # Faces that are not at hand cannot be spoilt.
    assert len(again.faces.centres) == 1 < len(known.faces.centres)
    main(["--people", "people", "--model", "m", "--no-flip"])
    other = ModelCalibration.read(file)
    assert (other.flip, other.shift) == (False, (0, 0))
    assert not facerec.load("m", device="cpu").flip
    # What a link in its place points to stays as it is.
    file.unlink()
    file.symlink_to(Path("who.csv").resolve())
    before = Path("who.csv").read_bytes()
    assert "a link" in refused(main, "--people", "e.npz", "--model", "m")
    assert Path("who.csv").read_bytes() == before


def test_nothing_is_said_of_another_model_s(people: Path, capsys: CaptureFixture) -> None:
    main(["--people", "people", "--model", "m"])
    save_model("m/model.safetensors", create_backbone(SMALL, seed=2), SMALL, Preprocessing(), {})
    capsys.readouterr()
    same(["people/p0/0.png", "people/p0/1.png", "--model", "m"])
    printed = capsys.readouterr().out
    assert "no decision" in printed and "another model" in printed
    assert "not looked at whether" in printed


def test_verify_judges_it_on_pairs(place: Path, capsys: CaptureFixture) -> None:
    main(["--people", "toy.npz", "--out", "c.json"])
    generator, lines = np.random.default_rng(2), []
    for _ in range(600):
        first, second = generator.integers(180, size=2)
        second = 3 * (first // 3) + (first + 1) % 3 if generator.random() < 0.5 else second
        if first != second:
            sames = int(SUBJECTS[first] == SUBJECTS[second])
            lines.append(f"{IDS[first]},{IDS[second]},{sames}\n")
    Path("pairs.csv").write_text("".join(lines))
    words = ["--pairs", "pairs.csv", "--format", "flat", "--embeddings", "toy.npz"]
    groups = ["--subjects", "who.csv", "--group", "kind"]
    verify([*words, "--calibration", "c.json", *groups, "--json", "r.json", "--out", "report"])
    (result,) = json.loads(Path("r.json").read_text())["results"]
    figures = {row["figure"]: row for row in result["rows"]}
    cost = figures["Cllr by c.json, bits"]
    assert figures["least Cllr, bits"]["value"] <= cost["value"] <= cost["high"]
    assert "its ratios hold" in " ".join(result["notes"])
    for group in "ab":
        high = figures[f"ratios too high by: {group}"]
        assert high["low"] < high["value"] < high["high"]
    assert list(Path("report/figures").glob("reliability-*.png"))
    capsys.readouterr()
    # Claims a thousand times too high.
    known = ModelCalibration.read(Path("c.json"))
    worth = known.score_calibration
    assert worth is not None
    wrong = worth.ratio.coefficients + np.eye(len(worth.ratio.knots))[0] * 7
    wild = replace(worth, ratio=replace(worth.ratio, coefficients=wrong))
    write_json("wild.json", replace(known, score_calibration=wild).to_json())
    verify([*words, "--calibration", "wild.json"])
    assert "do not hold" in capsys.readouterr().out.replace("\n", " ")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--out", "c.json"], "give one of --bench and --people"),
        (["--people", "toy.npz"], "--out"),
        (["--people", "toy.npz", "--group", "kind", "--out", "c.json"], "--subjects"),
        (["--people", "nobody.npz", "--out", "c.json"], "who is on its images"),
        (["--bench", "pack.bin", "--out", "c.json"], "only its same pairs"),
        (["--people", "unknown.npz", "--out", "c.json"], "which model"),
        (["--people", "partly.npz", "--out", "c.json"], "which model"),
        (["--people", "few.npz", "--out", "c.json"], "people"),
        (["--people", "alike.npz", "--out", "c.json"], "do not separate"),
        (["--people", "two.npz", "--out", "c.json"], "people"),
        (["--people", "mixed.npz", "--out", "c.json"], "wrong way round"),
        (["--people", "toy.npz", "--out", "c.json", "--shift", "1", "0"], "--shift"),
    ],
)
def test_what_cannot_be_calibrated_is_one_sentence(
    place: Path, refused: Refused, arguments: list[str], words: str
) -> None:
    make_pack(Path("pack.bin"))
    write_embeddings("nobody.npz", replace(toy(), subjects=None))
    write_embeddings("unknown.npz", replace(toy(), note={}))
    partly = {**toy().note, "model": {**toy().note["model"], "preprocessing": {"std": 128.0}}}
    write_embeddings("partly.npz", replace(toy(), note=partly))
    write_embeddings("few.npz", toy(keep=slice(6)))
    write_embeddings("alike.npz", toy(spread=50))
    two = np.where(WHO < 30, "a", "b")
    write_embeddings("two.npz", replace(toy(), subjects=two))
    # Each name stands for one image of three people.
    crossed = np.array([f"p{person // 3}-{image % 3}" for image, person in enumerate(WHO)])
    write_embeddings("mixed.npz", replace(toy(), subjects=crossed))
    assert words in refused(main, *arguments)
    assert not Path("c.json").exists()


def test_people_who_part_too_well_have_thresholds_alone(
    place: Path, capsys: CaptureFixture
) -> None:
    write_embeddings("apart.npz", toy(spread=0.001))
    main(["--people", "apart.npz", "--out", "c.json"])
    found = ModelCalibration.read(Path("c.json"))
    assert (
        found.score_calibration is None
        and found.thresholds
        and "not told" in capsys.readouterr().out
    )


def test_a_calibration_of_another_model_judges_nothing(place: Path, refused: Refused) -> None:
    main(["--people", "toy.npz", "--out", "c.json"])
    other = json.loads(Path("c.json").read_text())
    other["score_calibration"]["model"]["sha256"] = "b" * 64
    write_json("other.json", other)
    write_json("silent.json", other | {"score_calibration": None})
    Path("pairs.csv").write_text("p0/0.jpg,p0/1.jpg,1\np0/0.jpg,p1/3.jpg,0\n")
    words = ["--pairs", "pairs.csv", "--format", "flat", "--embeddings", "toy.npz"]
    assert "another model" in refused(verify, *words, "--calibration", "other.json")
    assert "calibration" in refused(verify, *words, "--calibration", "pairs.csv")
    assert "no likelihood ratio" in refused(verify, *words, "--calibration", "silent.json")
    assert "give all three" in refused(verify, *words, "--calibration", "c.json", "--group", "k")
