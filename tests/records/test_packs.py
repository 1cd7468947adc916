"""Verification packs, and what a pack must never be able to do."""

from __future__ import annotations

import importlib.util
import io
import json
import os
import pickle
import struct
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from facerec.base.errors import MissingExtraError, PackError
from facerec.records.packs import read_pack, write_pack

JPEG = b"\xff\xd8\xff\xe0"
PNG = b"\x89PNG\r\n\x1a\n"
IMAGES = [JPEG + bytes(range(256)), PNG + b"two", JPEG + bytes(range(256)), JPEG + b"\r\n4"]
LABELS = [True, False]


def pack_file(folder: Path, content: object, protocol: int = 4) -> Path:
    path = folder / "some.bin"
    raw = content if isinstance(content, bytes) else pickle.dumps(content, protocol=protocol)
    path.write_bytes(raw)
    return path


def images_of(pack) -> list[bytes]:
    return list(pack.images)


def test_bcolz_packs_hold_the_pixels_that_were_put_in(tmp_path):
    folder = tmp_path / "lfw"
    for name in ("meta", "data"):
        (folder / name).mkdir(parents=True)
    pixels = np.random.default_rng(0).integers(0, 256, (4, 3, 8, 8))
    chunks = np.split(((pixels - 127.5) / 127.5).astype(np.float32), [3])
    (folder / "meta" / "sizes").write_text(json.dumps({"shape": pixels.shape}))
    (folder / "meta" / "storage").write_text('{"dtype": "float32", "chunklen": 3}')
    np.save(tmp_path / "lfw_list.npy", np.array(LABELS))
    if not importlib.util.find_spec("blosc2"):
        with pytest.raises(MissingExtraError, match="pip install blosc2"):
            read_pack(folder)
        pytest.skip("blosc2 is not installed")
    import blosc2

    for number, chunk in enumerate(chunks):
        packed = blosc2.compress(chunk.tobytes(), typesize=4)
        (folder / "data" / f"__{number}.blp").write_bytes(b"blpk" + bytes(12) + packed)
    pack = read_pack(folder)
    assert (pack.path.name, pack.issame.tolist()) == ("lfw", LABELS)
    for image, bgr in zip(images_of(pack), pixels, strict=True):
        rgb = np.asarray(Image.open(io.BytesIO(image))).transpose(2, 0, 1)
        np.testing.assert_array_equal(rgb[::-1], bgr)
    (folder / "data" / "__1.blp").write_bytes(b"blpk" + bytes(40))
    with pytest.raises(PackError, match="lfw: cannot be read"):
        read_pack(folder)


# -- reading -------------------------------------------------------------------------------------


def test_three_encodings_of_one_set(shared_data):
    folder = shared_data / "lfw_small"
    packs = [read_pack(folder / f"small_{form}.bin") for form in ("py3", "py2", "ndarray")]
    # Free of globals, as `python -m pickletools` shows, so that plain pickle may be the reference.
    images, labels = pickle.loads((folder / "small_py3.bin").read_bytes())
    assert len(labels) == 200
    for pack, form in zip(packs, ("py3", "py2", "ndarray"), strict=True):
        assert pack.path.name == f"small_{form}.bin"
        assert images_of(pack) == images
        assert pack.issame.tolist() == labels


def arrays(images, shape=(-1,)):
    return [np.frombuffer(image, np.uint8).reshape(shape).copy() for image in images]


@pytest.mark.parametrize("protocol", range(6))
@pytest.mark.parametrize(
    ("images", "labels"),
    [
        (IMAGES, LABELS),
        (tuple(IMAGES), [1, 0]),
        (arrays(IMAGES), np.array(LABELS)),
        (arrays(IMAGES, (-1, 1)), list(np.array(LABELS))),
        ([np.frombuffer(image, np.uint8) for image in IMAGES], np.array([1, 0], np.uint8)),
        ([np.asfortranarray(array) for array in arrays(IMAGES, (1, -1))], LABELS),
    ],
    ids=["bytes", "tuple", "flat", "column", "readonly", "fortran"],
)
def test_forms_and_protocols(tmp_path, protocol, images, labels):
    pack = read_pack(pack_file(tmp_path, (images, labels), protocol))
    assert images_of(pack) == IMAGES
    assert pack.issame.tolist() == LABELS and pack.issame.dtype == bool


def test_arrays_written_under_python_2(tmp_path):
    # As Python 2 writes them: every str, the names included, is a BINSTRING.
    def text(value: bytes) -> bytes:
        return b"T" + struct.pack("<i", len(value)) + value

    def array(image: bytes) -> bytes:
        made = b"cnumpy.core.multiarray\n_reconstruct\n(cnumpy\nndarray\nK\x00\x85" + text(b"b")
        made += b"tR(K\x01K" + bytes([len(image)]) + b"\x85cnumpy\ndtype\n(" + text(b"u1")
        made += b"K\x00K\x01tR(K\x03" + text(b"|")
        made += b"NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb\x89" + text(image)
        return made + b"tb"

    scalar = b"cnumpy.core.multiarray\nscalar\n(cnumpy\ndtype\n(" + text(b"b1") + b"tR"
    labels = b"](" + scalar + text(b"\x01") + b"tR" + b"e"
    content = b"\x80\x02](" + array(IMAGES[1]) + array(IMAGES[3]) + b"e" + labels + b"\x86."
    pack = read_pack(pack_file(tmp_path, content))
    assert images_of(pack) == [IMAGES[1], IMAGES[3]]
    assert pack.issame.tolist() == [True]


