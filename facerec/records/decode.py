"""From the bytes of an encoded image to an RGB array, or an error that says why not.

simplejpeg and OpenCV decode JPEGs, Pillow reads all other headers and formats. A small file can
make a decoder work for seconds and take gigabytes: sizes, and the scans of a JPEG, are bounded
before anything is decoded.
"""

from __future__ import annotations

import io
import warnings
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import numpy as np
from numpy.typing import NDArray

from facerec.base.environment import available_cores
from facerec.base.errors import ImageError
from facerec.base.files import reading
from facerec.base.libraries import cv2, pillow, simplejpeg

if TYPE_CHECKING:
    from PIL.Image import Image

_Result = TypeVar("_Result")

TEMPLATE = np.array(
    [[38.2946, 51.6963], [73.5318, 51.5014], [56.0252, 71.7366], [41.5493, 92.3655],
     [70.7299, 92.2041]]
)  # fmt: skip
"""Where left eye, right eye (left being the viewer's left), nose and both corners of the mouth lie
in an aligned face of 112×112 (ArcFace's five points), as x and y."""

MAX_PIXELS = 40_000_000
"""Largest image that is decoded without a fixed size; a header that claims more is refused."""

MAX_SCANS = 100
"""Most scans of a progressive JPEG; encoders write about ten, and each is a pass of its own."""

MAX_SCANNED_PIXELS = 500_000_000
"""Largest product of pixels and scans of a JPEG: 12 scans at ``MAX_PIXELS``."""

_MAX_TAIL = 16
"""Bytes after a JPEG's end marker (beside zero padding) that are still taken for harmless."""

_CHUNKS = 10_000
"""Most chunks of a PNG; encoders write rows in chunks of some KiB."""

_END_OF_IMAGE = b"\xff\xd9"
_START_OF_SCAN = b"\xff\xda"
_EXIF = (b"Exif\0\0", b"eXIf", b"EXIF")
_ORIENTATION = 274

Kind = Literal["jpeg", "png", "webp", "bmp", "tiff"]

_KINDS: dict[bytes, Kind] = {
    b"\xff\xd8\xff": "jpeg",
    b"\x89PNG\r\n\x1a\n": "png",
    b"BM": "bmp",
    b"II*\0": "tiff",
    b"MM\0*": "tiff",
}
"""How the formats begin that are read; WebP has the length of the file in between."""

# It tells of palettes and tags that no pixel depends on.
warnings.filterwarnings("ignore", module=r"PIL\.")


def has_template(size: tuple[int, int]) -> bool:
    """Tell whether ArcFace's template says where a face lies in a crop of a height and a width."""
    height, width = size
    square = height == width > 0 and 0 in (height % 112, height % 128)
    return square or size == (112, 96)


def decode_image(
    data: bytes,
    where: str,
    size: tuple[int, int] | None = (112, 112),
    out: np.ndarray | None = None,
    *,
    upright: bool = False,
) -> np.ndarray:
    """Decode a JPEG, PNG, WebP, BMP or TIFF to a uint8 RGB array ``(height, width, 3)``.

    JPEGs without any fault are decoded by simplejpeg straight into ``out``, others by OpenCV. Both
    bring libjpeg-turbo, and the pixels are the same. Stricter than OpenCV, of which some versions
    fill the missing rows of a cut JPEG silently: a JPEG must close with its end marker (zeros and a
    few stray bytes may follow). Grey, CMYK, 16-bit and transparent images come out as plain
    8-bit RGB.

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
        ImageError: no such image, cut short, damaged, too large, of another size or several pages.
    """
    turn = orientation(data) if upright else 1
    if size is not None:
        if out is None:
            out = np.empty((*size, 3), np.uint8)
        if turn == 1 and data.endswith(_END_OF_IMAGE) and _scans(data) <= MAX_SCANS:
            try:
                if simplejpeg.decode_jpeg(data, "RGB", buffer=out).shape == out.shape:
                    return out
            except ValueError:  # nor is there RGB of CMYK
                pass
    stored = image_size(data, where)
    if size is not None:
        seen = stored[::-1] if turn > 4 else stored
        if seen != size:
            raise ImageError(
                f"{where}: the image is {seen[0]}×{seen[1]} (height×width) where "
                f"{size[0]}×{size[1]} is needed; give crops of that size"
                + "; facerec make-records PHOTOS --align (insightface, or a YuNet file) cuts them "
                "out, as --align does where images are embedded" * has_template(size)
            )
    jpeg = image_kind(data) == "jpeg"
    pixels, scans = stored[0] * stored[1], _scans(data) if jpeg else 0
    with _reading(where):
        if pixels > MAX_PIXELS or scans > MAX_SCANS or pixels * scans > MAX_SCANNED_PIXELS:
            raise ValueError(f"{stored[0]:,}×{stored[1]:,} pixels, {scans:,} scans: too many")
        image = _decode_jpeg(data) if jpeg else _decode_other(data)
        if image.shape[:2] != stored:
            raise ValueError("its pixels are fewer than its header says")
    if turn > 4:
        image = image.transpose(1, 0, 2)
    if turn > 1:
        rows, columns = (-1 if turn in turns else 1 for turns in ((3, 4, 7, 8), (2, 3, 6, 7)))
        image = image[::rows, ::columns]
    if out is None:
        return np.ascontiguousarray(image)
    out[...] = image
    return out


