"""Generated faces: reproducible, disjoint, aligned, recognisable, and as bad as planted."""

from __future__ import annotations

import csv
import json
from collections import Counter
from dataclasses import replace
from pathlib import Path

import cv2
import numpy as np
import pytest

from facerec.errors import DatasetError, RecipeError
from facerec.records.faces import (
    CONDITIONS,
    TEMPLATE,
    Identity,
    Nuisance,
    draw_identity,
    draw_nuisance,
    encode,
    render,
    renderer,
)
from facerec.records.faces.drawing import TEXELS, TOP, WIDTH, A, B
from facerec.records.faces.head import build_head
from facerec.records.faces.parameters import BEARDS, HAIR_STYLES
from facerec.records.layout import open_image_records
from facerec.records.packs import read_pack
from facerec.records.synthetic import (
    AGE_GAP,
    CONTROL,
    FOLDS,
    PACKS,
    Group,
    SyntheticSet,
    _subjects,
    contact_sheet,
    write_synthetic,
)

SMALL = SyntheticSet(
    seed=5,
    identities=6,
    images_per_identity=3,
    pairs_per_fold=4,
    groups=(Group("A"), Group("B", contrast=0.5, blur=1.5)),
)


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("faces")
    write_synthetic(folder, SMALL)
    return folder


def table(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def decode(data: bytes) -> np.ndarray:
    return cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_COLOR_RGB)


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


@pytest.mark.integration
def test_same_seed_same_bytes_with_any_number_of_processes(small: Path, tmp_path: Path) -> None:
    seen: list[tuple[str, int, int]] = []
    summary = write_synthetic(tmp_path, SMALL, 2, lambda *now: seen.append(now))
    assert contents(tmp_path) == contents(small)
    total = summary.training_images + summary.pack_images
    assert seen[-1] == ("drawing faces", total, total) and total == SMALL.total_images


