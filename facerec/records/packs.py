"""Verification packs: encoded image pairs with their labels, ``.bin`` (a pickle) or ``.npz``.

A ``.bin`` is a pickle of ``(bins, issame)`` with ``len(bins) == 2 * len(issame)``, as written by
``deepinsight/insightface: src/data/lfw2pack.py`` (Python 2), by its Python 3 copies and by
``recognition/arcface_mxnet/common/build_eval_pack.py`` (arrays). Unpickling can run any code, so
the opcodes are checked before anything is loaded, and the few globals that real packs name are
replaced by inert stand-ins: not even NumPy's own functions are called with numbers from the file.
"""

from __future__ import annotations

import hashlib
import io
import pickle
import pickletools
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from facerec.errors import PackError
from facerec.files import atomic_path, read_file
from facerec.npz import ArchiveError, read_arrays

MAX_PACK_BYTES = 4 << 30
_REPEATED_BYTES = 1 << 28
"""Images of more bytes together must be mostly different ones."""

MAX_IMAGE_BYTES = 16 << 20
MAX_OPCODES = 5_000_000

_SIGNATURES = (b"\xff\xd8\xff", b"\x89PNG\r\n\x1a\n")

# Everything that protocols 0 to 5 need for lists, tuples, bytes, booleans and NumPy arrays of them.
# Persistent ids, extension codes, instances, dictionaries and sets are not among it.
_OPCODE_NAMES = (
    "PROTO FRAME STOP MARK POP POP_MARK DUP NONE NEWTRUE NEWFALSE INT BININT BININT1 BININT2 "
    "LONG LONG1 LONG4 STRING BINSTRING SHORT_BINSTRING BINBYTES SHORT_BINBYTES BINBYTES8 "
    "BYTEARRAY8 UNICODE BINUNICODE SHORT_BINUNICODE BINUNICODE8 EMPTY_LIST LIST APPEND "
    "APPENDS EMPTY_TUPLE TUPLE TUPLE1 TUPLE2 TUPLE3 PUT BINPUT LONG_BINPUT MEMOIZE GET BINGET "
    "LONG_BINGET GLOBAL STACK_GLOBAL REDUCE BUILD"
)
_OPCODES = frozenset(_OPCODE_NAMES.split())


@dataclass(frozen=True, eq=False)
class Pack:
    """Pairs of encoded images; pair ``i`` is images ``2i`` and ``2i + 1``.

    Attributes:
        path: where the pack came from, if from a file.
        name: name of the bench, as in ``lfw``.
        data: uint8, the bytes of all images one after the other.
        offsets: int64 ``(2n + 1,)``; image ``i`` is ``data[offsets[i]:offsets[i + 1]]``.
        issame: bool ``(n,)``, whether the pair shows the same subject. Order is meaning: ten-fold
            scores use contiguous folds.
    """

    path: Path | None
    name: str
    data: np.ndarray
    offsets: np.ndarray
    issame: np.ndarray

    def __len__(self) -> int:
        return len(self.issame)

    def encoded(self, i: int) -> bytes:
        """Return the encoded image ``i``, JPEG or PNG."""
        return self.data[self.offsets[i] : self.offsets[i + 1]].tobytes()

    def distinct(self) -> tuple[np.ndarray, np.ndarray]:
        """Find equal images, so that each one needs to be embedded only once.

        Returns:
            int64 ``(m,)``: the first index of each distinct image, ascending; and int64 ``(2n,)``:
            for every image, its place among these.
        """
        numbers: dict[bytes, int] = {}
        first: list[int] = []
        inverse = np.empty(2 * len(self), dtype=np.int64)
        for i in range(2 * len(self)):
            digest = hashlib.sha256(self.data[self.offsets[i] : self.offsets[i + 1]].data).digest()
            number = numbers.setdefault(digest, len(first))
            if number == len(first):
                first.append(i)
            inverse[i] = number
        return np.array(first, dtype=np.int64), inverse


def read_pack(path: str | Path) -> Pack:
    """Read a ``.bin`` or ``.npz`` pack without running anything that it may contain.

    Args:
        path: the pack; its name without suffix becomes the name of the bench.

    Raises:
        PackError: the pack is missing, unsafe or malformed.
    """
    path = Path(path)
    try:
        size = path.stat().st_size
        if size > MAX_PACK_BYTES:
            raise PackError(
                f"{path}: {size:,} bytes are more than a pack may have ({MAX_PACK_BYTES:,}); "
                "check that this is the right file"
            )
        content = read_file(path)
    except OSError as problem:
        raise PackError(
            f"{path}: the pack cannot be read ({problem.strerror or problem}); check the path"
        ) from problem
    return _read_npz(path, content) if path.suffix == ".npz" else _read_pickle(path, content)