def _reading(where: str) -> AbstractContextManager[None]:
    # Decoders promise no particular kinds of errors.
    advice = "get it whole, convert it to a JPEG or PNG of one page, or leave it out"
    return reading(where, ImageError, advice, Exception)


def _decode_jpeg(data: bytes) -> np.ndarray:
    # Where a turn is asked for it is made by us, alike for all formats and versions of OpenCV.
    flags = cv2.IMREAD_COLOR | cv2.IMREAD_IGNORE_ORIENTATION
    image: Any = cv2.imdecode(np.frombuffer(data, np.uint8), flags)
    return cv2.cvtColor(image, cv2.COLOR_BGR2RGB)  # or an error where there are no pixels


def _decode_other(data: bytes) -> np.ndarray:
    image = _opened(data)
    image.load()
    if image.mode.startswith("I"):  # 16 bits
        return np.repeat((np.asarray(image)[..., None] >> 8).astype(np.uint8), 3, axis=2)
    return np.asarray(image.convert("RGB"))


def _scans(data: bytes) -> int:
    """Return how many scans a JPEG may have; only zero follows ff in compressed data."""
    # One byte of the marker is counted far faster than both, and is as rare as in any data.
    few = len(data) - len(data.replace(_START_OF_SCAN[1:], b"")) <= MAX_SCANS
    return 0 if few and len(data) < 1 << 16 else data.count(_START_OF_SCAN)


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
    if image_kind(data) == "tiff" or not any(mark in data for mark in _EXIF):
        return 1
    try:
        turn = _opened(data).getexif().get(_ORIENTATION, 1)
    except Exception:  # Pillow promises no particular one
        return 1
    return turn if isinstance(turn, int) and 1 <= turn <= 8 else 1


def image_size(data: bytes, where: str) -> tuple[int, int]:
    """Return ``(height, width)`` in pixels from the header of an image, decoding nothing.

    Raises:
        ImageError: no JPEG, PNG, WebP, BMP or TIFF, or of several pages; or cut short.
    """
    with _reading(where):
        kind = image_kind(data)
        if kind == "jpeg" and _END_OF_IMAGE not in data.rstrip(b"\0")[-_MAX_TAIL - 2 :]:
            raise ValueError(f"a JPEG of {len(data):,} bytes lacks its end marker, ff d9")
        image = _opened(data)
        if kind != "jpeg" and (pages := getattr(image, "n_frames", 1)) > 1:
            raise ValueError(f"it has {pages} pages")
    return image.height, image.width


def _opened(data: bytes) -> Image:
    """Return an image of which the header alone has been read."""
    kind = image_kind(data)
    if kind is None:
        raise ValueError(f"no JPEG, PNG, WebP, BMP or TIFF begins with {data[:12]!a}")
    if kind == "png" and data.count(b"IDAT") > _CHUNKS:
        raise ValueError("a PNG of more chunks than encoders write")
    return pillow.open(io.BytesIO(data), formats=(kind.upper(),))


def batches_ahead(
    work: Callable[[int], _Result], indices: NDArray[np.int64], size: int
) -> Iterator[tuple[int, list[Future[_Result]]]]:
    """Yield the first row and the results of each batch, while those of the next are worked on.

    Args:
        work: called with each index, by several threads at once; it gains where it leaves Python's
            lock, as decoding an image does.
        indices: what it is called with, in this order.
        size: of a batch; the last one may be smaller.
    """
    pool = ThreadPoolExecutor(min(8, available_cores()))
    waiting: deque[tuple[int, list[Future[_Result]]]] = deque()
    try:
        for start in range(0, len(indices), size):
            batch = indices[start : start + size].tolist()
            waiting.append((start, [pool.submit(work, index) for index in batch]))
            if len(waiting) == 2:
                yield waiting.popleft()
        yield from waiting
    finally:
        pool.shutdown(cancel_futures=True)
