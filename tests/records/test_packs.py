"""Verification packs, and what a pack must never be able to do."""

from __future__ import annotations

import io
import os
import pickle
import struct
import tempfile
import tracemalloc
import zipfile
from pathlib import Path

import numpy as np
import pytest
from helpers.examples import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from facerec.errors import PackError
from facerec.records import packs as packs_module
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
    return [pack.encoded(i) for i in range(2 * len(pack))]


# -- reading -------------------------------------------------------------------------------------


def test_three_encodings_of_one_set(shared_data):
    folder = shared_data / "lfw_small"
    packs = [read_pack(folder / f"small_{form}.bin") for form in ("py3", "py2", "ndarray")]
    # Free of globals, as `python -m pickletools` shows, so that plain pickle may be the reference.
    images, labels = pickle.loads((folder / "small_py3.bin").read_bytes())
    assert len(labels) == 200
    for pack, form in zip(packs, ("py3", "py2", "ndarray"), strict=True):
        assert pack.name == f"small_{form}"
        assert images_of(pack) == images
        assert pack.issame.tolist() == labels
        assert (pack.data.dtype, pack.offsets.dtype) == (np.uint8, np.int64)


def test_distinct_images_of_lfw(shared_data):
    pack = read_pack(shared_data / "lfw/lfw.bin")
    assert (len(pack), int(pack.issame.sum())) == (6000, 3000)
    first, inverse = pack.distinct()
    assert len(first) == 7701
    assert inverse.shape == (12000,)
    assert all(pack.encoded(first[inverse[i]]) == pack.encoded(i) for i in range(0, 12000, 7))


def test_distinct(tmp_path):
    pack = read_pack(pack_file(tmp_path, (IMAGES, LABELS)))
    first, inverse = pack.distinct()
    assert first.tolist() == [0, 1, 3]
    assert inverse.tolist() == [0, 1, 0, 2]


def arrays(images, shape=(-1,)):
    return [np.frombuffer(image, np.uint8).reshape(shape).copy() for image in images]


@pytest.mark.parametrize("protocol", range(6))
@pytest.mark.parametrize(
    "images",
    [
        IMAGES,
        tuple(IMAGES),
        arrays(IMAGES),
        arrays(IMAGES, (-1, 1)),
        arrays(IMAGES, (1, -1)),
        [np.frombuffer(image, np.uint8) for image in IMAGES],
        [np.asfortranarray(array) for array in arrays(IMAGES, (-1, 1))],
    ],
    ids=["bytes", "tuple", "flat", "column", "row", "readonly", "fortran"],
)
@pytest.mark.parametrize(
    "labels",
    [LABELS, [1, 0], np.array(LABELS), list(np.array(LABELS)), np.array([1, 0], np.uint8)],
    ids=["bool", "int", "array", "numpy_bool", "uint8"],
)
def test_forms_and_protocols(tmp_path, protocol, images, labels):
    pack = read_pack(pack_file(tmp_path, (images, labels), protocol))
    assert images_of(pack) == IMAGES
    assert pack.issame.tolist() == LABELS
    assert pack.issame.dtype == bool


def test_arrays_written_under_python_2(tmp_path):
    # As Python 2 writes them: every str, the names included, is a BINSTRING.
    def text(value: bytes) -> bytes:
        return b"T" + struct.pack("<i", len(value)) + value

    def array(image: bytes) -> bytes:
        return (
            b"cnumpy.core.multiarray\n_reconstruct\n(cnumpy\nndarray\nK\x00\x85"
            + text(b"b")
            + b"tR(K\x01K"
            + bytes([len(image)])
            + b"\x85cnumpy\ndtype\n("
            + text(b"u1")
            + b"K\x00K\x01tR(K\x03"
            + text(b"|")
            + b"NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb\x89"
            + text(image)
            + b"tb"
        )

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
    assert (pack.name, pack.path, len(pack)) == ("lfw", path, 2)
    assert images_of(pack) == IMAGES
    assert pack.issame.tolist() == LABELS
    first = path.read_bytes()
    # Equal images that are, or are not, one object must not change the file.
    write_pack(path, [IMAGES[0], IMAGES[1], IMAGES[0], IMAGES[3]], np.array(LABELS))
    assert path.read_bytes() == first
    assert list(tmp_path.iterdir()) == [path]