def write_pack(path: str | Path, images: Sequence[bytes], issame: Sequence[bool]) -> None:
    """Write a pack, whole or not at all; the same content always gives the same bytes.

    Args:
        path: ``.npz`` gives the form to keep and share; any other suffix a pickle of protocol 2
            with bytes entries, which InsightFace's readers take.
        images: encoded images, JPEG or PNG, two for each pair.
        issame: whether the pair shows the same subject.

    Raises:
        PackError: the content is no pack, or the file cannot be written.
    """
    path = Path(path)
    pack = _make_pack(path, images, issame)
    with atomic_path(path, PackError) as temporary, temporary.open("wb") as file:
        if path.suffix == ".npz":
            np.savez(file, data=pack.data, offsets=pack.offsets, issame=pack.issame)
            return
        pickler = pickle.Pickler(file, protocol=2)
        # Without a memo, bytes do not depend on which images happen to be the same object.
        pickler.fast = True
        pickler.dump(([bytes(image) for image in images], pack.issame.tolist()))


def _make_pack(path: Path, images: Sequence[bytes], issame: Sequence[bool]) -> Pack:
    """Check lengths, signatures and labels, and lay the images out in one array."""
    if len(images) != 2 * len(issame):
        raise PackError(
            f"{path}: {len(images):,} images for {len(issame):,} labels; a pack has two images "
            "for each label, make it again"
        )
    if not len(issame):
        raise PackError(f"{path}: the pack is empty; make it again")
    for i, image in enumerate(images):
        if not isinstance(image, (bytes, bytearray)):
            raise PackError(
                f"{path}, image {i}: found {_shown(image)} instead of encoded bytes; make "
                "the pack again"
            )
        _check_image(path, i, image[:8], len(image))
    for i, label in enumerate(issame):
        if not isinstance(label, (bool, int, np.bool_, np.integer)) or label not in (0, 1):
            raise PackError(
                f"{path}, pair {i}: its label is {_shown(label)}, not 0 or 1; make the pack again"
            )
    lengths = [len(image) for image in images]
    total = sum(lengths)
    # A pickle may name one image many times over, so that the sum exceeds the file.
    held = sum({id(image): len(image) for image in images}.values())
    limit = min(MAX_PACK_BYTES, max(_REPEATED_BYTES, 10 * held))
    if total > limit:
        raise PackError(
            f"{path}: its images have {total:,} bytes together, more than {limit:,} (those that "
            f"differ have {held:,}); check that this is the right file"
        )
    data = np.frombuffer(b"".join(images), dtype=np.uint8)
    offsets = np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)])
    return Pack(path, path.stem, data, offsets, np.array(issame, dtype=bool))


def _check_image(path: Path, i: int, beginning: bytes | bytearray, length: int) -> None:
    if not bytes(beginning).startswith(_SIGNATURES) or length > MAX_IMAGE_BYTES:
        raise PackError(
            f"{path}, image {i}: {length:,} bytes that begin with {bytes(beginning)!a} are neither "
            f"JPEG nor PNG, or more than {MAX_IMAGE_BYTES:,}; make the pack again with encoded "
            "images"
        )


def _read_npz(path: Path, content: bytes) -> Pack:
    names = ("data", "offsets", "issame")
    try:
        arrays, _ = read_arrays(io.BytesIO(content), len(content), names, MAX_PACK_BYTES)
        data, offsets, issame = (arrays[name] for name in names)
    except (ArchiveError, KeyError) as problem:
        why = f"{problem} is missing" if isinstance(problem, KeyError) else problem
        raise PackError(
            f"{path}: this is no pack with the arrays data, offsets and issame ({why}); make it "
            "again with facerec"
        ) from problem
    n = len(issame) if issame.ndim == 1 else 0
    dtypes = [array.dtype.str for array in (data, offsets, issame)]
    if (
        dtypes != ["|u1", "<i8", "|b1"]
        or n < 1
        or data.ndim != 1
        or offsets.shape != (2 * n + 1,)
        or (offsets[0], offsets[-1]) != (0, len(data))
        or (offsets[1:] <= offsets[:-1]).any()
    ):
        raise PackError(
            f"{path}: its arrays, of the types {', '.join(dtypes)}, are no bytes of two images a "
            "label with offsets that ascend; make the pack again with facerec"
        )
    for i in range(2 * n):
        beginning = data[offsets[i] : min(offsets[i] + 8, offsets[i + 1])].tobytes()
        _check_image(path, i, beginning, int(offsets[i + 1] - offsets[i]))
    return Pack(path, path.stem, data, offsets, issame)


