"""Verification packs: image pairs with their labels, ``.bin`` (a pickle), ``.npz`` or bcolz.

A ``.bin`` is a pickle of ``(bins, issame)`` with ``len(bins) == 2 * len(issame)``, as written by
``deepinsight/insightface: src/data/lfw2pack.py`` (Python 2), by its Python 3 copies and by
``recognition/arcface_mxnet/common/build_eval_pack.py`` (arrays). Unpickling can run any code, so
the opcodes are checked before anything is loaded, and the few globals that real packs name are
replaced by inert stand-ins: not even NumPy's own functions are called with numbers from the file.

A bcolz pack is the folder of an array ``(2n, 3, H, W)`` float32, BGR, (p − 127.5) / 127.5, as old
face.evoLVe and InsightFace_Pytorch wrote it, with the labels in ``NAME_list.npy`` beside it.
"""

from __future__ import annotations

import io
import math
import pickle
import pickletools
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from facerec.base.errors import PackError
from facerec.base.files import atomic_path, parse_json, read_file, reading
from facerec.base.libraries import cv2, needed
from facerec.records.npz import read_arrays

MAX_PACK_BYTES = 4 << 30
_CHUNK_BYTES = 1 << 28
"""Of a bcolz pack, unpacked."""

_SIZES = Path("meta", "sizes")

MAX_IMAGE_BYTES = 16 << 20
MAX_OPCODES = 5_000_000

