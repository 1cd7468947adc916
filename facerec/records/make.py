"""From a folder of faces to a record file, and back, without touching the bytes of an image.

Only what is neither JPEG nor PNG is stored as a PNG of the same pixels, since other readers of
record files, such as mxnet's, do not know it.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from facerec.base.errors import DatasetError, FacerecError, RecordError
from facerec.base.files import atomic_folder, atomic_path, check_place, staged_folder
from facerec.base.libraries import cv2
from facerec.base.progress import Progress
from facerec.records.decode import decode_image, image_kind, image_suffix
from facerec.records.images import (
    ImageSource,
    OnError,
    SubjectFolders,
    suffix_kind,
    turned_note,
)
from facerec.records.layout import CLASSES_FILE, RecordImages, read_list, write_image_records
from facerec.records.proposals import combine, read_proposals
from facerec.records.recordio import (
    HEADER_BYTES,
    RecordFile,
    rebuild_index,
    record_writer,
    write_index,
)
from facerec.records.shards import PARQUET, set_kind
from facerec.records.table_images import TableImages
from facerec.records.training_set import Data, open_images

_SIZE = (112, 112)
_STORED = (".jpg", ".jpeg", ".jpe", ".jfif", ".png")
"""Suffixes of files that keep theirs in the list of the records; others get one more."""


@dataclass(frozen=True)
class Made:
    """What was written; ``images`` and the number ``skipped`` add up to what was to be written.

    Attributes:
        path: the record file, or the folder.
        images: images written.
        subjects: classes or folders that gave an image.
        skipped: the error of each image that was left out.
        notes: remarks of the writer.
        counts: what else was done, and how often.
    """

    path: Path
    images: int
    subjects: int
    skipped: Sequence[str]
    notes: Sequence[str]
    counts: dict[str, int]


def _kept(
    rows: Sequence[int],
    work: Callable[[int], bytes],
    on_error: OnError,
    skipped: list[str],
    progress: Progress | None,
) -> Iterator[tuple[int, bytes]]:
    """Yield each image and its bytes, as ``work`` gives them; what is left out goes on a list.

    Raises:
        FacerecError: the first error (``on_error="error"``), or no image is left.
    """
    for done, i in enumerate(rows, start=1):
        try:
            data = work(i)
        except FacerecError as error:
            if on_error == "error":
                raise
            skipped.append(str(error))
        else:
            yield i, data
        if progress is not None:
            progress("images", done, len(rows))
    if len(skipped) == len(rows):
        why = skipped[0] if skipped else "accept fewer proposals"
        raise RecordError(f"none of {len(rows):,} images is left to write: {why}")


def make_records(
    folder: str | os.PathLike[str],
    out: str | os.PathLike[str],
    *,
    on_error: OnError = "error",
    progress: Progress | None = None,
) -> Made:
    """Write ``train.rec``, ``.idx``, ``.lst``, ``property``, ``classes.txt`` of a folder or tables.

    Subjects become classes in the order of their names. Every image is decoded once, to be sure
    that it can be, and must have 112×112 pixels; JPEGs and PNGs are stored byte for byte. The same
    folder gives the same bytes. All files appear together at the end.

    Args:
        folder: holds ``subject/image.jpg``; or see `TableImages`.
        out: folder to write into.
        on_error: whether a bad image stops the work or is left out and listed.
        progress: called with the images done.

    Raises:
        DatasetError: the folder is not of that form, or ``out`` lies in it.
        ImageError: an image is damaged or has another size (``on_error="error"``).
        FacerecError: the files cannot hold a name, or cannot be written; or no image can be used.
    """
    source, out = Path(folder), Path(out)
    images: ImageSource
    if set_kind(source) == PARQUET:
        images = TableImages(source, progress)
    else:
        images = SubjectFolders(source)
        check_outside(images, out)

    def place(i: int, suffix: str) -> tuple[int, str]:
        name = str(images.ids[i])
        kept = suffix_kind(name) in _STORED
        return int(images.labels[i]), name if kept else name + suffix

    rows, classes = np.argsort(images.labels, kind="stable").tolist(), images.names_of_classes()
    made = _write_set(out, images, rows, classes, place, _SIZE, on_error, progress)
    notes = [*made.notes, *turned_note(images, str(source))]
    if made.subjects < images.num_classes:
        notes.append(
            f"{images.num_classes - made.subjects:,} of {images.num_classes:,} subjects have no "
            "image left; their classes stay"
        )
    return replace(made, notes=notes)


def check_outside(images: SubjectFolders, out: Path) -> None:
    """Refuse to write into the folder of the images.

    Raises:
        DatasetError: ``out`` lies in it.
    """
    if out.resolve().is_relative_to(images.root.resolve()):
        raise DatasetError(
            f"{out}: lies inside the folder of the images, where it would become a subject; "
            "choose another folder"
        )


def check_new(out: Path) -> None:
    """Refuse to make a folder where something is.

    Raises:
        DatasetError: ``out`` is a file, or no empty folder.
    """
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise DatasetError(f"{out}: holds something already; choose a new or empty folder")


def apply_proposals(
    source: str | os.PathLike[str],
    proposals: str | os.PathLike[str],
    out: str | os.PathLike[str],
    *,
    on_error: OnError = "error",
    progress: Progress | None = None,
) -> Made:
    """Write a data set anew, with the labels that a table of proposals gives it.

    Labels keep their order and those that are new follow; ``classes.txt`` says which class was or
    is which. JPEGs and PNGs are stored byte for byte. All files appear together at the end, and the
    data set stays as it is.

    Args:
        source: the data set, see `facerec.records.training_set.Data.path`.
        proposals: see `facerec.records.proposals`.
        out: folder to write into, another one than that of the data set.
        on_error: whether a damaged image stops the work or is left out and listed.
        progress: called with the images done.

    Raises:
        DatasetError: the table is damaged or belongs to another set, nothing is left, or ``out``
            holds the data set.
        RecordError: a record is damaged (``on_error="error"``), or all are; or the files cannot be
            written.
    """
    source, proposals, out = Path(source), Path(proposals), Path(out)
    if source.resolve().is_relative_to(out.resolve()):
        raise DatasetError(
            f"{out}: holds the images that are read; choose another folder, nothing is changed in "
            "place"
        )
    images = open_images(source, Data(source, on_error=on_error))
    images.load_labels(progress)
    ids = images.ids.tolist()
    # Tables have no blanks around fields, which folders may have.
    names = [name.strip() for name in images.names_of_classes()]
    numbers = images.labels.tolist()
    before = {ids[i]: names[label] if label >= 0 else "" for i, label in enumerate(numbers)}
    image_ids = {name: ids[i] for name, i in images.by_name().items()}
    rows = [
        replace(row, image_id=image_ids.get(row.image_id, row.image_id))
        for row in read_proposals(proposals)
    ]
    known = {*before.values(), *(row.proposed_label for row in rows)}
    for row in rows:
        there = before.get(row.image_id) == row.label if row.image_id else row.label in known
        if not there:
            what = f"image {row.image_id[:60]!r} of " if row.image_id else ""
            raise DatasetError(
                f"{proposals}: the set has no {what}label {row.label[:60]!r}; proposals are "
                "applied to the set that they were made of"
            )
    after, merged = combine(rows, before)
    labels = [merged.get(after[image], after[image]) for image in ids]
    present = set(labels) - {""}
    classes = [name for name in dict.fromkeys(names) if name in present]
    classes += sorted(present - set(classes))
    number = {name: index for index, name in enumerate(classes)}
    order = [i for _, i in sorted((number[label], i) for i, label in enumerate(labels) if label)]

    def place(i: int, suffix: str) -> tuple[int, str]:
        file = ids[i].replace("/", "_").removesuffix(suffix)
        return number[labels[i]], f"{labels[i]}/{file}{suffix}"

    made = _write_set(out, images, order, classes, place, None, on_error, progress)
    damaged = len(made.skipped) + sum(not label for label in before.values())
    counts = {
        "images left out as proposed": sum(after[i] == "" != before[i] for i in ids),
        "relabelled": sum(after[i] not in ("", before[i]) for i in ids),
        "labels merged": len(merged),
        "proposals not accepted": sum(not row.accept for row in rows),
        "images left out as damaged": damaged,
    }
    return replace(made, counts=counts)


def export_folder(
    records: str | os.PathLike[str],
    out: str | os.PathLike[str],
    *,
    on_error: OnError = "error",
    progress: Progress | None = None,
) -> Made:
    """Write every image of a record file to ``out/subject/image.jpg``, bytes unchanged.

    Names come from the ``.lst`` beside the records where it has them: the first part of a path is
    the subject, further folders are joined to the file name by ``_``. Where first parts do not tell
    the classes apart, or without a list, subjects are named by class number and images by key. The
    folder appears under its name only when it is complete.

    Args:
        records: a ``.rec`` file or the folder that holds it.
        out: the folder to write, which must not exist yet or be empty.
        on_error: whether a damaged record stops the work or is left out and listed.
        progress: called with the images done.

    Raises:
        DatasetError: ``out`` holds something already, a name in the list is unsafe, two images
            have the same name, or a file cannot be written.
        RecordError: a record is damaged (``on_error="error"``).
    """
    images, out = RecordImages(records, on_error="skip"), Path(out)
    check_new(out)
    list_path = images.path.with_suffix(".lst")
    paths = read_list(list_path) if list_path.is_file() else {}
    keys, labels = images.keys.tolist(), images.labels.tolist()
    parts = [paths.get(key, ()) for key in keys]
    firsts = [path[0] if len(path) > 1 else "" for path in parts]
    told = {pair for pair in zip(labels, firsts, strict=True) if pair[0] >= 0}
    names = dict(told)
    apart = len(told) == len(names) == len({*names.values()} - {""})
    digits, key_digits = len(str(images.num_classes - 1)), len(str(keys[-1]))
    skipped: list[str] = []
    folders: set[str] = set()
    with atomic_folder(out, private=True) as temporary:
        for i, data in _kept(range(len(images)), images.encoded, on_error, skipped, progress):
            folder = names[labels[i]] if apart else f"{labels[i]:0{digits}d}"
            file = "_".join(parts[i][apart:]) or f"{keys[i]:0{key_digits}d}{image_suffix(data)}"
            path = temporary / folder / file
            folders.add(folder)
            path.parent.mkdir(exist_ok=True)
            if path.exists():
                raise DatasetError(
                    f"{images.where(i)}: another image of the file is called {folder}/{path.name} "
                    f"too; mend {list_path}, or move it away to have images named by their keys"
                )
            path.write_bytes(data)
    counts, written = {"left out": len(skipped)}, len(images) - len(skipped)
    return Made(out, written, len(folders), skipped, images.notes, counts)


def _write_set(
    out: Path,
    images: ImageSource,
    rows: Sequence[int],
    classes: Sequence[str],
    place: Callable[[int, str], tuple[int, str]],
    size: tuple[int, int] | None,
    on_error: OnError,
    progress: Progress | None,
) -> Made:
    """Write the files of a set, of which ``train.rec`` comes last: without it there is no set.

    Args:
        out: the folder.
        images: whatever they are called and of whatever classes there.
        rows: those to write, in their order.
        classes: the names of all classes.
        place: from an image and the suffix of what is stored, its class and its name.
        size: every image is decoded, and must have it; None decodes only what is stored anew.
        on_error: whether a bad image stops the work or is left out.
        progress: called with the images done.
    """
    skipped: list[str] = []
    filled: set[int] = set()

    def stored(i: int) -> bytes:
        data, _ = images.sample(i)
        foreign = image_kind(data) not in (None, "jpeg", "png")  # None is for whoever decodes it
        if foreign or size is not None:
            image = decode_image(data, images.where(i), size)
        if not foreign:
            return data
        return cv2.imencode(".png", cv2.cvtColor(image, cv2.COLOR_RGB2BGR))[1].tobytes()

    def items() -> Iterator[tuple[int, str, bytes]]:
        for i, data in _kept(rows, stored, on_error, skipped, progress):
            label, name = place(i, image_suffix(data))
            filled.add(label)
            yield label, name, data

    with staged_folder(out, last="train.rec") as folder:
        image_size, count = getattr(images, "image_size", None) or _SIZE, len(classes)
        written = write_image_records(
            folder / "train", items(), num_classes=count, image_size=image_size
        )
        with atomic_path(folder / CLASSES_FILE) as names:
            names.write_text("".join(f"{name}\n" for name in classes), encoding="utf-8")
    counts = {"left out": len(skipped)}
    return Made(out / "train.rec", written, len(filled), skipped, images.notes, counts)


def repair_records(records: Path, out: Path | None = None) -> list[str]:
    """Write the index of a record file anew, or copy its whole records into a new file.

    Args:
        records: a ``.rec`` file, which stays as it is; keys are found as in `rebuild_index`.
        out: new ``.rec`` file; without one, ``FILE.idx`` is written, and what was there is kept as
            ``FILE.idx.old``.

    Returns:
        Sentences on what was written and what was passed over. InsightFace's header and range
        records go where others are lost: they announce keys that are no more, and the labels are in
        the images too.

    Raises:
        RecordError: the file is damaged (without ``out``) or has no whole record, or what would be
            written is there already or cannot be written.
    """
    path = records.with_suffix(".idx")
    target = path.with_suffix(".idx.old") if out is None else out
    if target.exists() or (out is not None and out.suffix != ".rec"):
        raise RecordError(
            f"{target}: is there already, or is not called X.rec; move it away, or choose another "
            "name"
        )
    file = RecordFile(records)
    index = rebuild_index(file, salvage=out is not None)
    if out is None:
        check_place(path)
        said = [f"{path}: {len(index.keys):,} records"]
        if path.exists():
            with atomic_path(target) as temporary:
                shutil.copyfile(path, temporary)
            said.insert(0, f"{target}: the index as it was")
        write_index(path, index)
        return said
    kept = 0
    with record_writer(out) as write:
        for key, offset in np.transpose(index).tolist():
            payload = file.read(offset)
            # Of two labels and nothing else.
            if not (file.damages and len(payload) == HEADER_BYTES + 8 and payload[0] == 2):
                write(payload, key)
                kept += 1
    said = [
        f"passed over {stop - start:,} bytes from offset {start:,}: {reason}"
        for start, stop, reason in file.damages
    ]
    return [
        *said,
        f"{out}: {kept:,} whole records; damaged places passed over: {len(said):,}; records "
        f"without an image, announcing lost keys, left out: {len(index.keys) - kept:,}",
    ]
