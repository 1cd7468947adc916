"""The command calibrate, and everybody who takes what it leaves: same, verify, an export."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import cv2
import numpy as np
import pytest

import facerec
from facerec.backbones import Backbone, Preprocessing, create_backbone
from facerec.commands.calibrate import main
from facerec.commands.same import main as same
from facerec.commands.verify import main as verify
from facerec.commands.verify_scores import main as verify_scores
from facerec.embedding import recognizer, save_model
from facerec.embedding.extraction import Embeddings
from facerec.embedding.file import write_embeddings
from facerec.embedding.score_calibration import ScoreCalibration
from facerec.files import write_json

SMALL = Backbone("iresnet18", embedding_size=16, width=0.125)
WHO = np.repeat(np.arange(60), 3)
IDS = np.array([f"p{person}/{image}.jpg" for image, person in enumerate(WHO)])
SUBJECTS = np.array([f"p{person}" for person in WHO])


def toy(spread: float = 0.6, keep: slice = slice(None)) -> Embeddings:
    """Embeddings of 60 people with three images each."""
    generator = np.random.default_rng(0)
    vectors = generator.standard_normal((60, 12))[WHO]
    vectors = (vectors + spread * generator.standard_normal((WHO.size, 12))).astype(np.float32)
    model = {"name": "toy", "sha256": "a" * 64, "preprocessing": None}
    norms = np.linalg.norm(vectors, axis=1)
    note, rows = {"model": model}, (vectors[keep], norms[keep])
    return Embeddings(*rows, True, ids=IDS[keep], subjects=SUBJECTS[keep], note=note)


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    write_embeddings("toy.npz", toy())
    with Path("who.csv").open("w", encoding="utf-8", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["image_id", "subject_id", "kind"])
        # One person alone is a group that has no pairs of two.
        kinds = np.append("c", np.tile(["b", "a"], 30)[:59])[WHO]
        rows.writerows(zip(IDS, SUBJECTS, kinds, strict=True))
    return tmp_path


def test_ratios_and_groups_are_told(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["--people", "toy.npz", "--subjects", "who.csv", "--group", "kind", "--out", "c.json"])
    printed = capsys.readouterr().out
    found = ScoreCalibration.read(place / "c.json")
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


def test_same_and_an_export_take_it_from_beside_the_model(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recognizer._loaded.cache_clear()
    save_model("m/model.safetensors", create_backbone(SMALL, seed=1), SMALL, Preprocessing(), {})
    generator = np.random.default_rng(1)
    for person in range(30):
        pattern = generator.random((7, 7, 3))
        for image in range(2):
            noisy = np.clip(pattern + 0.25 * generator.standard_normal(pattern.shape), 0, 1)
            path = Path("people", f"p{person}", f"{image}.png")
            path.parent.mkdir(parents=True, exist_ok=True)
            cv2.imwrite(str(path), cv2.resize((255 * noisy).astype(np.uint8), (112, 112)))
    main(["--people", "people", "--model", "m"])
    assert "model.safetensors.calibration.json" in capsys.readouterr().out
    photos = ["people/p0/0.png", "people/p0/1.png", "--model", "m"]
    same([*photos, "--json"])
    answer = json.loads(capsys.readouterr().out)
    known = facerec.load("m", device="cpu").calibration
    assert known is not None
    told = known.evidence(answer["similarity"])
    assert answer["evidence"]["likelihood_ratio"] == told.likelihood_ratio
    same(photos)
    assert str(told) in capsys.readouterr().out
    # Whose flip it is not, it says nothing of, and says so.
    other = facerec.load("m", device="cpu", flip=False)
    spoken = other.verify(*photos[:2], 0.5)
    assert spoken.evidence is None and "another flip" in spoken.notes[0]
    # What is left of another model says nothing, not even of the flip.
    stale = replace(known, model={**known.model, "sha256": "b" * 64}, flip=False)
    write_json("m/model.safetensors.calibration.json", stale.to_json())
    assert (
        facerec.load("m", device="cpu").flip and facerec.load("m", device="cpu").calibration is None
    )


def test_verify_judges_it_on_pairs(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
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
    figures = {row["figure"]: row for row in result["figures"]}
    cost = figures["Cllr by c.json, bits"]
    assert figures["least Cllr, bits"]["value"] <= cost["value"] <= cost["high"]
    assert "its ratios hold" in " ".join(result["notes"])
    for group in "ab":
        high = figures[f"ratios too high by: {group}"]
        assert high["low"] < high["value"] < high["high"]
    assert list(Path("report/figures").glob("reliability-*.png"))
    capsys.readouterr()
    # Claims a thousand times too high.
    known = ScoreCalibration.read(Path("c.json"))
    wrong = known.ratio.coefficients + np.eye(len(known.ratio.knots))[0] * 7
    wild = replace(known, ratio=replace(known.ratio, coefficients=wrong))
    write_json("wild.json", wild.to_json())
    verify([*words, "--calibration", "wild.json"])
    assert "do not hold" in capsys.readouterr().out.replace("\n", " ")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--out", "c.json"], "--bench or --people"),
        (["--people", "toy.npz"], "--out"),
        (["--people", "toy.npz", "--group", "kind", "--out", "c.json"], "--subjects"),
        (["--people", "nobody.npz", "--out", "c.json"], "who is on its images"),
        (["--people", "unknown.npz", "--out", "c.json"], "which model"),
        (["--people", "few.npz", "--out", "c.json"], "people"),
        (["--people", "apart.npz", "--out", "c.json"], "overlap"),
        (["--people", "alike.npz", "--out", "c.json"], "do not separate"),
    ],
)
def test_what_cannot_be_calibrated_is_one_sentence(
    place: Path, refused: Callable[..., str], arguments: list[str], words: str
) -> None:
    write_embeddings("nobody.npz", replace(toy(), subjects=None))
    write_embeddings("unknown.npz", replace(toy(), note={}))
    write_embeddings("few.npz", toy(keep=slice(6)))
    write_embeddings("apart.npz", toy(spread=0.001))
    write_embeddings("alike.npz", toy(spread=50))
    assert words in refused(main, *arguments)
    assert not Path("c.json").exists()


def test_a_calibration_of_another_model_judges_nothing(
    place: Path, refused: Callable[..., str]
) -> None:
    main(["--people", "toy.npz", "--out", "c.json"])
    other = json.loads(Path("c.json").read_text())
    other["model"]["sha256"] = "b" * 64
    write_json("other.json", other)
    Path("pairs.csv").write_text("p0/0.jpg,p0/1.jpg,1\np0/0.jpg,p1/3.jpg,0\n")
    words = ["--pairs", "pairs.csv", "--format", "flat", "--embeddings", "toy.npz"]
    assert "another model" in refused(verify, *words, "--calibration", "other.json")
    assert "calibration" in refused(verify, *words, "--calibration", "pairs.csv")
    groups = ["--calibration", "c.json", "--subjects", "who.csv", "--group", "kind"]
    Path("s.csv").write_text("label,score\n1,0.9\n0,0.1\n1,0.8\n0,0.2\n")
    assert "scores alone" in refused(verify_scores, "s.csv", *groups)
    assert "give all three" in refused(verify, *words, "--calibration", "c.json", "--group", "k")