def test_what_other_readers_get(tmp_path):
    path = tmp_path / "lfw.bin"
    write_pack(path, IMAGES, LABELS)
    content = path.read_bytes()
    assert content[:2] == b"\x80\x02"
    for options in ({}, {"encoding": "bytes"}):
        images, labels = pickle.loads(content, **options)
        assert images == IMAGES
        assert labels == LABELS
        assert {type(image) for image in images} == {bytes}
        assert {type(label) for label in labels} == {bool}
    write_pack(tmp_path / "lfw.npz", IMAGES, LABELS)
    with np.load(tmp_path / "lfw.npz", allow_pickle=False) as stored:
        assert sorted(stored) == ["data", "issame", "offsets"]


@settings(deadline=None, max_examples=examples(30))
@given(
    st.lists(st.tuples(st.binary(max_size=9), st.binary(max_size=9), st.booleans()), min_size=1),
    st.sampled_from([".bin", ".npz"]),
)
def test_round_trip(pairs, suffix):
    images = [JPEG + image for pair in pairs for image in pair[:2]]
    labels = [pair[2] for pair in pairs]
    with tempfile.TemporaryDirectory() as folder:
        write_pack(Path(folder, "a" + suffix), images, labels)
        pack = read_pack(Path(folder, "a" + suffix))
    assert images_of(pack) == images
    assert pack.issame.tolist() == labels


# -- content that is no pack ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ((IMAGES[:3], LABELS), "3 images for 2 labels"),
        (([], []), "the pack is empty"),
        ((IMAGES, [True, 2]), "pair 1: its label is 2"),
        ((IMAGES, [True, -1]), "pair 1: its label is -1"),
        ((IMAGES, [True, None]), "pair 1: its label is NoneType"),
        ((IMAGES, [True, 10**6000]), "pair 1: its label is int"),
        ((IMAGES, [[[]], True]), "pair 0: its label is list of length 1"),
        (([*IMAGES[:3], b""], LABELS), "image 3: begins with b''"),
        (([*IMAGES[:3], b"GIF89a"], LABELS), "image 3: begins with b'GIF89a'"),
        (([*IMAGES[:3], None], LABELS), "image 3: found NoneType"),
        (([*IMAGES[:3], "text"], LABELS), "image 3: found 'text'"),
        (([*IMAGES[:3], np.array([True])], LABELS), "image 3: found Array"),
        (([*IMAGES[:3], np.zeros((2, 2), np.uint8)], LABELS), "refused, an array of shape 2×2"),
        (([*IMAGES[:3], np.zeros(3, np.float32)], LABELS), "refused, arrays of type 'f4'"),
        (([*IMAGES[:3], np.array([IMAGES], object)], LABELS), "refused, arrays of type 'O8'"),
        ((IMAGES, np.array([[1.0, 0.0]])), "refused, arrays of type 'f8'"),
        ((np.zeros(4, np.uint8), LABELS), "expected a list of images, found Array"),
        ((b"abcd", LABELS), "expected a list of images, found b'abcd'"),
        ((IMAGES, LABELS, 3), r"expected \(images, labels\), found tuple of length 3"),
        (17, r"expected \(images, labels\), found 17"),
        (b"", "this is no whole pickle"),
        (PNG, "refused, no verification pack needs pickle's PERSID"),
        (JPEG, "this is no whole pickle"),
        (pickle.dumps((IMAGES, LABELS))[:-9], "this is no whole pickle"),
        (b"(.", "malformed"),
        (b"\x80\x04h\x05.", "malformed"),
    ],
)
def test_malformed_packs(tmp_path, content, words):
    with pytest.raises(PackError, match=rf"some\.bin.*{words}"):
        read_pack(pack_file(tmp_path, content))


@pytest.mark.parametrize(
    ("images", "labels", "words"),
    [
        (IMAGES[:3], LABELS, "3 images"),
        ([*IMAGES[:3], b"text"], LABELS, "image 3"),
        (IMAGES, [True, 5], "pair 1"),
        ([], [], "empty"),
    ],
)
def test_what_is_not_written(tmp_path, images, labels, words):
    with pytest.raises(PackError, match=rf"a\.bin.*{words}"):
        write_pack(tmp_path / "a.bin", images, labels)
    assert list(tmp_path.iterdir()) == []


