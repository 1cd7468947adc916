"""From a folder of faces to a record file, and back, without touching the bytes of an image.

Only what is neither JPEG nor PNG is stored as a PNG of the same pixels, since other readers of
record files, such as mxnet's, do not know it.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from array import array
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from facerec.errors import DatasetError, FacerecError, ImageError, RecordError
from facerec.files import atomic_folder, atomic_path, staged_folder
from facerec.libraries import cv2
from facerec.processes import process_pool
from facerec.progress import Progress
from facerec.records.dataset import Skipped
from facerec.records.decode import decode_image, image_kind, image_size, image_suffix
from facerec.records.images import (
    LabelledImages,
    OnError,
    SubjectFolders,
    suffix_kind,
    turned_note,
)
from facerec.records.layout import CLASSES_FILE, RecordImages, read_list, write_image_records
from facerec.records.proposals import Proposal, combine, read_proposals
from facerec.records.recordio import RecordFile, RecordIndex, record_writer, unpack, write_index

_STORED_AS_PNG = (".webp", ".bmp", ".tif", ".tiff")
"""Suffixes of files that get another one in the list of the records."""

_AT_ONCE = 4096
"""Images that are under way, so that memory stays small if the disk is slow."""

_QUALITY = 95
"""JPEG quality of images that are scaled."""

Item = TypeVar("Item")
Checked = tuple[bytes, bool]
"""An image's bytes, and whether it was scaled."""
Work = Callable[[int], Checked | FacerecError]


@dataclass(frozen=True, kw_only=True)
class Summary:
    """What was written; ``images`` and the number ``skipped`` add up to what was to be written.

    Attributes:
        path: the record file, or the folder.
        images: images written.
        identities: classes or folders that gave an image.
        skipped: what was left out, with the cause.
        notes: remarks of the writer.
        counts: what else was done, and how often.
    """

    path: Path
    images: int
    identities: int
    skipped: Sequence[Skipped]
    notes: Sequence[str] = ()
    counts: dict[str, int] = field(default_factory=dict)


class _Kept:
    """Counts and lists what is left out, or stops at it.

    Attributes:
        skipped: what was left out.
    """

    def __init__(
        self, images: LabelledImages, on_error: OnError, progress: Progress | None
    ) -> None:
        self.skipped: list[Skipped] = []
        self._images, self._on_error, self._progress = images, on_error, progress

    def __call__(
        self, rows: Sequence[int], results: Iterable[Item | FacerecError]
    ) -> Iterator[tuple[int, Item]]:
        """Yield images and what was made of each, but for errors.

        Raises:
            FacerecError: the first error (``on_error="error"``), or there was nothing else.
        """
        for done, (i, result) in enumerate(zip(rows, results, strict=True), start=1):
            if not isinstance(result, FacerecError):
                yield i, result
            elif self._on_error == "error":
                raise result
            else:
                self.skipped.append(Skipped(i, self._images.where(i), str(result)))
            if self._progress is not None:
                self._progress("images", done, len(rows))
        if len(self.skipped) == len(rows):
            raise RecordError(f"{self.skipped[0].cause} (none of {len(rows):,} images can be used)")


