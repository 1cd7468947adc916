"""The training images that a recipe describes: one or several sets, and whom of them to keep."""

from __future__ import annotations

import os
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np

from facerec.errors import DatasetError
from facerec.limits import Checked, Count, CountOrNone, Limits
from facerec.progress import Progress
from facerec.records.augment import Augmentation
from facerec.records.dataset import (
    FaceDataset,
    FolderDataset,
    OnError,
    RecordDataset,
    Subset,
    read_text,
)
from facerec.records.joined import JoinedDataset
from facerec.records.tar_shards import TarDataset, is_tar_shards


@dataclass(frozen=True)
class Part(Checked):
    """A further set of training images, read with the layout, label and policy of the first."""

    path: Path
    """A record file (.rec), the folder that holds it, a folder of identity/image.jpg, or WebDataset
    shards (.tar)."""

    weight: Annotated[float, Limits(0.0, 1000.0, above=True)] = 1.0
    """Visits of each image in an epoch, where one of the first set has one; of 0.5 each epoch
    visits one half, the next the other."""

    shared_classes: bool = False
    """Its class numbers mean the same people as those of the first set; by default its people are
    others, and their numbers follow those of the sets before."""

    identities: Path | None = None
    """Text file of the identities to keep, a class name or number a line; by default all."""

    labelled: bool = True
    """Whether its classes say who is who. Images without such take part in distillation and in norm
    penalties; no margin sees them. In a folder they lie in one of any name, or in several."""


@dataclass(frozen=True)
class Data(Checked):
    """Where the training images are and how they are read."""

    path: Path
    """A record file (.rec), the folder that holds it, a folder of identity/image.jpg, or WebDataset
    shards: a .tar, a folder of such, or several as in 'shards-{000..009}.tar'."""

    layout: Literal["auto", "records", "folder", "webdataset"] = "auto"
    """What the path holds; auto takes a folder that has a .rec file in it for records, and one of
    .tar files without folders for WebDataset shards."""

    augmentation: Augmentation = field(default_factory=Augmentation)
    """Probabilities of the random changes of training images."""

    on_error: OnError = "error"
    """What a damaged record or image does: stop, or be counted, listed and replaced."""

    label_index: CountOrNone | None = None
    """Which label is the class in records that carry several; by default the first of two."""

    identities: Path | None = None
    """Text file of the identities to keep, a class name or number a line; by default all."""

    also: tuple[Part, ...] = ()
    """Further sets, joined to this one; identities above are those of this one alone."""

    min_images: Count = 1
    """Leave out people with fewer images than this, in all sets together."""


def open_dataset(data: Data, seed: int, progress: Progress | None = None) -> FaceDataset:
    """Open what a recipe's ``data`` section describes.

    Args:
        data: the section.
        seed: of augmentation and replacements, ≥ 0.
        progress: called with the images done where all labels must be read.

    Raises:
        FacerecError: the data is missing, damaged or empty, or an identity to keep is unknown.
    """
    first = _open_set(data, "data.path", seed, progress)
    dataset: FaceDataset
    if data.also:
        dataset = _join(data, first, seed, progress)
    elif data.identities is not None:
        classes = read_identities(data.identities, first)
        first.load_labels(progress)
        dataset = Subset(first, classes=classes)
    else:
        dataset = first
    if data.min_images > 1:
        frequent = _frequent_classes(dataset.load_labels(progress), data)
        if len(frequent) < dataset.num_classes:
            dataset = Subset(dataset, classes=frequent, unlabelled=True)
    return dataset


