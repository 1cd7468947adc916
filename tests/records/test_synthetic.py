"""Drawn faces: reproducible, disjoint, aligned, recognisable, and as bad as planted."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import replace
from pathlib import Path

import cv2
import numpy as np
import pytest
from helpers.toy_files import read_files, read_table

from facerec.records import RecordImages, decode_image, read_pack
from facerec.records.faces import YAWS
from facerec.records.synthetic import (
    AGE_GAP,
    CONTROL,
    FOLDS,
    PACKS,
    Group,
    SyntheticSet,
    _subjects,
    write_synthetic,
)

SMALL = SyntheticSet(
    seed=5,
    subjects=6,
    images_per_subject=3,
    pairs_per_fold=4,
    groups=(Group("A"), Group("B", contrast=0.5, blur=1.5)),
)


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("faces")
    write_synthetic(folder, SMALL)
    return folder


@pytest.mark.integration
def test_same_seed_same_bytes_with_any_number_of_processes(small: Path, tmp_path: Path) -> None:
    seen: list[tuple[str, int, int]] = []
    write_synthetic(tmp_path, SMALL, 2, lambda *now: seen.append(now))
    assert read_files(tmp_path) == read_files(small)
    assert seen[-1] == ("drawing faces", SMALL.total_images, SMALL.total_images)


@pytest.mark.parametrize("name", PACKS)
def test_packs_hold_balanced_folds_of_pairs_that_are_what_the_labels_say(
    small: Path, name: str
) -> None:
    known = {row["image_id"]: row for row in read_table(small / "attributes.csv")}
    rows = read_table(small / f"{name}_images.csv")
    assert [int(row["index"]) for row in rows] == list(range(len(rows)))
    pack = read_pack(small / f"{name}.bin")
    half = SMALL.pairs_per_fold // 2
    assert list(pack.issame) == ([True] * half + [False] * half) * FOLDS
    seen: set[tuple[str, str]] = set()
    for pair, same in enumerate(pack.issame):
        ids = rows[2 * pair]["image_id"], rows[2 * pair + 1]["image_id"]
        first, second = known[ids[0]], known[ids[1]]
        assert decode_image(pack.images[2 * pair], ids[0]).shape == (112, 112, 3)
        assert (first["subject_id"] == second["subject_id"]) == bool(same)
        assert first["set"] == second["set"] == name
        assert int(first["fold"]) == int(second["fold"]) == pair // SMALL.pairs_per_fold + 1
        assert ids not in seen
        seen.add(ids)
        if name == "cfp_fp":
            assert abs(float(first["yaw"])) <= YAWS["frontal"][1] + 0.1
            assert abs(float(second["yaw"])) >= YAWS["profile"][0] - 0.1
        if name == "agedb_30" and same:
            assert float(second["age"]) - float(first["age"]) == pytest.approx(AGE_GAP, abs=0.11)


def test_attributes_cover_every_image_once_and_people_meet_nowhere(small: Path) -> None:
    rows = read_table(small / "attributes.csv")
    assert len(rows) == len({row["image_id"] for row in rows}) == SMALL.total_images
    places = {
        (row["subject_id"], row["set"], row["fold"], row["group"], row["control"]) for row in rows
    }
    assert len(places) == len({row["subject_id"] for row in rows})
    records = RecordImages(small / "train.rec")
    assert records.layout == "insightface"
    listed = sorted(line.split("\t")[2] for line in (small / "train.lst").read_text().splitlines())
    assert listed == sorted(row["image_id"] for row in rows if row["set"] == "train")


def test_a_coin_decides_the_control_and_groups_are_equal() -> None:
    rows = [subject.row for subject in _subjects(replace(SMALL, subjects=1000))]
    counts = Counter((row["group"], row["control"]) for row in rows if row["set"] == "train")
    for name in ("A", "B"):
        # Of 500 coins for each group, 5 standard deviations around one half.
        assert sum(counts[name, side] for side in CONTROL) == 500
        assert abs(counts[name, CONTROL[0]] - 250) < 56


def test_planted_quality_lowers_contrast_and_sharpness(small: Path) -> None:
    known = {row["image_id"]: row["group"] for row in read_table(small / "attributes.csv")}
    pack, found = read_pack(small / "lfw.bin"), defaultdict(list)
    for index, row in enumerate(read_table(small / "lfw_images.csv")):
        image = decode_image(pack.images[index], "").mean(axis=-1)
        sharpness = np.abs(cv2.Laplacian(image, cv2.CV_64F)).mean()
        found[known[row["image_id"]]].append((image.std(), sharpness))
    good, poor = (np.mean(found[group], axis=0) for group in "AB")
    assert poor[0] < 0.7 * good[0] and poor[1] < 0.6 * good[1]
