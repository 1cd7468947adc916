"""Decoding: strict about what is an image, exact about its pixels."""

from __future__ import annotations

import io
import struct
import subprocess
import sys
import zlib
from pathlib import Path

import cv2
import numpy as np
import pytest
from helpers.examples import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from facerec.base.errors import ImageError
from facerec.records.decode import (
    MAX_PIXELS,
    decode_image,
    image_kind,
    image_size,
    image_suffix,
    orientation,
)


def picture(height: int = 112, width: int = 112, seed: int = 0) -> np.ndarray:
    coarse = np.random.default_rng(seed).integers(0, 256, (6, 5, 3), dtype=np.uint8)
    return cv2.resize(coarse, (width, height), interpolation=cv2.INTER_CUBIC)


def encode(image: np.ndarray, suffix: str = ".jpg", *options: int) -> bytes:
    return cv2.imencode(suffix, image, options)[1].tobytes()


def pillow(image: Image.Image, kind: str, **options: object) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, kind, **options)
    return buffer.getvalue()


@pytest.fixture(scope="module")
def jpeg() -> bytes:
    return encode(picture())


def marked(turn: int, kind: str, height: int = 40, width: int = 60) -> bytes:
    """Encode a picture with an EXIF orientation."""
    exif = Image.Exif()
    exif[0x0112] = turn
    how: dict = {"tiffinfo": {0x0112: turn}} if kind == "TIFF" else {"exif": exif}
    return pillow(Image.fromarray(picture(height, width)), kind, lossless=True, **how)


@pytest.mark.parametrize("turn", range(1, 9))
@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP", "TIFF"])
def test_photos_are_turned_as_opencv_turns_them_and_crops_are_not(kind: str, turn: int) -> None:
    data = marked(turn, kind)
    seen = cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_COLOR)[..., ::-1]
    assert seen.shape[:2] == ((60, 40) if turn > 4 else (40, 60))
    np.testing.assert_array_equal(decode_image(data, "x", None, upright=True), seen)
    out = np.empty_like(seen)
    assert decode_image(data, "x", seen.shape[:2], out, upright=True) is out
    np.testing.assert_array_equal(out, seen)
    # A TIFF has no other pixels than those that its decoder has turned.
    assert orientation(data) == (1 if kind == "TIFF" else turn)
    np.testing.assert_array_equal(decode_image(data, "x", None), by_opencv(data))
    if turn > 4 and kind != "TIFF":
        with pytest.raises(ImageError, match=r"60×40 .* 40×60 is needed"):
            decode_image(data, "x", (40, 60), upright=True)


@pytest.mark.parametrize("cut", [1, 2, 3, 20, 100, 1000])
def test_a_cut_jpeg_is_refused(jpeg: bytes, cut: int) -> None:
    with pytest.raises(ImageError, match=r"^a/b\.rec: record 7.*end marker") as caught:
        decode_image(jpeg[:-cut], "a/b.rec: record 7")
    assert f"{len(jpeg) - cut:,} bytes" in str(caught.value)