def test_killed_before_its_last_move_it_leaves_no_training_set(
    small: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Then `synthesize` and studies write the folder again instead of taking it for whole."""
    write_synthetic(tmp_path, replace(SMALL, seed=1))
    moved = Path.replace

    def stopped(self: Path, target: Path) -> Path:
        if target == tmp_path / "train.rec":
            raise KeyboardInterrupt
        return moved(self, target)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", stopped)
        with pytest.raises(KeyboardInterrupt):
            write_synthetic(tmp_path, SMALL)
    assert {**contents(tmp_path), "train.rec": contents(small)["train.rec"]} == contents(small)
    assert "train.rec" not in contents(tmp_path)
    write_synthetic(tmp_path, SMALL)
    assert contents(tmp_path) == contents(small)


def test_another_seed_gives_other_people() -> None:
    sheets = [contact_sheet(replace(SMALL, seed=seed), subjects=1) for seed in (0, 0, 1)]
    assert sheets[0] == sheets[1] != sheets[2]


def test_training_set_reads_as_insightface_layout(small: Path) -> None:
    records = open_image_records(small / "train.rec")
    assert records.layout == "insightface"
    assert len(records) == SMALL.identities * SMALL.images_per_identity
    assert (small / "property").read_text().split()[0] == f"{SMALL.identities},112,112"


@pytest.mark.parametrize("name", PACKS)
def test_packs_hold_balanced_folds_of_aligned_size(small: Path, name: str) -> None:
    pack = read_pack(small / f"{name}.bin")
    issame = np.asarray(pack.issame).reshape(FOLDS, SMALL.pairs_per_fold)
    half = SMALL.pairs_per_fold // 2
    assert issame[:, :half].all()
    assert not issame[:, half:].any()
    for index in range(2 * len(pack.issame)):
        assert decode(pack.encoded(index)).shape == (112, 112, 3)


@pytest.mark.parametrize("name", PACKS)
def test_pairs_are_what_the_labels_say(small: Path, name: str) -> None:
    known = {row["image_id"]: row for row in table(small / "attributes.csv")}
    rows = table(small / f"{name}_images.csv")
    assert [int(row["index"]) for row in rows] == list(range(len(rows)))
    pack = read_pack(small / f"{name}.bin")
    seen: set[tuple[str, str]] = set()
    for pair, same in enumerate(pack.issame):
        ids = rows[2 * pair]["image_id"], rows[2 * pair + 1]["image_id"]
        first, second = known[ids[0]], known[ids[1]]
        assert (first["subject_id"] == second["subject_id"]) == bool(same)
        assert first["set"] == second["set"] == name
        assert int(first["fold"]) == int(second["fold"]) == pair // SMALL.pairs_per_fold + 1
        assert ids not in seen
        seen.add(ids)
        if name == "cfp_fp":
            assert abs(float(first["yaw"])) <= CONDITIONS["frontal"].yaw[1] + 0.1
            assert abs(float(second["yaw"])) >= CONDITIONS["profile"].yaw[0] - 0.1
        if name == "agedb_30" and same:
            assert float(second["age"]) - float(first["age"]) == pytest.approx(AGE_GAP, abs=0.11)


def test_attributes_cover_every_image_once_and_people_meet_nowhere(small: Path) -> None:
    rows = table(small / "attributes.csv")
    assert len(rows) == len({row["image_id"] for row in rows}) == SMALL.total_images
    assert {row["label_source"] for row in rows} == {"generated"}
    places: dict[str, set[tuple[str, ...]]] = {}
    for row in rows:
        place = row["set"], row["fold"], row["group"], row["control"]
        places.setdefault(row["subject_id"], set()).add(place)
    assert all(len(place) == 1 for place in places.values())
    in_packs = {row["image_id"] for name in PACKS for row in table(small / f"{name}_images.csv")}
    named = {row["image_id"] for row in rows if row["set"] != "train"}
    assert in_packs <= named
    listed = {line.split("\t")[2] for line in (small / "train.lst").read_text().splitlines()}
    assert listed == {row["image_id"] for row in rows if row["set"] == "train"}


def test_a_coin_decides_the_control() -> None:
    people = _subjects(replace(SMALL, identities=1000))
    counts = Counter((p.group.name, p.control) for p in people if p.set == "train")
    # Of 500 coins for each group, 5 standard deviations around one half.
    assert set(counts) == {(name, side) for name in ("A", "B") for side in CONTROL}
    assert all(abs(counts[name, CONTROL[0]] - 250) < 56 for name in ("A", "B"))


def test_dataset_json_states_the_configuration(small: Path) -> None:
    note = json.loads((small / "dataset.json").read_text())
    assert note["config"]["groups"][1]["contrast"] == 0.5
    assert note["counts"]["pairs"] == dict.fromkeys(PACKS, FOLDS * SMALL.pairs_per_fold)


def test_planted_quality_lowers_contrast_and_sharpness(small: Path) -> None:
    known = {row["image_id"]: row["group"] for row in table(small / "attributes.csv")}
    contrast: dict[str, list[float]] = {"A": [], "B": []}
    sharpness: dict[str, list[float]] = {"A": [], "B": []}
    for name in PACKS:
        pack = read_pack(small / f"{name}.bin")
        for row in table(small / f"{name}_images.csv"):
            image = decode(pack.encoded(int(row["index"]))).mean(axis=-1)
            group = known[row["image_id"]]
            contrast[group].append(float(image.std()))
            sharpness[group].append(float(np.abs(cv2.Laplacian(image, cv2.CV_64F)).mean()))
    assert np.mean(contrast["B"]) < 0.7 * np.mean(contrast["A"])
    assert np.mean(sharpness["B"]) < 0.6 * np.mean(sharpness["A"])


def test_no_photo_is_empty() -> None:
    # Many people at random angles: a single bad number in the ray march would blacken a photo.
    for index in range(60):
        generator = np.random.default_rng([11, index])
        person = draw_identity(generator)
        kind = ("everyday", "profile", "training")[index % 3]
        image = render(person, draw_nuisance(person, CONDITIONS[kind], generator), generator)
        assert image.std() > 8, index
        assert image[30:90, 30:80].mean() > 15, index


def test_group_shares_are_kept_to_the_nearest_person(small: Path) -> None:
    people = {row["subject_id"]: row["group"] for row in table(small / "attributes.csv")
              if row["set"] == "train"}  # fmt: skip
    assert sorted(people.values()) == ["A"] * 3 + ["B"] * 3


def landmarks(identity: Identity, nuisance: Nuisance) -> np.ndarray:
    """Return the five points of the rendered image in pixels, as ``TEMPLATE``."""
    points = renderer._moved_landmarks(build_head(identity), nuisance)
    points = points @ renderer._rotation(nuisance).T
    alignment = renderer._alignment(points, nuisance)
    return points[:, :2] @ alignment[:, :2].T + alignment[:, 2]


def test_landmarks_of_frontal_faces_lie_near_the_template() -> None:
    errors = []
    for seed in range(40):
        points = landmarks(draw_identity(np.random.default_rng(seed)), Nuisance())
        errors.append(np.linalg.norm(points - TEMPLATE, axis=1))
        assert points.mean(axis=0) == pytest.approx(TEMPLATE.mean(axis=0), abs=1e-6)
    assert np.mean(errors) < 2.0
    assert np.max(errors) < 7.0


def test_a_photo_does_not_depend_on_where_its_arrays_lie() -> None:
    head = build_head(draw_identity(np.random.default_rng(0)))
    rotation = renderer._rotation(Nuisance(yaw=20.0))
    alignment = renderer._alignment(head.landmarks @ rotation.T, Nuisance())
    generator = np.random.default_rng(1)
    marches = set()
    for _ in range(30):
        # What is held meanwhile pushes the arrays of each march to other addresses.
        held = [np.empty(size, np.uint8) for size in generator.integers(1, 200_000, 40)]
        found = renderer._march(head, rotation, alignment)
        marches.add(b"".join(array.tobytes() for array in found))
        del held
    assert len(marches) == 1


@pytest.mark.parametrize("yaw", [-70.0, -25.0, 0.0, 40.0])
def test_the_fast_march_finds_what_a_naive_one_finds(yaw: float) -> None:
    head = build_head(draw_identity(np.random.default_rng(int(abs(yaw)))))
    nuisance = Nuisance(yaw=yaw, pitch=5.0)
    rotation = renderer._rotation(nuisance)
    alignment = renderer._alignment(head.landmarks @ rotation.T, nuisance)
    _, _, depth, hit = renderer._march(head, rotation, alignment)

    # Half a millimetre at a time towards the back, at every pixel.
    inverse = cv2.invertAffineTransform(alignment)
    u, v = np.meshgrid(np.arange(112), np.arange(112))
    camera = np.stack([u, v, np.ones_like(u)], axis=-1) @ inverse.T
    first = np.full((112, 112), -np.inf)
    for z in np.arange(130, -130, -0.5):
        x, y, z_model = np.moveaxis(camera @ rotation[:2] + z * rotation[2], -1, 0)
        x, z_model = x / A, z_model / B
        half = np.sin(np.arctan2(x, z_model) / 2)
        column = ((half + 1) * WIDTH / 4 - 0.5).astype(np.float32)
        row = ((y - TOP) * TEXELS / 2 - 0.5).astype(np.float32)
        radius = cv2.remap(head.radius, column, row, cv2.INTER_LINEAR, None, cv2.BORDER_REPLICATE)
        inside = (np.hypot(x, z_model) < radius) & np.isinf(first)
        first[inside] = z
    solid = np.isfinite(first)
    assert (hit != solid).sum() < 0.01 * solid.sum()
    both = hit & solid
    assert np.median(np.abs(depth - first)[both]) < 0.5
    assert (np.abs(depth - first)[both] < 3).mean() > 0.99


def test_turning_moves_the_nose_and_foreshortens_the_far_eye() -> None:
    identity = draw_identity(np.random.default_rng(1))
    left, front, right = (landmarks(identity, Nuisance(yaw=yaw)) for yaw in (-60, 0, 60))
    for points, sign in ((left, -1), (right, 1)):
        to_nose = points[2, 0] - points[:2, 0].mean()
        assert sign * to_nose > abs(front[2, 0] - front[:2, 0].mean()) + 8
        assert points[1, 0] - points[0, 0] < 0.75 * (front[1, 0] - front[0, 0])


def test_the_eyes_are_drawn_where_the_landmarks_say() -> None:
    # White of the eye, pupil and lashes make the strongest horizontal contrasts of a bare face.
    identity = replace(
        draw_identity(np.random.default_rng(3)), hair_style="bald", recession=0.0, beard="none",
        moles=(), scar=None, freckles=0.0,
    )  # fmt: skip
    nuisance = Nuisance(noise=0)
    image = render(identity, nuisance, np.random.default_rng(0)).astype(np.float32).mean(axis=-1)
    edges = cv2.GaussianBlur(np.abs(np.gradient(image, axis=1)), (0, 0), 2.5)
    points = landmarks(identity, nuisance)
    for eye, columns in ((points[0], slice(30, 54)), (points[1], slice(58, 82))):
        window = edges[40:64, columns]
        row, column = np.unravel_index(window.argmax(), window.shape)
        assert column + columns.start == pytest.approx(eye[0], abs=8)
        assert row + 40 == pytest.approx(eye[1], abs=5)


def test_photos_of_one_person_are_closer_than_photos_of_two() -> None:
    people = [draw_identity(np.random.default_rng([7, index])) for index in range(12)]
    images = np.array(
        [
            [
                render(person, draw_nuisance(person, CONDITIONS["everyday"], generator), generator)
                for generator in map(np.random.default_rng, ([index, 1], [index, 2], [index, 3]))
            ]
            for index, person in enumerate(people)
        ],
        dtype=np.float32,
    )
    # The inner face only, without each image's mean: backgrounds and exposure say nothing.
    faces = images[:, :, 24:104, 24:88].reshape(12, 3, -1)
    faces = faces - faces.mean(axis=-1, keepdims=True)
    flat = faces.reshape(36, -1)
    distance = np.linalg.norm(flat[:, None] - flat[None], axis=-1)
    same = np.kron(np.eye(12, dtype=bool), np.ones((3, 3), bool))
    within = distance[same & ~np.eye(36, dtype=bool)].mean()
    assert within < 0.9 * distance[~same].mean()


@pytest.mark.parametrize("style", HAIR_STYLES)
def test_every_style_renders_at_every_angle(style: str) -> None:
    generator = np.random.default_rng(2)
    identity = draw_identity(generator)
    for index, yaw in enumerate((-75.0, -30.0, 0.0, 75.0)):
        person = replace(identity, hair_style=style, beard=BEARDS[index + 1])
        nuisance = Nuisance(
            yaw=yaw, pitch=12.0, smile=0.5, mouth_open=0.7, blink=0.9, age=80.0, glasses=True
        )
        image = render(person, nuisance, generator)
        assert image.shape == (112, 112, 3)
        assert image.dtype == np.uint8
        # The middle of the face is skin in every pose: neither background nor a hole.
        red, _, blue = image[60:80, 50:62].reshape(-1, 3).mean(axis=0)
        assert red > blue
        assert decode(encode(image, 90)).shape == image.shape


def test_rendering_depends_on_its_arguments_alone() -> None:
    identity = draw_identity(np.random.default_rng(0))
    first = render(identity, Nuisance(glasses=True), np.random.default_rng(4))
    render(draw_identity(np.random.default_rng(1)), Nuisance(), np.random.default_rng(0))
    again = render(identity, Nuisance(glasses=True), np.random.default_rng(4))
    assert np.array_equal(first, again)


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"seed": -1}, "seed"),
        ({"identities": 0}, "identities"),
        ({"pairs_per_fold": 5}, "pairs_per_fold"),
        ({"groups": (Group("A", share=0.5),)}, "add up"),
        ({"groups": (Group("A"), Group("A"))}, "different names"),
    ],
)
def test_what_cannot_be_generated_is_refused(change: dict[str, object], word: str) -> None:
    with pytest.raises((DatasetError, RecipeError), match=word):
        SyntheticSet(**change)


def test_a_group_cannot_be_without_contrast() -> None:
    with pytest.raises(RecipeError, match=r"Group\.contrast must be above 0"):
        Group("B", contrast=0.0)


def test_a_contact_sheet_has_a_row_for_each_person() -> None:
    sheet = decode(contact_sheet(SMALL, subjects=2, suffix=".jpg"))
    assert sheet.shape == (2 * 112, 7 * 112, 3)
    with pytest.raises(DatasetError, match=r"\.gif"):
        contact_sheet(SMALL, suffix=".gif")