def test_limits(tmp_path, monkeypatch):
    path = pack_file(tmp_path, (IMAGES, LABELS))
    for limit, words in (
        ("MAX_PACK_BYTES", r"some\.bin: \d+ bytes are more than a pack"),
        ("MAX_IMAGE_BYTES", "image 0: 260 bytes are more than an image"),
        ("MAX_OPCODES", "refused, more than 20 pickle opcodes"),
    ):
        with monkeypatch.context() as patch:
            patch.setattr(packs_module, limit, 20)
            with pytest.raises(PackError, match=words):
                read_pack(path)
    with pytest.raises(PackError, match=r"other\.bin: the pack cannot be read"):
        read_pack(tmp_path / "other.bin")
    with pytest.raises(PackError, match="cannot be read"):
        read_pack(tmp_path)


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
    with pytest.raises(PackError, match=r"evil\.bin, byte 5477: refused.* global os\.system"):
        read_pack(shared_data / "lfw_small/evil.bin")


class Call:
    """Pickles as a call of ``function``."""

    def __init__(self, function, *arguments):
        self.function, self.arguments = function, arguments

    def __reduce__(self):
        return self.function, self.arguments


@pytest.mark.parametrize("protocol", range(6))
@pytest.mark.parametrize(
    ("call", "name"),
    [
        (Call(os.system, "touch PWNED"), "system"),
        (Call(eval, "open('PWNED', 'w')"), "eval"),
        (Call(getattr, io, "open"), "getattr"),
        (Call(np.load, "x.npy"), "load"),
        (Call(np.fromfile, "x"), "fromfile"),
        (Call(bytearray, 1 << 40), "bytearray"),
    ],
    ids=["system", "eval", "getattr", "load", "fromfile", "bytearray"],
)
def test_calls_are_refused_wherever_they_stand(nothing_happens, protocol, call, name):
    if call.function is getattr:  # a module cannot be pickled; its name can
        call = Call(getattr, "io", "open")
    for content in (call, ([*IMAGES[:3], call], LABELS), (IMAGES, [True, call])):
        path = pack_file(nothing_happens, content, protocol)
        with pytest.raises(
            PackError, match=rf"byte \d+: refused.* global [\w.]*\.{name},"
        ) as caught:
            read_pack(path)
        at = int(str(caught.value).split("byte ")[1].split(":")[0])
        assert path.read_bytes()[at : at + 1] == (b"\x93" if protocol >= 4 else b"c")


