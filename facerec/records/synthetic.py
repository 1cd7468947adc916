"""Data sets of generated faces: a training set, three verification packs, attributes.

Everything follows from one seed. Every subject and every photo has a generator of its own, keyed
by (seed, set, subject, photo), so the bytes do not depend on the number of processes.
"""

from __future__ import annotations

import contextlib
import csv
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Annotated

import cv2
import numpy as np

import facerec
from facerec.errors import DatasetError
from facerec.files import atomic_path, staged_folder, write_json
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
from facerec.records.faces import (
    CONDITIONS,
    Identity,
    Nuisance,
    draw_identity,
    draw_nuisance,
    encode,
    render,
    restyle,
)
from facerec.records.faces.parameters import (
    RESTYLED_SHARE,
    TRAINING_AGED_SHARE,
    TRAINING_PROFILE_SHARE,
)
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

    Nothing else depends on the group; skin, hair and geometry are drawn alike in all of them.
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
    """What to generate."""

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
        """Refuse what cannot be generated.

        Raises:
            RecipeError: a number out of range.
            DatasetError: an odd number of pairs, or groups whose names or shares do not fit.
        """
        super().__post_init__()
        if self.pairs_per_fold % 2:
            raise DatasetError(
                f"pairs_per_fold: found {self.pairs_per_fold}, give an even number, because half "
                "of the pairs are mated"
            )
        names = [group.name for group in self.groups]
        shares = [group.share for group in self.groups]
        if not names or len(set(names)) < len(names):
            raise DatasetError(f"groups: found {names}, give different names")
        if not math.isclose(sum(shares), 1.0, abs_tol=1e-6):
            raise DatasetError(f"groups: the shares {shares} add up to {sum(shares):g}, not to 1")

    @property
    def subjects_per_fold(self) -> int:
        """Number of subjects in one fold of a pack; each gives two mated pairs."""
        return max(2, math.ceil(self.pairs_per_fold / 4))

    @property
    def total_images(self) -> int:
        """Number of images that are rendered in all."""
        packs = len(PACKS) * FOLDS * self.subjects_per_fold * _PHOTOS
        return self.identities * self.images_per_identity + packs


@dataclass(frozen=True)
class SyntheticSummary:
    """What `write_synthetic` wrote."""

    path: Path
    """The folder."""
    identities: int
    """Subjects in the training set."""
    training_images: int
    pack_images: int
    """Distinct images in all packs."""
    pairs: dict[str, int]
    """Pairs of each pack."""


@dataclass(frozen=True)
class Photo:
    """One generated photo and what is known of it."""

    image_id: str
    subject_id: str
    group: str
    control: str
    """One of ``CONTROL``."""
    set: str
    fold: int | None
    """1 to 10 in packs."""
    age: float
    yaw: float
    jpeg: bytes


@dataclass(frozen=True)
class _Subject:
    """Work for one process: all photos of one subject."""

    set: str
    index: int
    """Within the set."""
    number: int
    """Within everything that is generated; names the subject."""
    fold: int | None
    group: Group
    control: str
    photos: int


def write_synthetic(
    out: Path,
    config: SyntheticSet,
    processes: int = 1,
    progress: Progress | None = None,
) -> SyntheticSummary:
    """Generate a training set and three packs in one folder.

    ``train.rec``, ``.idx``, ``.lst`` and ``property`` (InsightFace's layout); ``lfw.bin`` (everyday
    photos), ``cfp_fp.bin`` (frontal against profile) and ``agedb_30.bin`` (thirty years apart),
    each in ten folds of mated pairs followed by as many non-mated pairs, with ``NAME_images.csv``
    (index, image_id) beside it; ``attributes.csv`` for every image, with the planted ``group`` and
    a ``control``, which a coin decided; ``dataset.json``. Nobody is in two folds, two packs, or in
    a pack and the training set. The files appear together when all are drawn, ``train.rec`` last.

    Args:
        out: the folder; files of the same names are replaced, others stay.
        config: what to generate.
        processes: processes that render; the bytes do not depend on it.
        progress: called with the images drawn.

    Raises:
        DatasetError: ``processes`` is below 1.
        FacerecError: a file cannot be written.
    """
    if processes < 1:
        raise DatasetError(f"processes: found {processes}, give at least 1")
    with staged_folder(out, DatasetError, last="train.rec") as folder:
        return replace(_write_set(folder, config, processes, progress), path=Path(out))


