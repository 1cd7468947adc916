"""The two layouts of face training packs, and the files beside a ``.rec``.

Layout "insightface" (MS1M, Glint360K): record 0 holds no image but two labels ``(s, e)``; images
are keys 1 … s-1, and keys s … e-1 are identity records, whose labels are a range of image keys.
Layout "im2rec": every record is an image. Written and read elsewhere by ``deepinsight/insightface:
recognition/arcface_mxnet/{image_iter.py, common/rec_builder.py}`` and
``recognition/arcface_torch/dataset.py``.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np

from facerec.errors import DatasetError, RecordError
from facerec.files import full_disk_sentence, open_file
from facerec.names import same_name
from facerec.progress import Progress
from facerec.records.image_record import (
    CLASS_LIMIT,
    HEADER_BYTES,
    ImageRecord,
    class_of,
    pack,
    unpack,
)
from facerec.records.recordio import (
    MAGIC,
    MAX_PAYLOAD,
    RecordFile,
    RecordIndex,
    RecordWriter,
    atomic_file,
    read_index,
    rebuild_index,
)

Layout = Literal["insightface", "im2rec"]

EXACT_KEYS = 1 << 24
"""Key ranges are stored as float32, which holds every integer only up to here."""

_BLOCK = 1 << 16
_LINE = 200
_MAGIC_WORD = int.from_bytes(MAGIC, "little")


class Property(NamedTuple):
    """The side file ``property``: number of classes, image size in pixels."""

    num_classes: int
    height: int
    width: int


def read_property(path: Path) -> Property:
    """Read the first line of a ``property`` file: ``num_classes,height,width``.

    Raises:
        RecordError: it has another form.
    """
    try:
        with open_file(path, "r", encoding="utf-8-sig") as file:
            found = Property(*map(int, file.readline(_LINE).split(",")))
    except (OSError, ValueError, TypeError) as problem:
        raise RecordError(
            f"{path}, line 1: expected three positive integers, `num_classes,height,width` "
            f"({str(problem)[:100]}); write the line anew"
        ) from problem
    if min(found) < 1 or found.num_classes > CLASS_LIMIT:
        raise RecordError(
            f"{path}, line 1: found {tuple(found)}; write positive numbers, of at most "
            f"{CLASS_LIMIT:,} classes"
        )
    return found


class _Headers(NamedTuple):
    """Header fields of many records, from the mapped file.

    ``plain`` marks the rows that can be trusted: one sound chunk that holds header and labels.
    The other rows are to be read one by one, which also words their errors.
    """

    plain: np.ndarray
    flag: np.ndarray
    scalar: np.ndarray
    first: np.ndarray
    image_bytes: np.ndarray

    @property
    def empty(self) -> np.ndarray:
        return self.plain & (self.flag > 0) & (self.image_bytes == 0)


def _read_headers(file: RecordFile, offsets: np.ndarray) -> _Headers:
    words = file.words()
    at = offsets // 4

    def word(i: int) -> np.ndarray:
        return words[np.minimum(at + i, len(words) - 1)]

    chunk = word(1)
    flag = word(2).astype(np.int64)
    # For whole records the continuation flag is 0 and the word is the length itself.
    length = chunk.astype(np.int64)
    image_bytes = length - HEADER_BYTES - 4 * flag
    plain = (word(0) == _MAGIC_WORD) & (length <= MAX_PAYLOAD) & (image_bytes >= 0)
    plain &= offsets + 8 + length <= file.size

    def label(i: int) -> np.ndarray:
        return word(i).view(np.float32)

    return _Headers(plain, flag, label(3), label(8), image_bytes)


class ImageRecords:
    """The images of one record file: where they are, their labels, their encoded bytes.

    Made by `open_image_records`. Images are ordered by key. The file is mapped on first use in each
    process; objects may be pickled.

    Attributes:
        path: the record file.
        layout: "insightface" or "im2rec".
        keys: int64 ``(N,)``, ascending; header and identity records are not among them.
        offsets: int64 ``(N,)``, bytes from the beginning of the file.
        num_classes: from the file ``property``, ``None`` without one.
        image_size: (height, width) from ``property``, ``None`` without one.
        label_index: which label of an array is the class.
        notes: sentences on what was found and deserves a remark.
    """

    def __init__(
        self,
        file: RecordFile,
        layout: Layout,
        index: RecordIndex,
        *,
        side: Property | None = None,
        label_index: int | None = None,
        notes: Iterable[str] = (),
    ) -> None:
        """Put together what `open_image_records` found.

        Args:
            file: the record file.
            layout: its layout.
            index: keys and offsets of the images alone, ordered by key.
            side: content of ``property``.
            label_index: which label of an array is the class.
            notes: remarks so far.
        """
        self.path = file.path
        self.layout: Layout = layout
        self.keys, self.offsets = index.keys, index.offsets
        self.num_classes = None if side is None else side.num_classes
        self.image_size = None if side is None else (side.height, side.width)
        self.label_index = label_index
        self.notes = list(notes)
        self._file = file

    def __len__(self) -> int:
        return len(self.keys)

    def where(self, i: int) -> str:
        """Name image ``i`` for a message: file, key and offset."""
        return f"{self.path}, key {self.keys.item(i)}, offset {self.offsets.item(i)}"

    def read(self, i: int) -> ImageRecord:
        """Return image ``i`` with its labels.

        Raises:
            RecordError: the record is damaged.
        """
        payload = self._file.read(int(self.offsets[i]), int(self.keys[i]))
        return unpack(payload, self.where(i))

    def sample(self, i: int) -> tuple[bytes, int]:
        """Return the encoded image ``i`` and its class.

        Raises:
            RecordError: the record is damaged, or its label is no class.
        """
        where = self.where(i)
        record = unpack(self._file.read(self.offsets.item(i), self.keys.item(i)), where)
        return record.image, class_of(record, where, self.num_classes, self.label_index)

    def read_class(self, i: int) -> int:
        """Return the class of image ``i``; raises as `sample` does."""
        return self.sample(i)[1]

    def labels(
        self,
        progress: Progress | None = None,
        on_error: Literal["error", "skip"] = "error",
    ) -> np.ndarray:
        """Return the classes of all images, int64 ``(N,)``, by one pass over their headers.

        The class comes from the image's own label, not from the identity records.

        Args:
            progress: called now and then with the images done.
            on_error: ``"skip"`` gives damaged records and wrong labels the class -1.

        Raises:
            RecordError: a record is damaged or its label is no class (``on_error="error"``).
        """
        labels = np.empty(len(self), dtype=np.int64)
        limit = CLASS_LIMIT if self.num_classes is None else min(self.num_classes, CLASS_LIMIT)
        for start in range(0, len(self), _BLOCK):
            headers = _read_headers(self._file, self.offsets[start : start + _BLOCK])
            value = np.where(headers.flag == 0, headers.scalar, headers.first)
            # Of several labels the first, unless told; an index above 0 needs a look at each.
            sure = headers.plain & (headers.flag <= {None: 2, 0: 0}.get(self.label_index, -1))
            # NaN compares as false; the floor of an infinity is excluded by the limit.
            with np.errstate(invalid="ignore"):
                sure &= (value >= 0) & (value < limit) & (value == np.floor(value))
            labels[start : start + len(value)] = np.where(sure, value, -1).astype(np.int64)
            for i in start + np.flatnonzero(~sure):
                try:
                    labels[i] = self.read_class(int(i))
                except RecordError:
                    if on_error == "error":
                        raise
            if progress is not None:
                progress("reading labels", start + len(value), len(self))
        return labels


def open_image_records(path: Path, label_index: int | None = None) -> ImageRecords:
    """Open a training pack: find its index and layout, and keep the images alone.

    Args:
        path: a ``.rec`` file, or a folder with ``train.rec`` or exactly one ``.rec``.
        label_index: which label is the class where records carry an array; by default the first
            of at most two.

    Raises:
        RecordError: no or several record files, a damaged index or header record, an index that
            disagrees with the file (insightface layout), or a malformed ``property``.
    """
    file = RecordFile(_find_record_file(Path(path)))
    if file.size == 0:
        raise RecordError(f"{file.path}: the record file is empty; write it again")
    if file.path.suffix == ".bin" and bytes(file.content[:4]) != MAGIC:
        raise RecordError(
            f"{file.path}: this is a verification pack, and training images are needed; give "
            "a record file (.rec), its folder, or a folder of identity/image.jpg, and score packs "
            "with facerec verify"
        )
    notes: list[str] = []
    index = _load_index(file, notes)
    layout: Layout
    header = _header_record(file, index)
    if header is None:
        layout, index = "im2rec", _cover(file, index, notes)
    else:
        layout, index = "insightface", _images_of_insightface(file, index, header)
    side_path = file.path.parent / "property"
    side = read_property(side_path) if side_path.is_file() else None
    return ImageRecords(file, layout, index, side=side, label_index=label_index, notes=notes)


def _find_record_file(path: Path) -> Path:
    if not path.is_dir():
        return path
    if (path / "train.rec").is_file():
        return path / "train.rec"
    files = sorted(path.glob("*.rec"))
    if len(files) != 1:
        names = ", ".join(file.name for file in files[:10]) + ", …" * (len(files) > 10)
        raise RecordError(
            f"{path}: the folder has {len(files)} record files{names and f' ({names})'} and none "
            "is train.rec; name the file"
        )
    return files[0]


def _load_index(file: RecordFile, notes: list[str]) -> RecordIndex:
    """Read the index and order it by key, or rebuild it for a file that has none."""
    path = file.path.with_suffix(".idx")
    if not path.exists():
        index = rebuild_index(file.path)
        for start in range(0, len(index), _BLOCK):
            empty = _read_headers(file, index.offsets[start : start + _BLOCK]).empty
            if empty.any():
                raise RecordError(
                    f"{file.path}, offset {index.offsets[start + np.argmax(empty)]}: a record "
                    f"without an image, as in the insightface layout, whose keys must come from an "
                    f"index, but {path.name} is missing; restore it, or write one from the ids in "
                    "the records with facerec make-records --repair"
                )
        notes.append(
            f"{path}: missing; rebuilt in memory from {file.path.name}: {len(index):,} records, "
            "keys in file order"
        )
        return index
    index = read_index(path, file.size)
    if not len(index):
        raise RecordError(f"{path}: the index is empty; remove it to have it rebuilt")
    if (index.keys[1:] > index.keys[:-1]).all():
        return index
    order = np.argsort(index.keys)
    return RecordIndex(index.keys[order], index.offsets[order])


def _header_record(file: RecordFile, index: RecordIndex) -> tuple[float, float] | None:
    """Return ``(s, e)`` of the header record, or ``None`` if every record is an image."""
    if index.keys[0] != 0:
        return None
    where = f"{file.path}, key 0, offset {index.offsets[0]}"
    record = unpack(file.read(int(index.offsets[0]), 0), where)
    if record.flag != 2 or record.image:
        return None
    s, e = (float(value) for value in np.asarray(record.label))
    if not (1 <= s <= e < 2.0**53 and s.is_integer() and e.is_integer()):
        raise RecordError(
            f"{where}: a header record without an image announces identity records from key "
            f"{s:g} to {e:g}, which is no range; restore the file"
        )
    return s, e


def _cover(file: RecordFile, index: RecordIndex, notes: list[str]) -> RecordIndex:
    """Rebuild an index (im2rec layout) that misses records at either end of the file."""
    if not _misses_records(file, index, notes):
        return index
    rebuilt = rebuild_index(file.path)
    notes.append(
        f"{file.path.with_suffix('.idx')}: lists {len(index):,} of {len(rebuilt):,} records; "
        "rebuilt in memory, keys in file order"
    )
    return rebuilt


def _misses_records(file: RecordFile, index: RecordIndex, notes: list[str]) -> bool:
    # Counting all records would touch the whole file, so only its two ends are looked at.
    if index.offsets.min() != 0:
        return True
    try:
        return file.record_end(int(index.offsets.max())) != file.size
    except RecordError as problem:
        notes.append(str(problem))
        return False


def _images_of_insightface(
    file: RecordFile, index: RecordIndex, header: tuple[float, float]
) -> RecordIndex:
    """Return the index of the images alone."""
    s, e = header
    last = int(index.keys[-1])
    tolerance = int(np.spacing(np.float32(e))) if e >= EXACT_KEYS else 0
    if len(index) != last + 1 or abs(last + 1 - e) > tolerance or _misses_records(file, index, []):
        raise RecordError(
            f"{file.path.with_suffix('.idx')}: lists {len(index):,} records, the last key {last}, "
            f"where the header record of {file.path.name} announces {e:,.0f}, or not all of the "
            "file; restore the index, or write one from the ids in the records with facerec "
            "make-records --repair"
        )

    def has_image(key: int) -> bool:
        if key > last:
            return False
        where = f"{file.path}, key {key}, offset {index.offsets[key]}"
        return len(unpack(file.read(int(index.offsets[key]), key), where).image) > 0

    end = end_of_images(s, has_image, str(file.path))
    if end < 2:
        raise RecordError(f"{file.path}: the header record announces no images; restore the file")
    return RecordIndex(index.keys[1:end], index.offsets[1:end])


def end_of_images(announced: float, has_image: Callable[[int], bool], where: str) -> int:
    """Return the first key after the images of an insightface pack.

    Up to 2**24 that is what the header record announces. Beyond, float32 has rounded that number,
    and the first key without an image decides, which must lie within the rounding.

    Args:
        announced: ``s`` of the header record.
        has_image: whether a key exists and its record holds an image.
        where: names the file in error messages.

    Raises:
        RecordError: the records near ``announced`` contradict it.
    """
    key = int(announced)
    if key < EXACT_KEYS:
        if has_image(key):
            raise RecordError(
                f"{where}, key {key}: holds an image, although the header record announces that "
                f"the images end before key {key}; restore the file"
            )
        return key
    spacing = int(np.spacing(np.float32(announced)))
    if has_image(key - spacing):
        for candidate in range(key - spacing + 1, key + spacing + 1):
            if not has_image(candidate):
                return candidate
    raise RecordError(
        f"{where}, key {key}: the header record announces that the images end here within "
        f"{spacing} keys, but the records do not; restore the file"
    )


@dataclass(frozen=True)
class WriteSummary:
    """What `write_image_records` wrote, and remarks, as for a layout that had to be given up."""

    path: Path
    layout: Layout
    images: int
    notes: tuple[str, ...] = ()


def read_list(path: Path) -> dict[int, tuple[str, ...]]:
    """Read the list of a record file; return the components of each key's path.

    Its lines are im2rec's, ``key TAB label … TAB path``, or those of InsightFace's ``dir2lst``,
    ``aligned TAB path TAB class …``, of which the first that is taken has the key 1.

    Raises:
        DatasetError: a line has another form, a key occurs twice, or a path is unsafe: absolute,
            with a drive letter, backslash, NUL, or a part that is empty or begins with a dot.
    """
    paths: dict[int, tuple[str, ...]] = {}
    for number, line in enumerate(read_text(path).split("\n"), start=1):
        if not line.strip():
            continue
        where = f"{path}, line {number}"
        fields = [field.strip(" \r") for field in line.split("\t")]
        if len(fields) < 3 or not (fields[0].isascii() and fields[0].isdigit()):
            raise DatasetError(
                f"{where}: expected key TAB label TAB path, found {line[:60].strip()!r}; "
                "mend the list, or move it away to have images named by their keys"
            )
        if len(fields[0]) == 1 and not _is_number(fields[1]):
            if fields[0] == "1" or len(fields) > 16:  # else face2rec2 passes it over
                paths[len(paths) + 1] = _safe_components(fields[1], where)
            continue
        key = int(fields[0][-20:])  # Python itself refuses thousands of digits
        if len(fields[0]) > 19 or key in paths:
            raise DatasetError(
                f"{where}: key {fields[0][:20]} is too long, or there twice; mend it"
            )
        paths[key] = _safe_components(fields[-1], where)
    return paths


def read_text(path: Path) -> str:
    """Return a text file, with its names composed.

    Raises:
        DatasetError: it cannot be read or is not UTF-8.
    """
    try:
        with open_file(path, "r", encoding="utf-8-sig") as file:
            return same_name(str(file.read()))
    except OSError as problem:
        raise DatasetError(
            f"{path}: cannot be read ({problem.strerror or problem}); check the path"
        ) from problem
    except UnicodeDecodeError as problem:
        raise DatasetError(
            f"{path}: byte {problem.start} is not UTF-8; save the file as UTF-8 text"
        ) from problem


def _safe_components(name: str, where: str) -> tuple[str, ...]:
    components = tuple(name.split("/"))
    if (
        any(not component or component.startswith(".") for component in components)
        or any(sign in name for sign in "\\\0")
        or name[1:2] == ":"
    ):
        raise DatasetError(
            f"{where}: the path {name[:100]!r} is unsafe or hidden (absolute, with a drive letter, "
            "backslash, NUL, or a part that is empty or begins with a dot); give it a plain "
            "relative path"
        )
    return components


def _is_number(text: str) -> bool:
    try:
        return math.isfinite(float(text))
    except ValueError:
        return False


def write_image_records(
    prefix: Path,
    items: Iterable[tuple[int, str, bytes]],
    *,
    num_classes: int | None = None,
    image_size: tuple[int, int] = (112, 112),
    layout: Literal["auto", "insightface", "im2rec"] = "auto",
) -> WriteSummary:
    """Write a training pack: ``prefix.rec``, ``.idx``, ``.lst``, and ``property`` beside them.

    Images get the keys 1, 2, … (0, 1, … in the im2rec layout) in the order of the stream. All
    files appear only if everything went well; the same stream always gives the same bytes.

    Args:
        prefix: path without suffix, as in ``data/train``.
        items: (class, name, encoded image); for the insightface layout grouped by class.
        num_classes: for ``property``; by default one more than the largest class.
        image_size: (height, width) in pixels, for ``property``.
        layout: ``"auto"`` is "insightface" as long as float32 holds all keys, else "im2rec".

    Raises:
        RecordError: a class or name that the files cannot hold, an empty image, a stream that is
            empty or not grouped, or a disk that is full.
    """
    prefix = Path(prefix)
    path = prefix.with_name(prefix.name + ".rec")
    wanted, notes = layout, []
    grouped = layout != "im2rec"
    first_key = 1 if grouped else 0
    groups: dict[int, int] = {}  # class → first key, in order of appearance
    current = -1
    key = first_key
    largest = -1
    with contextlib.ExitStack() as stack:
        # Left in the opposite order, so that `property`, the seal on the set, comes last.
        side = stack.enter_context(atomic_file(prefix.with_name("property")))
        lines = stack.enter_context(atomic_file(prefix.with_name(prefix.name + ".lst")))
        writer = stack.enter_context(RecordWriter(path))
        for label, name, image in items:
            _check_item(path, key, label, name, image, num_classes)
            if grouped and label != current:
                if label in groups:
                    raise RecordError(
                        f"{path}: class {label} comes back at {name!r} after other classes, but "
                        "the insightface layout needs the images of a class in one row; sort the "
                        'images by class, or choose layout="im2rec"'
                    )
                groups[label] = key
            current, largest = label, max(largest, label)
            writer.write(pack(ImageRecord(0, float(label), key, 0, image)), key)
            try:
                lines.write(f"{key}\t{label}\t{name}\n".encode())
            except OSError as problem:
                raise RecordError(full_disk_sentence(path, problem)) from problem
            key += 1
        images = key - first_key
        if not images:
            raise RecordError(f"{path}: there are no images to write; check the source")
        chosen: Layout = "insightface" if grouped else "im2rec"
        # The header record also holds last + 1, which must be exact as well.
        if grouped and (last := key + len(groups) - 1) >= EXACT_KEYS:
            if wanted == "insightface":
                raise RecordError(f"{path}: {_too_many_keys(last)}" + '; choose layout="im2rec"')
            chosen = "im2rec"
            notes.append(_too_many_keys(last) + "; the im2rec layout was written instead")
        if chosen == "insightface":
            _write_identities(writer, groups, key)
        num_classes = largest + 1 if num_classes is None else num_classes
        height, width = image_size
        # Without a second line, at which InsightFace's `load_property` for mxnet would stop.
        side.write(f"{num_classes},{height},{width}\n".encode())
    return WriteSummary(path, chosen, images, tuple(notes))


def _check_item(
    path: Path, key: int, label: int, name: str, image: bytes, num_classes: int | None
) -> None:
    limit = CLASS_LIMIT if num_classes is None else num_classes
    if not isinstance(label, (int, np.integer)) or not 0 <= label < limit:
        raise RecordError(
            f"{path}, {name!r}: class {label!r} is none of {limit:,} classes; number them from 0"
        )
    if not image:
        raise RecordError(
            f"{path}, {name!r}: the image for key {key} is empty; leave it out or restore it"
        )
    # Surrogates stand for the bytes of a file name that is not UTF-8.
    if not name or any(sign in "\t\n\r\0" or "\ud800" <= sign <= "\udfff" for sign in name):
        raise RecordError(
            f"{path}, {name!r}: the name cannot stand in a .lst line (empty, with a TAB, line "
            "break or NUL, or not UTF-8); rename the image"
        )


def _too_many_keys(last: int) -> str:
    return (
        f"the insightface layout would need keys up to {last:,}, and float32 key ranges "
        f"are exact only up to {EXACT_KEYS:,}"
    )


def _write_identities(writer: RecordWriter, groups: dict[int, int], end: int) -> None:
    """Write the identity records and, physically last as InsightFace has it, the header record."""
    starts = list(groups.values())
    for key, start, stop in zip(
        range(end, end + len(starts)), starts, [*starts[1:], end], strict=True
    ):
        _write_range(writer, key, start, stop)
    _write_range(writer, 0, end, end + len(starts))


def _write_range(writer: RecordWriter, key: int, start: int, stop: int) -> None:
    labels = np.array([start, stop], dtype=np.float32)
    writer.write(pack(ImageRecord(2, labels, key, 0, b"")), key)
