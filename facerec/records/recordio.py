"""RecordIO, the framing of ``.rec`` files, and their ``.idx`` text index.

A file is a row of chunks, each at an offset divisible by 4: the magic ``0xced7230a``, a word that
holds a continuation flag (top 3 bits) and a length (low 29 bits), the data, and zero bytes up to a
multiple of 4. Flag 0 is a whole record; 1, 2, 3 are the first, a middle and the last part of one.
The writer cuts a payload wherever the magic stands at a multiple of 4 and drops those four bytes;
the reader puts them back. Format: ``dmlc/dmlc-core: include/dmlc/recordio.h, src/recordio.cc``;
index: ``apache/mxnet: python/mxnet/recordio.py``.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import struct
from array import array
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, NamedTuple

import numpy as np

from facerec.errors import RecordError
from facerec.files import atomic_path, full_disk_sentence, open_file, read_file

MAGIC = struct.pack("<I", 0xCED7230A)
MAX_PAYLOAD = (1 << 29) - 1

_CHUNK = struct.Struct("<4sI")
_MORE = 1 << 20


class Damage(NamedTuple):
    """A stretch of bytes that a salvaging scan passed over."""

    start: int
    stop: int
    reason: str


class RecordFile:
    """The records of one ``.rec`` file, memory-mapped and read by offset or in file order.

    The map is opened on first use in each process, so an object may cross ``fork`` and may be
    pickled; no Python object is kept per record.

    Attributes:
        path: the file.
        size: its length in bytes.
        damages: what the last scan with ``salvage=True`` passed over.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        """Look at the file without mapping it.

        Raises:
            RecordError: there is no such file, or it is an index.
        """
        self.path = Path(path)
        if not self.path.is_file():
            raise RecordError(f"{self.path}: there is no such record file; check the path")
        if self.path.suffix == ".idx":
            raise RecordError(
                f"{self.path}: an index, which says where the records are; name the record file, "
                f"{self.path.with_suffix('.rec').name}"
            )
        self.size = self.path.stat().st_size
        self.damages: list[Damage] = []
        self._map: mmap.mmap | bytes | None = None
        self._pid = -1

    def __getstate__(self) -> dict[str, object]:
        return {**self.__dict__, "_map": None, "_pid": -1}

    def read(self, offset: int, key: int | None = None) -> bytes:
        """Return the payload of the record that begins at ``offset``.

        Args:
            offset: bytes from the beginning of the file.
            key: the record's key, if known; it only serves the error message.

        Raises:
            RecordError: no sound record begins there.
        """
        ranges, _ = self._walk(offset, key)
        return self._join(ranges)

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
        for offset, ranges in self._spans(salvage):
            yield offset, self._join(ranges)

    def scan_offsets(self, salvage: bool = False) -> Iterator[int]:
        """Yield the offsets of all records in file order, without reading their data.

        Args:
            salvage: as for `scan`.

        Raises:
            RecordError: as for `scan`.
        """
        for offset, _ in self._spans(salvage):
            yield offset

    def words(self) -> np.ndarray:
        """Return the mapped file as little-endian uint32 words, ``(size // 4,)``, not copied."""
        return np.frombuffer(self.content, dtype="<u4", count=self.size // 4)

    @property
    def content(self) -> mmap.mmap | bytes:
        """The mapped file; slices of it are copies."""
        pid = os.getpid()
        if self._map is None or self._pid != pid:
            self._map, self._pid = self._open(), pid
        if isinstance(self._map, mmap.mmap) and self._map.size() < len(self._map):
            # To read what is no more there would kill the process.
            raise RecordError(
                f"{self.path}: the file was cut short while it was read, from {len(self._map):,} "
                f"bytes to {self._map.size():,}; restore it and begin again"
            )
        return self._map

    def _open(self) -> mmap.mmap | bytes:
        try:
            with open_file(self.path) as file:
                size = os.fstat(file.fileno()).st_size
                if size != self.size:
                    raise RecordError(
                        f"{self.path}: the file had {self.size:,} bytes when it was opened and now "
                        f"has {size:,}; open it again once nobody writes to it"
                    )
                # An empty file cannot be mapped.
                return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) if size else b""
        except OSError as problem:
            raise RecordError(
                f"{self.path}: cannot be read ({problem.strerror or problem}); check its rights"
            ) from problem

    def _spans(self, salvage: bool) -> Iterator[tuple[int, list[tuple[int, int]]]]:
        self.damages = []
        position = 0
        while position < self.size:
            try:
                ranges, end = self._walk(position)
            except RecordError as problem:
                if not salvage:
                    raise
                end = self._next_beginning(position + 4)
                start, reason = position, str(problem)
                if self.damages and self.damages[-1].stop == position:
                    start, _, reason = self.damages.pop()
                self.damages.append(Damage(start, end, reason))
            else:
                yield position, ranges
            position = end

    def _next_beginning(self, position: int) -> int:
        data = self.content
        while 0 <= (position := data.find(MAGIC, position)) <= self.size - 8:
            if position % 4 == 0 and data[position + 7] >> 5 in (0, 1):
                return position
            position += 1
        return self.size

    def _walk(self, offset: int, key: int | None = None) -> tuple[list[tuple[int, int]], int]:
        """Return the data ranges of the record's parts and the offset after its padding."""
        if offset % 4 or not 0 <= offset < self.size:
            raise self._error(
                offset,
                key,
                f"no record can begin here (records begin at multiples of 4 below {self.size:,})",
                "rebuild the index (facerec make-records --repair)",
            )
        data, size = self.content, self.size
        ranges: list[tuple[int, int]] = []
        position = offset
        while True:
            if position + 8 > size:
                problem = f"the file ends after {size:,} bytes inside a record"
                if ranges:
                    problem += f" that begins at offset {offset}"
                raise self._error(position, key, problem)
            magic, word = _CHUNK.unpack_from(data, position)
            flag, length = word >> 29, word & MAX_PAYLOAD
            if magic != MAGIC:
                raise self._error(
                    position, key, f"no magic {MAGIC.hex()} where a record begins: {magic.hex()}"
                )
            if flag > 3 or (flag in (0, 1)) != (not ranges):
                raise self._error(position, key, _wrong_flag(flag, offset if ranges else None))
            start = position + 8
            stop = start + length
            position = stop + -length % 4
            if position > size:
                raise self._error(
                    start - 8,
                    key,
                    f"the record claims {length:,} bytes, but {size - start:,} follow "
                    f"before the file ends at {size:,}",
                )
            ranges.append((start, stop))
            if flag in (0, 3):
                return ranges, position

    def _join(self, ranges: list[tuple[int, int]]) -> bytes:
        data = self.content
        if len(ranges) == 1:
            return data[slice(*ranges[0])]
        return MAGIC.join(data[a:b] for a, b in ranges)

    def _error(
        self,
        offset: int,
        key: int | None,
        problem: str,
        advice: str = "restore the file, or save what is whole with facerec make-records --repair",
    ) -> RecordError:
        keyed = "" if key is None else f", key {key}"
        return RecordError(f"{self.path}{keyed}, offset {offset}: {problem}; {advice}")