def _open_set(
    data: Data, field: str, seed: int, progress: Progress | None, labelled: bool = True
) -> FaceDataset:
    """Open the first set of ``data``, with all its identities."""
    path = Path(data.path)
    options: dict[str, Any] = {
        "augmentation": data.augmentation,
        "on_error": data.on_error,
        "seed": seed,
    }
    if data.layout == "webdataset" or (
        data.layout == "auto" and is_tar_shards(path) and not any(path.glob("*.rec"))
    ):
        return TarDataset(path, labelled=labelled, progress=progress, **options)
    if not path.exists():
        raise DatasetError(f"{path}: there is no such file or folder; check {field}")
    records = data.layout == "records" or (
        data.layout == "auto" and (path.is_file() or any(path.glob("*.rec")))
    )
    if records:
        return RecordDataset(path, label_index=data.label_index, progress=progress, **options)
    return FolderDataset(path, **options)


def _join(data: Data, first: FaceDataset, seed: int, progress: Progress | None) -> FaceDataset:
    """Join the further sets to the first; what no set keeps has no class number afterwards."""
    sets = [first]
    for number, part in enumerate(data.also):
        alone = replace(data, path=part.path)
        field = f"data.also[{number}].path"
        sets.append(_open_set(alone, field, seed, progress, part.labelled))
    lists = [data.identities, *(part.identities for part in data.also)]
    classes = []
    for number, (dataset, path) in enumerate(zip(sets, lists, strict=True)):
        if path is None:
            classes.append(np.arange(dataset.num_classes))
            continue
        classes.append(np.array(read_identities(path, dataset)))
        dataset.load_labels(progress)
        # The numbers stay, so that those of sets with the same people mean the same.
        sets[number] = Subset(dataset, classes=classes[-1], relabel=False)
    labelled = [True, *(part.labelled for part in data.also)]
    joined = JoinedDataset(
        sets,
        weights=[1.0, *(part.weight for part in data.also)],
        shared_classes=[True, *(part.shared_classes for part in data.also)],
        labelled=labelled,
    )
    pairs = zip(classes, joined.offsets, labelled, strict=True)
    kept = np.unique(np.concatenate([numbers + start for numbers, start, known in pairs if known]))
    if len(kept) == joined.num_classes:
        return joined
    joined.load_labels(progress)
    return Subset(joined, classes=kept, unlabelled=True)


def _frequent_classes(labels: np.ndarray, data: Data) -> np.ndarray:
    counts = np.bincount(labels[labels >= 0], minlength=1)
    classes = np.flatnonzero(counts >= data.min_images)
    if not len(classes):
        raise DatasetError(
            f"{data.path}: nobody has {data.min_images:,} images, the most are {counts.max():,}; "
            "lower data.min_images"
        )
    return classes


def read_identities(path: str | os.PathLike[str], dataset: FaceDataset) -> list[int]:
    """Read a list of identities, one a line; return their classes in ``dataset``.

    A line is a class name where the data set knows its names, otherwise a class number. Blank
    lines are ignored.

    Raises:
        DatasetError: the file cannot be read, names no identity, an unknown one, or one twice.
    """
    path = Path(path)
    names = dataset.class_names
    numbers = {name: label for label, name in enumerate(names or [])}
    known = f"{dataset.num_classes:,} classes"
    classes: dict[int, int] = {}
    for line_number, line in enumerate(read_text(path).splitlines(), start=1):
        text = line.strip()
        if not text:
            continue
        if names is not None:
            label, wanted = numbers.get(text, -1), f"one of the names of its {known}"
        else:
            label = int(text) if text.isascii() and text.isdigit() and len(text) < 19 else -1
            wanted = f"a class number below {dataset.num_classes:,}"
        if not 0 <= label < dataset.num_classes:
            raise DatasetError(
                f"{path}, line {line_number}: the data set has no identity {text[:60]!r}; "
                f"write {wanted}"
            )
        if label in classes:
            raise DatasetError(
                f"{path}, line {line_number}: identity {text[:60]!r} is in line {classes[label]} "
                "already; remove one of the two"
            )
        classes[label] = line_number
    if not classes:
        raise DatasetError(f"{path}: names no identity; write one a line")
    return list(classes)
