"""From the bytes of a JPEG or PNG to an RGB array, or an error that says why not."""

from __future__ import annotations

import functools
import struct
import zlib
from collections.abc import Iterator
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

_OTHER_FORMATS = {
    b"GIF8": "GIF",
    b"BM": "BMP",
    b"RIFF": "WebP",
    b"II*\0": "TIFF",
    b"MM\0*": "TIFF",
    b"\0\0\0\x0cjP  ": "JPEG 2000",
    b"\xff\x4f\xff\x51": "JPEG 2000",
    b"v/1\x01": "OpenEXR",
    b"#?R": "Radiance HDR",
    b"\x59\xa6\x6a\x95": "Sun raster",
    **{b"P%c" % kind: "PNM" for kind in b"1234567Ff"},
}
"""How formats begin that others decode, so that the sentence can name them."""


@functools.cache
def _decodes_to_rgb() -> bool:
    return hasattr(cv2, "IMREAD_COLOR_RGB")  # OpenCV before 4.11 decodes to BGR only


@functools.cache
def _flags() -> int:
    # EXIF orientation is ignored because aligned crops are stored as they are meant to be seen.
    colours = cv2.IMREAD_COLOR_RGB if _decodes_to_rgb() else cv2.IMREAD_COLOR
    return colours | cv2.IMREAD_IGNORE_ORIENTATION


def decode_image(
    data: bytes,
    where: str,
    size: tuple[int, int] | None = (112, 112),
    out: np.ndarray | None = None,
) -> np.ndarray:
    """Decode a JPEG or PNG to a uint8 RGB array of shape ``(height, width, 3)``.

    JPEGs without any fault are decoded by simplejpeg straight into ``out``, all else by OpenCV.
    Both bring libjpeg-turbo, and the pixels are the same.

    Stricter than OpenCV, of which some versions fill the missing rows of a cut JPEG silently: a
    JPEG must close with its end marker (zero padding and a few stray bytes may follow). Grey, CMYK,
    16-bit and transparent images come out as plain 8-bit RGB.

    A small file can make a decoder work for seconds and take gigabytes. What bounds both is
    checked before: the size and the scans of a JPEG, the size and the chunks of a PNG.

    Args:
        data: the encoded image.
        where: the file and record or path, which begins the sentence of an error.
        size: the ``(height, width)`` that the image must have, in pixels; ``None`` takes any up
            to ``MAX_PIXELS``.
        out: contiguous memory for an image of ``size``; by default new memory.

    Returns:
        ``out``, or the new array.

    Raises:
        ImageError: not a JPEG or PNG, cut short, damaged, too large, or of another size.
    """
    if size is not None:
        if out is None:
            out = np.empty((*size, 3), np.uint8)
        if data.endswith(_END_OF_IMAGE) and _has_few_scans(data) and _decode_whole_jpeg(data, out):
            return out
    stored = image_size(data, where)
    if size is not None:
        if stored != size:
            raise ImageError(
                f"{where}: the image is {stored[0]}×{stored[1]} (height×width) where "
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
    else:
        plain = _rows_alone(data, where)
    try:
        image = cv2.imdecode(np.frombuffer(plain, np.uint8), _flags())
    except cv2.error:
        image = None
    if image is None or image.shape[:2] != stored:
        raise _damaged(data, where)
    if not _decodes_to_rgb():
        image = cv2.cvtColor(image, cv2.COLOR_BGR2RGB)
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
    kind = image_kind(data).upper()
    return ImageError(
        f"{where}: the {kind} of {len(data):,} bytes does not decode, its data is damaged or "
        "cut short; replace it or leave it out"
    )


def image_kind(data: bytes) -> Literal["jpeg", "png"]:
    """Return what encoded bytes are by their beginning; what is no PNG is taken for a JPEG."""
    return "png" if data.startswith(_PNG) else "jpeg"


def image_suffix(data: bytes) -> str:
    """Return the ending of a file for encoded bytes, with its dot."""
    return ".png" if image_kind(data) == "png" else ".jpg"


def image_size(data: bytes, where: str) -> tuple[int, int]:
    """Return ``(height, width)`` in pixels from the header of a JPEG or PNG, decoding nothing.

    Raises:
        ImageError: not a JPEG or PNG, or cut short.
    """
    if data.startswith(_JPEG):
        if not data.endswith(_END_OF_IMAGE):
            tail = data.rstrip(b"\0")[-_MAX_TAIL - 2 :]
            if _END_OF_IMAGE not in tail:
                raise ImageError(
                    f"{where}: the JPEG of {len(data):,} bytes lacks its end marker (ff d9), so it "
                    "was cut short; copy it again from its source or leave it out"
                )
        size = _jpeg_size(data)
    elif data.startswith(_PNG):
        size = _png_size(data)
    else:
        beginning = f"it begins with {data[:8].hex(' ')}" if data else "it is empty"
        for start, name in _OTHER_FORMATS.items():
            if data.startswith(start):
                beginning = f"it begins as {name} files do"
        raise ImageError(
            f"{where}: neither a JPEG nor a PNG ({len(data):,} bytes, {beginning}); "
            "convert it to JPEG or leave it out"
        )
    if size is None or 0 in size:
        raise ImageError(
            f"{where}: the image of {len(data):,} bytes has no size in its header, which is "
            "damaged; replace it or leave it out"
        )
    return size


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
