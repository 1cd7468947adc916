"""From a folder of faces to a record file, and back, without touching the bytes of an image.

Only what is neither JPEG nor PNG is stored as a PNG of the same pixels, since other readers of
record files, such as mxnet's, do not know it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Literal

from facerec.errors import DatasetError, FacerecError, ImageError, RecordError
from facerec.files import atomic_folder, atomic_path, staged_folder
from facerec.libraries import cv2
from facerec.processes import process_pool
from facerec.progress import Progress
from facerec.records.dataset import (
    CLASSES_FILE,
    FaceDataset,
    FolderDataset,
    OnError,
    RecordDataset,
    Skipped,
)
from facerec.records.decode import decode_image, image_kind, image_size, image_suffix, orientation
from facerec.records.images import suffix_kind, turned_sentence
from facerec.records.layout import WriteSummary, read_list, write_image_records
from facerec.records.proposals import Proposal, combine, read_proposals

_STORED_AS_PNG = (".webp", ".bmp", ".tif", ".tiff")
"""Suffixes of files that get another one in the list of the records."""

_AT_ONCE = 4096
"""Images that are under way, so that memory stays small if the disk is slow."""

_QUALITY = 95
"""JPEG quality of images that are scaled."""


@dataclass(frozen=True, kw_only=True)
class Summary:
    """What was written; ``images`` and the number ``skipped`` add up to what was to be written.

    Attributes:
        path: the record file, or the folder.
        images: images written.
        identities: classes or identity folders that gave an image.
        skipped: what was left out, with the cause.
        notes: remarks of the writer.
        counts: what else was done, and how often.
    """

    path: Path
    images: int
    identities: int
    skipped: tuple[Skipped, ...]
    notes: tuple[str, ...] = ()
    counts: dict[str, int] = field(default_factory=dict)


def make_records(
    folder: str | os.PathLike[str] | FolderDataset,
    out: str | os.PathLike[str],
    *,
    processes: int = 1,
    size: int = 112,
    resize: bool = False,
    layout: Literal["auto", "insightface", "im2rec"] = "auto",
    on_error: OnError = "error",
    progress: Progress | None = None,
) -> Summary:
    """Write ``train.rec``, ``.idx``, ``.lst``, ``property`` and ``classes.txt`` from a folder.

    Identities become classes in the order of their names. Every image is decoded once, to be sure
    that it can be; JPEGs and PNGs of the right size are stored byte for byte. The same folder and
    settings give the same bytes with any number of processes. All files appear together at the end.

    Args:
        folder: holds ``identity/image.jpg``; or the data set of such a folder.
        out: folder to write into.
        processes: that read and check images, ≥ 1.
        size: height and width of every image, in pixels.
        resize: scale square images of other sizes and encode them anew, instead of refusing them.
        layout: see `write_image_records`.
        on_error: whether a bad image stops the work or is left out and listed.
        progress: called with the images done.

    Raises:
        DatasetError: the folder is not of that form, or ``out`` lies in it.
        ImageError: an image is damaged or has another size (``on_error="error"``).
        RecordError: the files cannot hold a name, or cannot be written; or no image can be used.
    """
    if processes < 1 or size < 1:
        raise DatasetError(f"processes {processes}, size {size}: both must be at least 1")
    dataset = folder if isinstance(folder, FolderDataset) else FolderDataset(folder)
    out = Path(out)
    if out.resolve().is_relative_to(dataset.root):
        raise DatasetError(
            f"{out}: lies inside the folder of the images, where it would become an identity; "
            "choose another folder"
        )
    assert dataset.class_names is not None
    skipped: list[Skipped] = []
    filled: set[int] = set()
    resized = turned = 0

    def items() -> Iterator[tuple[int, str, bytes]]:
        nonlocal resized, turned
        check = partial(_checked, dataset=dataset, size=size, resize=resize)
        for i, (image, changed, lies) in enumerate(_in_order(check, len(dataset), processes)):
            if isinstance(image, FacerecError):
                if on_error == "error":
                    raise image
                skipped.append(Skipped(i, dataset.where(i), str(image)))
            else:
                resized += changed
                turned += lies
                filled.add(int(dataset.labels[i]))
                name = dataset.name(i)
                if suffix_kind(name) in _STORED_AS_PNG:
                    name += image_suffix(image)
                yield int(dataset.labels[i]), name, image
            if progress is not None:
                progress("images", i + 1, len(dataset))
        _check_some_left(skipped, len(dataset))

    written = _write_set(out, items(), dataset.class_names, (size, size), layout)
    empty = dataset.num_classes - len(filled)
    notes = [*dataset.notes, *written.notes]
    if empty:
        notes.append(
            f"{empty:,} of {dataset.num_classes:,} identities have no image left; their classes "
            "stay"
        )
    if turned:
        notes.append(turned_sentence(str(dataset.root), turned, len(dataset)))
    return Summary(
        path=written.path,
        images=written.images,
        identities=len(filled),
        skipped=tuple(skipped),
        notes=tuple(notes),
        counts={"scaled": resized, "left out": len(skipped)},
    )


def apply_proposals(
    dataset: FaceDataset,
    proposals: str | os.PathLike[str],
    out: str | os.PathLike[str],
    *,
    layout: Literal["auto", "insightface", "im2rec"] = "auto",
    on_error: OnError = "error",
    progress: Progress | None = None,
) -> Summary:
    """Write a data set anew, with the labels that a table of proposals gives it.

    Labels keep their order and those that are new follow; ``classes.txt`` says which class was or
    is which. JPEGs and PNGs are stored byte for byte. All files appear together at the end, and the
    data set stays as it is.

    Args:
        dataset: the images.
        proposals: see `facerec.records.proposals`.
        out: folder to write into, another one than that of the data set.
        layout: see `write_image_records`.
        on_error: whether a damaged image stops the work or is left out and listed.
        progress: called with the images done.

    Raises:
        DatasetError: the table is damaged or belongs to another set, nothing is left, or ``out``
            holds the data set.
        RecordError: a record is damaged (``on_error="error"``), or all are; or the files cannot be
            written.
    """
    proposals, out = Path(proposals), Path(out)
    home = Path(dataset.where(0).split(", key ")[0])
    if out.resolve() in (home.resolve().parent, *home.resolve().parents):
        raise DatasetError(
            f"{out}: holds the images that are read; choose another folder, nothing is changed in "
            "place"
        )
    names = [*(dataset.class_names or map(str, range(dataset.num_classes))), ""]
    # Tables have no blanks around fields, which folders may have.
    labels = {name.strip(): name for name in names}
    images = {name: dataset.ids.item(i) for name, i in dataset.samples_by_name().items()}
    rows = [
        replace(
            row,
            image_id=images.get(row.image_id, row.image_id),
            label=labels.get(row.label, row.label),
            proposed_label=labels.get(row.proposed_label, row.proposed_label),
        )
        for row in read_proposals(proposals)
    ]
    changes = combine(rows)
    before = [names[label] for label in dataset.load_labels(progress).tolist()]
    _check_fits(proposals, rows, dict(zip(dataset.ids.tolist(), before, strict=True)))
    after = [
        changes.label_of(image, label) if label else None
        for image, label in zip(dataset.ids.tolist(), before, strict=True)
    ]
    present = {label for label in after if label is not None}
    if not present:
        raise DatasetError(f"{proposals}: it leaves no image; set accept to no in some lines")
    classes = [name for name in names[:-1] if name in present]
    classes += sorted(present - set(classes))
    number = {name: index for index, name in enumerate(classes)}
    order = sorted((number[label], i) for i, label in enumerate(after) if label is not None)
    skipped: list[Skipped] = []

    def items() -> Iterator[tuple[int, str, bytes]]:
        for done, (label, i) in enumerate(order, start=1):
            try:
                data = _storable(dataset.encoded(i), dataset.where(i))
            except FacerecError as error:
                if on_error == "error":
                    raise
                skipped.append(Skipped(i, dataset.where(i), str(error)))
            else:
                suffix = image_suffix(data)
                file = dataset.name(i).replace("/", "_").removesuffix(suffix)
                yield label, f"{classes[label]}/{file}{suffix}", data
            if progress is not None:
                progress("images", done, len(order))
        _check_some_left(skipped, len(order))

    size = dataset.records.image_size if isinstance(dataset, RecordDataset) else None
    written = _write_set(out, items(), classes, size or dataset.image_size, layout)
    ids = dataset.ids.tolist()
    return Summary(
        path=written.path,
        images=written.images,
        identities=len(classes),
        skipped=tuple(skipped),
        notes=written.notes,
        counts={
            "images left out as proposed": len(changes.dropped),
            "relabelled": sum(
                image not in changes.dropped for image in ids if image in changes.relabelled
            ),
            "labels merged": len(changes.merged),
            "proposals not accepted": changes.refused,
            "images left out as damaged": len(skipped),
        },
    )


def _write_set(
    out: Path,
    items: Iterable[tuple[int, str, bytes]],
    classes: Sequence[str],
    image_size: tuple[int, int],
    layout: Literal["auto", "insightface", "im2rec"],
) -> WriteSummary:
    """Write the files of a set, of which ``train.rec`` comes last: without it there is no set."""
    with staged_folder(out, DatasetError, last="train.rec") as folder:
        written = write_image_records(
            folder / "train",
            items,
            num_classes=len(classes),
            image_size=image_size,
            layout=layout,
        )
        with atomic_path(folder / CLASSES_FILE) as names:
            names.write_text("".join(f"{name}\n" for name in classes), encoding="utf-8")
    return replace(written, path=out / "train.rec")


def _check_some_left(skipped: Sequence[Skipped], total: int) -> None:
    """Say why no image is left, since an error takes the place of the list of what was skipped."""
    if len(skipped) == total:
        raise RecordError(
            f"{skipped[0].cause} (none of the {total:,} can be used: there are no images to write)"
        )


def _check_fits(path: Path, rows: Sequence[Proposal], labels: dict[str, str]) -> None:
    """Refuse proposals for images or labels that the set does not have."""
    known = {*labels.values(), *(row.proposed_label for row in rows)}
    for row in rows:
        there = labels.get(row.image_id) == row.label if row.image_id else row.label in known
        if not there:
            what = f"image {row.image_id[:60]!r} of " if row.image_id else ""
            raise DatasetError(
                f"{path}: the set has no {what}label {row.label[:60]!r}; proposals are applied to "
                "the set that they were made of"
            )


Checked = tuple[bytes | FacerecError, bool, bool]
"""An image's bytes or why it is bad, whether it was scaled, and whether EXIF marks it as turned."""