def _write_set(
    out: Path, config: SyntheticSet, processes: int, progress: Progress | None
) -> SyntheticSummary:
    subjects = _subjects(config)
    attributes: list[Photo] = []
    with _rendered(subjects, config.seed, processes) as rendered:

        def photos(count: int) -> Iterator[list[Photo]]:
            for _ in range(count):
                album = next(rendered)
                attributes.extend(replace(photo, jpeg=b"") for photo in album)
                if progress is not None:
                    progress("drawing faces", len(attributes), config.total_images)
                yield album

        training = (
            (label, photo.image_id, photo.jpeg)
            for label, album in enumerate(photos(config.identities))
            for photo in album
        )
        write_image_records(out / "train", training, num_classes=config.identities)
        for name in PACKS:
            _write_pack(out, name, list(photos(FOLDS * config.subjects_per_fold)), config)

    _write_table(
        out / "attributes.csv",
        ("image_id", "subject_id", "group", "control", "set", "fold", "age", "yaw",
         "label_source"),
        (
            (p.image_id, p.subject_id, p.group, p.control, p.set,
             "" if p.fold is None else str(p.fold), f"{p.age:.1f}", f"{p.yaw:.1f}", "generated")
            for p in attributes
        ),
    )  # fmt: skip
    training_images = config.identities * config.images_per_identity
    summary = SyntheticSummary(
        path=out,
        identities=config.identities,
        training_images=training_images,
        pack_images=config.total_images - training_images,
        pairs=dict.fromkeys(PACKS, FOLDS * config.pairs_per_fold),
    )
    counts = asdict(summary)
    del counts["path"]
    write_json(
        out / DATASET_FILE,
        {
            "kind": "generated faces",
            "config": asdict(config),
            "counts": counts,
            "versions": {
                "facerec": facerec.__version__,
                "numpy": np.__version__,
                "opencv": cv2.__version__,
            },
        },
    )
    return summary


def contact_sheet(config: SyntheticSet, subjects: int = 6, suffix: str = ".png") -> bytes:
    """Draw an overview of the first training subjects and return it as an encoded image.

    One row a subject: frontal without expression, three everyday photos, one turned further, a
    profile, and the subject thirty years later. Noise is left out to keep the file small.

    Args:
        config: whose subjects to draw.
        subjects: number of rows.
        suffix: ``".png"`` or ``".jpg"``.

    Raises:
        DatasetError: another suffix.
    """
    if suffix not in (".png", ".jpg"):
        raise DatasetError(f"a contact sheet ends in .png or .jpg, not in {suffix!r}")
    kinds = ("everyday", "everyday", "everyday", "training", "profile", "frontal")
    rows = []
    for index, subject in enumerate(_subjects(config)[: min(subjects, config.identities)]):
        quality = replace(subject.group, noise=0)
        identity = draw_identity(_generator(config.seed, "train", index))
        frontal = _planted(Nuisance(noise=0), quality)
        row = [render(identity, frontal, _generator(config.seed, "train", index, 0))]
        for number, kind in enumerate(kinds, start=1):
            generator = _generator(config.seed, "train", index, number)
            age = identity.base_age + AGE_GAP if number == len(kinds) else None
            nuisance = draw_nuisance(identity, CONDITIONS[kind], generator, age)
            row.append(render(identity, _planted(replace(nuisance, noise=0), quality), generator))
        rows.append(np.hstack(row))
    sheet = np.vstack(rows)[..., ::-1]
    return bytes(cv2.imencode(suffix, sheet)[1])


def _generator(seed: int, name: str, subject: int, photo: int | None = None) -> np.random.Generator:
    # Ones are added because a seed sequence takes missing numbers for zeros.
    key = [seed, _SETS.index(name) + 1, subject + 1]
    return np.random.default_rng(key if photo is None else [*key, photo + 1])


def _subjects(config: SyntheticSet) -> list[_Subject]:
    """Return everybody in the order of the files."""
    sections: list[tuple[str, int | None, int, int]] = [
        ("train", None, config.identities, config.images_per_identity)
    ]
    sections += [
        (name, fold, config.subjects_per_fold, _PHOTOS)
        for name in PACKS
        for fold in range(1, FOLDS + 1)
    ]
    # Of a generator of its own, so that nothing else depends on it.
    coin = np.random.default_rng([config.seed, len(_SETS) + 3])
    coins = (CONTROL[side] for side in coin.integers(2, size=sum(s[2] for s in sections)))
    subjects: list[_Subject] = []
    inside = dict.fromkeys(_SETS, 0)
    for number, (name, fold, count, photos) in enumerate(sections):
        groups = _assign_groups(config, count, number)
        for group in groups:
            control = next(coins)
            subjects.append(
                _Subject(name, inside[name], len(subjects), fold, group, control, photos)
            )
            inside[name] += 1
    return subjects


def _assign_groups(config: SyntheticSet, count: int, section: int) -> list[Group]:
    """Share ``count`` subjects among the groups as evenly as can be, in random order."""
    generator = np.random.default_rng([config.seed, len(_SETS) + 1, section + 1])
    quantiles = (np.arange(count) + generator.uniform()) / count
    bounds = np.cumsum([group.share for group in config.groups])
    chosen = np.minimum(np.searchsorted(bounds, quantiles, side="right"), len(config.groups) - 1)
    return [config.groups[index] for index in generator.permutation(chosen)]