def make_records(
    folder: str | os.PathLike[str],
    out: str | os.PathLike[str],
    *,
    processes: int = 1,
    size: int = 112,
    resize: bool = False,
    on_error: OnError = "error",
    progress: Progress | None = None,
) -> Summary:
    """Write ``train.rec``, ``.idx``, ``.lst``, ``property`` and ``classes.txt`` from a folder.

    Identities become classes in the order of their names. Every image is decoded once, to be sure
    that it can be; JPEGs and PNGs of the right size are stored byte for byte. The same folder and
    settings give the same bytes with any number of processes. All files appear together at the end.

    Args:
        folder: holds ``identity/image.jpg``.
        out: folder to write into.
        processes: that read and check images, ≥ 1.
        size: height and width of every image, in pixels.
        resize: scale square images of other sizes and encode them anew, instead of refusing them.
        on_error: whether a bad image stops the work or is left out and listed.
        progress: called with the images done.

    Raises:
        DatasetError: the folder is not of that form, or ``out`` lies in it.
        ImageError: an image is damaged or has another size (``on_error="error"``).
        RecordError: the files cannot hold a name, or cannot be written; or no image can be used.
    """
    images, out = SubjectFolders(Path(folder)), Path(out)
    if out.resolve().is_relative_to(images.root):
        raise DatasetError(
            f"{out}: lies inside the folder of the images, where it would become an identity; "
            "choose another folder"
        )
    kept = _Kept(images, on_error, progress)
    filled: set[int] = set()
    scaled = 0

    def items() -> Iterator[tuple[int, str, bytes]]:
        nonlocal scaled
        check = partial(_tried, partial(_checked, images=images, size=size, resize=resize))
        with contextlib.closing(_in_order(check, len(images), processes)) as results:
            for i, (data, changed) in kept(range(len(images)), results):
                scaled += changed
                label, name = int(images.labels[i]), images.name(i)
                filled.add(label)
                if suffix_kind(name) in _STORED_AS_PNG:
                    name += image_suffix(data)
                yield label, name, data

    written = _write_set(out, items(), images.names_of_classes(), (size, size))
    notes = [*images.notes, *turned_note(images, str(images.root))]
    if len(filled) < images.num_classes:
        notes.append(
            f"{images.num_classes - len(filled):,} of {images.num_classes:,} identities have no "
            "image left; their classes stay"
        )
    return Summary(
        path=out / "train.rec",
        images=written,
        identities=len(filled),
        skipped=kept.skipped,
        notes=notes,
        counts={"scaled": scaled, "left out": len(kept.skipped)},
    )