def _checked(i: int, *, dataset: FolderDataset, size: int, resize: bool) -> Checked:
    """Return what is known of an image."""
    where = dataset.where(i)
    try:
        data = dataset.encoded(i)
        height, width = image_size(data, where)
        turned = orientation(data) > 1
        if (height, width) == (size, size):
            decode_image(data, where, (size, size))
            return _storable(data, where), False, turned
        if not resize:
            raise ImageError(
                f"{where}: the image is {height}×{width} (height×width) where {size}×{size} is "
                "needed; align and crop the faces to that size first, or have square images "
                "scaled by --resize"
            )
        return _resize(data, where, size), True, turned
    except FacerecError as error:
        return error, False, False


def _storable(data: bytes, where: str) -> bytes:
    """Return a JPEG or PNG as it is, and any other image as a PNG of the same pixels."""
    if image_kind(data) in (None, "jpeg", "png"):  # whoever decodes the first is told
        return data
    image = cv2.cvtColor(decode_image(data, where, None), cv2.COLOR_RGB2BGR)
    return cv2.imencode(".png", image)[1].tobytes()


def _resize(data: bytes, where: str, size: int) -> bytes:
    image = decode_image(data, where, None)
    height, width = image.shape[:2]
    if height != width:
        raise ImageError(
            f"{where}: the image is {height}×{width} (height×width); only square images can be "
            "scaled without distorting the face, align and crop it first"
        )
    method = cv2.INTER_AREA if height > size else cv2.INTER_CUBIC
    image = cv2.resize(image, (size, size), interpolation=method)
    image = cv2.cvtColor(image, cv2.COLOR_RGB2BGR)
    return cv2.imencode(".jpg", image, [cv2.IMWRITE_JPEG_QUALITY, _QUALITY])[1].tobytes()