@pytest.mark.parametrize("suffix", [".bin", ".npz"])
def test_writing(tmp_path, suffix):
    path = tmp_path / f"lfw{suffix}"
    write_pack(path, IMAGES, LABELS)
    pack = read_pack(path)
    assert pack.path == path
    assert images_of(pack) == IMAGES
    assert pack.issame.tolist() == LABELS
    first = path.read_bytes()
    # Equal images that are, or are not, one object must not change the file.
    write_pack(path, [IMAGES[0], IMAGES[1], IMAGES[0], IMAGES[3]], np.array(LABELS))
    assert path.read_bytes() == first
    assert list(tmp_path.iterdir()) == [path]


# -- hostile pickles -----------------------------------------------------------------------------


@pytest.fixture
def nothing_happens(tmp_path, monkeypatch):
    """The working folder of the test, in which no file may appear."""
    folder = tmp_path / "cwd"
    folder.mkdir()
    monkeypatch.chdir(folder)
    yield tmp_path
    assert list(folder.iterdir()) == []


def test_the_evil_pack(shared_data, nothing_happens):
    with pytest.raises(PackError, match=r"evil\.bin: .*refused.* global os\.system"):
        read_pack(shared_data / "lfw_small/evil.bin")


class Call:
    """Pickles as a call of ``function``."""

    def __init__(self, function, *arguments):
        self.function, self.arguments = function, arguments

    def __reduce__(self):
        return self.function, self.arguments


@pytest.mark.parametrize("protocol", [0, 2, 4])
@pytest.mark.parametrize(
    ("call", "name"),
    [
        (Call(os.system, "touch PWNED"), "system"),
        (Call(eval, "open('PWNED', 'w')"), "eval"),
        (Call(getattr, "io", "open"), "getattr"),
        (Call(np.load, "x.npy"), "load"),
        (Call(bytearray, 1 << 40), "bytearray"),
    ],
    ids=["system", "eval", "getattr", "load", "bytearray"],
)
def test_calls_are_refused_wherever_they_stand(nothing_happens, protocol, call, name):
    for content in (call, ([*IMAGES[:3], call], LABELS), (IMAGES, [True, call])):
        path = pack_file(nothing_happens, content, protocol)
        with pytest.raises(PackError, match=rf"some\.bin: .*refused.* global [\w.]*\.{name}\)"):
            read_pack(path)


UNICODE = b"\x8c\x02os\x8c\x06system\x93"
RECONSTRUCT = b"cnumpy.core.multiarray\n_reconstruct\n"
NDARRAY = b"cnumpy\nndarray\n"
ENCODE = b"c_codecs\nencode\n"


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"cos\nsystem\n(S'touch PWNED'\ntR.", "global os.system"),
        (b"\x80\x04" + UNICODE + b"\x8c\x0btouch PWNED\x85R.", "os.system"),
        (b"(S'touch PWNED'\nios\nsystem\n.", "byte 16, .*INST .'os system'"),
        (b"(cos\nsystem\nS'touch PWNED'\no.", "byte 27, .*OBJ"),
        (b"\x80\x02cos\nsystem\n)\x81.", "byte 14, .*NEWOBJ"),
        (b"Pos.system\n.", "byte 0, .*PERSID"),
        (b"\x80\x02\x82\x01.", "byte 2, .*EXT1"),
        (b"\x80\x05\x97.", "byte 2, .*NEXT_BUFFER"),
        (b"\x80\x02}K\x01K\x02s.", "byte 2, .*EMPTY_DICT"),
        (b"\x80\x02Nr\xff\xff\xff\x7f.", "byte 3, .*LONG_BINPUT"),
        (b"Np99999999999999999999\n.", "byte 1, .*PUT"),
        (b"Np-1\n.", "byte 1, .*PUT"),
        (b"\x80\x02" + NDARRAY + b"M\xff\xff\x85R.", ""),
        (b"\x80\x02" + RECONSTRUCT + b"NN\x86b.", ""),
        (b"\x80\x02" + ENCODE + b"X\x01\x00\x00\x00aX\x03\x00\x00\x00zip\x86R.", ""),
        (b"\x80\x02cnumpy.core.multiarray\nscalar\nK\x01\x85R.", ""),
        (b"\x80\x02cnumpy\ncore.multiarray.scalar\n.", "global numpy.core.multiarray.scalar"),
        (b"\x80\x02c" + b"a" * 9999 + b"\nb\n.", "global a{59}"),
        (b"L" + b"9" * 5000 + b"L\n.", ""),
        (b"\x80\x04\x8e\xff\xff\xff\xff\xff\xff\xff\x7fabc.", ""),
        (b"\x80\x05\x96\xff\xff\xff\xff\xff\x00\x00\x00abc.", ""),
        (b"\x80\x02" + b"]" + b"a" * 3, ""),
    ],
)
def test_hostile_opcodes(nothing_happens, content, words):
    with pytest.raises(PackError, match=rf"some\.bin: cannot be read.*{words}") as caught:
        read_pack(pack_file(nothing_happens, content))
    assert len(str(caught.value)) < 600


def test_bombs_of_copies_are_refused(tmp_path):
    # One text, encoded again and again out of the memo: 1 kB each time for 8 bytes of pickle.
    content = b"\x80\x02" + ENCODE + b"q\x00X\xe8\x03\x00\x00" + b"a" * 1000
    content += b"X\x06\x00\x00\x00latin1\x86q\x01R0" + b"h\x00h\x01R0" * 100 + b"N."
    with pytest.raises(PackError, match="unfolds to more bytes than the file has"):
        read_pack(pack_file(tmp_path, content))