_LABELS = (bool, int, np.bool_, np.integer)
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
        path: where the pack came from; its name without suffix is that of the bench.
        images: 2n encoded images, JPEG or PNG.
        issame: bool ``(n,)``, whether the pair shows the same subject. Order is meaning: ten-fold
            scores use contiguous folds.
    """

    path: Path
    images: Sequence[bytes]
    issame: NDArray[np.bool_]


def read_pack(path: str | Path) -> Pack:
    """Read a ``.bin``, ``.npz`` or bcolz pack without running anything that it may contain.

    Args:
        path: the pack; its name without suffix becomes the name of the bench.

    Raises:
        PackError: the pack is missing, unsafe or malformed.
        MissingExtraError: a bcolz pack without blosc2.
    """
    path = Path(path)
    read = _read_bcolz if is_bcolz(path) else _read_npz if path.suffix == ".npz" else _read_pickle
    # Damaged files end in errors of many kinds.
    with reading(path, PackError, "get or make the pack again; nothing in it was run", Exception):
        return _checked(path, *read(path))


def write_pack(path: str | Path, images: Sequence[bytes], issame: Sequence[bool]) -> None:
    """Write a pack, whole or not at all; the same content always gives the same bytes.

    Args:
        path: ``.npz`` gives the form to keep and share; any other suffix a pickle of protocol 2
            with bytes entries, which InsightFace's readers take.
        images: encoded images, JPEG or PNG, two for each pair.
        issame: whether the pair shows the same subject.

    Raises:
        FacerecError: the content is no pack, or the file cannot be written.
    """
    path = Path(path)
    pack = _checked(path, images, issame)
    with atomic_path(path) as temporary, temporary.open("wb") as file:
        if path.suffix == ".npz":
            data = np.frombuffer(b"".join(pack.images), np.uint8)
            offsets = np.cumsum([0, *map(len, pack.images)], dtype=np.int64)
            np.savez(file, data=data, offsets=offsets, issame=pack.issame)
            return
        pickler = pickle.Pickler(file, protocol=2)
        # Without a memo, bytes do not depend on which images happen to be the same object.
        pickler.fast = True
        pickler.dump((list(pack.images), pack.issame.tolist()))


def _checked(path: Path, images: Sequence[Any], issame: Sequence[Any]) -> Pack:
    """Return a pack in which two images of a kind that is read stand for each label."""
    wrong = [label for label in issame if not isinstance(label, _LABELS) or label not in (0, 1)]
    odd = [i for i, image in enumerate(images) if not _is_encoded(image)]
    if wrong or odd or not len(issame) or len(images) != 2 * len(issame):
        raise PackError(
            f"{path}: {len(images):,} images for {len(issame):,} labels; no JPEG or PNG of at most "
            f"{MAX_IMAGE_BYTES:,} bytes: {odd[:3] or 'none'}; labels beside 0 and 1: "
            f"{len(wrong):,}; a pack has two encoded images for each label, make it again"
        )
    return Pack(path, images, np.array(issame, bool))


def _is_encoded(image: Any) -> bool:
    known = isinstance(image, bytes) and image.startswith(_SIGNATURES)
    return known and len(image) <= MAX_IMAGE_BYTES


def is_bcolz(path: Path) -> bool:
    """Tell whether a path is the folder of a bcolz array."""
    return (path / _SIZES).is_file()


_Content: TypeAlias = "tuple[Sequence[Any], Sequence[Any]]"
"""Images, and labels of pairs, of which `_checked` makes a pack."""


def _read_bcolz(path: Path) -> _Content:
    with needed("blosc2", f"{path}, a bcolz pack,"):
        import blosc2
    labels, images = path.with_name(f"{path.name}_list.npy"), list[bytes]()
    with reading(labels, PackError, "a bcolz pack has its labels there", Exception):
        issame = np.load(io.BytesIO(read_file(labels)), allow_pickle=False).tolist()
    count, *size = parse_json(read_file(path / _SIZES))["shape"]
    stored = parse_json(read_file(path / "meta" / "storage"))
    step, length = stored["chunklen"], math.prod(size)
    layout = stored["dtype"], len(size), size[0], 0 < 4 * step * length < _CHUNK_BYTES
    if layout != ("float32", 3, 3, True):
        raise ValueError(f"images {size} of {stored['dtype']} in chunks of {step}")
    for number in range(-(-count // step)):
        chunk = read_file(path / "data" / f"__{number}.blp", _CHUNK_BYTES)[16:]
        if struct.unpack_from("<I", chunk, 4)[0] > 4 * step * length:
            raise ValueError(f"chunk {number} is larger than the array says")
        values = np.frombuffer(blosc2.decompress(chunk), "<f4")
        pixels = values[: length * (count - len(images))].reshape(-1, *size) * 127.5 + 127.5
        if not ((pixels > -0.5) & (pixels < 255.5)).all():
            raise ValueError(f"chunk {number} has values outside −1…1")
        images += [
            cv2.imencode(".png", each)[1].tobytes()
            for each in np.rint(pixels).astype(np.uint8).transpose(0, 2, 3, 1)
        ]
    return images, issame


def _read_npz(path: Path) -> _Content:
    names = ("data", "offsets", "issame")
    arrays, _ = read_arrays(path, names, MAX_PACK_BYTES)
    data, offsets, issame = (arrays[name] for name in names)
    kinds = [(array.dtype.str, array.ndim) for array in (data, offsets, issame)]
    if (
        kinds != [("|u1", 1), ("<i8", 1), ("|b1", 1)]
        or (*offsets[:1], *offsets[-1:]) != (0, len(data))
        or (offsets[1:] <= offsets[:-1]).any()
    ):
        raise ValueError(f"{kinds} are no bytes of images, offsets that ascend, and labels")
    return [image.tobytes() for image in np.split(data, offsets[1:-1])], issame.tolist()


def _read_pickle(path: Path) -> _Content:
    content = read_file(path, MAX_PACK_BYTES)
    _check_opcodes(content)
    images, issame = map(_raw, _Unpickler(content).load())
    return [_raw(image) for image in images], list(issame)


def _check_opcodes(content: bytes) -> None:
    """Go through the opcodes without executing any.

    Raises:
        UnpicklingError: there are too many, or one that no pack needs.
    """
    for count, (opcode, argument, at) in enumerate(pickletools.genops(content), start=1):
        # The memo is an array: a large index alone would reserve gigabytes.
        far = "PUT" in opcode.name and not 0 <= (argument or 0) < count + 256
        if count > MAX_OPCODES or opcode.name not in _OPCODES or far:
            raise pickle.UnpicklingError(
                f"refused at byte {at}, no pack needs pickle's {opcode.name} "
                f"({str(argument)[:60]!a})"
            )


class _Array:
    """Stands in for a ``numpy.ndarray``, of one-byte numbers: its bytes; and for its dtype."""

    __slots__ = ("raw",)
    raw: bytes

    def __setstate__(self, state: Any) -> None:
        """Take the bytes; the state of a dtype says nothing for one-byte types."""
        if len(state) == 5:
            self.raw = state[-1]


def _raw(value: Any) -> Any:
    return value.raw if isinstance(value, _Array) else value


class _Unpickler(pickle.Unpickler):
    """Knows only the globals of real packs, and what stands in for them."""

    def __init__(self, content: bytes) -> None:
        # Python 2 packs hold their images as str; as bytes they come out unchanged.
        super().__init__(io.BytesIO(content), encoding="bytes")
        # Copies made in loading are never longer than the file, unless one is made many times.
        self._bytes_left = len(content)
        # Methods, which a pickle can call but not change.
        self._globals = {
            ("_codecs", "encode"): self._encode,
            ("numpy", "ndarray"): self._array,
            ("numpy", "dtype"): self._dtype,
        }
        for core in ("numpy.core", "numpy._core"):
            self._globals[f"{core}.multiarray", "_reconstruct"] = self._array
            self._globals[f"{core}.multiarray", "scalar"] = self._scalar
            self._globals[f"{core}.numeric", "_frombuffer"] = self._frombuffer

    def find_class(self, module: str, name: str) -> Any:
        """Look up an allowed global."""
        if (module, name) not in self._globals:
            raise pickle.UnpicklingError(
                f"refused, the pickle names the global {module[:60]}.{name[:60]}"
            )
        return self._globals[module, name]

    def _copied(self, data: bytes) -> bytes:
        self._bytes_left -= len(data)
        if self._bytes_left < 0:
            raise pickle.UnpicklingError("refused, it unfolds to more bytes than the file has")
        return bytes(data)

    def _encode(self, text: str, *_: object) -> bytes:
        return self._copied(text.encode("latin1"))  # which is all that real packs ask for

    def _dtype(self, name: object, *_: object) -> _Array:
        text = name.decode("latin1") if isinstance(name, bytes) else str(name)
        if text.lstrip("|") not in ("u1", "uint8", "b1", "bool", "?"):
            raise pickle.UnpicklingError(f"refused, arrays of type {text[:60]!a}")
        return _Array()

    def _scalar(self, dtype: _Array, raw: bytes) -> int:
        return raw[0]

    def _array(self, *_: object) -> _Array:
        return _Array()

    def _frombuffer(self, raw: bytes, *_: object) -> bytes:
        return self._copied(raw)
