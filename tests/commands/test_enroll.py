"""What a user does with ``facerec enroll`` and ``facerec identify``."""

from __future__ import annotations

import json
import os
import shutil
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
from helpers.marked_faces import Marked, marked_photo, marks
from helpers.toy_embeddings import made
from pytest import CaptureFixture, MonkeyPatch

from facerec.backbones import Backbone, Preprocessing, create_backbone
from facerec.base import files
from facerec.commands import embed, enroll, identify
from facerec.embedding import read_embeddings, save_model, write_embeddings
from facerec.embedding.model import EmbeddingModel
from facerec.galleries import Gallery
from facerec.galleries.gallery_file import COLUMNS, DIGESTS
from tests.commands.conftest import Refused, Told


def write(path: str, vectors: np.ndarray, names: list[str], sha256: str = "ab" * 32) -> None:
    ids = np.array([f"{path} {i}" for i in range(len(vectors))])
    write_embeddings(Path(path), made(vectors, names, sha256, ids=ids, flip=True))


@pytest.fixture
def workplace(tmp_path: Path, monkeypatch: MonkeyPatch) -> np.ndarray:
    """A folder with embeddings of enrolled people, visitors and impostors."""
    monkeypatch.chdir(tmp_path)
    generator = np.random.default_rng(0)
    people = generator.standard_normal((60, 32))
    names = [f"p{i:02d}" for i in range(60)]
    noise = 0.3 * generator.standard_normal((2, 60, 32))
    write("enrol.npz", np.concatenate(people + noise), names * 2)
    visitors = np.concatenate([people[:5], generator.standard_normal((3, 32)), [[np.nan] * 32]])
    write("visit.npz", visitors, [""] * 9)
    impostors = generator.standard_normal((400, 32))
    write("impostors.npz", impostors, [f"x{i // 2}" for i in range(400)])
    return people


def test_the_fpir_of_groups_is_told(workplace: np.ndarray, told: Told, refused: Refused) -> None:
    """Half of the people look alike: strangers like them raise more alarms than the mixture."""
    alike = np.arange(60) % 2 == 1
    faces = np.where(alike[:, None], workplace + 1.2, workplace)
    write("enrol.npz", faces, [f"p{i:02d}" for i in range(60)])
    kinds = np.where(alike, "alike", "other")
    lines = [f"enrol.npz {i},p{i:02d},{kind}" for i, kind in enumerate(kinds)]
    Path("who.csv").write_text("image_id,subject_id,kind\n" + "\n".join(lines))
    arguments = ["enrol.npz", "--gallery", "g.npz", "--subjects", "who.csv", "--group", "kind"]
    text = told(enroll.main, *arguments)
    assert text.index("alike") < text.index("other") and "fewer than 200" in text
    known = Gallery.read("g.npz").calibration
    assert known is not None
    point = known.threshold("0.4", 60)
    rows = known.by_group(point, kinds)
    assert [row[0] for row in rows] == ["alike", "other"]
    (_, here, alone), inside = rows[0], kinds[known.probe_subjects] == "alike"
    reached = known.scores[inside, 0] >= point.threshold
    assert here.value == pytest.approx(reached.mean())
    assert (here.size, alone.size) == (60, 30) and here.value >= alone.value > point.value
    assert "--impostors" in refused(enroll.main, *arguments, "--impostors", "impostors.npz")


def test_enrol_identify_delete(workplace: np.ndarray, told: Told) -> None:
    text = told(enroll.main, "enrol.npz --gallery g.npz --impostors impostors.npz")
    assert "60 people enrolled" in text and "FPIR 1e-1: threshold" in text

    arguments = ["visit.npz", "--gallery", "g.npz", "--fpir", "0.05"]
    text = told(identify.main, *arguments, "--json a.json --candidates 2")
    assert "5 of 9 images identified, 1 failure to acquire" in text
    found = json.loads(Path("a.json").read_text())
    gallery = Gallery.read("g.npz")
    point = gallery.point("0.05")
    assert found["threshold"] == found["fpir"]["threshold"] == point.threshold
    assert found["fpir"]["fpir"] == point.value and found["fpir"]["gallery_size"] == 60
    assert [a["subject"] for a in found["answers"][:5]] == [f"p0{i}" for i in range(5)]
    for answer in found["answers"][:8]:
        first, second = (candidate["score"] for candidate in answer["candidates"])
        assert answer["score"] == first and answer["margin"] == pytest.approx(first - second)
    assert found["answers"][8]["failure"] == "no face"
    assert Path("a.json").stat().st_mode & 0o777 == 0o600
    assert len(found["answers"]) == 9 and len(found["answers"][0]["candidates"]) == 2

    assert "58 people" in told(enroll.main, "--gallery g.npz --delete p00 p03")
    identify.main([*arguments, "--json", "a.json"])
    found = json.loads(Path("a.json").read_text())
    subjects = [answer["subject"] for answer in found["answers"][:5]]
    assert subjects == [None, "p01", "p02", None, "p04"]
    # Of impostors who are not at hand the scores stay, but for those with who is gone.
    calibration = Gallery.read("g.npz").calibration
    assert len(calibration.scores) == 400 and calibration.entry_subjects.size == 58


