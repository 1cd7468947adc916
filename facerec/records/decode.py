"""From the bytes of an encoded image to an RGB array, or an error that says why not."""

from __future__ import annotations

import functools
import struct
import zlib
from collections.abc import Callable, Iterator
from typing import Literal

import numpy as np

from facerec.errors import ImageError
from facerec.libraries import cv2, simplejpeg

MAX_PIXELS = 40_000_000
"""Largest image that is decoded without a fixed size; a header that claims more is refused."""

MAX_SCANS = 100
"""Most scans of a progressive JPEG; encoders write about ten, and each is a pass of its own."""

MAX_SCANNED_PIXELS = 500_000_000
"""Largest product of pixels and scans of a JPEG: 12 scans at ``MAX_PIXELS``."""

_MAX_TAIL = 16
"""Bytes after a JPEG's end marker (beside zero padding) that are still taken for harmless."""

_MAX_SEGMENTS = 1000
"""Segments before a JPEG's frame header, each of up to 64 KiB; large profiles take a few dozen."""

_JPEG = b"\xff\xd8\xff"
_PNG = b"\x89PNG\r\n\x1a\n"
_END_OF_IMAGE = b"\xff\xd9"
_START_OF_SCAN = b"\xff\xda"
_SEGMENT = struct.Struct(">BBH")
_JPEG_SIZE = struct.Struct(">HH")
_FRAME_MARKERS = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}
"""SOF0…SOF15, which hold the size; the three left out are tables and an extension."""

_NO_TABLE_MARKERS = _FRAME_MARKERS | {0x01, *range(0xD0, 0xDB), 0xFF}
"""What is more than a segment to pass over, which nearly all before the frame header are."""

_PNG_HEADER = struct.Struct(">IIBBBBB")
"""Width, height, bit depth, colour type, compression, filter, interlacing."""

_PNG_CHUNK = struct.Struct(">I4s")
_PNG_ROWS = 33
"""Where the chunks after the signature and the header begin."""

_PNG_SAMPLES = {0: 1, 2: 3, 3: 1, 4: 2, 6: 4}
"""Samples of a pixel by colour type."""

_PNG_PASSES = (
    (0, 8, 0, 8),
    (4, 8, 0, 8),
    (0, 4, 4, 8),
    (2, 4, 0, 4),
    (0, 2, 2, 4),
    (1, 2, 0, 2),
    (0, 1, 1, 2),
)
"""First column, step, first row and step of the passes of an interlaced PNG."""

_PIECE = 1 << 14
"""Compressed bytes handed over at once; what is left of them is copied after every block."""

_STORED = struct.Struct("<xHH")
_STORED_BYTES = 65535
"""Most bytes in a stored block of deflate, whose header is its length, plain and inverted."""

Kind = Literal["jpeg", "png", "webp", "bmp", "tiff"]

_KINDS: dict[bytes, Kind] = {
    _JPEG: "jpeg",
    _PNG: "png",
    b"BM": "bmp",
    b"II*\0": "tiff",
    b"MM\0*": "tiff",
}
"""How the formats begin that are read; WebP has the length of the file in between."""

_OTHER_FORMATS = {
    b"GIF8": "GIF",
    b"\0\0\0\x0cjP  ": "JPEG 2000",
    b"\xff\x4f\xff\x51": "JPEG 2000",
    b"v/1\x01": "OpenEXR",
    b"#?R": "Radiance HDR",
    b"\x59\xa6\x6a\x95": "Sun raster",
    **{b"P%c" % kind: "PNM" for kind in b"1234567Ff"},
}
"""How formats begin that others decode, so that the sentence can name them."""

_EXIF = {b"Exif\0\0": 6, b"eXIf": 4, b"EXIF": 8}
"""Where the directory stands behind its mark in a JPEG (and some WebP), a PNG and a WebP."""

_WIDTH, _HEIGHT, _BITS, _COMPRESSION, _COLOURS = 256, 257, 258, 259, 262
_ORIENTATION, _SAMPLES, _ROWS_PER_STRIP, _TILE_WIDTH, _TILE_HEIGHT = 274, 277, 278, 322, 323
"""Tags of TIFF and EXIF (TIFF 6.0, section 8)."""

_NEXT_PAGE = 0
"""Stands for the place of the next directory among the tags, of which none is 0."""

_ALL_ROWS = 2**32 - 1
"""How a TIFF says that it is one strip."""

_TIFF_COMPRESSIONS = (1, 5, 8, 32946, 32773)
"""None, LZW, deflate (two numbers), PackBits: none that has a picture of another size inside."""


