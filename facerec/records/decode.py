"""From the bytes of a JPEG or PNG to an RGB array, or an error that says why not."""

from __future__ import annotations

import struct

import cv2
import numpy as np
import simplejpeg

from facerec.errors import ImageError

MAX_PIXELS = 40_000_000
"""Largest image that is decoded without a fixed size; a header that claims more is refused."""

_MAX_TAIL = 16
"""Bytes after a JPEG's end marker (beside zero padding) that are still taken for harmless."""

_JPEG = b"\xff\xd8\xff"
_PNG = b"\x89PNG\r\n\x1a\n"
_END_OF_IMAGE = b"\xff\xd9"
_SEGMENT = struct.Struct(">BBH")
_JPEG_SIZE = struct.Struct(">HH")
_PNG_SIZE = struct.Struct(">II")
_FRAME_MARKERS = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}
"""SOF0…SOF15, which hold the size; the three left out are tables and an extension."""

_NO_TABLE_MARKERS = _FRAME_MARKERS | {0x01, *range(0xD0, 0xDB), 0xFF}
"""What is more than a segment to pass over, which nearly all before the frame header are."""

# EXIF orientation is ignored because aligned crops are stored as they are meant to be seen.
_RGB: int | None = getattr(cv2, "IMREAD_COLOR_RGB", None)  # OpenCV before 4.11 decodes to BGR only
_FLAGS: int = (_RGB if _RGB is not None else cv2.IMREAD_COLOR) | cv2.IMREAD_IGNORE_ORIENTATION


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
    JPEG must close with its end marker (zero padding and a few stray bytes may follow), and the
    size in the header is checked before a pixel is decoded. Grey, CMYK, 16-bit and transparent
    images come out as plain 8-bit RGB.

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
        if data.endswith(_END_OF_IMAGE) and _decode_whole_jpeg(data, out):
            return out
    found = image_size(data, where)
    if size is not None:
        if found != size:
            raise ImageError(
                f"{where}: the image is {found[0]}×{found[1]} (height×width) where "
                f"{size[0]}×{size[1]} is needed; align and crop the faces to that size first, or "
                "let facerec verify, embed or audit do so with --align"
            )
    elif found[0] * found[1] > MAX_PIXELS:
        raise ImageError(
            f"{where}: the header claims {found[0]:,}×{found[1]:,} pixels, more than the limit of "
            f"{MAX_PIXELS:,}; scale the image down or leave it out"
        )
    try:
        image = cv2.imdecode(np.frombuffer(data, np.uint8), _FLAGS)
    except cv2.error:
        image = None
    if image is None or image.shape[:2] != found:
        kind = "JPEG" if data.startswith(_JPEG) else "PNG"
        raise ImageError(
            f"{where}: the {kind} of {len(data):,} bytes does not decode, its data is damaged or "
            "cut short; replace it or leave it out"
        )
    if _RGB is None:
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
        size = (
            _PNG_SIZE.unpack_from(data, 16)[::-1]
            if data[12:16] == b"IHDR" and len(data) > 24
            else None
        )
    else:
        beginning = f"it begins with {data[:8].hex(' ')}" if data else "it is empty"
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
    """Walk the segments of a JPEG to its frame header; ``None`` where there is none."""
    at, end = 2, len(data) - 9
    while at <= end:
        mark, marker, length = _SEGMENT.unpack_from(data, at)
        if mark != 0xFF:
            return None
        if marker not in _NO_TABLE_MARKERS:
            at += 2 + length
        elif marker in _FRAME_MARKERS:
            return _JPEG_SIZE.unpack_from(data, at + 5)
        elif marker == 0xFF:  # fill byte
            at += 1
        elif marker in (0xD9, 0xDA):  # end of image, or pixels before any frame header
            return None
        else:  # a marker without a length
            at += 2
    return None
