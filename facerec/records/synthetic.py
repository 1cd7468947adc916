"""Data sets of drawn faces: a training set, three verification packs, attributes.

Everything follows from one seed. Every subject and every photo has a generator of its own, keyed
by (seed, set, subject, photo), so the bytes do not depend on the number of processes.
"""

from __future__ import annotations

import csv
import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, NamedTuple

import cv2
import numpy as np

import facerec
from facerec.errors import DatasetError
from facerec.files import staged_folder, write_json
from facerec.limits import (
    MOST,
    Checked,
    Count,
    CountOrNone,
    Limits,
    NonNegative,
    Positive,
    Probability,
)
from facerec.processes import process_pool
from facerec.progress import Progress
from facerec.records.decode import decode_image
from facerec.records.faces import draw_circumstances, draw_identity, encode, render, restyle
from facerec.records.layout import write_image_records
from facerec.records.packs import write_pack

DATASET_FILE = "dataset.json"
FOLDS = 10
PACKS = ("lfw", "cfp_fp", "agedb_30")
AGE_GAP = 30.0
"""Years between the two photos of every pair of agedb_30, mated or non-mated."""
CONTROL = ("heads", "tails")
"""Values of the column ``control``: groups that differ in nothing, as a coin was thrown for every
subject. What an audit detects between them is a false alarm."""
_SETS = ("train", *PACKS)
_PHOTOS = 4
"""Photos of each subject in a pack: two mated pairs."""


@dataclass(frozen=True)
class Group(Checked):
    """A group of subjects whose photos can be given a worse quality: a known truth for audits.

    Nothing else depends on the group; the faces are drawn alike in all of them.
    """

    name: str
    """Value in the column ``group`` of attributes.csv."""
    share: Probability = 0.5
    """Share of the subjects; the shares of all groups add up to 1."""
    contrast: Positive = 1.0
    """Factor on the contrast of every photo."""
    blur: NonNegative = 0.0
    """Extra blur of every photo: standard deviation in pixels."""
    noise: NonNegative = 0.0
    """Extra noise of every photo: standard deviation in grey levels."""


@dataclass(frozen=True)
class SyntheticSet(Checked):
    """What to draw."""

    seed: CountOrNone = 0
    """Source of everything; another seed gives other subjects."""
    identities: Count = 200
    """Subjects in the training set."""
    images_per_identity: Count = 20
    """Photos of each of them."""
    pairs_per_fold: Annotated[int, Limits(4, MOST)] = 60
    """Pairs in each of the ten folds of a pack, half of them mated (LFW has 600)."""
    groups: tuple[Group, ...] = (Group("A"), Group("B"))
    """Groups of subjects, and the quality planted in their photos."""

    def __post_init__(self) -> None:
        """Refuse what cannot be drawn.

        Raises:
            RecipeError: a number out of range.
            DatasetError: an odd number of pairs, or groups whose names or shares do not fit.
        """
        super().__post_init__()
        if self.pairs_per_fold % 2:
            raise DatasetError(f"pairs_per_fold {self.pairs_per_fold}: give an even number")
        names, total = {group.name for group in self.groups}, sum(g.share for g in self.groups)
        if len(names) < len(self.groups) or not math.isclose(total, 1.0, abs_tol=1e-6):
            raise DatasetError(
                f"groups {sorted(names)}: give different names, and shares that add up to 1, not "
                f"to {total:g}"
            )

    @property
    def subjects_per_fold(self) -> int:
        """Number of subjects in one fold of a pack; each gives two mated pairs."""
        return max(2, math.ceil(self.pairs_per_fold / 4))

    @property
    def total_images(self) -> int:
        """Number of images that are drawn in all."""
        packs = len(PACKS) * FOLDS * self.subjects_per_fold * _PHOTOS
        return self.identities * self.images_per_identity + packs


class Photo(NamedTuple):
    """One drawn photo and its row of attributes.csv."""

    jpeg: bytes
    row: dict[str, str]