@pytest.mark.parametrize(
    ("data", "sentence"),
    [
        (b"", "begins with b''"),
        (b"hello, world", "begins with b.hello, world"),
        (b"GIF89a" + b"\0" * 100, "no JPEG, PNG"),
        (b"\xff\xd8\xff\xd9", "cannot be read"),
    ],
)
def test_what_is_no_image_is_refused(data: bytes, sentence: str) -> None:
    with pytest.raises(ImageError, match=sentence) as caught:
        decode_image(data, "somewhere")
    assert str(caught.value).startswith("somewhere: ") and "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("kind", "mode", "options"),
    [
        ("WEBP", "RGB", {}),
        ("WEBP", "RGBA", {"lossless": True}),
        *(("BMP", mode, {}) for mode in ("RGB", "P", "1")),
        *(("TIFF", "RGB", {"compression": way}) for way in (None, "tiff_lzw", "packbits")),
    ],
)
def test_webp_bmp_and_tiff_are_decoded_as_far_as_they_are_whole(
    kind: str, mode: str, options: dict
) -> None:
    image = Image.fromarray(picture(40, 60)).convert(mode)
    data = pillow(image, kind, **options)
    assert image_size(data, "x") == (40, 60)
    assert image_suffix(data) == f".{kind.lower()}" and image_kind(data) == kind.lower()
    expected = np.asarray(Image.open(io.BytesIO(data)).convert("RGB"))
    for size in ((40, 60), None):
        np.testing.assert_array_equal(decode_image(data, "x", size), expected)
    with pytest.raises(ImageError, match=r"40×60 .* 112×112 is needed"):
        decode_image(data, "x")
    for cut in (2, 50, len(data) // 2, len(data) - 20):
        try:  # where the directory lies at the end, what is cut may say nothing of the pixels
            np.testing.assert_array_equal(decode_image(data[:-cut], "x", None), expected)
        except ImageError:
            continue
        assert kind == "TIFF"


def test_a_huge_header_is_refused_before_decoding() -> None:
    assert MAX_PIXELS < 8_000**2
    with pytest.raises(ImageError, match="8,000×8,000"):
        decode_image(png(8_000, 8_000, b""), "x", None)
    with pytest.raises(ImageError, match="8000×8000"):
        decode_image(png(8_000, 8_000, b""), "x")
    for data in (png(50_000, 50_000, b""), webp(40_000, 50_000)):
        with pytest.raises(ImageError, match="exceeds limit"):
            decode_image(data, "x", None)


@settings(max_examples=examples(100), deadline=None)
@given(position=st.integers(0, 5000), value=st.integers(0, 255))
def test_any_changed_byte_gives_the_pixels_of_opencv_or_an_error(position: int, value: int) -> None:
    data = bytearray(encode(picture()))
    data[position % len(data)] = value
    out = np.empty((112, 112, 3), np.uint8)
    try:
        image = decode_image(bytes(data), "x", out=out)
    except ImageError as error:
        assert str(error).startswith("x: ")
    else:
        assert image is out
        np.testing.assert_array_equal(out, by_opencv(bytes(data)))


def by_opencv(data: bytes) -> np.ndarray:
    flags = cv2.IMREAD_COLOR | cv2.IMREAD_IGNORE_ORIENTATION
    return cv2.imdecode(np.frombuffer(data, np.uint8), flags)[..., ::-1]


@pytest.mark.parametrize(
    ("mode", "kind"),
    [
        ("RGB", "JPEG"),
        ("L", "JPEG"),
        ("CMYK", "JPEG"),  # simplejpeg has no RGB of it
        ("L", "PNG"),
        ("RGBA", "PNG"),
        ("P", "PNG"),
        ("I;16", "PNG"),
    ],
)
def test_all_pixels_become_rgb_in_given_memory(mode: str, kind: str) -> None:
    if mode == "I;16":
        image = Image.fromarray(np.arange(112 * 112, dtype=np.uint16).reshape(112, 112) * 5)
    else:
        image = Image.fromarray(picture()).convert(mode)
    how = {"subsampling": "4:2:0", "progressive": True} if mode == "RGB" else {}
    data = pillow(image, kind, **how)
    memory = np.zeros((3, 112, 112, 3), np.uint8)
    assert decode_image(data, "x", out=memory[1]).base is memory
    np.testing.assert_array_equal(memory[1], by_opencv(data))
    np.testing.assert_array_equal(memory[1], decode_image(data, "x"))
    assert not memory[::2].any() and memory[1].std() > 10


# --- small files that would cost much -----------------------------------------------------------


def chunk(kind: bytes, data: bytes, length: int | None = None) -> bytes:
    size = len(data) if length is None else length
    return struct.pack(">I", size) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def png(width: int, height: int, rows: bytes, before: bytes = b"") -> bytes:
    """Write a PNG of RGB from its rows as they are, each with the number of its filter."""
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    start = b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + before
    return start + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")


def text_chunks() -> bytes:
    text = chunk(b"zTXt", b"k\0\0" + zlib.compress(bytes(1 << 22)))
    return png(112, 112, bytes(112 * 337), before=300 * text)


def many_scans(count: int, side: int = 112) -> bytes:
    """Return a progressive JPEG with refinements in which no coefficient changes."""
    jpeg = encode(picture(side, side), ".jpg", cv2.IMWRITE_JPEG_PROGRESSIVE, 1)
    one = b"\xff\xc4\0\x14\x10\x01" + bytes(15) + b"\xe0"  # a code for the end of 16,384 blocks
    scan = b"\xff\xda\0\x08\1\1\0\1\x3f\0\x7f\xfe"
    return jpeg[:-2] + one + scan * count + jpeg[-2:]


def tiff(*changes: tuple[int, int], last: bool = False) -> bytes:
    """Write a TIFF of 112×112 pixels with other tags, before or behind those that it has."""
    tags = {256: 112, 257: 112, 258: 8, 259: 1, 262: 1, 273: 400, 277: 1, 278: 112, 279: 112 * 112}
    entries = [item for item in tags.items() if last or item[0] not in dict(changes)]
    entries += changes
    rows = b"".join(struct.pack("<HHII", tag, 4, 1, value) for tag, value in sorted(entries))
    head = b"II*\0\x08\0\0\0" + struct.pack("<H", len(entries)) + rows + bytes(4)
    return head.ljust(400, b"\0") + bytes(112 * 112)


def webp(width: int, height: int, inside: int = 112) -> bytes:
    """Write the header of a large WebP around a smaller black picture."""
    black = pillow(Image.new("RGB", (inside, inside)), "WEBP", lossless=True)[12:]
    canvas = [(side - 1).to_bytes(3, "little") for side in (width, height)]
    body = b"WEBPVP8X" + struct.pack("<I", 10) + bytes(4) + b"".join(canvas) + black
    return b"RIFF" + struct.pack("<I", len(body)) + body


def bmp(width: int, height: int) -> bytes:
    header = struct.pack("<IiiHHIIiiII", 40, width, height, 1, 24, 0, 0, 0, 0, 0, 0)
    return b"BM" + struct.pack("<IHHI", 54 + 9, 0, 0, 54) + header + bytes(9)


HEADER = bytes.fromhex("89504e470d0a1a0a0000000d49484452000000700000007008020000004982631c")
COSTLY: dict[str, bytes] = {
    "a length of 4 GB in 41 bytes": HEADER + b"\xff\xff\xff\xffIDAT",
    "a length of 2 GB in text": HEADER + chunk(b"tEXt", bytes(9), 1 << 31),
    "a million chunks": HEADER + chunk(b"IDAT", b"") * 1_000_000,
    "5,000 scans": many_scans(5000),
    "a million segments": b"\xff\xd8" + b"\xff\xe0\0\2" * 1_000_000 + b"\xff\xd9",
    "a BMP without its rows": bmp(6000, 6000),
    "a TIFF of many samples": tiff((277, 60_000)),
    "text of 1.2 GB": text_chunks(),
    "a WebP that is larger inside": webp(112, 112, 16_000),
}
CHEAP = {
    "rows of 50 MB": png(112, 112, bytes(50_000_000)),
    "a TIFF of large strips": tiff((278, 1 << 20)),
    "a TIFF of two widths": tiff((256, 40_000), last=True),
    "a TIFF of two heights": tiff((257, 400_000), last=True),
    "a plain TIFF": tiff(),
}


@pytest.mark.parametrize("name", COSTLY)
def test_what_would_cost_much_is_refused(name: str) -> None:
    for size in ((112, 112), None):
        with pytest.raises(ImageError, match=r"cannot be read|is needed"):
            decode_image(COSTLY[name], "x", size)


@pytest.mark.integration
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_decoding_takes_no_more_memory_than_the_pixels_need(tmp_path: Path) -> None:
    """In a process that may not have more than 300 MB beyond what the libraries take."""
    files = COSTLY | CHEAP
    for i, data in enumerate(files.values()):
        (tmp_path / str(i)).write_bytes(data)
    program = """
import pathlib, resource, sys, time
import cv2, simplejpeg, PIL.Image  # else loaded at the first image
from facerec.records.decode import decode_image
from facerec.base.errors import ImageError
status = pathlib.Path("/proc/self/status").read_text()
taken = int(status.split("VmSize:")[1].split()[0]) * 1024
resource.setrlimit(resource.RLIMIT_AS, (taken + 300_000_000,) * 2)
resource.setrlimit(resource.RLIMIT_CPU, (int(time.process_time()) + 10,) * 2)
for path in sorted(pathlib.Path(sys.argv[1]).iterdir(), key=lambda path: int(path.name)):
    for size in ((112, 112), None):
        try:
            assert decode_image(path.read_bytes(), "x", size).any() == False
            print("decoded")
        except ImageError as error:
            print(error)
"""
    command = [sys.executable, "-c", program, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout.count("decoded") == 2 * len(CHEAP), done.stdout