UNICODE = b"\x8c\x02os\x8c\x06system\x93"
RECONSTRUCT = b"cnumpy.core.multiarray\n_reconstruct\n"
NDARRAY = b"cnumpy\nndarray\n"
ENCODE = b"c_codecs\nencode\n"


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"cos\nsystem\n(S'touch PWNED'\ntR.", "byte 0: refused.*global os.system"),
        (b"\x80\x04" + UNICODE + b"\x8c\x0btouch PWNED\x85R.", "byte 14: refused.*os.system"),
        (b"(S'touch PWNED'\nios\nsystem\n.", "byte 16: refused.*INST .'os system'"),
        (b"(cos\nsystem\nS'touch PWNED'\no.", "byte 27: refused.*OBJ"),
        (b"\x80\x02cos\nsystem\n)\x81.", "byte 14: refused.*NEWOBJ"),
        (b"Pos.system\n.", "byte 0: refused.*PERSID"),
        (b"\x80\x02K\x01Q.", "byte 4: refused.*BINPERSID"),
        (b"\x80\x02\x82\x01.", "byte 2: refused.*EXT1"),
        (b"\x80\x02\x83\x01\x00.", "byte 2: refused.*EXT2"),
        (b"\x80\x02\x84\x01\x00\x00\x00.", "byte 2: refused.*EXT4"),
        (b"\x80\x05\x97.", "byte 2: refused.*NEXT_BUFFER"),
        (b"\x80\x02}K\x01K\x02s.", "byte 2: refused.*EMPTY_DICT"),
        (b"\x80\x02Nr\xff\xff\xff\x7f.", "byte 3: refused, memo index int is out of proportion"),
        (b"Np99999999999999999999\n.", "byte 1: refused, memo index int is out"),
        (b"Np-1\n.", "byte 1: refused, memo index -1 is"),
        (b"\x80\x02" + NDARRAY + b"M\xff\xff\x85R.", "direct call of numpy.ndarray"),
        (b"\x80\x02" + RECONSTRUCT + b"N)S'b'\n\x87R.", "class other than numpy.ndarray"),
        (b"\x80\x02" + RECONSTRUCT + b"N\x85\x85b.", "tries to change a global"),
        (b"\x80\x02" + RECONSTRUCT + b"NN\x86b.", "tries to change a global"),
        (b"\x80\x02" + ENCODE + b"X\x01\x00\x00\x00aX\x03\x00\x00\x00zip\x86R.", "encode to 'zip'"),
        (b"\x80\x02" + ENCODE + b"K\x01\x85R.", "encode to NoneType"),
        (b"\x80\x02cnumpy.core.multiarray\nscalar\nK\x01\x85R.", "NumPy scalar that is neither"),
        (b"\x80\x02cnumpy\ncore.multiarray.scalar\n.", "global numpy.core.multiarray.scalar,"),
        (b"\x80\x02c" + b"a" * 9999 + b"\nb\n.", "global a{59}"),
        (b"L" + b"9" * 5000 + b"L\n.", "no whole pickle"),
        (b"\x80\x04\x8e\xff\xff\xff\xff\xff\xff\xff\x7fabc.", "no whole pickle"),
        (b"\x80\x05\x96\xff\xff\xff\xff\xff\x00\x00\x00abc.", "no whole pickle"),
        (b"\x80\x02" + b"]" + b"a" * 3, "no whole pickle"),
    ],
)
def test_hostile_opcodes(nothing_happens, content, words):
    with pytest.raises(PackError, match=rf"some\.bin.*{words}") as caught:
        read_pack(pack_file(nothing_happens, content))
    assert len(str(caught.value)) < 600


def test_bombs_of_copies_are_refused(tmp_path):
    # One text, encoded again and again out of the memo: 1 kB each time for 8 bytes of pickle.
    content = (
        b"\x80\x02"
        + ENCODE
        + b"q\x00X\xe8\x03\x00\x00"
        + b"a" * 1000
        + b"X\x06\x00\x00\x00latin1\x86q\x01R0"
        + b"h\x00h\x01R0" * 100
        + b"N."
    )
    with pytest.raises(PackError, match="unfolds to more bytes than the file has"):
        read_pack(pack_file(tmp_path, content))


def test_one_image_named_many_times_counts_every_time(tmp_path, monkeypatch):
    path = pack_file(tmp_path, ([IMAGES[0]] * 2000, [True] * 1000))
    assert len(read_pack(path)) == 1000
    monkeypatch.setattr(packs_module, "MAX_PACK_BYTES", 100_000)
    assert path.stat().st_size < 100_000
    with pytest.raises(PackError, match="520,000 bytes together"):
        read_pack(path)


def test_structures_that_only_look_small(tmp_path):
    nest: list = []
    for _ in range(100):
        nest = [nest, nest]  # 2**100 leaves if anyone spelled it out
    for content in (nest, (IMAGES, nest), (IMAGES, [True, nest])):
        with pytest.raises(PackError):
            read_pack(pack_file(tmp_path, content))
    deep = b"\x80\x02" + b"]" * 100_000 + b"a" * 99_999 + b"."
    with pytest.raises(PackError, match="expected"):
        read_pack(pack_file(tmp_path, deep))


opcodes = st.lists(
    st.one_of(
        st.binary(max_size=4),
        st.sampled_from([bytes([code]) for code in b"(]teaRb02N\x85\x86\x87\x88\x94."]),
        st.sampled_from([RECONSTRUCT, NDARRAY, ENCODE, b"cnumpy\ndtype\n", UNICODE]),
        st.sampled_from([b"q\x00", b"h\x00", b"K\x01", b"U\x02u1", b"U\x08" + PNG]),
    ),
    max_size=25,
).map(lambda parts: b"\x80\x04" + b"".join(parts) + b".")


