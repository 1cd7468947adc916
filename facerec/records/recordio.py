"""RecordIO, the framing of ``.rec`` files, the image records in it, and the ``.idx`` text index.

A file is a row of chunks, each at an offset divisible by 4: the magic ``0xced7230a``, a word that
holds a continuation flag (top 3 bits) and a length (low 29 bits), the data, and zero bytes up to a
multiple of 4. Flag 0 is a whole record; 1, 2, 3 are the first, a middle and the last part of one.
The writer cuts a payload wherever the magic stands at a multiple of 4 and drops those four bytes;
the reader puts them back. Format: ``dmlc/dmlc-core: include/dmlc/recordio.h, src/recordio.cc``.

The payload of an image record is MXNet's 24-byte header (u32 flag, f32 label, u64 id, u64 id2),
``flag`` float32 labels, and the encoded image (``apache/mxnet: python/mxnet/recordio.py``).
"""

from __future__ import annotations

import contextlib
import io
import mmap
import os
import struct
from array import array
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO, NamedTuple

import numpy as np

from facerec.base.errors import RecordError
from facerec.base.files import atomic_path, open_file, read_file, reading
from facerec.records.other_kinds import other_kind

MAGIC_WORD = 0xCED7230A
MAGIC = struct.pack("<I", MAGIC_WORD)
MAX_PAYLOAD = (1 << 29) - 1

CLASS_LIMIT = 1 << 24
"""Labels are float32, which holds every integer only up to here."""

REPAIR = "facerec make-records --repair"
"""The command that mends what is refused here."""

_CHUNK = struct.Struct("<4sI")
_HEADER = struct.Struct("<IfQQ")
HEADER_BYTES = _HEADER.size


class RecordFile:
    """The records of one ``.rec`` file, memory-mapped and read by offset or in file order.

    The map is opened on first use, and crosses ``fork``; an object may be pickled. No Python object
    is kept per record.

    Attributes:
        path: the file.
        size: its length in bytes.
        damages: what the last scan with ``salvage=True`` passed over: start, stop and reason.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        """Look at the file without mapping it.

        Raises:
            RecordError: there is no such file, or it is an index.
        """
        self.path = Path(path)
        if kind := other_kind(self.path):
            raise RecordError(kind)
        with reading(self.path, RecordError):
            self.size = self.path.stat().st_size
        self.damages: list[tuple[int, int, str]] = []
        self._map: mmap.mmap | None = None

    def __getstate__(self) -> dict[str, object]:
        return {**self.__dict__, "_map": None}

    def read(self, offset: int, key: int | None = None) -> bytes:
        """Return the payload of the record that begins at ``offset``.

        Args:
            offset: bytes from the beginning of the file.
            key: the record's key, if known; it only serves the error message.

        Raises:
            RecordError: no sound record begins there.
        """
        ranges, _ = self._walk(offset, key)
        data = self.content
        return MAGIC.join([data[a:b] for a, b in ranges])  # of one part no copy is made

    def record_end(self, offset: int) -> int:
        """Return where the record at ``offset`` ends, padding included, without reading its data.

        Raises:
            RecordError: no sound record begins there.
        """
        return self._walk(offset)[1]

    def scan(self, salvage: bool = False) -> Iterator[tuple[int, bytes]]:
        """Yield ``(offset, payload)`` of all records in file order.

        Args:
            salvage: go on after damage at the next place where a record can begin, and list in
                ``damages`` what was passed over.

        Raises:
            RecordError: the file is damaged (without ``salvage``).
        """
        self.damages, position = [], 0
        while position < self.size:
            try:
                end = self.record_end(position)
            except RecordError as problem:
                if not salvage:
                    raise
                end = self._next_beginning(position + 4)
                start, reason = position, str(problem)
                if self.damages and self.damages[-1][1] == position:
                    start, _, reason = self.damages.pop()
                self.damages.append((start, end, reason))
            else:
                yield position, self.read(position)
            position = end

    @property
    def content(self) -> mmap.mmap:
        """The mapped file; slices of it are copies."""
        if self._map is None:
            with reading(self.path, RecordError, faults=Exception), open_file(self.path) as file:
                self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        # To read what is no more there would kill the process.
        if (now := self._map.size()) != self.size:
            raise RecordError(
                f"{self.path}: the file was cut short or changed while it was read, from "
                f"{self.size:,} bytes to {now:,}; restore it and begin again"
            )
        return self._map

    def _next_beginning(self, position: int) -> int:
        data = self.content
        while 0 <= (position := data.find(MAGIC, position)) <= self.size - 8:
            if position % 4 == 0 and data[position + 7] >> 5 in (0, 1):
                return position
            position += 1
        return self.size

    def _walk(self, offset: int, key: int | None = None) -> tuple[list[tuple[int, int]], int]:
        """Return the data ranges of the record's parts and the offset after its padding."""
        data, position = self.content, offset
        ranges: list[tuple[int, int]] = []
        while True:
            # Nothing but zeros follows the end of the file.
            magic, word = _CHUNK.unpack(data[position : position + 8].ljust(8, b"\0"))
            flag, length = word >> 29, word & MAX_PAYLOAD
            start = position + 8
            end = start + length + -length % 4
            if magic != MAGIC or flag not in ((2, 3) if ranges else (0, 1)) or end > self.size:
                keyed = "" if key is None else f", key {key}"
                raise RecordError(
                    f"{self.path}{keyed}, offset {position}: no whole "
                    f"{'part' if ranges else 'record'} begins there, with {magic.hex()} (all have "
                    f"{MAGIC.hex()}), flag {flag}, and {length:,} bytes where "
                    f"{max(self.size - start, 0):,} follow; give a record file (.rec), restore "
                    f"it, or save what is whole with {REPAIR}"
                )
            ranges.append((start, start + length))
            position = end
            if flag in (0, 3):
                return ranges, position