@contextlib.contextmanager
def _rendered(
    subjects: Sequence[_Subject], seed: int, processes: int
) -> Iterator[Iterator[list[Photo]]]:
    """Give the albums of all subjects, in their order, from one process or several."""
    work = partial(_album, seed=seed)
    if processes == 1:
        yield map(work, subjects)
        return
    with process_pool(processes, cv2.setNumThreads, (1,)) as pool:
        yield pool.map(work, subjects, chunksize=2)


def _album(subject: _Subject, seed: int) -> list[Photo]:
    """Render all photos of a subject."""
    drawn = draw_identity(_generator(seed, subject.set, subject.index))
    name = f"person_{subject.number:06d}"
    album = []
    for index in range(subject.photos):
        generator = _generator(seed, subject.set, subject.index, index)
        identity, nuisance = _situation(drawn, subject, index, generator)
        nuisance = _planted(nuisance, subject.group)
        image = render(identity, nuisance, generator)
        album.append(
            Photo(
                image_id=f"{name}/{name}_{index + 1:04d}.jpg",
                subject_id=name,
                group=subject.group.name,
                control=subject.control,
                set=subject.set,
                fold=subject.fold,
                age=identity.base_age if nuisance.age is None else nuisance.age,
                yaw=nuisance.yaw,
                jpeg=encode(image, nuisance.jpeg_quality),
            )
        )
    return album


def _planted(nuisance: Nuisance, quality: Group) -> Nuisance:
    """Give a photo the quality of its group."""
    return replace(
        nuisance,
        contrast=nuisance.contrast * quality.contrast,
        blur=math.hypot(nuisance.blur, quality.blur),
        noise=math.hypot(nuisance.noise, quality.noise),
    )


def _situation(
    identity: Identity, subject: _Subject, photo: int, generator: np.random.Generator
) -> tuple[Identity, Nuisance]:
    """Draw how the photo was taken; in packs, photos 0 and 1 are a pair, and so are 2 and 3."""
    second = photo % 2 == 1
    if subject.set == "cfp_fp":
        kind = "profile" if second else "frontal"
        return identity, draw_nuisance(identity, CONDITIONS[kind], generator)
    if subject.set == "agedb_30":
        # The younger age is the same in all photos of the subject, the later ones add the gap.
        young = 20.0 + (identity.base_age - 20.0) * 0.7
        then = young + (AGE_GAP if second else 0.0)
        if second and generator.random() < RESTYLED_SHARE:
            identity = restyle(identity, generator)
        return identity, draw_nuisance(identity, CONDITIONS["everyday"], generator, then)
    if subject.set == "train":
        if generator.random() < TRAINING_PROFILE_SHARE:
            return identity, draw_nuisance(identity, CONDITIONS["profile"], generator)
        aged = generator.random() < TRAINING_AGED_SHARE
        age = float(generator.uniform(20, 75)) if aged else None
        return identity, draw_nuisance(identity, CONDITIONS["training"], generator, age)
    return identity, draw_nuisance(identity, CONDITIONS["everyday"], generator)


def _write_pack(out: Path, name: str, albums: Sequence[list[Photo]], config: SyntheticSet) -> None:
    """Write ``NAME.bin`` and ``NAME_images.csv`` from the albums of all folds in order."""
    half = config.pairs_per_fold // 2
    pairs: list[tuple[Photo, Photo]] = []
    for fold in range(FOLDS):
        subjects = albums[fold * config.subjects_per_fold : (fold + 1) * config.subjects_per_fold]
        mated = [(album[i], album[i + 1]) for i in (0, 2) for album in subjects]
        pairs += mated[:half]
        generator = np.random.default_rng(
            [config.seed, len(_SETS) + 2, _SETS.index(name) + 1, fold + 1]
        )
        # As in the mated pairs, the first photo has an even number and the second an odd one.
        every = [
            (first[i], second[j])
            for first in subjects
            for second in subjects
            if first is not second
            for i in (0, 2)
            for j in (1, 3)
        ]
        pairs += [every[k] for k in sorted(generator.choice(len(every), half, replace=False))]
    images = [photo for pair in pairs for photo in pair]
    issame = ([True] * half + [False] * half) * FOLDS
    write_pack(out / f"{name}.bin", [photo.jpeg for photo in images], issame)
    rows = ((str(index), photo.image_id) for index, photo in enumerate(images))
    _write_table(out / f"{name}_images.csv", ("index", "image_id"), rows)


def _write_table(path: Path, header: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    with atomic_path(path) as temporary, temporary.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(header)
        writer.writerows(rows)