@functools.cache
def _decodes_to_rgb() -> bool:
    return hasattr(cv2, "IMREAD_COLOR_RGB")  # OpenCV before 4.11 decodes to BGR only


@functools.cache
def _flags() -> int:
    # Where a turn is asked for it is made here, alike for all formats and versions of OpenCV.
    colours = cv2.IMREAD_COLOR_RGB if _decodes_to_rgb() else cv2.IMREAD_COLOR
    return colours | cv2.IMREAD_IGNORE_ORIENTATION


def decode_image(
    data: bytes,
    where: str,
    size: tuple[int, int] | None = (112, 112),
    out: np.ndarray | None = None,
    *,
    upright: bool = False,
) -> np.ndarray:
    """Decode a JPEG, PNG, WebP, BMP or TIFF to a uint8 RGB array ``(height, width, 3)``.

    JPEGs without any fault are decoded by simplejpeg straight into ``out``, all else by OpenCV.
    Both bring libjpeg-turbo, and the pixels are the same.

    Stricter than OpenCV, of which some versions fill the missing rows of a cut JPEG silently: a
    JPEG must close with its end marker (zero padding and a few stray bytes may follow). Grey, CMYK,
    16-bit and transparent images come out as plain 8-bit RGB.

    A small file can make a decoder work for seconds and take gigabytes. What bounds both is
    checked before: the size of all, the scans of a JPEG, the chunks of a PNG, the tiles of a TIFF.

    Args:
        data: the encoded image.
        where: the file and record or path, which begins the sentence of an error.
        size: the ``(height, width)`` that the image must have, in pixels; ``None`` takes any up
            to ``MAX_PIXELS``.
        out: contiguous memory for an image of ``size``; by default new memory.
        upright: turn the image as its EXIF data asks (`orientation`), as a photo is meant to be
            seen and as ``cv2.imread`` reads it; by default pixels are taken as they are stored,
            as aligned crops are meant.

    Returns:
        ``out``, or the new array.

    Raises:
        ImageError: no such image, cut short, damaged, too large, or of another size; or a TIFF of
            several pages or other than 8 bits, or an animated WebP.
    """
    turn = orientation(data) if upright else 1
    if size is not None:
        if out is None:
            out = np.empty((*size, 3), np.uint8)
        if (
            turn == 1
            and data.endswith(_END_OF_IMAGE)
            and _has_few_scans(data)
            and _decode_whole_jpeg(data, out)
        ):
            return out
    stored = image_size(data, where)
    if size is not None:
        seen = stored[::-1] if turn > 4 else stored
        if seen != size:
            raise ImageError(
                f"{where}: the image is {seen[0]}×{seen[1]} (height×width) where "
                f"{size[0]}×{size[1]} is needed; align and crop the faces to that size first, or "
                "let facerec verify, embed or audit do so with --align"
            )
    elif stored[0] * stored[1] > MAX_PIXELS:
        raise ImageError(
            f"{where}: the header claims {stored[0]:,}×{stored[1]:,} pixels, more than the limit "
            f"of {MAX_PIXELS:,}; scale the image down or leave it out"
        )
    plain: bytes | bytearray = data
    if data.startswith(_JPEG):
        _check_scans(data, stored, where)
    elif data.startswith(_PNG):
        plain = _rows_alone(data, where)
    try:
        image = cv2.imdecode(np.frombuffer(plain, np.uint8), _flags())
    except cv2.error:
        image = None
    if image is None or image.shape[:2] != stored:
        raise _damaged(data, where)
    if not _decodes_to_rgb():
        image = cv2.cvtColor(image, cv2.COLOR_BGR2RGB)
    if turn > 4:
        image = image.transpose(1, 0, 2)
    if turn > 1:
        rows, columns = (-1 if turn in turns else 1 for turns in ((3, 4, 7, 8), (2, 3, 6, 7)))
        image = np.ascontiguousarray(image[::rows, ::columns])
    if out is None:
        return image
    out[...] = image
    return out


def _decode_whole_jpeg(data: bytes, out: np.ndarray) -> bool:
    """Decode a JPEG of the size of ``out`` into it; ``False`` for others and for any fault."""
    try:
        return simplejpeg.decode_jpeg(data, "RGB", buffer=out).shape == out.shape
    except ValueError:  # nor is there RGB of CMYK
        return False


def _damaged(data: bytes, where: str) -> ImageError:
    kind = str(image_kind(data)).upper()
    return ImageError(
        f"{where}: the {kind} of {len(data):,} bytes does not decode, its data is damaged or "
        "cut short; replace it or leave it out"
    )


