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
import warnings
from array import array
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import IO, BinaryIO, Literal, NamedTuple

import numpy as np

from facerec.errors import RecordError
from facerec.files import atomic_path, full_disk_sentence, open_file

MAGIC = struct.pack("<I", 0xCED7230A)
MAX_PAYLOAD = (1 << 29) - 1

_MAGIC_OF_2015 = struct.pack("<I", 0x3ED7230A)
_CHUNK = struct.Struct("<4sI")
_INDEX_BLOCK = 1 << 20
_LINE_LIMIT = 1 << 20

Join = Literal["magic", "none"]


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
        nonzero_paddings: chunks read so far whose padding was not zero (accepted all the same).
    """

    def __init__(self, path: str | os.PathLike[str], join: Join = "magic") -> None:
        """Look at the file without mapping it.

        Args:
            path: a ``.rec`` file.
            join: what stands between the parts of a split record: the dropped ``"magic"``
                (dmlc, MXNet) or ``"none"``, for files of ml-io and SageMaker.

        Raises:
            RecordError: there is no such file, or it is an index.
        """
        if join not in ("magic", "none"):
            raise ValueError(f'join must be "magic" or "none", not {join!r}')
        self.path = Path(path)
        self.join: Join = join
        if not self.path.is_file():
            raise RecordError(f"{self.path}: there is no such record file; check the path")
        if self.path.suffix == ".idx":
            raise RecordError(
                f"{self.path}: an index, which says where the records are; name the record file, "
                f"{self.path.with_suffix('.rec').name}"
            )
        self.size = self.path.stat().st_size
        self.damages: list[Damage] = []
        self.nonzero_paddings = 0
        self._warned = False
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
            RecordError: the file is damaged (without ``salvage``), or ``salvage`` is asked of a
                file with ``join="none"``, where record beginnings cannot be told from data.
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
        if salvage and self.join == "none":
            raise RecordError(
                f'{self.path}: salvage works only with join="magic", since the parts of the other '
                "dialect may hold the magic themselves; read the file without salvage"
            )
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
                raise self._error(position, key, _wrong_magic(magic))
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
            if position != stop and any(data[stop:position]):
                self.nonzero_paddings += 1
            ranges.append((start, stop))
            if flag in (0, 3):
                return ranges, position
            if length % 4 and self.join == "magic":
                self._warn_of_other_dialect(start - 8)

    def _join(self, ranges: list[tuple[int, int]]) -> bytes:
        data = self.content
        if len(ranges) == 1:
            return data[slice(*ranges[0])]
        return (MAGIC if self.join == "magic" else b"").join(data[a:b] for a, b in ranges)

    def _warn_of_other_dialect(self, offset: int) -> None:
        if not self._warned:
            self._warned = True
            warnings.warn(
                f"{self.path}, offset {offset}: a part that is not the last has a length that is "
                'no multiple of 4; the file may need join="none" (ml-io, SageMaker)',
                stacklevel=2,
            )

    def _error(
        self,
        offset: int,
        key: int | None,
        problem: str,
        advice: str = "restore the file, or save what is whole with facerec make-records --repair",
    ) -> RecordError:
        keyed = "" if key is None else f", key {key}"
        return RecordError(f"{self.path}{keyed}, offset {offset}: {problem}; {advice}")


def _wrong_magic(magic: bytes) -> str:
    if magic == _MAGIC_OF_2015:
        return "the record has the magic 0a23d73e of the RecordIO form of 2015, which is not read"
    return f"a record should begin here with the magic {MAGIC.hex()}, found {magic.hex()}"


def _wrong_flag(flag: int, beginning: int | None) -> str:
    if flag > 3:
        return f"continuation flag {flag} is not valid (0 to 3)"
    if beginning is None:
        which = "a middle" if flag == 2 else "the last"
        return f"{which} part of a record (continuation flag {flag}) without a beginning"
    return (
        f"a new record begins (continuation flag {flag}) before the end of the split record at "
        f"offset {beginning}"
    )


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
        with open_file(path) as file:
            keys, offsets = _parse_index(path, file)
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


def _parse_index(path: Path, file: IO[bytes]) -> tuple[np.ndarray, np.ndarray]:
    """Return keys and offsets, int64 ``(lines,)``, parsed in blocks into memory that grows."""
    keys, offsets = array("q"), array("q")
    lines = 0
    blank: int | None = None  # number of a blank line; fine as long as nothing follows it
    carry = file.read(3)
    carry = b"" if carry == b"\xef\xbb\xbf" else carry
    while True:
        block = file.read(_INDEX_BLOCK)
        text = carry + (block or b"\n" * (carry != b""))
        cut = text.rfind(b"\n") + 1
        text, carry = text[:cut], text[cut:]
        if len(carry) > _LINE_LIMIT:
            raise RecordError(
                f"{path}, line {lines + 1 + text.count(10)}: the line is longer than 1 MiB; this "
                "is no index file, rebuild the index (facerec make-records --repair)"
            )
        if text:
            table = _parse_clean_lines(text) if blank is None else None
            if table is None:
                table, blank = _parse_lines(path, text, lines, blank)
            for column, values in zip((keys, offsets), table.T, strict=True):
                column.frombytes(values.tobytes())
            lines += len(table) if blank is None else text.count(b"\n")
        if not block:
            break
    return np.asarray(keys).view(np.int64), np.asarray(offsets).view(np.int64)


def _parse_clean_lines(text: bytes) -> np.ndarray | None:
    """Parse whole lines of nothing but digits, TAB and LF; ``None`` if there is anything else."""
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


def _parse_lines(
    path: Path, text: bytes, lines_before: int, blank: int | None
) -> tuple[np.ndarray, int | None]:
    """Parse line by line, with blanks around the fields allowed, and word the errors."""
    table = []
    for number, line in enumerate(text.split(b"\n")[:-1], start=lines_before + 1):
        if not line.strip():
            blank = number if blank is None else blank
            continue
        fields = [field.strip() for field in line.split(b"\t")]
        shown = ascii(line[:60].decode("latin1"))
        if blank is not None:
            raise RecordError(
                f"{path}, line {blank}: blank, although line {number} follows; rebuild the index "
                "(facerec make-records --repair)"
            )
        if len(fields) != 2 or not all(field.isdigit() for field in fields):
            raise RecordError(
                f"{path}, line {number}: expected two integers, key TAB offset, found {shown}; "
                "rebuild the index (facerec make-records --repair)"
            )
        # Leading zeros aside, 19 digits may or may not fit, 20 never do.
        fields = [field.lstrip(b"0") or b"0" for field in fields]
        if any(len(field) > 19 or int(field) >= 1 << 63 for field in fields):
            raise RecordError(
                f"{path}, line {number}: a number in {shown} does not fit in 64 bits; "
                "rebuild the index (facerec make-records --repair)"
            )
        table.append([int(field) for field in fields])
    return np.array(table, dtype=np.int64).reshape(-1, 2), blank


def rebuild_index(path: str | os.PathLike[str], join: Join = "magic") -> RecordIndex:
    """Find the records of a file by one sequential pass; their keys are 0 … N-1 in file order.

    Raises:
        RecordError: the file is missing or damaged.
    """
    offsets = np.fromiter(RecordFile(path, join).scan_offsets(), dtype=np.int64)
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


class IndexedRecordFile:
    """A ``.rec`` file with its ``.idx``: records by key, or by position in the index.

    Attributes:
        keys: int64 ``(N,)`` in the order of the index file.
        offsets: int64 ``(N,)``.
        file: the record file itself.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        index_path: str | os.PathLike[str] | None = None,
        join: Join = "magic",
    ) -> None:
        """Read the index; the record file is mapped on first use.

        Args:
            path: a ``.rec`` file.
            index_path: its index; by default the same name with ``.idx``.
            join: see `RecordFile`.

        Raises:
            RecordError: a file is missing or the index is damaged.
        """
        self.file = RecordFile(path, join)
        index = read_index(index_path or self.file.path.with_suffix(".idx"), self.file.size)
        self.keys, self.offsets = index.keys, index.offsets
        # Keys that count upwards need no table; others are sorted once, on first use.
        self._consecutive = bool((np.diff(self.keys) == 1).all())
        self._order: np.ndarray | None = None

    def __len__(self) -> int:
        return len(self.keys)

    def position(self, key: int) -> int:
        """Return the position in the index of ``key``.

        Raises:
            RecordError: the index has no such key.
        """
        if self._consecutive:
            position = key - int(self.keys[0]) if len(self) else -1
        else:
            if self._order is None:
                self._order = np.argsort(self.keys)
            rank = int(np.searchsorted(self.keys, key, sorter=self._order))
            position = int(self._order[rank]) if rank < len(self) else -1
        if not 0 <= position < len(self) or self.keys[position] != key:
            raise RecordError(
                f"{self.file.path}: its index has no key {key} among {len(self):,} keys; "
                "check the key or rebuild the index (facerec make-records --repair)"
            )
        return position

    def read_key(self, key: int) -> bytes:
        """Return the payload of the record with this key.

        Raises:
            RecordError: no such key, or the record is damaged.
        """
        return self.read_position(self.position(key))

    def read_position(self, i: int) -> bytes:
        """Return the payload of the record in line ``i`` of the index, counted from 0.

        Raises:
            RecordError: the record is damaged.
        """
        return self.file.read(int(self.offsets[i]), int(self.keys[i]))


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