def _wrong_flag(flag: int, beginning: int | None) -> str:
    if flag > 3:
        return f"continuation flag {flag} is not valid (0 to 3)"
    if beginning is None:
        return f"a part of a record (continuation flag {flag}) without a beginning"
    return f"a new record begins before the end of the split record at offset {beginning}"


def encode_record(payload: bytes) -> bytes:
    """Frame ``payload`` as one record: chunks split at aligned magics, and padding.

    Raises:
        RecordError: the payload has 2**29 bytes or more.
    """
    if len(payload) > MAX_PAYLOAD:
        raise RecordError(
            f"a record of {len(payload):,} bytes is too long; the format holds at most "
            f"{MAX_PAYLOAD:,}, store a smaller image"
        )
    cuts = []
    position = payload.find(MAGIC)
    while position >= 0:
        if position % 4 == 0:
            cuts.append(position)
        # Copies of the magic cannot overlap, so the search may resume after this one.
        position = payload.find(MAGIC, position + 4)
    pieces: list[bytes] = []
    starts, stops = [0, *(cut + 4 for cut in cuts)], [*cuts, len(payload)]
    for index, (start, stop) in enumerate(zip(starts, stops, strict=True)):
        first, last = index == 0, index == len(cuts)
        flag = (0 if last else 1) if first else (3 if last else 2)
        pieces += (_CHUNK.pack(MAGIC, flag << 29 | stop - start), payload[start:stop])
    pieces.append(bytes(-len(payload) % 4))
    return b"".join(pieces)