def test_expiry_and_alarms(workplace: np.ndarray, told: Told) -> None:
    assert "false alarms" not in told(enroll.main, "enrol.npz --gallery g.npz --expires 2999-12-31")
    gallery = Gallery.read("g.npz")
    assert str(gallery.expires[0]) == "2999-12-31"
    gallery.expires[:2] = np.datetime64("2020-01-01")
    gallery.write("g.npz")
    assert "2 of 60 people" in told(
        identify.main, "visit.npz --gallery g.npz --threshold 0.7 --json a.json"
    )
    found = json.loads(Path("a.json").read_text())
    assert found["gallery"]["expired"] == 2 and found["gallery"]["people"] == 58
    assert [answer["subject"] for answer in found["answers"][:3]] == [None, None, "p02"]
    write("twin.npz", workplace[9:10], ["p09 again"])
    text = told(enroll.main, "twin.npz --gallery g.npz --expire")
    for said in (
        "also be in",
        "expired: 2 of 60 people",
        "deleted: p00, p01",
        "p09 again: cosine",
        "59 people",
    ):
        assert said in text


PHASES = {
    "before": (Gallery, "write"),
    "in": (Path, "replace"),
    "after": (files, "fsync_directory"),
}


@pytest.mark.parametrize("phase", PHASES)
def test_a_killed_enrolment_goes_on(
    workplace: np.ndarray, monkeypatch: MonkeyPatch, phase: str
) -> None:
    write("first.npz", workplace[:30] + 0.1, [f"p{i:02d}" for i in range(30)])
    for name in ("whole.npz", "killed.npz"):
        enroll.main(["first.npz", "--gallery", name])
    enroll.main(["enrol.npz", "--gallery", "whole.npz"])
    child = os.fork()
    if not child:
        monkeypatch.setattr(*PHASES[phase], lambda *_, **__: os.kill(os.getpid(), signal.SIGKILL))
        enroll.main(["enrol.npz", "--gallery", "killed.npz"])
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
    known = len(Gallery.read("killed.npz"))
    assert known == (60 if phase == "after" else 30)
    enroll.main(["enrol.npz", "--gallery", "killed.npz"])
    whole, killed = map(Gallery.read, ("whole.npz", "killed.npz"))
    for name in (*COLUMNS, *DIGESTS):
        if name != "enrolled":
            np.testing.assert_array_equal(getattr(killed, name), getattr(whole, name))
    np.testing.assert_array_equal(killed.calibration.scores, whole.calibration.scores)
    assert not [*Path.cwd().glob(".*")]


def test_more_images_and_failures(workplace: np.ndarray, told: Told) -> None:
    enroll.main(["enrol.npz", "--gallery", "g.npz"])
    write("more.npz", np.concatenate([workplace[:1], [[np.nan] * 32]]), ["p00", "new"])
    text = told(enroll.main, "more.npz --gallery g.npz --failures f.csv")
    assert "0 people enrolled, 1 extended, with 1 image; 1 image failed" in text
    assert "failure to enrol: new" in text
    assert Path("f.csv").stat().st_mode & 0o777 == 0o600
    assert Path("f.csv").read_text().splitlines() == ["image_id,failure", "more.npz 1,no face"]
    gallery = Gallery.read("g.npz")
    assert gallery.images[0] == 3 and "own people" in gallery.calibration.source


def test_pictures_that_are_no_faces_are_failures(workplace: np.ndarray, told: Told) -> None:
    for name, below in (("enrol", [0, 60, 61]), ("visit", [1])):
        plain = read_embeddings(f"{name}.npz")
        scores = np.where(np.isnan(plain.norms), np.nan, 2).astype(np.float32)
        scores[below] = -3
        known = replace(plain, face_scores=scores, note={**plain.note, "face_limit": -2.5})
        write_embeddings(f"{name}.npz", known)
    enroll.main(["enrol.npz", "--gallery", "all.npz", "--unchecked"])
    assert Gallery.read("all.npz").images.tolist() == [2] * 60
    text = told(enroll.main, "enrol.npz --gallery g.npz --failures f.csv")
    assert "3 of 120 images" in text and "left out" in text and "3 images failed" in text
    assert "failure to enrol: p00" in text and Path("f.csv").read_text().count("face score") == 3
    assert Gallery.read("g.npz").images.tolist() == [1, *[2] * 58]
    arguments = ["visit.npz", "--gallery", "g.npz", "--threshold", "0.5", "--json", "a.json"]
    for flags, lost in (([], [1, 8]), (["--unchecked"], [8])):
        assert f"{len(lost)} failure{'s' * (len(lost) > 1)} to acquire" in told(
            identify.main, *arguments, *flags
        )
        answers = json.loads(Path("a.json").read_text())["answers"]
        assert [i for i, answer in enumerate(answers) if answer["failure"]] == lost
        assert answers[1]["subject"] == (None if not flags else "p01")


