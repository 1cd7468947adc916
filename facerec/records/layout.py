"""Training packs: the two layouts of record files, the files beside a ``.rec``, and its images.

Layout "insightface" (MS1M, Glint360K): record 0 holds no image but two labels ``(s, e)``; images
are keys 1 … s-1, and keys s … e-1 are range records, one a subject, whose labels are a range of
image keys.
Layout "im2rec": every record is an image. Written and read elsewhere by ``deepinsight/insightface:
recognition/arcface_mxnet/{image_iter.py, common/rec_builder.py}`` and
``recognition/arcface_torch/dataset.py``.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import os
from collections.abc import Callable, Iterable
from pathlib import Path, PurePosixPath
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from facerec.base.errors import DatasetError, RecordError
from facerec.base.files import open_file, reading
from facerec.base.progress import Progress
from facerec.records.images import ImageSource, OnError, check_relative, text_array
from facerec.records.recordio import (
    CLASS_LIMIT,
    HEADER_BYTES,
    MAGIC_WORD,
    MAX_PAYLOAD,
    REPAIR,
    ImageRecord,
    RecordFile,
    RecordIndex,
    atomic_file,
    class_of,
    pack,
    read_index,
    rebuild_index,
    record_writer,
    unpack,
)
from facerec.records.tables import read_text

Layout = Literal["insightface", "im2rec"]

CLASSES_FILE = "classes.txt"
"""Beside a record file: the name of each class, one a line, in the order of the class numbers."""

EXACT_KEYS = 1 << 24
"""Key ranges are stored as float32, which holds every integer only up to here."""

_BLOCK = 1 << 16


def read_property(path: Path) -> tuple[int, tuple[int, int]]:
    """Return number of classes, and height and width in pixels: the first line of ``property``.

    Raises:
        RecordError: it has another form.
    """
    advice = "write it anew as `num_classes,height,width`, whole numbers from 1"
    with (
        reading(f"{path}, line 1", RecordError, advice, (OSError, ValueError)),
        open_file(path, "r", encoding="utf-8-sig") as file,
    ):
        classes, height, width = map(int, file.readline(200).split(","))
        if min(classes, height, width) < 1 or classes > CLASS_LIMIT:
            raise ValueError(f"{classes},{height},{width}; classes are at most {CLASS_LIMIT:,}")
    return classes, (height, width)


class RecordImages(ImageSource):
    """The images of one training pack, ordered by key; header and range records are none.

    The file is mapped on first use in each process; objects may be pickled.

    Attributes:
        path: the record file.
        layout: "insightface" or "im2rec".
        keys: int64 ``(N,)``, ascending.
        offsets: int64 ``(N,)``, bytes from the beginning of the file.
        image_size: (height, width) from ``property``, ``None`` without one.
        label_index: which label of an array is the class.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        label_index: int | None = None,
        on_error: OnError = "error",
        progress: Progress | None = None,
    ) -> None:
        """Find the index and layout of a pack.

        Args:
            path: a ``.rec`` file, or a folder with ``train.rec`` or exactly one ``.rec``.
            label_index: which label is the class where records carry an array; by default the first
                of at most two.
            on_error: whether a label that is none raises, or is -1.
            progress: called with the images done where the classes are counted in a pass over the
                file, which has no ``property``.

        Raises:
            RecordError: no or several record files, a damaged index or header record, an index that
                disagrees with the file (insightface layout), or a malformed ``property``.
            DatasetError: the file has no image, or names of other classes beside it.
        """
        self.file = RecordFile(_find_record_file(Path(path)))
        self.path = self.file.path
        self.label_index, self.on_error = label_index, on_error
        index, self.layout, self.notes = _find_images(self.file)
        self.keys, self.offsets = index
        side = self.path.with_name("property")
        known: tuple[int | None, tuple[int, int] | None] = (None, None)
        self._limit, self.image_size = read_property(side) if side.is_file() else known
        self.num_classes = self._limit or int(self.load_labels(progress).max(initial=-1)) + 1
        if not len(self.keys) or self.num_classes < 1:
            raise DatasetError(f"{self.path}: has no image with a usable label; check the path")
        self.class_names = _read_class_names(self.path.parent, self.num_classes)

    def __len__(self) -> int:
        return len(self.keys)

    def where(self, i: int) -> str:
        """Name image ``i`` for a message: file, key and offset."""
        return f"{self.path}, key {self.keys.item(i)}, offset {self.offsets.item(i)}"

    @functools.cached_property
    def ids(self) -> NDArray[np.str_]:  # type: ignore[override]
        """The keys of all records, text ``(N,)``."""
        return self.keys.astype(np.str_)

    def read(self, i: int) -> ImageRecord:
        """Return image ``i`` with its labels.

        Raises:
            RecordError: the record is damaged.
        """
        return unpack(self.file.read(self.offsets.item(i), self.keys.item(i)), self.where(i))

    def sample(self, i: int) -> tuple[bytes, int]:
        """Return the encoded image ``i`` and its class.

        Raises:
            RecordError: the record is damaged, has no image, or its label is no class.
        """
        record = self.read(i)
        if not record.image:
            raise RecordError(
                f"{self.where(i)}: a record without an image, as one of the insightface layout "
                f"whose keys are lost; restore the index, or write one from the ids with {REPAIR}"
            )
        return record.image, class_of(record, self.where(i), self._limit, self.label_index)

    def encoded(self, i: int) -> bytes:
        """Return the encoded image ``i``; raises as `sample` does."""
        return self.sample(i)[0]

    def read_labels(self, progress: Progress | None = None) -> NDArray[np.int64]:
        """Read the classes of all images, int64 ``(N,)``, by one pass over their headers.

        The class comes from the image's own label, not from the range records. Under
        ``on_error="skip"`` damaged records and wrong labels have the class -1.

        Args:
            progress: called now and then with the images done.

        Raises:
            RecordError: a record is damaged or its label is no class (``on_error="error"``).
        """
        labels = np.empty(len(self), dtype=np.int64)
        limit = self._limit or CLASS_LIMIT
        # Of several labels the first, unless told; an index above 0 needs a look at each.
        most = {None: 2, 0: 0}.get(self.label_index, -1)
        for start in range(0, len(self), _BLOCK):
            value = _plain_labels(self.file, self.offsets[start : start + _BLOCK], most)
            # NaN compares as false; the floor of an infinity is excluded by the limit.
            sure = (value >= 0) & (value < limit) & (value == np.floor(value))
            labels[start : start + len(value)] = np.where(sure, value, -1)
            for i in start + np.flatnonzero(~sure):
                try:
                    labels[i] = self.sample(int(i))[1]
                except RecordError:
                    if self.on_error == "error":
                        raise
            if progress is not None:
                progress("reading labels", start + len(value), len(self))
        return labels

    @functools.cached_property
    def titles(self) -> NDArray[np.str_]:
        """The paths of all images if the ``.lst`` beside the records tells them, else the keys."""
        path = self.path.with_suffix(".lst")
        try:
            paths = read_list(path) if path.is_file() else {}
        except DatasetError as problem:
            self.notes = [*self.notes, f"{problem} (images are named by their keys)"]
            return self.ids
        names = ["/".join(paths.get(key, ())) for key in self.keys.tolist()]
        if "" in names or len({*names, *self.ids.tolist()}) < 2 * len(names):
            return self.ids
        return text_array(names, str(path))