def _read_pickle(path: Path, content: bytes) -> Pack:
    positions = _check_opcodes(path, content)
    try:
        images, issame = _Unpickler(content, positions).load_pack()
    except _RefusedError as problem:
        raise PackError(
            f"{path}{problem}; nothing of the file was executed, do not trust it"
        ) from problem
    # Damaged pickles end in many kinds of error (see the documentation of pickle).
    except Exception as problem:
        raise PackError(
            f"{path}: the pickle is malformed ({_brief(problem)}); get or make the pack again"
        ) from problem
    return _make_pack(path, images, issame)


def _brief(problem: Exception) -> str:
    return f"{type(problem).__name__}: {str(problem)[:200]}"


def _shown(value: object) -> str:
    """Describe a value from a file in a few characters, whatever its size or nesting."""
    if isinstance(value, (str, bytes)):
        return ascii(value[:60])
    if isinstance(value, (int, float)) and -1e9 < value < 1e9:
        return str(value)
    size = f" of length {len(value)}" if isinstance(value, (tuple, list)) else ""
    return type(value).__name__.lstrip("_") + size


def _check_opcodes(path: Path, content: bytes) -> list[int]:
    """Go through the opcodes without executing any; return where globals are looked up."""
    positions: list[int] = []
    refusal = None
    try:
        for count, (opcode, argument, at) in enumerate(pickletools.genops(content), start=1):
            name = opcode.name
            if count > MAX_OPCODES:
                refusal = f"byte {at}: refused, more than {MAX_OPCODES:,} pickle opcodes"
            elif name not in _OPCODES:
                named = f" ({_shown(argument)})" if isinstance(argument, str) else ""
                refusal = f"byte {at}: refused, no verification pack needs pickle's {name}{named}"
            # The memo is an array: a large index alone would reserve gigabytes.
            elif name in ("PUT", "LONG_BINPUT") and not 0 <= (argument or 0) < count + 256:
                refusal = f"byte {at}: refused, memo index {_shown(argument)} is out of proportion"
            elif name in ("GLOBAL", "STACK_GLOBAL"):
                positions.append(at or 0)
            if refusal is not None:
                break
    # pickletools promises no particular errors for bytes that are no pickle.
    except Exception as problem:
        raise PackError(
            f"{path}: this is no whole pickle ({_brief(problem)}); get or make the pack again"
        ) from problem
    if refusal is not None:
        raise PackError(f"{path}, {refusal}; nothing of the file was executed, do not trust it")
    return positions


class _RefusedError(Exception):
    """What a pickle asked for and does not get; the text continues the name of the file."""


class _Dtype:
    """Stands in for a ``numpy.dtype``; only uint8 and bool exist."""

    __slots__ = ("kind",)

    _KINDS: ClassVar = {"u1": "uint8", "uint8": "uint8", "b1": "bool", "bool": "bool", "?": "bool"}

    def __init__(self, name: object) -> None:
        text = name.decode("latin1") if isinstance(name, bytes) else name
        kind = self._KINDS.get(text.lstrip("|")) if isinstance(text, str) else None
        if kind is None:
            raise _RefusedError(
                f": refused, arrays of type {_shown(text)} (only uint8 and bool belong in a pack)"
            )
        self.kind = kind

    def __setstate__(self, state: object) -> None:
        """Take the byte order and flags, which say nothing for one-byte types."""


