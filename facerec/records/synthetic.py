"""Data sets of drawn faces: a training set, three verification packs, attributes.

Everything follows from one seed. Every subject and every photo has a generator of its own, keyed
by (seed, section, subject, photo), so the bytes do not depend on the number of processes.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, NamedTuple, TypeAlias

import cv2
import numpy as np

import facerec
from facerec.base.files import staged_folder, write_json
from facerec.base.limits import MOST, Checked, Count, CountOrNone, Limits, NonNegative, Positive
from facerec.base.progress import Progress
from facerec.records.decode import decode_image
from facerec.records.faces import DrawnFace, draw_circumstances, encode
from facerec.records.layout import write_image_records
from facerec.records.packs import write_pack
from facerec.records.processes import process_pool

DATASET_FILE = "dataset.json"
FOLDS = 10
PACKS = ("lfw", "cfp_fp", "agedb_30")
AGE_GAP = 30.0
"""Years between the two photos of every pair of agedb_30, mated or non-mated."""
CONTROL = ("heads", "tails")
"""Values of the column ``control``: groups that differ in nothing, as a coin was thrown for every
subject. What an audit detects between them is a false alarm."""

_Photo: TypeAlias = "tuple[bytes, dict[str, str]]"
"""A JPEG and its row of attributes.csv."""

SOURCE = "study: groups given to generated faces"
"""Who recorded the groups."""


@dataclass(frozen=True)
class Group(Checked):
    """A group of subjects whose photos can be given a worse quality: a known truth for audits.

    Nothing else depends on the group; the faces are drawn alike in all of them.
    """

    name: str
    """Value in the column ``group`` of attributes.csv."""
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
    subjects: Count = 200
    """Subjects in the training set."""
    images_per_subject: Count = 20
    """Photos of each of them."""
    pairs_per_fold: Annotated[int, Limits(4, MOST)] = 60
    """Pairs in each of the ten folds of a pack, half of them mated (LFW has 600); an odd number is
    one less."""
    groups: tuple[Group, ...] = (Group("A"), Group("B"))
    """Groups of equally many subjects, and the quality planted in their photos; one at least."""

    @property
    def subjects_per_fold(self) -> int:
        """Number of subjects in one fold of a pack; four photos of each give two mated pairs."""
        return max(2, math.ceil(self.pairs_per_fold / 4))

    @property
    def total_images(self) -> int:
        """Number of images that are drawn in all."""
        packs = len(PACKS) * FOLDS * self.subjects_per_fold * 4
        return self.subjects * self.images_per_subject + packs


class _Subject(NamedTuple):
    """Work for one process: all photos of one subject."""

    key: list[int]
    """Seeds of the generator of these photos."""
    row: dict[str, str]
    """What their rows of attributes.csv share."""
    group: Group
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
    import pandas as pd

    rows: list[dict[str, str]] = []
    with (
        staged_folder(out, last="train.rec") as folder,
        process_pool(processes, cv2.setNumThreads, (1,)) as pool,
    ):
        every = map if processes == 1 else partial(pool.map, chunksize=2)
        drawn = every(_album, _subjects(config))

        def albums(count: int) -> Iterator[list[_Photo]]:
            for album in itertools.islice(drawn, count):
                rows.extend(row for _, row in album)
                if progress is not None:
                    progress("drawing faces", len(rows), config.total_images)
                yield album

        training = (
            (label, row["image_id"], jpeg)
            for label, album in enumerate(albums(config.subjects))
            for jpeg, row in album
        )
        write_image_records(folder / "train", training, num_classes=config.subjects)
        half = config.pairs_per_fold // 2
        for name in PACKS:
            photos = _pairs(name, list(albums(FOLDS * config.subjects_per_fold)), config)
            labels = ([True] * half + [False] * half) * FOLDS
            write_pack(folder / f"{name}.bin", [jpeg for jpeg, _ in photos], labels)
            ids = pd.DataFrame({"image_id": [row["image_id"] for _, row in photos]})
            ids.to_csv(folder / f"{name}_images.csv", index_label="index")
        pd.DataFrame(rows).to_csv(folder / "attributes.csv", index=False)
        versions = {
            "facerec": facerec.__version__, "numpy": np.__version__, "opencv": cv2.__version__
        }  # fmt: skip
        note = {"kind": "generated faces", "config": asdict(config), "versions": versions}
        write_json(folder / DATASET_FILE, note)


def contact_sheet(config: SyntheticSet) -> bytes:
    """Return eight photos of each of the first six training subjects as a JPEG, a row each."""
    albums = map(_album, _subjects(config)[: min(6, config.subjects)])
    rows = [[decode_image(jpeg, "") for jpeg, _ in album[:8]] for album in albums]
    return encode(np.vstack(list(map(np.hstack, rows))), 90)


def _subjects(config: SyntheticSet) -> list[_Subject]:
    """Return everybody in the order of the files."""
    sections = [("train", "", config.subjects, config.images_per_subject)]
    sections += [
        (name, str(fold), config.subjects_per_fold, 4)
        for name in PACKS
        for fold in range(1, FOLDS + 1)
    ]
    subjects: list[_Subject] = []
    for section, (name, fold, count, photos) in enumerate(sections, start=1):
        generator = np.random.default_rng([config.seed, section])
        groups = generator.permutation(count) % len(config.groups)
        for place, coin in enumerate(generator.integers(2, size=count), start=1):
            group, subject = config.groups[groups[place - 1]], f"subject_{len(subjects):06d}"
            row = {"subject_id": subject, "group": group.name, "control": CONTROL[coin]}
            row |= {"set": name, "fold": fold}
            # Keys hold no zero, which a seed sequence takes for a missing number.
            subjects.append(_Subject([config.seed, section, place], row, group, photos))
    return subjects


def _album(subject: _Subject) -> list[_Photo]:
    """Draw all photos of a subject."""
    face, album = DrawnFace(np.random.default_rng(subject.key)), []
    for number in range(1, subject.photos + 1):
        generator = np.random.default_rng([*subject.key, number])
        age = face.traits["age"] + generator.normal(0, 4)
        kind, second = "everyday", number % 2 == 0  # of a pair of a pack
        if subject.row["set"] == "cfp_fp":
            kind = "profile" if second else "frontal"
        elif subject.row["set"] == "agedb_30":
            # The younger age is the same in all photos of the subject, the later ones add the gap.
            age = 20 + (face.traits["age"] - 20) * 0.7 + AGE_GAP * second
        elif subject.row["set"] == "train":
            # Training photos span what the three packs ask for.
            kind = "profile" if generator.random() < 0.12 else "training"
            age = generator.uniform(20, 75) if generator.random() < 0.15 else age
        how = draw_circumstances(kind, max(18.0, age), generator)
        how["contrast"] *= subject.group.contrast
        how["blur"] = math.hypot(how["blur"], subject.group.blur)
        how["noise"] = math.hypot(how["noise"], subject.group.noise)
        name = subject.row["subject_id"]
        row = {"image_id": f"{name}/{name}_{number:04d}.jpg", **subject.row}
        row |= {"age": f"{how['age']:.1f}", "yaw": f"{how['yaw']:.1f}", "label_source": SOURCE}
        album.append((encode(face.photo(how, generator), how["quality"]), row))
    return album


def _pairs(name: str, albums: Sequence[list[_Photo]], config: SyntheticSet) -> list[_Photo]:
    """Return the photos of all pairs of a pack, fold by fold, the mated ones first."""
    half, size = config.pairs_per_fold // 2, config.subjects_per_fold
    # Behind the keys of the sections.
    generator = np.random.default_rng([config.seed, 2 + FOLDS * len(PACKS) + PACKS.index(name)])
    pairs: list[tuple[_Photo, _Photo]] = []
    for first in range(0, len(albums), size):
        fold = albums[first : first + size]
        pairs += [(album[i], album[i + 1]) for i in (0, 2) for album in fold][:half]
        # As in the mated pairs, the first photo has an even number and the second an odd one.
        every = [
            (one[i], other[j])
            for one, other in itertools.permutations(fold, 2)
            for i in (0, 2)
            for j in (1, 3)
        ]
        pairs += [every[k] for k in sorted(generator.choice(len(every), half, replace=False))]
    return [photo for pair in pairs for photo in pair]