def _plain_labels(file: RecordFile, offsets: NDArray[np.int64], most: int) -> NDArray[np.float64]:
    """Return the first labels of many records from their headers in the mapped file.

    NaN stands for records to be read one by one, which also words their errors: all but sound whole
    ones with an image and no more than ``most`` labels.
    """
    words = np.frombuffer(file.content, "<u4", file.size // 4)

    def word(i: int) -> NDArray[np.uint32]:
        return words[np.minimum(offsets // 4 + i, len(words) - 1)]

    # For whole records the continuation flag is 0 and the word is the length itself.
    flag, length = word(2).astype(np.int64), word(1).astype(np.int64)
    plain = (word(0) == MAGIC_WORD) & (length <= MAX_PAYLOAD) & (flag <= most)
    plain &= (length > HEADER_BYTES + 4 * flag) & (offsets + 8 + length <= file.size)
    labels = np.where(flag == 0, word(3), word(8)).view(np.float32)
    return np.where(plain, labels, np.nan)


def _find_record_file(path: Path) -> Path:
    if not path.is_dir():
        return path
    files = [path / "train.rec"] if (path / "train.rec").is_file() else sorted(path.glob("*.rec"))
    if len(files) != 1:
        raise RecordError(
            f"{path}: the folder has {len(files)} record files and none is train.rec; name the file"
        )
    return files[0]


def _find_images(file: RecordFile) -> tuple[RecordIndex, Layout, list[str]]:
    """Return the index of the images, ordered by key, the layout, and notes.

    Where the index is missing or lists not all records it is rebuilt in memory.
    """
    path, notes = file.path.with_suffix(".idx"), list[str]()
    there = path.exists() and path.stat().st_size
    keys, offsets = read_index(path, file.size) if there else (np.empty(0, np.int64),) * 2
    if not len(keys) or _misses_records(file, offsets):
        listed = len(keys)
        keys, offsets = rebuild_index(file)
        found = f"lists {listed:,} of" if listed else "missing;"
        notes = [f"{path}: {found} {len(keys):,} records; rebuilt in memory"]
    order = np.argsort(keys, kind="stable")  # which is quick where they are in order
    index = RecordIndex(keys[order], offsets[order])
    header = _header_record(file, index)
    if header is None:
        return index, "im2rec", notes
    return _images_of_insightface(file, index, header), "insightface", notes


def _header_record(file: RecordFile, index: RecordIndex) -> tuple[float, float] | None:
    """Return ``(s, e)`` of the header record, or ``None`` if every record is an image."""
    if index.keys[0] != 0:
        return None
    where = f"{file.path}, key 0, offset {index.offsets[0]}"
    record = unpack(file.read(int(index.offsets[0]), 0), where)
    if record.flag != 2 or record.image:
        return None
    s, e = np.asarray(record.label).tolist()
    return s, e


def _misses_records(file: RecordFile, offsets: NDArray[np.int64]) -> bool:
    # Counting all records would touch the whole file, so only its two ends are looked at.
    try:
        return offsets.min() != 0 or file.record_end(int(offsets.max())) != file.size
    except RecordError:  # to be told when that record is read
        return False


def _images_of_insightface(
    file: RecordFile, index: RecordIndex, header: tuple[float, float]
) -> RecordIndex:
    """Return the index of the images alone.

    Up to key 2**24 they end where the header record announces. Beyond, float32 has rounded that
    number, and the first key without an image decides, which must lie within the rounding.

    Raises:
        RecordError: the index is not that of the file, or the records contradict the header.
    """
    (start, end), count = header, len(index.keys)
    # By how much whole numbers in float32 may be others than were meant.
    slack, slack_end = (np.spacing(np.array(header, np.float32)) // 2).tolist()

    def has_image(key: int) -> bool:
        if key >= count:
            return False
        where = f"{file.path}, key {key}, offset {index.offsets[key]}"
        return len(unpack(file.read(int(index.offsets[key]), key), where).image) > 0

    near = range(0)
    if count == index.keys[-1] + 1 and 1 <= start <= end and abs(count - end) <= slack_end:
        near = range(int(start - slack), int(start + slack) + 1)
    stop = near.start + sum(1 for _ in itertools.takewhile(has_image, near))
    if stop == near.stop or (slack and stop == near.start):
        raise RecordError(
            f"{file.path.with_suffix('.idx')}: lists {count:,} records, the last key "
            f"{index.keys[-1]}, where the header record of {file.path.name} announces that images "
            f"end at key {start:.0f} and records at {end:.0f}; restore both, or write an index "
            f"from the ids in the records with {REPAIR}"
        )
    return RecordIndex(index.keys[1:stop], index.offsets[1:stop])


def _read_class_names(folder: Path, num_classes: int) -> list[str] | None:
    path = folder / CLASSES_FILE
    if not path.is_file():
        return None
    names = read_text(path).removesuffix("\n").split("\n")
    if len(names) != num_classes:
        raise DatasetError(
            f"{path}: names {len(names):,} classes where the records, or the file `property` "
            f"beside it, have {num_classes:,}; restore or remove what belongs to other records"
        )
    return names


def read_list(path: Path) -> dict[int, tuple[str, ...]]:
    """Read the list of a record file; return the components of each key's path.

    Its lines are im2rec's, ``key TAB label … TAB path``.

    Raises:
        DatasetError: a line has another form, a key occurs twice, or a path is absolute or climbs
            out of its folder.
    """
    paths: dict[int, tuple[str, ...]] = {}
    for number, line in enumerate(read_text(path).split("\n"), start=1):
        fields = [field.strip(" \r") for field in line.split("\t")]
        if not any(fields):
            continue
        key, name = fields[0], fields[-1]
        if len(fields) < 3 or not (key.isascii() and key.isdigit()) or int(key[:20]) in paths:
            raise DatasetError(
                f"{path}, line {number}: expected key TAB label TAB path, each key once, found "
                f"{line[:60].strip()!r}; mend the list, or move it away to have images named by "
                "their keys"
            )
        check_relative(name, f"{path}, line {number}")
        paths[int(key[:20])] = PurePosixPath(name).parts
    return paths


def write_image_records(
    prefix: Path,
    items: Iterable[tuple[int, str, bytes]],
    *,
    num_classes: int | None = None,
    image_size: tuple[int, int] = (112, 112),
) -> int:
    """Write a training pack: ``prefix.rec``, ``.idx``, ``.lst``, and ``property`` beside them.

    Images get the keys 1, 2, … in the order of the stream. The layout is InsightFace's, or im2rec's
    where a class is not in one row or float32 does not hold all keys. All files appear only if
    everything went well; the same stream always gives the same bytes.

    Args:
        prefix: path without suffix, as in ``data/train``.
        items: (class, name, encoded image), at least one, best grouped by class.
        num_classes: for ``property``; by default one more than the largest class.
        image_size: (height, width) in pixels, for ``property``.

    Returns:
        How many images were written.

    Raises:
        RecordError: a class or name that the files cannot hold, or an empty image.
        FacerecError: the files cannot be written, as on a full disk.
    """
    path = prefix.with_name(prefix.name + ".rec")
    limit = CLASS_LIMIT if num_classes is None else num_classes
    key, current, largest, grouped = 1, -1, -1, True
    groups: dict[int, int] = {}  # class → first key, in order of appearance
    with contextlib.ExitStack() as stack:
        # Left in the opposite order, so that `property`, the seal on the set, comes last.
        side = stack.enter_context(atomic_file(prefix.with_name("property")))
        lines = stack.enter_context(atomic_file(prefix.with_name(prefix.name + ".lst")))
        write = stack.enter_context(record_writer(path))
        for label, name, image in items:
            _check_item(path, label, name, image, limit)
            grouped &= label == current or label not in groups
            groups.setdefault(label, key)
            current, largest = label, max(largest, label)
            write(pack(ImageRecord(0, float(label), key, 0, image)), key)
            lines.write(f"{key}\t{label}\t{name}\n".encode())
            key += 1
        # The header record also holds the number after the last key, which must be exact as well.
        if grouped and key + len(groups) <= EXACT_KEYS:
            _write_ranges(write, groups, key)
        height, width = image_size
        # Without a second line, at which InsightFace's `load_property` for mxnet would stop.
        side.write(f"{limit if num_classes else largest + 1},{height},{width}\n".encode())
    return key - 1


def _check_item(path: Path, label: int, name: str, image: bytes, limit: int) -> None:
    # Surrogates stand for the bytes of a file name that is not UTF-8.
    odd = any(sign in "\t\n\r\0" or "\ud800" <= sign <= "\udfff" for sign in name)
    if not 0 <= label < limit or not name or not image or odd:
        raise RecordError(
            f"{path}, {name!r}: class {label} is none of {limit:,}, the image is empty, or its "
            "name cannot stand in a .lst line (empty, with a TAB, line break or NUL, or not UTF-8)"
        )


def _write_ranges(write: Callable[[bytes, int], int], groups: dict[int, int], end: int) -> None:
    """Write the range records and, physically last as InsightFace has it, the header record."""
    starts = list(groups.values())
    ranges = [*zip(starts, [*starts[1:], end], strict=True), (end, end + len(starts))]
    keys = [*range(end, end + len(starts)), 0]
    for key, span in zip(keys, ranges, strict=True):
        write(pack(ImageRecord(2, np.array(span, np.float32), key, 0, b"")), key)
