"""Decoding: strict about what is an image, exact about its pixels."""

from __future__ import annotations

import io
import struct

import cv2
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from facerec.errors import ImageError
from facerec.records.decode import MAX_PIXELS, decode_image, image_size


def picture(height: int = 112, width: int = 112, seed: int = 0) -> np.ndarray:
    coarse = np.random.default_rng(seed).integers(0, 256, (6, 5, 3), dtype=np.uint8)
    return cv2.resize(coarse, (width, height), interpolation=cv2.INTER_CUBIC)


def encode(image: np.ndarray, suffix: str = ".jpg") -> bytes:
    return cv2.imencode(suffix, image)[1].tobytes()


def pillow(image: Image.Image, kind: str, **options: object) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, kind, **options)
    return buffer.getvalue()


@pytest.fixture(scope="module")
def jpeg() -> bytes:
    return encode(picture())


def test_channels_are_rgb() -> None:
    red = np.zeros((112, 112, 3), np.uint8)
    red[..., 0] = 255
    png = pillow(Image.fromarray(red), "PNG")
    np.testing.assert_array_equal(decode_image(png, "x"), red)
    jpeg = pillow(Image.fromarray(red), "JPEG", quality=95)
    assert np.abs(decode_image(jpeg, "x").astype(int) - red).max() <= 3


def test_png_is_exact_and_jpeg_agrees_with_pillow(jpeg: bytes) -> None:
    image = picture()
    np.testing.assert_array_equal(decode_image(encode(image, ".png"), "x"), image[..., ::-1])
    other = np.asarray(Image.open(io.BytesIO(jpeg)).convert("RGB")).astype(int)
    decoded = decode_image(jpeg, "x")
    assert decoded.dtype == np.uint8 and decoded.flags.c_contiguous
    assert np.abs(decoded - other).mean() < 1


@pytest.mark.parametrize(
    ("mode", "kind"),
    [("L", "JPEG"), ("CMYK", "JPEG"), ("L", "PNG"), ("RGBA", "PNG"), ("P", "PNG"), ("I;16", "PNG")],
)
def test_other_pixel_types_become_rgb(mode: str, kind: str) -> None:
    if mode == "I;16":
        levels = np.arange(112 * 112, dtype=np.uint16).reshape(112, 112) * 5
        image = Image.fromarray(levels)
    else:
        image = Image.fromarray(picture()).convert(mode)
    decoded = decode_image(pillow(image, kind), "x")
    assert decoded.shape == (112, 112, 3) and decoded.dtype == np.uint8
    assert decoded.std() > 10


def test_exif_orientation_is_ignored() -> None:
    image = picture(40, 60)
    plain = Image.fromarray(image)
    exif = Image.Exif()
    exif[0x0112] = 6  # turn by 90 degrees
    turned = decode_image(pillow(plain, "JPEG", exif=exif), "x", (40, 60))
    np.testing.assert_array_equal(turned, decode_image(pillow(plain, "JPEG"), "x", (40, 60)))


@pytest.mark.parametrize("shape", [(1, 1), (7, 300), (300, 7), (112, 112), (1000, 640)])
@pytest.mark.parametrize(
    ("kind", "options"), [("PNG", {}), ("JPEG", {}), ("JPEG", {"progressive": True})]
)
def test_size_from_the_header(shape: tuple[int, int], kind: str, options: dict) -> None:
    data = pillow(Image.fromarray(picture(*shape)), kind, **options)
    assert image_size(data, "x") == shape
    assert decode_image(data, "x", None).shape == (*shape, 3)


def test_markers_without_length_and_fill_bytes(jpeg: bytes) -> None:
    comment = b"\xff\xfe\x00\x05abc"
    odd = jpeg[:2] + b"\xff\xff\xff\xff" + comment[1:] + comment + jpeg[2:]
    assert image_size(odd, "x") == (112, 112)
    assert image_size(jpeg[:2] + b"\xff\x01\xff\xd0" + jpeg[2:], "x") == (112, 112)


@pytest.mark.parametrize("tail", [b"\0", b"\0" * 500, b"\n", b"\r\n", b"abc" + b"\0" * 9])
def test_padding_behind_the_end_marker_is_tolerated(jpeg: bytes, tail: bytes) -> None:
    np.testing.assert_array_equal(decode_image(jpeg + tail, "x"), decode_image(jpeg, "x"))