@dataclass(frozen=True, eq=False)
class RecordIndex:
    """Keys of records and where they begin, in the order of the index file.

    Attributes:
        keys: int64 ``(N,)``, all different and not negative.
        offsets: int64 ``(N,)``, bytes from the beginning of the record file.
    """

    keys: np.ndarray
    offsets: np.ndarray

    def __len__(self) -> int:
        return len(self.keys)


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
    path = Path(path)
    try:
        size = path.stat().st_size
        # A record has 8 bytes, a line of the index at most 41.
        if size > _MORE + 8 * record_size:
            raise RecordError(
                f"{path}: {size:,} bytes are too many for the index of a record file of "
                f"{record_size:,}; it belongs to another file, rebuild it"
            )
        keys, offsets = _parse_index(path, read_file(path)).T
    except OSError as problem:
        raise RecordError(
            f"{path}: the index cannot be read ({problem.strerror or problem}); check the path, or "
            "rebuild it"
        ) from problem
    # First without a table as long as the index; only a bad one is worth the memory.
    if len(offsets) and (np.bitwise_or.reduce(offsets) % 4 or offsets.max() > record_size - 8):
        line = np.flatnonzero((offsets % 4 != 0) | (offsets > record_size - 8))[0]
        raise RecordError(
            f"{path}, line {line + 1}, key {keys[line]}: no record can begin at offset "
            f"{offsets[line]} of a record file of {record_size:,} bytes; the index is damaged or "
            "belongs to another file, rebuild it"
        )
    for name, values in (("key", keys), ("offset", offsets)):
        twice = _first_duplicate(values)
        if twice is not None:
            first, again = twice
            raise RecordError(
                f"{path}, line {again + 1}, key {keys[again]}: {name} {values[again]} stands in "
                f"line {first + 1} already; rebuild the index (facerec make-records --repair)"
            )
    return RecordIndex(keys, offsets)


def _first_duplicate(values: np.ndarray) -> tuple[int, int] | None:
    if (values[1:] > values[:-1]).all():
        return None
    order = np.argsort(values, kind="stable")
    ranked = values[order]
    again = np.flatnonzero(ranked[1:] == ranked[:-1])
    if not len(again):
        return None
    at = again[np.argmin(order[again + 1])]
    return int(order[at]), int(order[at + 1])


def _parse_index(path: Path, text: bytes) -> np.ndarray:
    """Return keys and offsets, int64 ``(lines, 2)``."""
    text = text.removeprefix(b"\xef\xbb\xbf").rstrip() + b"\n"
    table = _parse_clean_lines(text)
    if table is not None:
        return table
    rows = []
    for number, line in enumerate(text.split(b"\n")[:-1], start=1):
        fields = [field.strip() for field in line.split(b"\t")]
        if len(fields) != 2 or not all(field.isdigit() and len(field) < 20 for field in fields):
            raise RecordError(
                f"{path}, line {number}: expected two integers, key TAB offset, found "
                f"{line[:60].decode('latin1')!a}; rebuild the index (facerec make-records "
                "--repair)"
            )
        rows.append([int(field) for field in fields])
        if max(rows[-1]) >= 1 << 63:
            raise RecordError(
                f"{path}, line {number}: a number does not fit in 64 bits; rebuild the index "
                "(facerec make-records --repair)"
            )
    return np.array(rows, np.int64)