def test_refusals(workplace: np.ndarray, refused: Refused) -> None:
    def check(*cases: tuple[Any, str, str]) -> None:
        for command, words, arguments in cases:
            assert words in refused(command.main, *arguments.split()), arguments

    check(
        (enroll, "No such file", "--gallery g.npz --delete p00"),
        (enroll, "nothing to do", "--gallery g.npz"),
        (enroll, "is over", "enrol.npz --gallery g.npz --expires 2020-01-01"),
        (enroll, "nothing to do", "--gallery g.npz --expires 2999-01-01"),
    )
    enroll.main(["enrol.npz", "--gallery", "g.npz"])
    before = Path("g.npz").read_bytes()
    write("theirs.npz", workplace, ["z"] * 60, sha256="cd" * 32)
    write("bad.npz", np.full((1, 32), np.nan), ["nobody"])
    cv2.imwrite("face.png", np.zeros((112, 112, 3), np.uint8))
    check(
        (enroll, "another model", "theirs.npz --gallery g.npz"),
        (identify, "another model", "theirs.npz --gallery g.npz"),
        (enroll, "--channels says how", "visit.npz --gallery g.npz --channels bgr"),
        (identify, "--channels says how", "visit.npz --gallery g.npz --channels bgr"),
        (enroll, "--no-flip says how", "enrol.npz --gallery n.npz --no-flip"),
        (identify, "give one", "visit.npz --gallery g.npz --fpir 0.1 --threshold 0.5"),
        (identify, "--model", ". --gallery g.npz"),
        (identify, "no such", "nobody --gallery g.npz"),
        (enroll, ".parquet", "--gallery g.npz --export people.csv"),
        (enroll, "'q'", "--gallery g.npz --delete p00 q"),
        (enroll, "bad.npz: 0 usable", "--gallery g.npz --impostors bad.npz"),
        (enroll, "nobody could", "bad.npz --gallery new.npz"),
    )
    assert Path("g.npz").read_bytes() == before
    assert not Path("new.npz").exists() and not Path("people.csv").exists()


def test_a_folder_of_images(
    tmp_path: Path, monkeypatch: MonkeyPatch, capsys: CaptureFixture, told: Told, refused: Refused
) -> None:
    monkeypatch.chdir(tmp_path)
    config = Backbone(name="mbf", width=0.25, embedding_size=16)
    backbone = create_backbone(config, seed=0)
    save_model(tmp_path / "model.safetensors", backbone, config, Preprocessing(), {})
    generator = np.random.default_rng(0)
    for person in "ab":
        (tmp_path / "faces" / person).mkdir(parents=True)
        image = generator.integers(0, 256, (112, 112, 3), dtype=np.uint8)
        for shot in range(2):
            image[0, 0] = shot  # the same photo would count once
            cv2.imwrite(str(tmp_path / "faces" / person / f"{shot}.png"), image)
    (tmp_path / "faces" / "b" / "2.jpg").write_bytes(b"no image")
    shutil.copytree("faces/a", os.fsdecode(b"faces/\xe9"))
    text = told(enroll.main, "faces --gallery g.npz --model model.safetensors")
    assert "2 people enrolled, 0 extended, with 4 images; 3 images failed, 1 person not" in text
    assert "b/2.jpg" in text and text.count("no UTF-8") == 2
    assert "note" not in text
    # Mirror images are added as the gallery has them.
    embedder = ["--model", "model.safetensors", "--threshold", "0.99", "--json", "a.json"]
    identify.main(["faces/a", "--gallery", "g.npz", *embedder])
    found = json.loads(Path("a.json").read_text())
    assert [answer["subject"] for answer in found["answers"]] == ["a", "a"]
    # A photo alone gets the answer that it has in its folder, by whatever path it is named.
    alone = tmp_path / "elsewhere" / "me.png"
    alone.parent.mkdir()
    alone.symlink_to(tmp_path / "faces" / "a" / "1.png")
    capsys.readouterr()
    for photo in ("faces/a/1.png", tmp_path / "faces/a/1.png", "faces/../faces/a/1.png", alone):
        assert "1 of 1 image identified" in told(
            identify.main, str(photo), "--gallery g.npz", *embedder
        )
        (answer,) = json.loads(Path("a.json").read_text())["answers"]
        assert answer == found["answers"][1]
    # What cannot be answered is refused before anything is embedded.
    write("others.npz", generator.standard_normal((2, 16)), ["u", "v"])
    enroll.main(["others.npz", "--gallery", "theirs.npz"])
    monkeypatch.setattr(EmbeddingModel, "embed_later", None)
    asked = ("faces/a", "--model", "model.safetensors")
    text = refused(identify.main, *asked, "--gallery", "theirs.npz", "--threshold", "0.5")
    assert "another model" in text
    assert "another model" in refused(enroll.main, *asked, "--gallery", "theirs.npz")
    assert "give a threshold" in refused(
        identify.main, *asked, "--gallery", "g.npz", "--fpir", "0.1"
    )