def apply_proposals(
    images: LabelledImages,
    proposals: str | os.PathLike[str],
    out: str | os.PathLike[str],
    *,
    on_error: OnError = "error",
    progress: Progress | None = None,
) -> Summary:
    """Write a data set anew, with the labels that a table of proposals gives it.

    Labels keep their order and those that are new follow; ``classes.txt`` says which class was or
    is which. JPEGs and PNGs are stored byte for byte. All files appear together at the end, and the
    data set stays as it is.

    Args:
        images: the data set.
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
    proposals, out = Path(proposals), Path(out)
    home = Path(images.where(0).split(", key ")[0])
    if out.resolve() in (home.resolve().parent, *home.resolve().parents):
        raise DatasetError(
            f"{out}: holds the images that are read; choose another folder, nothing is changed in "
            "place"
        )
    names = images.names_of_classes()
    ids = images.ids.tolist()
    # Tables have no blanks around fields, which folders may have.
    labels = {name.strip(): name for name in names}
    image_ids = {name: ids[i] for name, i in images.by_name().items()}
    rows = [
        replace(
            row,
            image_id=image_ids.get(row.image_id, row.image_id),
            label=labels.get(row.label, row.label),
            proposed_label=labels.get(row.proposed_label, row.proposed_label),
        )
        for row in read_proposals(proposals)
    ]
    changes = combine(rows)
    images.load_labels(progress)
    before = images.label_names().tolist()
    _check_fits(proposals, rows, dict(zip(ids, before, strict=True)))
    after = [
        changes.label_of(image, label) if label else None
        for image, label in zip(ids, before, strict=True)
    ]
    present = {label for label in after if label is not None}
    if not present:
        raise DatasetError(f"{proposals}: it leaves no image; set accept to no in some lines")
    classes = [name for name in names if name in present]
    classes += sorted(present - set(classes))
    number = {name: index for index, name in enumerate(classes)}
    order = sorted((number[label], i) for i, label in enumerate(after) if label is not None)
    kept = _Kept(images, on_error, progress)

    def items() -> Iterator[tuple[int, str, bytes]]:
        chosen = [i for _, i in order]
        stored = (_tried(_stored, images, i) for i in chosen)
        for i, data in kept(chosen, stored):
            suffix = image_suffix(data)
            file = images.name(i).replace("/", "_").removesuffix(suffix)
            yield number[str(after[i])], f"{after[i]}/{file}{suffix}", data

    size = getattr(images, "image_size", None) or (112, 112)
    written = _write_set(out, items(), classes, size)
    relabelled = set(changes.relabelled) - changes.dropped
    return Summary(
        path=out / "train.rec",
        images=written,
        identities=len(classes),
        skipped=kept.skipped,
        counts={
            "images left out as proposed": len(changes.dropped),
            "relabelled": len(relabelled.intersection(ids)),
            "labels merged": len(changes.merged),
            "proposals not accepted": changes.refused,
            "images left out as damaged": len(kept.skipped),
        },
    )


def export_folder(
    records: str | os.PathLike[str],
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
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise DatasetError(f"{out}: holds something already; choose a new or empty folder")
    list_path = images.path.with_suffix(".lst")
    paths = read_list(list_path) if list_path.is_file() else {}
    by_name = _classes_by_name(images, paths)
    digits, key_digits = len(str(images.num_classes - 1)), len(str(images.keys[-1]))
    kept = _Kept(images, on_error, progress)
    folders: set[str] = set()
    samples = (_tried(images.sample, i) for i in range(len(images)))
    with atomic_folder(out, DatasetError, private=True) as temporary:
        for i, (data, label) in kept(range(len(images)), samples):
            key = images.keys.item(i)
            components = paths.get(key, ())
            folder = components[0] if by_name else f"{label:0{digits}d}"
            file = "_".join(components[1:] if by_name else components)
            path = temporary / folder / (file or f"{key:0{key_digits}d}{image_suffix(data)}")
            folders.add(folder)
            path.parent.mkdir(exist_ok=True)
            if path.exists():
                raise DatasetError(
                    f"{images.where(i)}: another image of the file is called {folder}/{path.name} "
                    f"too; mend {list_path}, or move it away to have images named by their keys"
                )
            path.write_bytes(data)
    return Summary(
        path=out,
        images=len(images) - len(kept.skipped),
        identities=len(folders),
        skipped=kept.skipped,
        counts={"left out": len(kept.skipped)},
    )


def _tried(work: Callable[..., Item], *arguments: Any) -> Item | FacerecError:
    """Return what a function returns, or its error."""
    try:
        return work(*arguments)
    except FacerecError as error:
        return error


def _write_set(
    out: Path,
    items: Iterable[tuple[int, str, bytes]],
    classes: Sequence[str],
    image_size: tuple[int, int],
) -> int:
    """Write the files of a set, of which ``train.rec`` comes last: without it there is no set.

    Returns:
        How many images it has.
    """
    with staged_folder(out, DatasetError, last="train.rec") as folder:
        written = write_image_records(
            folder / "train", items, num_classes=len(classes), image_size=image_size
        )
        with atomic_path(folder / CLASSES_FILE) as names:
            names.write_text("".join(f"{name}\n" for name in classes), encoding="utf-8")
    return written.images


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


def _checked(i: int, *, images: SubjectFolders, size: int, resize: bool) -> Checked:
    """Return an image as it is to be stored, and whether it was scaled."""
    data, where = images.encoded(i), images.where(i)
    if image_size(data, where) == (size, size) or not resize:
        decode_image(data, where, (size, size))
        return _storable(data, where), False
    return _resize(data, where, size), True


def _stored(images: LabelledImages, i: int) -> bytes:
    return _storable(images.encoded(i), images.where(i))


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


def _in_order(
    work: Work, count: int, processes: int
) -> Generator[Checked | FacerecError, None, None]:
    """Yield ``work(i)`` in order, computed by several processes."""
    if processes == 1:
        yield from map(work, range(count))
        return
    with process_pool(processes, _start, (work,)) as pool:
        for start in range(0, count, _AT_ONCE):
            tasks = range(start, min(start + _AT_ONCE, count))
            yield from pool.map(_run, tasks, chunksize=32)


_work: Work


def _start(work: Work) -> None:
    """Receive the work, and the data set in it, once per process instead of once per task."""
    global _work
    _work = work
    cv2.setNumThreads(0)


def _run(task: int) -> Checked | FacerecError:
    return _work(task)


def _classes_by_name(images: RecordImages, paths: dict[int, tuple[str, ...]]) -> bool:
    """Return whether every image has a path, and first components and classes match one to one."""
    class_of: dict[str, int] = {}
    for key, label in zip(images.keys.tolist(), images.labels.tolist(), strict=True):
        components = paths.get(key, ())
        if len(components) < 2 or (
            label >= 0 and class_of.setdefault(components[0], label) != label
        ):
            return False
    return len(set(class_of.values())) == len(class_of)


def repair_records(records: Path, out: Path | None = None) -> list[str]:
    """Write the index of a record file anew, or copy its whole records into a new file.

    Keys are the ids in the records where these differ, which InsightFace's ``train.rec`` needs (it
    announces identities as a range of keys), else the numbers 0, 1, … in file order.

    Args:
        records: a ``.rec`` file, which stays as it is.
        out: new ``.rec`` file; without one, ``FILE.idx`` is written, and what was there is kept as
            ``FILE.idx.old``.

    Returns:
        Sentences on what was written and what was passed over. InsightFace's header and identity
        records go where others are lost: they announce keys that are no more, and the labels are in
        the images too.

    Raises:
        RecordError: the file is damaged (without ``out``) or has no whole record, or what would be
            written is there already or cannot be written.
    """
    if out is not None and (out.suffix != ".rec" or out.exists()):
        why = "is there already" if out.exists() else "is not called X.rec"
        raise RecordError(f"{out}: the new record file {why}; choose another name")
    file = RecordFile(records)
    ids, offsets, ranges, parsed = array("Q"), array("q"), set[int](), True
    for offset, payload in file.scan(salvage=out is not None):
        offsets.append(offset)
        try:
            record = unpack(payload, "")
        except RecordError:
            parsed = False
            continue
        ids.append(record.id)
        if record.flag == 2 and not record.image:
            ranges.add(offset)
    if not offsets:
        raise RecordError(
            f"{records}: no whole record among its {file.size:,} bytes; check that this is a "
            "record file, and restore it from its source"
        )
    keys = np.asarray(ids)
    if not parsed or len(np.unique(keys)) < len(keys) or keys.max() >= 1 << 63:
        keys = np.arange(len(offsets))
    index = RecordIndex(keys.astype(np.int64), np.asarray(offsets))
    if out is None:
        return _replace_index(records.with_suffix(".idx"), index)
    said = [
        f"passed over {stop - start:,} bytes from offset {start:,}: {reason}"
        for start, stop, reason in file.damages
    ]
    lost = ranges if file.damages else set()
    with record_writer(out) as writer:
        for key, offset in zip(index.keys.tolist(), offsets, strict=True):
            if offset not in lost:
                writer.write(file.read(offset), key)
    if lost:
        said.append(f"left out {len(lost):,} records without an image, announcing lost keys")
    return [
        *said,
        f"{out}: {len(offsets) - len(lost):,} whole records, damaged places passed over: "
        f"{len(file.damages):,}",
    ]


def _replace_index(path: Path, index: RecordIndex) -> list[str]:
    old, kept = path.with_suffix(".idx.old"), path.exists()
    if kept and old.exists():
        raise RecordError(
            f"{old}: an older index is kept here already; move it away, then run this again"
        )
    if kept:
        shutil.copy2(path, old)
    write_index(path, index)
    return [f"{old}: the index as it was"] * kept + [f"{path}: {len(index.keys):,} records"]