class _Array:
    """Stands in for a ``numpy.ndarray``: its bytes, and whether they are one row of numbers."""

    __slots__ = ("kind", "raw")

    def __init__(self) -> None:
        self.kind: str | None = None
        self.raw = b""

    def __setstate__(self, state: Any) -> None:
        _, shape, dtype, _, raw = state
        self.fill(raw, dtype, shape)

    def fill(self, raw: object, dtype: object, shape: object) -> None:
        """Take the content; several dimensions are fine as long as all but one have length 1."""
        if (
            not isinstance(raw, bytes)
            or not isinstance(dtype, _Dtype)
            or not isinstance(shape, tuple)
            or not all(isinstance(side, int) for side in shape)
            or [side for side in shape if side != 1] != [len(raw)] * (len(raw) != 1)
        ):
            sides = "×".join(map(_shown, shape)) if isinstance(shape, tuple) else _shown(shape)
            raise _RefusedError(f": refused, an array of shape {sides[:60]} (one row is needed)")
        self.kind, self.raw = dtype.kind, raw


class _Unpickler(pickle.Unpickler):
    """Knows only the globals of real packs, and says where in the file another one is named."""

    def __init__(self, content: bytes, positions: list[int]) -> None:
        # Python 2 packs hold their images as str; as bytes they come out unchanged.
        super().__init__(io.BytesIO(content), encoding="bytes")
        # Opcodes run in file order, so the n-th look-up belongs to the n-th position.
        self._positions = iter(positions)
        # Copies made in loading are never longer than the file, unless one is made many times.
        self._bytes_left = len(content)
        # Methods, which a pickle can call but not change.
        self._globals = {
            ("_codecs", "encode"): self._encode,
            ("numpy", "ndarray"): self._refuse_ndarray,
            ("numpy", "dtype"): self._dtype,
        }
        for core in ("numpy.core", "numpy._core"):
            self._globals[f"{core}.multiarray", "_reconstruct"] = self._reconstruct
            self._globals[f"{core}.multiarray", "scalar"] = self._scalar
            self._globals[f"{core}.numeric", "_frombuffer"] = self._frombuffer

    def load_pack(self) -> tuple[list[Any], list[Any]]:
        """Unpickle and return images and labels, each a list of entries not checked further."""
        loaded = self.load()
        if not isinstance(loaded, (tuple, list)) or len(loaded) != 2:
            raise _RefusedError(f": expected (images, labels), found {_shown(loaded)}")
        images, issame = loaded
        if isinstance(issame, _Array):
            issame = list(issame.raw)
        for name, entries in (("images", images), ("labels", issame)):
            if not isinstance(entries, (list, tuple)):
                raise _RefusedError(f": expected a list of {name}, found {_shown(entries)}")
        encoded = [
            image.raw if isinstance(image, _Array) and image.kind == "uint8" else image
            for image in images
        ]
        return encoded, list(issame)

    def find_class(self, module: str, name: str) -> Any:
        """Look up an allowed global."""
        position = next(self._positions)
        try:
            return self._globals[module, name]
        except KeyError:
            raise _RefusedError(
                f", byte {position}: refused, the pickle names the global "
                f"{_shown(module)[1:-1]}.{_shown(name)[1:-1]}, which no verification pack needs"
            ) from None

    def _spend(self, size: int) -> None:
        self._bytes_left -= size
        if self._bytes_left < 0:
            raise _RefusedError(": refused, the pickle unfolds to more bytes than the file has")

    def _encode(self, text: object, encoding: object = None) -> bytes:
        if not isinstance(text, str) or encoding not in ("latin1", b"latin1"):
            raise _RefusedError(f": refused, _codecs.encode to {_shown(encoding)} (only latin1)")
        self._spend(len(text))
        return text.encode("latin1")

    def _scalar(self, dtype: object, raw: object = None) -> int:
        if not isinstance(dtype, _Dtype) or not isinstance(raw, bytes) or len(raw) != 1:
            raise _RefusedError(": refused, a NumPy scalar that is neither uint8 nor bool")
        return raw[0]

    def _reconstruct(self, kind: object, *_: object) -> _Array:
        if kind != self._refuse_ndarray:
            raise _RefusedError(": refused, an array of a class other than numpy.ndarray")
        return _Array()

    def _frombuffer(self, raw: object, dtype: object, shape: object, order: object = "C") -> _Array:
        if isinstance(raw, bytearray):
            self._spend(len(raw))
            raw = bytes(raw)
        array = _Array()
        array.fill(raw, dtype, shape)
        return array

    def _dtype(self, name: object, *_: object) -> _Dtype:
        return _Dtype(name)

    def _refuse_ndarray(self, *_: object) -> None:
        raise _RefusedError(": refused, a direct call of numpy.ndarray")