def _in_order(work: Callable[[int], Checked], count: int, processes: int) -> Iterator[Checked]:
    """Yield ``work(i)`` in order, computed by several processes."""
    if processes == 1:
        yield from map(work, range(count))
        return
    with process_pool(processes, _start, (work,)) as pool:
        for start in range(0, count, _AT_ONCE):
            tasks = range(start, min(start + _AT_ONCE, count))
            yield from pool.map(_run, tasks, chunksize=32)


_work: Callable[[int], Checked]


def _start(work: Callable[[int], Checked]) -> None:
    """Receive the work, and the data set in it, once per process instead of once per task."""
    global _work
    _work = work
    cv2.setNumThreads(0)


def _run(task: int) -> Checked:
    return _work(task)


def export_folder(
    records: str | os.PathLike[str] | RecordDataset,
    out: str | os.PathLike[str],
    *,
    on_error: OnError = "error",
    progress: Progress | None = None,
) -> Summary:
    """Write every image of a record file to ``out/identity/image.jpg``, bytes unchanged.

    Names come from the ``.lst`` beside the records where it has them: the first part of a path is
    the identity, further folders are joined to the file name by ``_``. Where paths do not tell the
    classes apart, or without a list, identities and images are named by class number and key.
    The folder appears under its name only when it is complete.

    Args:
        records: a ``.rec`` file or the folder that holds it; or its data set.
        out: the folder to write, which must not exist yet or be empty.
        on_error: whether a damaged record stops the work or is left out and listed.
        progress: called with the images done.

    Raises:
        DatasetError: ``out`` holds something already, a name in the list is unsafe, two images
            have the same name, or a file cannot be written.
        RecordError: a record is damaged (``on_error="error"``).
    """
    dataset = records if isinstance(records, RecordDataset) else RecordDataset(records)
    out = Path(out)
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise DatasetError(f"{out}: holds something already; choose a new or empty folder")
    list_path = dataset.records.path.with_suffix(".lst")
    paths = read_list(list_path) if list_path.is_file() else {}
    by_name = _classes_by_name(dataset, paths)
    digits = len(str(dataset.num_classes - 1))
    key_digits = len(str(dataset.records.keys[-1]))
    skipped: list[Skipped] = []
    folders: set[str] = set()
    with atomic_folder(out, DatasetError, private=True) as temporary:
        for i in range(len(dataset)):
            try:
                data, label = dataset.sample(i)
            except FacerecError as error:
                if on_error == "error":
                    raise
                skipped.append(Skipped(i, dataset.where(i), str(error)))
            else:
                key = int(dataset.records.keys[i])
                components = paths.get(key, ())
                folder = components[0] if by_name else f"{label:0{digits}d}"
                suffix = image_suffix(data)
                file = (
                    "_".join(components[1:] if by_name else components)
                    or f"{key:0{key_digits}d}{suffix}"
                )
                if folder not in folders:
                    (temporary / folder).mkdir()
                    folders.add(folder)
                try:
                    with (temporary / folder / file).open("xb") as stream:
                        stream.write(data)
                except FileExistsError as problem:
                    raise DatasetError(
                        f"{dataset.where(i)}: another image of the file is called "
                        f"{folder}/{file} too; mend {list_path}, or move it away to have images "
                        "named by their keys"
                    ) from problem
            if progress is not None:
                progress("images", i + 1, len(dataset))
    return Summary(
        path=out,
        images=len(dataset) - len(skipped),
        identities=len(folders),
        skipped=tuple(skipped),
        counts={"left out": len(skipped)},
    )


def _classes_by_name(dataset: RecordDataset, paths: dict[int, tuple[str, ...]]) -> bool:
    """Return whether every image has a path, and first components and classes match one to one."""
    class_of: dict[str, int] = {}
    labels = dataset.records.labels(on_error="skip").tolist()
    for key, label in zip(dataset.records.keys.tolist(), labels, strict=True):
        components = paths.get(key, ())
        if len(components) < 2 or (
            label >= 0 and class_of.setdefault(components[0], label) != label
        ):
            return False
    return len(set(class_of.values())) == len(class_of)