def image_kind(data: bytes) -> Kind | None:
    """Return what encoded bytes are by their beginning; None for what is not read."""
    if data[:4] == b"RIFF" and data[8:12] == b"WEBP":
        return "webp"
    return next((kind for start, kind in _KINDS.items() if data.startswith(start)), None)


def image_suffix(data: bytes) -> str:
    """Return the ending of a file for encoded bytes, with its dot; of a JPEG for unknown ones."""
    return "." + (image_kind(data) or "jpeg").replace("jpeg", "jpg")


def orientation(data: bytes) -> int:
    """Return how an image is to be turned by its EXIF data, 1 (not at all) to 8; damaged is 1.

    From 5 on height and width are exchanged (EXIF 2.32, tag 274). A TIFF says 1, as it always comes
    out of the decoder turned.
    """
    if image_kind(data) == "tiff":
        return 1
    for mark, length in _EXIF.items():
        at = data.find(mark)
        if at >= 0 and 1 <= (turn := _tags(data, at + length).get(_ORIENTATION, 1)) <= 8:
            return turn
    return 1


def image_size(data: bytes, where: str) -> tuple[int, int]:
    """Return ``(height, width)`` in pixels from the header of an image, decoding nothing.

    Raises:
        ImageError: no JPEG, PNG, WebP, BMP or TIFF, or of a kind that is not read; or cut short.
    """
    kind = image_kind(data)
    if kind is None:
        beginning = f"it begins with {data[:8].hex(' ')}" if data else "it is empty"
        if data[4:8] == b"ftyp":
            beginning = "it begins as HEIC and AVIF files do"
        for start, name in _OTHER_FORMATS.items():
            if data.startswith(start):
                beginning = f"it begins as {name} files do"
        raise ImageError(
            f"{where}: neither a JPEG nor a PNG, WebP, BMP or TIFF ({len(data):,} bytes, "
            f"{beginning}); convert it to JPEG or leave it out"
        )
    if kind == "jpeg" and not data.endswith(_END_OF_IMAGE):
        tail = data.rstrip(b"\0")[-_MAX_TAIL - 2 :]
        if _END_OF_IMAGE not in tail:
            raise ImageError(
                f"{where}: the JPEG of {len(data):,} bytes lacks its end marker (ff d9), so it "
                "was cut short; copy it again from its source or leave it out"
            )
    try:
        size = _SIZES[kind](data)
    except struct.error:  # the file ends before its header does
        size = None
    except _UnreadError as problem:
        raise ImageError(
            f"{where}: {problem}, which is not read; save it as PNG or leave it out"
        ) from problem
    if size is None or min(size) < 1:
        raise ImageError(
            f"{where}: the image of {len(data):,} bytes has no size in its header, which is "
            "damaged; replace it or leave it out"
        )
    return size


class _UnreadError(Exception):
    """Names a variant of a format that is not read."""


def _webp_size(data: bytes) -> tuple[int, int] | None:
    """Return the size in the header of a WebP, which its decoder compares with the picture's."""
    chunk = data[12:16]
    if chunk == b"VP8X":
        flags, *low = struct.unpack_from("<B3xHBHB", data, 20)
        if flags & 2:
            raise _UnreadError("an animated WebP")
        return 1 + low[2] + (low[3] << 16), 1 + low[0] + (low[1] << 16)
    if chunk == b"VP8L" and data[20:21] == b"\x2f":
        (bits,) = struct.unpack_from("<I", data, 21)
        return 1 + (bits >> 14 & 0x3FFF), 1 + (bits & 0x3FFF)
    if chunk == b"VP8 " and data[23:26] == b"\x9d\x01\x2a":
        width, height = struct.unpack_from("<HH", data, 26)
        return height & 0x3FFF, width & 0x3FFF
    return None


def _bmp_size(data: bytes) -> tuple[int, int] | None:
    """Return the size in the header of a BMP that holds all its rows; None where some are not."""
    pixels, header = struct.unpack_from("<II", data, 10)
    if header == 12:
        width, height, _, bits = struct.unpack_from("<HHHH", data, 18)
        compression = 0
    else:
        width, height, _, bits, compression = struct.unpack_from("<iiHHI", data, 18)
    if compression not in (0, 3):  # plain, or with masks
        raise _UnreadError("a compressed BMP")
    height = abs(height)  # the first row is at the top where it is negative
    whole = pixels + (width * bits + 31) // 32 * 4 * height <= len(data)
    return (height, width) if whole else None