@settings(max_examples=examples(300), deadline=None)
@given(st.one_of(st.binary(max_size=40), opcodes), st.sampled_from([".bin", ".npz"]))
def test_any_bytes_give_a_pack_or_a_pack_error(content, suffix):
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "some" + suffix)
        path.write_bytes(content)
        try:
            pack = read_pack(path)
        except PackError as problem:
            assert str(path) in str(problem)
        else:
            assert len(images_of(pack)) == 2 * len(pack)


@settings(max_examples=examples(200), deadline=None)
@given(st.data(), st.integers(0, 5), st.sampled_from([IMAGES, arrays(IMAGES)]))
def test_mutated_packs_give_a_pack_or_a_pack_error(data, protocol, images):
    content = bytearray(pickle.dumps((images, list(np.array(LABELS))), protocol=protocol))
    for _ in range(data.draw(st.integers(1, 4))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    with tempfile.TemporaryDirectory() as folder:
        try:
            pack = read_pack(pack_file(Path(folder), bytes(content)))
        except PackError as problem:
            assert "some.bin" in str(problem)
        else:
            assert len(images_of(pack)) == 2 * len(pack)


# -- npz -----------------------------------------------------------------------------------------


GOOD = {
    "data": np.frombuffer(b"".join(IMAGES), np.uint8),
    "offsets": np.cumsum([0, *map(len, IMAGES)]),
    "issame": np.array(LABELS),
}


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"data": np.array([os.system], object)}, "no pack with the arrays"),
        ({"issame": np.array([1, 0])}, r"types .*, <i8 instead of"),
        ({"offsets": GOOD["offsets"].astype(np.int32)}, "types"),
        ({"data": GOOD["data"].reshape(-1, 1)}, "in one dimension"),
        ({"issame": np.array([True])}, "5 offsets do not fit 1 labels"),
        ({"issame": np.zeros(0, bool), "offsets": np.zeros(1, np.int64)}, "fit 0 labels"),
        ({"offsets": GOOD["offsets"] + 1}, "do not ascend from 0"),
        ({"offsets": GOOD["offsets"][[0, 2, 1, 3, 4]]}, "do not ascend"),
        ({"offsets": GOOD["offsets"] - [0, 3, 0, 0, 0]}, "image 1: begins with"),
    ],
)
def test_malformed_npz(tmp_path, changes, words):
    np.savez(tmp_path / "a.npz", **{**GOOD, **changes})
    with pytest.raises(PackError, match=rf"a\.npz.*{words}"):
        read_pack(tmp_path / "a.npz")


def test_npz_that_is_none(tmp_path, monkeypatch):
    path = tmp_path / "a.npz"
    np.savez(path, data=GOOD["data"])
    with pytest.raises(PackError, match="issame"):
        read_pack(path)
    path.write_bytes(pickle.dumps(Call(os.system, "touch PWNED")))
    with pytest.raises(PackError, match="no pack with the arrays"):
        read_pack(path)
    for content in (b"no header", b""):
        np.savez(path, **GOOD)
        with zipfile.ZipFile(path) as archive:
            members = {name: archive.read(name) for name in archive.namelist()}
        with zipfile.ZipFile(path, "w") as archive:
            for name, member in members.items():
                archive.writestr(name, content if name == "offsets.npy" else member)
        with pytest.raises(PackError, match="no pack with the arrays"):
            read_pack(path)
    monkeypatch.setattr(packs_module, "MAX_PACK_BYTES", 50_000)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("data.npy", bytes(1_000_000))
    with pytest.raises(PackError, match="claim 1,000,000 bytes, too many for a file of"):
        read_pack(path)


def test_one_image_named_many_times_is_not_copied_as_often(tmp_path):
    """A pickle's memo: 2 MB in the file, 400 MB as images."""
    image = b"\xff\xd8\xff" + bytes(2_000_000)
    path = tmp_path / "x.bin"
    path.write_bytes(pickle.dumps(([image] * 200, [True] * 100), protocol=2))
    assert path.stat().st_size < 5_000_000
    tracemalloc.start()
    try:
        with pytest.raises(PackError, match=r"400,000,600 bytes together, more than 268,435,456"):
            read_pack(path)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 50_000_000
