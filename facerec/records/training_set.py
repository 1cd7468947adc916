"""The training images that a recipe describes: one or several sets, and whom of them to keep."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np

from facerec.errors import DatasetError
from facerec.limits import Checked, Count, CountOrNone, Limits
from facerec.names import same_name
from facerec.progress import Progress
from facerec.records.augment import Augmentation
from facerec.records.dataset import (
    FaceDataset,
    FolderDataset,
    OnError,
    RecordDataset,
    Subset,
)
from facerec.records.images import turned_note
from facerec.records.joined import JoinedDataset
from facerec.records.layout import read_text
from facerec.records.tar_shards import TarDataset, is_tar_shards
from facerec.tables import Table


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
    """Its class numbers mean the same identities as those of the first set; by default they mean
    others, and follow those of the sets before."""

    identities: Path | None = None
    """Text file of the identities to keep, a class name or number a line; by default all."""

    exclude: Path | None = None
    """CSV of the identities and images to leave out, as `facerec overlap --csv` writes it."""

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

    exclude: Path | None = None
    """CSV of the identities and images to leave out, as `facerec overlap --csv` writes it: a column
    subject_id (class names or numbers), image_id (keys of records or their paths in the .lst, or
    identity/image.jpg), or both; a line with both leaves out the image alone."""

    also: tuple[Part, ...] = ()
    """Further sets, joined to this one; identities and exclude above are those of this one.
    `--data.also None` on a command line does without those of the recipe."""

    min_images: Count = 1
    """Leave out identities with fewer images than this, in all sets together."""


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
    if data.label_index is not None and not data.also and not isinstance(first, RecordDataset):
        raise DatasetError(
            f"{data.path}: data.label_index {data.label_index} chooses among labels of a record, "
            "and this is no record file; leave label_index out"
        )
    dataset: FaceDataset
    if data.also:
        dataset = _join(data, first, seed, progress)
    elif data.identities is not None:
        classes = read_identities(data.identities, first)
        first.load_labels(progress)
        dataset = Subset(first, classes=classes)
    else:
        dataset = first
    if data.exclude is not None and not data.also:
        dataset = _without(data.exclude, first, dataset, progress)
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
    if data.layout == "webdataset" or (data.layout == "auto" and is_tar_shards(path)):
        return _noted(TarDataset(path, labelled=labelled, progress=progress, **options), path)
    if not path.exists():
        raise DatasetError(f"{path}: there is no such file or folder; check {field}")
    records = data.layout == "records" or (
        data.layout == "auto" and (path.is_file() or any(path.glob("*.rec")))
    )
    if records:
        options |= {"label_index": data.label_index, "progress": progress}
        return _noted(RecordDataset(path, **options), path)
    return _noted(FolderDataset(path, **options), path)


def _noted(dataset: FaceDataset, path: Path) -> FaceDataset:
    """Return the data set, with a note if there are turned images, which stay as they are."""
    dataset.notes.extend(turned_note(dataset, str(path)))
    return dataset


def _join(data: Data, first: FaceDataset, seed: int, progress: Progress | None) -> FaceDataset:
    """Join the further sets to the first; what no set keeps has no class number afterwards."""
    sets = [first]
    for number, further in enumerate(data.also):
        alone = replace(data, path=further.path)
        field = f"data.also[{number}].path"
        sets.append(_open_set(alone, field, seed, progress, further.labelled))
    lists = [data.identities, *(further.identities for further in data.also)]
    classes = []
    left_out = [data.exclude, *(further.exclude for further in data.also)]
    for number, (dataset, path, excluded) in enumerate(zip(sets, lists, left_out, strict=True)):
        classes.append(np.arange(dataset.num_classes))
        if path is None and excluded is None:
            continue
        dataset.load_labels(progress)
        # The numbers stay, so that those of sets with the same identities mean the same.
        if path is not None:
            classes[-1] = np.array(read_identities(path, dataset))
            sets[number] = Subset(dataset, classes=classes[-1], relabel=False)
        if excluded is not None:
            sets[number] = _without(excluded, dataset, sets[number], progress, relabel=False)
            labels = sets[number].labels
            classes[-1] = np.unique(labels[labels >= 0])
    labelled = [True, *(further.labelled for further in data.also)]
    joined = JoinedDataset(
        sets,
        weights=[1.0, *(further.weight for further in data.also)],
        shared_classes=[True, *(further.shared_classes for further in data.also)],
        labelled=labelled,
    )
    pairs = zip(classes, joined.offsets, labelled, strict=True)
    kept = np.unique(np.concatenate([numbers + start for numbers, start, known in pairs if known]))
    if len(kept) == joined.num_classes:
        return joined
    joined.load_labels(progress)
    return Subset(joined, classes=kept, unlabelled=True)


def _without(
    path: Path,
    whole: FaceDataset,
    dataset: FaceDataset,
    progress: Progress | None,
    relabel: bool = True,
) -> FaceDataset:
    """Leave out the identities and images of a list.

    Args:
        path: the list.
        whole: the set that its names are of.
        dataset: that set, or those of its identities that are kept, under other numbers perhaps.
        progress: called while labels are read.
        relabel: number the classes that remain from 0.

    Raises:
        DatasetError: see `read_exclusions`, or nothing is left.
    """
    classes, images = read_exclusions(path, whole)
    if not classes and not images:
        return dataset
    gone = np.isin(whole.load_labels(progress), list(classes))
    gone[list(images)] = True
    dataset.load_labels(progress)
    indices = dataset.indices if isinstance(dataset, Subset) else np.arange(len(whole))
    kept = np.flatnonzero(~gone[indices])
    if not len(kept):
        raise DatasetError(f"{path}: leaves out every image of {whole.where(0)}; shorten the list")
    return Subset(dataset, indices=kept, relabel=relabel)


def read_exclusions(path: Path, dataset: FaceDataset) -> tuple[set[int], set[int]]:
    """Read a list of identities and images to leave out; further columns are passed over.

    Args:
        path: CSV in UTF-8 with the columns subject_id, image_id or both; see `Data.exclude`.
        dataset: the set that the names are of.

    Returns:
        Its classes, and its samples, that are to be left out.

    Raises:
        DatasetError: the file cannot be read, has neither column, or names somebody or something
            that is not in the set.
    """
    classes: set[int] = set()
    images: set[int] = set()
    names = dataset.class_names or [str(number) for number in range(dataset.num_classes)]
    identities = _classes_of(names)
    index_of: dict[str, int] | None = None
    table = Table(path)
    columns = [name for name in ("subject_id", "image_id") if name in table.columns]
    if not columns:
        raise DatasetError(
            f"{path}: its first line names neither the column subject_id nor image_id; write it "
            "with facerec overlap --csv"
        )
    for line, fields in table.rows(columns):
        where = table.where(line)
        row = dict(zip(columns, fields, strict=True))
        subject, image = row.get("subject_id", ""), row.get("image_id", "")
        if not subject and not image:
            raise DatasetError(f"{where}: names nobody; fill in {' or '.join(columns)}")
        if not image:
            if subject not in identities:
                raise DatasetError(
                    f"{where}: the data set has no identity {subject[:60]!r} among its "
                    f"{len(identities):,}; give the list that was made for this set"
                )
            classes.update(identities[subject])
            continue
        if index_of is None:
            index_of = dataset.samples_by_name()
        if image not in index_of:
            raise DatasetError(
                f"{where}: the data set has no image {image[:60]!r} among its {len(index_of):,}; "
                "give the list that was made for this set"
            )
        images.add(index_of[image])
    return classes, images


def _classes_of(names: Sequence[str]) -> dict[str, list[int]]:
    """Return the classes of each name; files of others may have two of one."""
    classes: dict[str, list[int]] = {}
    for number, name in enumerate(names):
        # Tables have no blanks around fields, which folders may have.
        classes.setdefault(same_name(name.strip()), []).append(number)
    return classes


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
    numbers = _classes_of(names or [])
    known = f"{dataset.num_classes:,} classes"
    classes: dict[int, int] = {}
    for line_number, line in enumerate(read_text(path).splitlines(), start=1):
        text = line.strip()
        if not text:
            continue
        if names is not None:
            labels, wanted = numbers.get(text, []), f"one of the names of its {known}"
        else:
            number = int(text) if text.isascii() and text.isdigit() and len(text) < 19 else -1
            labels = [number] if 0 <= number < dataset.num_classes else []
            wanted = f"a class number below {dataset.num_classes:,}"
        if not labels:
            raise DatasetError(
                f"{path}, line {line_number}: the data set has no identity {text[:60]!r}; "
                f"write {wanted}"
            )
        if labels[0] in classes:
            raise DatasetError(
                f"{path}, line {line_number}: identity {text[:60]!r} is in line "
                f"{classes[labels[0]]} already; remove one of the two"
            )
        classes.update(dict.fromkeys(labels, line_number))
    if not classes:
        raise DatasetError(f"{path}: names no identity; write one a line")
    return list(classes)
