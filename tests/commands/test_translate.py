"""``facerec translate``, and ``identify`` with the bridge that it writes."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from helpers.toy_embeddings import take
from pytest import MonkeyPatch

from facerec.commands import enroll, identify, translate
from facerec.embedding import Embeddings, write_embeddings
from facerec.galleries import Gallery
from tests.commands.conftest import Refused, Told
from tests.galleries.test_bridge import photos

BRIDGE = ["bridge_old.npz", "bridge_new.npz", "--gallery", "old.npz", "--out", "bridge.npz"]


def joined(*sets: Embeddings) -> Embeddings:
    names = ("vectors", "norms", "ids", "subjects")
    parts = {name: np.concatenate([getattr(each, name) for each in sets]) for name in names}
    return replace(sets[0], **parts)


@pytest.fixture
def workplace(tmp_path: Path, monkeypatch: MonkeyPatch) -> Path:
    """A folder with a gallery of 40 people, and what both networks see of others."""
    monkeypatch.chdir(tmp_path)
    sets = {"bridge": (150, 0), "enrolled": (40, 1), "strangers": (120, 2), "visitors": (40, 3)}
    for name, (people, seed) in sets.items():
        for side, embeddings in zip(("old", "new"), photos(people, seed), strict=True):
            write_embeddings(f"{name}_{side}.npz", embeddings)
    enroll.main(["enrolled_old.npz", "--gallery", "old.npz"])
    return tmp_path


def test_a_bridge_tells_its_price_and_finds_who_is_enrolled(workplace: Path, told: Told) -> None:
    before = Path("old.npz").read_bytes()
    said = told(translate.main, *BRIDGE)
    assert "600 photos of 150 people" in said and "stay" in said and "translated over" in said
    assert Path("bridge.npz").stat().st_mode & 0o777 == 0o600
    search = ["enrolled_new.npz", "--gallery", "old.npz", "--bridge", "bridge.npz"]
    assert "--strangers" in told(identify.main, *search, "--json none.json")
    assert not any(
        answer["subject"] for answer in json.loads(Path("none.json").read_text())["answers"]
    )
    identify.main([*search, "--strangers", "strangers_new.npz", "--json", "found.json"])
    answers = json.loads(Path("found.json").read_text())["answers"]
    right = [answer["subject"] == answer["image_id"].rsplit("/", 1)[0] for answer in answers]
    assert np.mean(right) > 0.8
    assert Path("old.npz").read_bytes() == before


def test_people_of_the_gallery_are_named_and_left_out(
    workplace: Path, told: Told, refused: Refused
) -> None:
    """They leave enough others in the bridge, or too few."""
    for side, number in (("old", 0), ("new", 1)):
        both = joined(photos(150, 0)[number], photos(40, 1)[number])
        write_embeddings(f"bridge_{side}.npz", both)
    said = told(translate.main, *BRIDGE)
    assert (
        "40 people left out" in said and len(re.findall(r"(1/\d+), enrolled as \1\n", said)) == 10
    )
    assert "600 photos of 150 people" in said
    said = refused(translate.main, "enrolled_old.npz", "enrolled_new.npz", *BRIDGE[2:])
    assert "0 named people" in said


def test_what_does_not_fit_is_refused_in_a_sentence(workplace: Path, refused: Refused) -> None:
    translate.main(BRIDGE)
    assert "another model" in refused(translate.main, BRIDGE[1], BRIDGE[0], *BRIDGE[2:])
    search = ["--gallery", "old.npz", "--bridge", "bridge.npz"]
    assert "another model" in refused(identify.main, "visitors_old.npz", *search)
    enroll.main(["enrolled_new.npz", "--gallery", "new.npz"])
    new = ["visitors_new.npz", "--gallery", "new.npz", "--bridge", "bridge.npz"]
    assert "another model" in refused(identify.main, *new)
    assert "--bridge" in refused(identify.main, *new[:3], "--old", "old.npz")
    write_embeddings("few.npz", photos(10, 4)[1])
    few = "visitors_new.npz", *search, "--strangers", "few.npz"
    assert "40 usable" in refused(identify.main, *few)


def test_two_galleries_hold_both_spaces_until_nothing_is_left(workplace: Path) -> None:
    translate.main(BRIDGE)
    enroll.main(["visitors_new.npz", "--gallery", "new.npz"])
    write_embeddings("all_new.npz", joined(photos(40, 1)[1], photos(40, 3)[1]))
    search = ["all_new.npz", "--gallery", "new.npz", "--old", "old.npz", "--bridge", "bridge.npz"]
    search += ["--strangers", "strangers_new.npz", "--fpir", "1e-1", "--json", "found.json"]

    def found() -> tuple[set[str], set[str]]:
        identify.main(search)
        document = json.loads(Path("found.json").read_text())
        sides = document, document["old"]
        assert [Path(side["gallery"]["path"]).name for side in sides] == ["new.npz", "old.npz"]
        assert all(side["fpir"]["fpir"] <= 0.05 for side in sides)
        told = [{answer["subject"] for answer in side["answers"]} - {None} for side in sides]
        return told[0], told[1]

    new, old = found()
    assert {"3/0", "3/1"} <= new and {"1/0", "1/1"} <= old
    template = Gallery.read("old.npz").templates[0].tobytes()
    for name, gallery in (("3/0", "new.npz"), ("1/0", "old.npz")):
        enroll.main(["--gallery", gallery, "--delete", name])
    new, old = found()
    assert "3/0" not in new | old and "1/0" not in new | old
    assert template not in Path("old.npz").read_bytes()
    assert template not in Path("bridge.npz").read_bytes()


def test_who_comes_again_leaves_the_old_gallery(
    workplace: Path, told: Told, refused: Refused
) -> None:
    before = Gallery.read("old.npz")
    (gone, kept), names = before.templates[[0, -1]], before.subjects.tolist()
    people = photos(40, 1)[1]
    write_embeddings("come.npz", take(people, np.isin(people.subjects, names[:2])))
    own = ["come.npz", "--gallery", "old.npz", "--old", "old.npz"]
    assert "another --gallery" in refused(enroll.main, *own)
    assert "2 people taken out, 38 left" in told(
        enroll.main, "come.npz --gallery new.npz --old old.npz"
    )
    assert Gallery.read("new.npz").subjects.tolist() == names[:2]
    assert Gallery.read("old.npz").subjects.tolist() == names[2:]
    file = Path("old.npz").read_bytes()
    assert gone.tobytes() not in file and kept.tobytes() in file
