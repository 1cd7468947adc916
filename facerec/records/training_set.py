"""The training images that a recipe describes: one or several sets, and whom of them to keep."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
from numpy.typing import NDArray

from facerec.base.errors import DatasetError
from facerec.base.limits import Checked, Count, CountOrNone, Limits
from facerec.base.names import same_name
from facerec.base.progress import Progress
from facerec.records.augment import Augmentation
from facerec.records.dataset import FaceDataset, Source
from facerec.records.images import ImageSource, OnError, SubjectFolders, turned_note
from facerec.records.layout import RecordImages
from facerec.records.shards import PARQUET, RECORDS, TAR, set_kind
from facerec.records.table_images import TableImages
from facerec.records.tables import TextTable, read_text
from facerec.records.tar_shards import TarImages


@dataclass(frozen=True)
class Part(Checked):
    """A further set of training images, read with the layout, label and policy of the first."""

    path: Path
    """A record file (.rec), the folder that holds it, a folder of subject/image.jpg, WebDataset
    shards (.tar), or Parquet tables."""

    weight: Annotated[float, Limits(0.0, 1000.0, above=True)] = 1.0
    """Visits of each image in an epoch, where one of the first set has one; of 0.5 each epoch
    visits one half, the next the other."""

    shared_classes: bool = False
    """Its class numbers mean the same subjects as those of the first set; by default they mean
    others, and follow those of the sets before."""

    subjects: Path | None = None
    """Text file of the subjects to keep, a class name or number a line; by default all."""

    exclude: Path | None = None
    """CSV of the subjects and images to leave out, as `facerec overlap --csv` writes it."""

    labelled: bool = True
    """Whether its classes say who is who. Images without such take part in distillation and in norm
    penalties; no margin sees them. In a folder they lie in one of any name, or in several."""


@dataclass(frozen=True)
class Data(Checked):
    """Where the training images are and how they are read."""

    path: Path
    """A record file (.rec), the folder that holds it, a folder of subject/image.jpg, or WebDataset
    shards: a .tar, a folder of such, or several as in 'shards-{000..009}.tar'; or so Parquet tables
    with the columns image and label."""

    layout: Literal["auto", "records", "folder", "webdataset"] = "auto"
    """What the path holds; with auto a folder that has a .rec file is taken for records, and one of
    .tar files without folders for WebDataset shards."""

    augmentation: Augmentation = field(default_factory=Augmentation)
    """Probabilities of the random changes of training images."""

    on_error: OnError = "error"
    """What to do with a damaged record or image: error stops, skip counts, lists and replaces
    it."""

    label_index: CountOrNone | None = None
    """Number of the label that is the class, from 0, in records that carry several; by default the
    first of two."""

    subjects: Path | None = None
    """Text file of the subjects to keep, a class name or number a line; by default all."""

    exclude: Path | None = None
    """CSV of the subjects and images to leave out, as `facerec overlap --csv` writes it: a column
    subject_id (class names or numbers), image_id (keys of records or their paths in the .lst, or
    subject/image.jpg), or both; a line with both leaves out the image alone."""

    also: tuple[Part, ...] = ()
    """Further sets, joined to this one; subjects and exclude above are those of this one.
    `--data.also None` on a command line does without those of the recipe."""

    min_images: Count = 1
    """Leave out subjects with fewer images than this, in all sets together."""


def open_dataset(data: Data, seed: int, progress: Progress | None = None) -> FaceDataset:
    """Open what a recipe's ``data`` section describes.

    Args:
        data: the section.
        seed: of augmentation and replacements, ≥ 0.
        progress: called with the images done where all labels must be read.

    Raises:
        FacerecError: the data is missing, damaged or empty, or a subject to keep is unknown.
    """
    parts: list[Data | Part] = [data, *data.also]
    sources = [Source(open_images(data.path, data, progress))]
    for further in data.also:
        images = open_images(further.path, data, progress)
        sources.append(Source(images, further.weight, further.shared_classes, further.labelled))
    for source, part in zip(sources, parts, strict=True):
        if source.labelled and isinstance(source.images, (TarImages, TableImages)):
            _check_labelled(source.images, part.path)
    dataset = FaceDataset(
        *sources,
        augmentation=data.augmentation,
        on_error=data.on_error,
        seed=seed,
    )
    if data.min_images == 1 and not any(part.subjects or part.exclude for part in parts):
        return dataset
    each = zip(sources, parts, strict=True)
    kept = np.concatenate([_kept(source.images, part, progress) for source, part in each])
    labels = dataset.load_labels(progress)
    counts = np.bincount(labels[kept & (labels >= 0)], minlength=dataset.num_classes)
    # Images of nobody stay where a set is told to be of such.
    kept &= np.append(counts >= data.min_images, dataset.has_unlabelled)[labels]
    if not (kept & (labels >= 0)).any():
        raise DatasetError(
            f"{data.path}: subjects, exclude and min_images leave nobody of the training set (the "
            f"most images of a person are {counts.max():,}); change the lists, or lower min_images"
        )
    return dataset.subset(np.flatnonzero(kept))


def open_images(path: Path, data: Data, progress: Progress | None = None) -> ImageSource:
    """Open one set of images, whatever form it has; a note says if there are turned ones.

    Args:
        path: the set.
        data: how it is read.
        progress: called with the images or shards done.

    Raises:
        FacerecError: the set is missing, damaged or empty.
    """
    layouts = {"records": RECORDS, "webdataset": TAR, "folder": ""}
    kind = layouts.get(data.layout, set_kind(path))
    images: ImageSource
    if kind == TAR:
        images = TarImages(path, progress)
    elif kind == PARQUET:
        images = TableImages(path, progress)
    elif kind == RECORDS or (data.layout == "auto" and path.is_file()):
        images = RecordImages(
            path, label_index=data.label_index, on_error=data.on_error, progress=progress
        )
    else:
        images = SubjectFolders(path)
    images.on_error = data.on_error
    images.notes = [*images.notes, *turned_note(images, str(path))]
    return images


def _check_labelled(images: ImageSource, path: Path) -> None:
    """Refuse images that lack labels, or under ``on_error="skip"`` note how many do."""
    missing = np.flatnonzero(images.labels < 0)
    if len(missing) and (images.on_error == "error" or len(missing) == len(images)):
        images.sample(int(missing[0]))  # raises
    if len(missing):
        found = f"{len(missing):,} of {len(images):,}"
        images.notes = [*images.notes, f"{path}: {found} samples have no label"]


def _kept(images: ImageSource, part: Data | Part, progress: Progress | None) -> NDArray[np.bool_]:
    """Return which images of one set its two lists leave.

    Raises:
        DatasetError: a list is damaged or names whom the set does not have.
    """
    kept = np.ones(len(images), bool)
    if part.subjects is None and part.exclude is None:
        return kept
    labels = images.load_labels(progress)
    classes: dict[str, list[int]] = {}  # of which files of others may have two of one name
    for number, name in enumerate(images.names_of_classes()):
        # Tables have no blanks around fields, which folders may have.
        classes.setdefault(same_name(name.strip()), []).append(number)
    if part.subjects is not None:
        kept = np.isin(labels, read_subjects(part.subjects, classes))
    if part.exclude is not None:
        kept &= ~read_exclusions(part.exclude, images, classes)
    return kept


def read_exclusions(
    path: Path, images: ImageSource, classes: Mapping[str, list[int]]
) -> NDArray[np.bool_]:
    """Return which images of a set a list leaves out, ``(N,)``.

    Args:
        path: CSV in UTF-8 with the columns subject_id, image_id or both; see `Data.exclude`.
            Further columns are passed over.
        images: the set that the names are of, whose labels have been read.
        classes: its classes by name, or number.

    Raises:
        DatasetError: the file cannot be read, has neither column, or names somebody or something
            that is not in the set.
    """
    table = TextTable(path)
    columns = [name for name in ("subject_id", "image_id") if name in table.columns]
    image_of = images.by_name() if "image_id" in columns else {}
    gone = np.zeros(len(images), bool)
    people: set[int] = set()
    for line, fields in table.rows(columns or ["subject_id"]):
        row = dict(zip(columns, fields, strict=True))
        subject, image = row.get("subject_id", ""), row.get("image_id", "")
        if image in image_of:
            gone[image_of[image]] = True
        elif not image and subject in classes:
            people.update(classes[subject])
        else:
            raise DatasetError(
                f"{table.where(line)}: the data set has no {'image' if image else 'subject'} "
                f"{(image or subject)[:60]!r}; give the list that was made for this set"
            )
    return gone | np.isin(images.labels, list(people))


def read_subjects(path: Path, classes: Mapping[str, list[int]]) -> list[int]:
    """Return the classes of the subjects that a list names, one a line.

    A line is a class name where the set knows its names, otherwise a class number. Blank lines are
    ignored.

    Raises:
        DatasetError: the file cannot be read, names an unknown subject, or one twice.
    """
    unnamed, named = dict(classes), list[int]()
    for number, line in enumerate(read_text(path).splitlines(), start=1):
        name = line.strip()
        if name and name not in unnamed:
            raise DatasetError(
                f"{path}, line {number}: the data set has no subject {name[:60]!r}, or a line "
                f"above has it already; write some of its {len(classes):,} classes, each once"
            )
        named += unnamed.pop(name, [])
    return named