class _Subject(NamedTuple):
    """Work for one process: all photos of one subject."""

    set: str
    place: int
    """Within the set."""
    number: int
    """Within everything that is drawn; names the subject."""
    fold: str
    group: Group
    control: str
    photos: int


def write_synthetic(
    out: Path, config: SyntheticSet, processes: int = 1, progress: Progress | None = None
) -> None:
    """Write a training set and three packs into one folder.

    ``train.rec``, ``.idx``, ``.lst`` and ``property`` (InsightFace's layout); ``lfw.bin`` (everyday
    photos), ``cfp_fp.bin`` (frontal against profile) and ``agedb_30.bin`` (thirty years apart),
    each in ten folds of mated pairs followed by as many non-mated pairs, with ``NAME_images.csv``
    (index, image_id) beside it; ``attributes.csv`` for every image, with the planted ``group`` and
    a ``control``, which a coin decided; ``dataset.json``. Nobody is in two folds, two packs, or in
    a pack and the training set. The files appear together when all are drawn, ``train.rec`` last.

    Args:
        out: the folder; files of the same names are replaced, others stay.
        config: what to draw.
        processes: processes that draw, ≥ 1; the bytes do not depend on it.
        progress: called with the images drawn.

    Raises:
        FacerecError: a file cannot be written.
    """
    work, subjects = partial(_album, seed=config.seed), _subjects(config)
    rows: list[dict[str, str]] = []
    with (
        staged_folder(out, DatasetError, last="train.rec") as folder,
        process_pool(processes, cv2.setNumThreads, (1,)) as pool,
    ):
        drawn = map(work, subjects) if processes == 1 else pool.map(work, subjects, chunksize=2)

        def albums(count: int) -> Iterator[list[Photo]]:
            for album in itertools.islice(drawn, count):
                rows.extend(photo.row for photo in album)
                if progress is not None:
                    progress("drawing faces", len(rows), config.total_images)
                yield album

        training = (
            (label, photo.row["image_id"], photo.jpeg)
            for label, album in enumerate(albums(config.identities))
            for photo in album
        )
        write_image_records(folder / "train", training, num_classes=config.identities)
        for name in PACKS:
            photos = _pairs(name, list(albums(FOLDS * config.subjects_per_fold)), config)
            half = config.pairs_per_fold // 2
            labels = ([True] * half + [False] * half) * FOLDS
            write_pack(folder / f"{name}.bin", [photo.jpeg for photo in photos], labels)
            ids = (photo.row["image_id"] for photo in photos)
            table = [{"index": str(index), "image_id": name} for index, name in enumerate(ids)]
            _write_table(folder / f"{name}_images.csv", table)
        _write_table(folder / "attributes.csv", rows)
        versions = {
            "facerec": facerec.__version__, "numpy": np.__version__, "opencv": cv2.__version__
        }  # fmt: skip
        note = {"kind": "generated faces", "config": asdict(config), "versions": versions}
        write_json(folder / DATASET_FILE, note)


def contact_sheet(config: SyntheticSet, subjects: int = 6, photos: int = 8) -> bytes:
    """Return the first photos of the first training subjects as a JPEG, a row each."""
    rows = []
    for subject in _subjects(config)[: min(subjects, config.identities)]:
        album = _album(subject, config.seed)[:photos]
        rows.append(np.hstack([decode_image(photo.jpeg, "") for photo in album]))
    return encode(np.vstack(rows), 90)


def _subjects(config: SyntheticSet) -> list[_Subject]:
    """Return everybody in the order of the files."""
    sections = [("train", "", config.identities, config.images_per_identity)]
    sections += [
        (name, str(fold), config.subjects_per_fold, _PHOTOS)
        for name in PACKS
        for fold in range(1, FOLDS + 1)
    ]
    # Of a generator of its own, so that nothing else depends on it.
    coin = np.random.default_rng([config.seed, len(_SETS) + 3])
    subjects: list[_Subject] = []
    inside = dict.fromkeys(_SETS, 0)
    for number, (name, fold, count, photos) in enumerate(sections):
        for group in _assign_groups(config, count, number):
            control, who = CONTROL[coin.integers(2)], len(subjects)
            subjects.append(_Subject(name, inside[name], who, fold, group, control, photos))
            inside[name] += 1
    return subjects