def _tiff_size(data: bytes) -> tuple[int, int] | None:
    """Return the size of a TIFF of one page, as it is seen."""
    tags = _tags(data, 0)
    height, width = tags.get(_HEIGHT, 0), tags.get(_WIDTH, 0)
    if _NEXT_PAGE not in tags:  # it is cut short
        return None
    if tags[_NEXT_PAGE]:
        raise _UnreadError("a TIFF of several pages")
    if tags.get(_BITS) != 8:
        raise _UnreadError(f"a TIFF of {tags.get(_BITS, 1)} bits a sample")
    if (
        tags.get(_COMPRESSION, 1) not in _TIFF_COMPRESSIONS
        or tags.get(_COLOURS) not in (0, 1, 2)  # grey or RGB; libtiff overlooks a cut palette
        or tags.get(_SAMPLES, 1) not in (1, 3, 4)
    ):
        raise _UnreadError("a TIFF of this compression or these colours")
    # Whole tiles and strips are unpacked, however little of them is seen.
    tile = tags.get(_TILE_WIDTH, 1) * tags.get(_TILE_HEIGHT, 1)
    rows = tags.get(_ROWS_PER_STRIP, _ALL_ROWS)
    strip = (height if rows == _ALL_ROWS else rows) * width
    if not (0 < tile <= MAX_PIXELS and 0 < strip <= MAX_PIXELS):
        return None
    return (width, height) if tags.get(_ORIENTATION, 1) > 4 else (height, width)


def _tags(data: bytes, at: int) -> dict[int, int]:
    """Return the numbers of the first directory of TIFF or EXIF data, the largest of each tag.

    -1 stands for what is no number of two or four bytes, or of more than four of them.
    """
    order = {b"II*\0": "<", b"MM\0*": ">"}.get(data[at : at + 4])
    tags: dict[int, int] = {}
    if order is None:
        return tags
    try:
        (start,) = struct.unpack_from(order + "I", data, at + 4)
        (count,) = struct.unpack_from(order + "H", data, at + start)
        for entry in range(at + start + 2, at + start + 2 + 12 * count, 12):
            tag, kind, number = struct.unpack_from(order + "HHI", data, entry)
            if tag in tags:  # the first counts
                continue
            code = {3: "H", 4: "I"}.get(kind)
            if code is None or not 1 <= number <= 4:
                tags[tag] = -1
                continue
            form = struct.Struct(f"{order}{number}{code}")
            place = entry + 8
            if form.size > 4:
                place = at + struct.unpack_from(order + "I", data, place)[0]
            tags[tag] = max(form.unpack_from(data, place))
        (tags[_NEXT_PAGE],) = struct.unpack_from(order + "I", data, at + start + 2 + 12 * count)
    except struct.error:  # EXIF data may end before the place of a next directory
        pass
    return tags


def _jpeg_size(data: bytes) -> tuple[int, int] | None:
    """Return the size in a JPEG's frame header; ``None`` where there is none."""
    at = _jpeg_frame(data)
    return None if at is None else _JPEG_SIZE.unpack_from(data, at + 5)


def _jpeg_frame(data: bytes) -> int | None:
    """Walk the segments of a JPEG to its frame header; ``None`` where there is none."""
    at, end = 2, len(data) - 9
    for _ in range(_MAX_SEGMENTS):
        if at > end:
            return None
        mark, marker, length = _SEGMENT.unpack_from(data, at)
        if mark != 0xFF:
            return None
        if marker not in _NO_TABLE_MARKERS:
            at += 2 + length
        elif marker in _FRAME_MARKERS:
            return at
        elif marker == 0xFF:  # fill byte
            at += 1
        elif marker in (0xD9, 0xDA):  # end of image, or pixels before any frame header
            return None
        else:  # a marker without a length
            at += 2
    return None


def _has_few_scans(data: bytes) -> bool:
    """Whether a JPEG of the size of a face has no more than ``MAX_SCANS`` scans."""
    # One byte of the marker is counted far faster than both, and is as rare as in any data.
    if len(data) - len(data.replace(_START_OF_SCAN[1:], b"")) <= MAX_SCANS:
        return True
    return data.count(_START_OF_SCAN) <= MAX_SCANS