def test_several_faces(
    tmp_path: Path, monkeypatch: MonkeyPatch, told: Told, refused: Refused
) -> None:
    monkeypatch.chdir(tmp_path)
    config = Backbone(name="mbf", width=0.25, embedding_size=16)
    save_model("m.safetensors", create_backbone(config, seed=0), config, Preprocessing(), {})
    photos = {
        "people/ada/1.png": [(1, 10, 40, 1.5), (2, 240, 80, 0.8)],  # with somebody behind her
        "people/bob/1.png": [(3, 10, 40, 1.5), (4, 220, 40, 1.4)],  # with somebody beside him
        "visit/group.png": [(5, 0, 10, 0.8), (1, 100, 40, 1.5), (4, 290, 80, 0.9)],
        "visit/nobody.png": [],
    }
    for name, faces in photos.items():
        Path(name).parent.mkdir(parents=True, exist_ok=True)
        assert cv2.imwrite(name, marked_photo(*faces)[:, :, ::-1])
    model = ("--gallery", "g.npz", "--model", "m.safetensors")
    assert "--align" in refused(enroll.main, "people", *model, "--face", "1")
    monkeypatch.setattr("facerec.commands.embedder.parse_align", lambda *given: Marked())
    text = told(enroll.main, "people", *model)
    assert "1 photo shows several faces" in text and "ada/1.png: 2 faces, face 1" in text
    assert "1 person enrolled" in text and "bob/1.png: 2 faces, of which more" in text
    # Of the same photo another face may be another person, the same one may not.
    shutil.copytree("people/bob", "late/eve")
    text = told(enroll.main, "late", *model, "--face 2")
    text += told(enroll.main, "people", *model, "--face 1")
    assert text.count("1 person enrolled") == 2 and "1 image was in already" in text
    assert "'bob' already" in told(enroll.main, "late", *model, "--face 1")
    gallery = Gallery.read("g.npz")
    assert gallery.subjects.tolist() == ["ada", "eve", "bob"] and gallery.images.tolist() == [1] * 3

    text = told(identify.main, "visit", *model, "--threshold -1 --json a.json")
    assert "3 of 3 faces" in text and "1 failure to acquire" in text and "group.png face 3" in text
    *group, nobody = json.loads(Path("a.json").read_text())["answers"]
    photo = marked_photo(*photos["visit/group.png"])
    for number, (answer, face) in enumerate(zip(group, (1, 4, 5), strict=True), 1):
        points = marks(photo, face)
        assert (answer["image_id"], answer["face"]) == ("group.png", number)
        assert answer["box"] == [*points.min(axis=0), *points.max(axis=0)]
    assert [answer["subject"] for answer in group[:2]] == ["ada", "eve"]
    assert (nobody["image_id"], nobody["face"], nobody["box"]) == ("nobody.png", None, None)
    assert "no face" in nobody["failure"]
    assert "group.png: 3 faces, face 1" in told(
        identify.main, "visit", *model, "--threshold -1 --json b.json --face largest"
    )
    largest, none = json.loads(Path("b.json").read_text())["answers"]
    assert largest["score"] == pytest.approx(group[0]["score"], abs=1e-5) and none == nobody
    assert (largest["subject"], largest["face"], largest["box"]) == ("ada", None, None)

    # An embeddings file tells of both, however it came to be.
    assert "2 photos show several faces" in told(
        embed.main, "--images people --model m.safetensors --out e.npz"
    )
    text = told(enroll.main, "e.npz --gallery g.npz")
    assert "bob/1.png: 2 faces" in text and "2 images were in already" in text