def encode_record(payload: bytes) -> bytes:
    """Frame ``payload`` as one record: chunks split at aligned magics, and padding."""
    words = np.frombuffer(payload, "<u4", len(payload) // 4)
    cuts = (4 * np.flatnonzero(words == MAGIC_WORD)).tolist()
    pieces: list[bytes] = []
    starts, stops = [0, *(cut + 4 for cut in cuts)], [*cuts, len(payload)]
    for index, (start, stop) in enumerate(zip(starts, stops, strict=True)):
        flag = 0 if not cuts else 1 if index == 0 else 3 if index == len(cuts) else 2
        pieces += (_CHUNK.pack(MAGIC, flag << 29 | stop - start), payload[start:stop])
    pieces.append(bytes(-len(payload) % 4))
    return b"".join(pieces)


class ImageRecord(NamedTuple):
    """One image and its labels, as they stand in the file.

    Attributes:
        flag: number of labels in the array; 0 means that ``label`` is the scalar of the header.
        label: the scalar, or float32 ``(flag,)``.
        id: usually the key of the record.
        id2: 0, or a mark of the program that wrote the file.
        image: the encoded image, JPEG or PNG; empty in header and range records.
    """

    flag: int
    label: float | np.ndarray
    id: int
    id2: int
    image: bytes


def unpack(payload: bytes, where: str) -> ImageRecord:
    """Parse a payload; any flag and any labels are let through.

    Args:
        payload: what the framing returned.
        where: names the record in error messages, as in ``train.rec, key 7, offset 1234``.

    Raises:
        RecordError: the payload is shorter than its header says.
    """
    flag, scalar, id_, id2 = _HEADER.unpack_from(payload.ljust(HEADER_BYTES, b"\0"))
    end = HEADER_BYTES + 4 * flag
    if len(payload) < end:
        raise RecordError(
            f"{where}: {len(payload):,} bytes are too few for the header of an image record and "
            f"its {flag:,} labels ({end:,} bytes); it is damaged, or no image record"
        )
    if flag == 0:
        return ImageRecord(0, scalar, id_, id2, payload[end:])
    labels = np.frombuffer(payload, dtype="<f4", count=flag, offset=HEADER_BYTES)
    return ImageRecord(flag, labels.astype(np.float32), id_, id2, payload[end:])


def pack(record: ImageRecord) -> bytes:
    """Return the payload of ``record``; the scalar of the header is 0 where labels follow."""
    labels = np.asarray(record.label, dtype="<f4")
    scalar, values = (0.0, labels.tobytes()) if record.flag else (float(labels), b"")
    return _HEADER.pack(record.flag, scalar, record.id, record.id2) + values + record.image


def class_of(
    record: ImageRecord,
    where: str,
    num_classes: int | None = None,
    label_index: int | None = None,
) -> int:
    """Return the class of an image: the scalar label, or one of the label array.

    Args:
        record: the image record.
        where: names the record in error messages.
        num_classes: the class must be below it, when known.
        label_index: which label of an array is the class; by default the first, and then arrays
            of three or more are refused, since detection packs begin with other numbers.

    Raises:
        RecordError: the label is no class.
    """
    labels, index = np.atleast_1d(record.label), label_index or 0
    limit = min(num_classes or CLASS_LIMIT, CLASS_LIMIT)
    known = 0 <= index < len(labels) and (label_index is not None or record.flag < 3)
    value = float(labels[index]) if known else np.nan
    # NaN fails every comparison, infinity the upper one.
    if not 0 <= value < limit or not value.is_integer():
        announced = " that the file `property` beside it announces" if num_classes else ""
        raise RecordError(
            f"{where}: label {index} of its {len(labels)} labels ({labels[:3].tolist()}) is not a "
            f"class, a whole number from 0 below the {limit:,}{announced}; mend or remove the "
            "record, or what announces its classes; of three labels or more label_index names one"
        )
    return int(value)


class RecordIndex(NamedTuple):
    """Keys of records and where they begin, in the order of the index file.

    Attributes:
        keys: int64 ``(N,)``, all different and not negative.
        offsets: int64 ``(N,)``, bytes from the beginning of the record file.
    """

    keys: np.ndarray
    offsets: np.ndarray


def read_index(path: str | os.PathLike[str], record_size: int) -> RecordIndex:
    """Read an ``.idx`` file: lines ``key TAB offset``, keys in any order.

    Whether a record stands at each offset is seen when it is read: looking now would touch every
    page of the record file.

    Args:
        path: the index file.
        record_size: length in bytes of the record file that it belongs to.

    Raises:
        RecordError: a line is not two integers, a key or an offset occurs twice, or an offset
            cannot be the beginning of a record.
    """
    advice = f"a line is key TAB offset; it is damaged or of another file, rebuild it ({REPAIR})"
    with reading(path, RecordError, advice, (OSError, ValueError)):
        # A record has 8 bytes, a line of the index at most 41.
        text = read_file(path, (1 << 20) + 8 * record_size)
        text = text.removeprefix(b"\xef\xbb\xbf").strip()
        table = np.empty((0, 2), np.int64)
        if text:
            table = np.loadtxt(io.BytesIO(text), np.int64, None, delimiter="\t", ndmin=2)
        keys, offsets = table.T
        wrong = (offsets % 4 != 0) | (offsets > record_size - 8) | (offsets < 0) | (keys < 0)
        ordered = np.sort(table, axis=0, kind="stable")  # which is quick where they are in order
        twice = ordered[1:][ordered[1:] == ordered[:-1]]
        if wrong.any() or len(twice):
            raise ValueError(
                f"lines that fit no record file of {record_size:,} bytes: "
                f"{table[wrong][:3].tolist()}; numbers that are there twice: {twice[:3].tolist()}"
            )
    return RecordIndex(keys, offsets)


def rebuild_index(file: RecordFile, salvage: bool = False) -> RecordIndex:
    """Find the records of a file by one sequential pass.

    Keys are the ids in the records where these differ, which InsightFace's ``train.rec`` needs (it
    announces subjects as a range of keys), else the numbers 0, 1, … in file order.

    Args:
        file: the records.
        salvage: see `RecordFile.scan`.

    Raises:
        RecordError: the file is damaged (without ``salvage``), or has no whole record.
    """
    offsets, ids = array("q"), array("Q")
    for offset, payload in file.scan(salvage):
        offsets.append(offset)
        with contextlib.suppress(RecordError):  # a record of something else than an image
            ids.append(unpack(payload, "").id)
    if not offsets:
        raise RecordError(
            f"{file.path}: no whole record among its {file.size:,} bytes; check that this is a "
            "record file, and restore it from its source"
        )
    keys = np.asarray(ids)
    if len(np.unique(keys)) < len(offsets) or keys.max() >= 1 << 63:
        keys = np.arange(len(offsets))
    return RecordIndex(keys.astype(np.int64), np.asarray(offsets))


def write_index(path: str | os.PathLike[str], index: RecordIndex) -> None:
    """Write an ``.idx`` file, whole or not at all.

    Raises:
        FacerecError: the file cannot be written.
    """
    with atomic_file(Path(path)) as file:
        np.savetxt(file, np.transpose(index), "%d", "\t")


@contextlib.contextmanager
def atomic_file(path: Path) -> Iterator[BinaryIO]:
    """Open a temporary file that takes the place of ``path`` if the block succeeds.

    Raises:
        FacerecError: the file cannot be written.
    """
    with atomic_path(path) as temporary, temporary.open("wb", 1 << 20) as file:
        yield file


@contextlib.contextmanager
def record_writer(path: Path) -> Iterator[Callable[[bytes, int], int]]:
    """Write a ``.rec`` file and its ``.idx``, both whole or not at all.

    Yields:
        What appends a payload, of at most 2**29 - 1 bytes, under a key of its own, and returns its
        offset.

    Raises:
        FacerecError: the files cannot be written, as on a full disk.
    """
    with atomic_file(path.with_suffix(".idx")) as index, atomic_file(path) as file:

        def write(payload: bytes, key: int) -> int:
            offset = file.tell()
            file.write(encode_record(payload))
            index.write(f"{key}\t{offset}\n".encode())
            return offset

        yield write