def _assign_groups(config: SyntheticSet, count: int, section: int) -> list[Group]:
    """Share ``count`` subjects among the groups as evenly as can be, in random order."""
    generator = np.random.default_rng([config.seed, len(_SETS) + 1, section + 1])
    quantiles = (np.arange(count) + generator.uniform()) / count
    bounds = np.cumsum([group.share for group in config.groups])
    chosen = np.minimum(np.searchsorted(bounds, quantiles, side="right"), len(config.groups) - 1)
    return [config.groups[index] for index in generator.permutation(chosen)]


def _album(subject: _Subject, seed: int) -> list[Photo]:
    """Draw all photos of a subject."""
    # Ones are added because a seed sequence takes missing numbers for zeros.
    key = [seed, _SETS.index(subject.set) + 1, subject.place + 1]
    drawn, quality = draw_identity(np.random.default_rng(key)), subject.group
    name = f"person_{subject.number:06d}"
    album = []
    for index in range(subject.photos):
        generator = np.random.default_rng([*key, index + 1])
        person, kind, age = drawn, "everyday", None
        second = index % 2 == 1  # in packs, photos 0 and 1 are a pair, and so are 2 and 3
        if subject.set == "cfp_fp":
            kind = "profile" if second else "frontal"
        elif subject.set == "agedb_30":
            # The younger age is the same in all photos of the subject, the later ones add the gap.
            age = 20 + (person.traits["base_age"] - 20) * 0.7 + AGE_GAP * second
            if second and generator.random() < 0.5:
                person = restyle(person, generator)
        elif subject.set == "train":
            # Training photos span what the three packs ask for.
            kind = "profile" if generator.random() < 0.12 else "training"
            age = float(generator.uniform(20, 75)) if generator.random() < 0.15 else None
        how = draw_circumstances(person, kind, generator, age)
        how["contrast"] *= quality.contrast
        for planted in ("blur", "noise"):
            how[planted] = math.hypot(how[planted], getattr(quality, planted))
        row = {
            "image_id": f"{name}/{name}_{index + 1:04d}.jpg",
            "subject_id": name,
            "group": quality.name,
            "control": subject.control,
            "set": subject.set,
            "fold": subject.fold,
            "age": f"{how['age']:.1f}",
            "yaw": f"{how['yaw']:.1f}",
            "label_source": "generated",
        }
        album.append(Photo(encode(render(person, how, generator), how["quality"]), row))
    return album


def _pairs(name: str, albums: Sequence[list[Photo]], config: SyntheticSet) -> list[Photo]:
    """Return the photos of all pairs of a pack, fold by fold, the mated ones first."""
    half = config.pairs_per_fold // 2
    pairs: list[tuple[Photo, Photo]] = []
    for fold in range(FOLDS):
        subjects = albums[fold * config.subjects_per_fold : (fold + 1) * config.subjects_per_fold]
        pairs += [(album[i], album[i + 1]) for i in (0, 2) for album in subjects][:half]
        # As in the mated pairs, the first photo has an even number and the second an odd one.
        every = [
            (first[i], second[j])
            for first, second in itertools.permutations(subjects, 2)
            for i in (0, 2)
            for j in (1, 3)
        ]
        key = [config.seed, len(_SETS) + 2, _SETS.index(name) + 1, fold + 1]
        chosen = np.random.default_rng(key).choice(len(every), half, replace=False)
        pairs += [every[k] for k in sorted(chosen)]
    return [photo for pair in pairs for photo in pair]


def _write_table(path: Path, rows: Sequence[dict[str, str]]) -> None:
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