def _check_scans(data: bytes, size: tuple[int, int], where: str) -> None:
    """Refuse a JPEG whose scans would cost far more than its pixels.

    In compressed data only zero follows ff, so whatever looks like the start of a scan is one,
    except in metadata, nearly all of which stands before the frame header.
    """
    scans = data.count(_START_OF_SCAN, _jpeg_frame(data))
    if scans > min(MAX_SCANS, MAX_SCANNED_PIXELS // (size[0] * size[1])):
        raise ImageError(
            f"{where}: the JPEG of {size[0]:,}×{size[1]:,} pixels has {scans:,} scans, more than "
            "encoders write; save it anew as a plain JPEG or leave it out"
        )


def _png_size(data: bytes) -> tuple[int, int] | None:
    """Return the size in a PNG's header; ``None`` where there is none."""
    if len(data) < 29 or data[8:16] != b"\0\0\0\rIHDR":
        return None
    width, height, depth, kind, *_ = _PNG_HEADER.unpack_from(data, 16)
    return (height, width) if depth in (1, 2, 4, 8, 16) and kind in _PNG_SAMPLES else None


_SIZES: dict[Kind, Callable[[bytes], tuple[int, int] | None]] = {
    "jpeg": _jpeg_size,
    "png": _png_size,
    "webp": _webp_size,
    "bmp": _bmp_size,
    "tiff": _tiff_size,
}


def _rows_alone(data: bytes, where: str) -> bytearray:
    """Return a PNG of the same pixels that holds its rows alone, and these not compressed.

    Chunks that claim more bytes than the file has are refused, those that no pixel depends on are
    left out, and no more is decompressed than the rows that the header announces.

    Raises:
        ImageError: damaged or cut short.
    """
    needed: dict[bytes, bytes] = {}
    pieces: list[bytes] = []
    view, at, kind = memoryview(data), _PNG_ROWS, b""
    # Encoders write rows in chunks of some KiB; millions of empty ones would take seconds here.
    for _ in range(1000 + len(data) // 1024):
        if at + 12 > len(data):
            break
        length, kind = _PNG_CHUNK.unpack_from(data, at)
        start, end = at + 8, at + 8 + length
        at = end + 4
        if kind == b"IEND" or at > len(data):
            break
        if kind == b"IDAT":
            if zlib.crc32(view[start - 4 : end]) != int.from_bytes(view[end:at], "big"):
                raise _damaged(data, where)
            pieces += [data[i : min(i + _PIECE, end)] for i in range(start, end, _PIECE)]
        elif kind[:1].isupper() or kind == b"tRNS":
            needed.setdefault(kind, data[start - 8 : at])
    if kind != b"IEND":
        raise _damaged(data, where)

    plain = bytearray().join([data[:_PNG_ROWS], *needed.values(), bytes(8)])
    begin, missing = len(plain), _png_bytes(data)
    check = 1
    plain += b"\x78\x01"
    try:
        for block in _inflate(pieces, missing):
            plain += _STORED.pack(len(block), len(block) ^ 0xFFFF)
            plain += block
            missing -= len(block)
            check = zlib.adler32(block, check)
    except zlib.error:
        missing = -1
    if missing:
        raise _damaged(data, where)
    plain += b"\1\0\0\xff\xff" + check.to_bytes(4, "big")
    plain[begin - 8 : begin] = _PNG_CHUNK.pack(len(plain) - begin, b"IDAT")
    with memoryview(plain) as whole, whole[begin - 4 :] as chunk:
        crc = zlib.crc32(chunk)
    plain += crc.to_bytes(4, "big") + b"\0\0\0\0IEND\xae\x42\x60\x82"
    return plain


def _png_bytes(data: bytes) -> int:
    """Return how many bytes the rows of a PNG have, each with its filter's number."""
    width, height, depth, kind, _, _, interlaced = _PNG_HEADER.unpack_from(data, 16)
    total = 0
    for x, dx, y, dy in _PNG_PASSES if interlaced else ((0, 1, 0, 1),):
        columns, rows = len(range(x, width, dx)), len(range(y, height, dy))
        if columns:
            total += rows * (1 + (columns * depth * _PNG_SAMPLES[kind] + 7) // 8)
    return total


def _inflate(pieces: list[bytes], wanted: int) -> Iterator[bytes]:
    """Decompress a stream up to ``wanted`` bytes, in blocks of at most ``_STORED_BYTES``."""
    inflater = zlib.decompressobj()
    more: bytes | memoryview
    for more in (*pieces, b""):
        while wanted and not inflater.eof:
            block = inflater.decompress(more, min(wanted, _STORED_BYTES))
            more = inflater.unconsumed_tail
            wanted -= len(block)
            if block:
                yield block
            if not more:
                break