def _parse_clean_lines(text: bytes) -> np.ndarray | None:
    """Parse whole lines of nothing but digits, TAB and LF; ``None`` if there is anything else."""
    if text == b"\n":
        return np.empty((0, 2), np.int64)
    chars = np.frombuffer(text, dtype=np.uint8)
    breaks = np.flatnonzero(chars < ord("0"))
    marks = chars[breaks]
    if (
        (chars > ord("9")).any()
        or len(breaks) % 2
        or (marks[0::2] != ord("\t")).any()
        or (marks[1::2] != ord("\n")).any()
    ):
        return None
    lengths = np.diff(breaks, prepend=-1) - 1
    if lengths.min() < 1 or lengths.max() > 18:  # 18 digits always fit in 64 bits
        return None
    return np.fromstring(text, dtype=np.int64, sep=" ").reshape(-1, 2)  # any blank separates


def rebuild_index(path: str | os.PathLike[str]) -> RecordIndex:
    """Find the records of a file by one sequential pass; their keys are 0 … N-1 in file order.

    Raises:
        RecordError: the file is missing or damaged.
    """
    offsets = np.fromiter(RecordFile(path).scan_offsets(), dtype=np.int64)
    return RecordIndex(np.arange(len(offsets), dtype=np.int64), offsets)


def write_index(path: str | os.PathLike[str], index: RecordIndex) -> None:
    """Write an ``.idx`` file, whole or not at all.

    Raises:
        RecordError: the file cannot be written.
    """
    with atomic_file(Path(path)) as file:
        _write_index(file, index.keys, index.offsets)


def _write_index(file: BinaryIO, keys: np.ndarray, offsets: np.ndarray) -> None:
    for start in range(0, len(keys), 1 << 16):
        block = slice(start, start + (1 << 16))
        pairs = zip(keys[block].tolist(), offsets[block].tolist(), strict=True)
        file.write("".join(f"{key}\t{offset}\n" for key, offset in pairs).encode())


@contextlib.contextmanager
def atomic_file(path: Path) -> Iterator[BinaryIO]:
    """Open a temporary file that takes the place of ``path`` if the block succeeds.

    Raises:
        RecordError: the file cannot be written.
    """
    with atomic_path(path, RecordError) as temporary, temporary.open("wb", 1 << 20) as file:
        yield file


class RecordWriter:
    """Writes a ``.rec`` file and its ``.idx`` side by side; a context manager.

    Both appear under their names only when the block ends well: first the records, then the index.
    The same payloads and keys always give the same bytes.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        """Name the record file; nothing is written before the ``with`` block begins."""
        self.path = Path(path)
        self.size = 0
        self._keys = array("q")
        self._offsets = array("q")
        self._stack = contextlib.ExitStack()

    def __enter__(self) -> RecordWriter:
        # Left in the opposite order: the records take their name before the index does.
        with contextlib.ExitStack() as stack:
            self._index_file = stack.enter_context(atomic_file(self.path.with_suffix(".idx")))
            self._file = stack.enter_context(atomic_file(self.path))
            self._stack = stack.pop_all()
        return self

    def write(self, payload: bytes, key: int | None = None) -> int:
        """Append one record and return its offset.

        Args:
            payload: at most 2**29 - 1 bytes.
            key: its key in the index; by default one more than the last one, from 0.

        Raises:
            RecordError: the payload is too long, or the disk is full.
        """
        if key is None:
            key = self._keys[-1] + 1 if self._keys else 0
        if not 0 <= key < 1 << 63:
            raise RecordError(f"{self.path}: key {key} is not in the range of 0 to 2**63 - 1")
        record = encode_record(payload)
        offset = self.size
        try:
            self._file.write(record)
        except OSError as problem:
            raise RecordError(full_disk_sentence(self.path, problem)) from problem
        self.size += len(record)
        self._keys.append(key)
        self._offsets.append(offset)
        return offset

    def __exit__(
        self,
        kind: type[BaseException] | None,
        problem: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if problem is not None:
            self._stack.__exit__(kind, problem, trace)
            return
        with self._stack:
            keys, offsets = np.array(self._keys), np.array(self._offsets)
            twice = _first_duplicate(keys)
            if twice is not None:
                raise RecordError(
                    f"{self.path}: records {twice[0]} and {twice[1]} have the same key "
                    f"{keys[twice[0]]}; nothing was written, give every record its own key"
                )
            try:
                _write_index(self._index_file, keys, offsets)
            except OSError as error:
                raise RecordError(full_disk_sentence(self.path, error)) from error