@pytest.mark.parametrize("cut", [1, 2, 3, 20, 100, 1000])
def test_a_cut_jpeg_is_refused(jpeg: bytes, cut: int) -> None:
    with pytest.raises(ImageError, match=r"^a/b\.rec: record 7.*end marker") as caught:
        decode_image(jpeg[:-cut], "a/b.rec: record 7")
    assert f"{len(jpeg) - cut:,} bytes" in str(caught.value)


def test_a_cut_png_is_refused() -> None:
    png = encode(picture(), ".png")
    for cut in (16, len(png) // 2, len(png) - 30):
        with pytest.raises(ImageError, match="does not decode"):
            decode_image(png[:-cut], "x")
    with pytest.raises(ImageError, match="no size in its header"):
        decode_image(png[:20], "x")


@pytest.mark.parametrize(
    ("data", "sentence"),
    [
        (b"", "it is empty"),
        (b"hello, world", "begins with 68 65 6c 6c 6f 2c 20 77"),
        (b"GIF89a" + b"\0" * 100, "neither a JPEG nor a PNG"),
        (b"\xff\xd8\xff\xd9", "no size in its header"),
        (b"\xff\xd8\xff\xda" + b"\0" * 30 + b"\xff\xd9", "no size in its header"),
        (b"\xff\xd8\xff\xe0\x00\x10" + b"\0" * 30 + b"\xff\xd9", "no size in its header"),
    ],
)
def test_what_is_no_image_is_refused(data: bytes, sentence: str) -> None:
    with pytest.raises(ImageError, match=sentence) as caught:
        decode_image(data, "somewhere")
    assert str(caught.value).startswith("somewhere: ") and "\n" not in str(caught.value)


def test_other_formats_that_opencv_knows_are_refused() -> None:
    for suffix in (".bmp", ".webp", ".tiff"):
        with pytest.raises(ImageError, match="neither a JPEG nor a PNG"):
            decode_image(encode(picture(), suffix), "x")


def test_wrong_size_is_refused_with_both_sizes() -> None:
    with pytest.raises(ImageError, match=r"^f: the image is 128×112 .* 112×112 is needed"):
        decode_image(encode(picture(128, 112)), "f")


def test_a_huge_header_is_refused_before_decoding() -> None:
    png = bytearray(encode(picture(), ".png"))
    png[16:24] = struct.pack(">II", 50_000, 50_000)
    assert MAX_PIXELS < 50_000**2
    with pytest.raises(ImageError, match="50,000×50,000"):
        decode_image(bytes(png), "x", None)
    with pytest.raises(ImageError, match="50000×50000"):
        decode_image(bytes(png), "x")


def test_a_header_that_lies_is_refused(jpeg: bytes) -> None:
    png = bytearray(encode(picture(), ".png"))
    png[16:24] = struct.pack(">II", 112, 111)  # now the check sum is wrong
    with pytest.raises(ImageError, match="does not decode"):
        decode_image(bytes(png), "x", (111, 112))
    at = jpeg.index(b"\xff\xc0") + 5
    with pytest.raises(ImageError, match="no size"):
        decode_image(jpeg[:at] + b"\0\0" + jpeg[at + 2 :], "x", (0, 112))


@settings(max_examples=300, deadline=None)
@given(
    data=st.binary(max_size=200),
    start=st.sampled_from([b"", b"\xff\xd8\xff", b"\x89PNG\r\n\x1a\n"]),
)
def test_any_bytes_give_an_array_or_an_error(data: bytes, start: bytes) -> None:
    for end in (b"", b"\xff\xd9"):
        try:
            image = decode_image(start + data + end, "x", None)
        except ImageError as error:
            assert str(error).startswith("x: ")
        else:
            assert image.ndim == 3


@settings(max_examples=100, deadline=None)
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
    ("mode", "kind", "options"),
    [
        ("RGB", "JPEG", {"subsampling": "4:4:4"}),
        ("RGB", "JPEG", {"subsampling": "4:2:2", "quality": 40}),
        ("RGB", "JPEG", {"subsampling": "4:2:0", "progressive": True}),
        ("L", "JPEG", {}),
        ("CMYK", "JPEG", {}),  # simplejpeg has no RGB of it
        ("RGBA", "PNG", {}),
    ],
)
def test_images_are_decoded_into_given_memory(mode: str, kind: str, options: dict) -> None:
    data = pillow(Image.fromarray(picture()).convert(mode), kind, **options)
    memory = np.zeros((3, 112, 112, 3), np.uint8)
    assert decode_image(data, "x", out=memory[1]).base is memory
    np.testing.assert_array_equal(memory[1], by_opencv(data))
    np.testing.assert_array_equal(memory[1], decode_image(data, "x"))
    assert not memory[::2].any()
