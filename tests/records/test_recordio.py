"""The framing of .rec files and their .idx index."""

from __future__ import annotations

import hashlib
import json
import struct
import tempfile
from pathlib import Path

import numpy as np
import pytest
from helpers.examples import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from facerec.base.errors import RecordError
from facerec.records.recordio import (
    MAGIC,
    ImageRecord,
    RecordFile,
    class_of,
    encode_record,
    pack,
    read_index,
    rebuild_index,
    record_writer,
    unpack,
)

SHARED_FILES = [
    "magic_in_payload",
    "raw_framing",
    "popkorn_train",
    "dmlc_sample",
    "benz_train",
    "pyth_val",
    "cgzzt_val",
    "esraa_train",
]

# Payloads in which the magic is likely, at any alignment, whole or in pieces.
planted = st.lists(
    st.one_of(st.just(MAGIC), st.just(MAGIC[:3]), st.just(MAGIC[1:]), st.binary(max_size=5)),
    max_size=12,
).map(b"".join)


def chunk(flag: int, data: bytes, length: int | None = None) -> bytes:
    length = len(data) if length is None else length
    return MAGIC + struct.pack("<I", flag << 29 | length) + data + bytes(-len(data) % 4)


def record_file(folder: Path, content: bytes) -> RecordFile:
    path = folder / "some.rec"
    path.write_bytes(content)
    return RecordFile(path)


def by_key(path: Path) -> tuple[RecordFile, dict[int, int]]:
    """Return a record file and the offset of each key, in the order of the index."""
    file = RecordFile(path)
    index = read_index(path.with_suffix(".idx"), file.size)
    return file, dict(zip(index.keys.tolist(), index.offsets.tolist(), strict=True))


def payloads(file: RecordFile, salvage: bool = False) -> list[bytes]:
    return [payload for _, payload in file.scan(salvage)]


def naive_encode(payload: bytes) -> bytes:
    """The rule word by word: drop every aligned magic and begin a new part there."""
    parts, part = [], b""
    for at in range(0, len(payload), 4):
        word = payload[at : at + 4]
        if word == MAGIC:
            parts.append(part)
            part = b""
        else:
            part += word
    parts.append(part)
    flags = [0] if len(parts) == 1 else [1, *[2] * (len(parts) - 2), 3]
    return b"".join(chunk(flag, data) for flag, data in zip(flags, parts, strict=True))


# -- conformance ---------------------------------------------------------------------------------


def test_our_writer_repeats_the_bytes_of_mxnet(shared_data, tmp_path):
    for name in ("magic_in_payload", "raw_framing", "popkorn_train"):
        file, offsets = by_key(shared_data / f"records/{name}.rec")
        with record_writer(tmp_path / "copy.rec") as writer:
            for key, offset in offsets.items():
                writer(file.read(offset), key)
        for suffix in (".rec", ".idx"):
            original = (shared_data / f"records/{name}").with_suffix(suffix)
            assert (tmp_path / "copy").with_suffix(suffix).read_bytes() == original.read_bytes()


@pytest.mark.parametrize("name", ["truncated", "bad_magic", "bad_cflag", "huge_length"])
def test_broken_files(shared_data, name):
    folder = shared_data / "records/broken"
    expected = json.loads((folder / f"{name}.expected.json").read_text())
    damage, good = expected["damage"], expected["records"]
    file, offsets = by_key(folder / f"{name}.rec")
    with pytest.raises(RecordError, match=rf"{name}\.rec.*offset {damage['offset']}:"):
        payloads(file)
    with pytest.raises(RecordError, match=rf"key {damage['key']}, offset {damage['offset']}:"):
        file.read(offsets[damage["key"]], damage["key"])
    hashes = [record["payload_sha256"] for record in good]
    whole = [file.read(offsets[record["key"]]) for record in good]
    assert [hashlib.sha256(payload[24:]).hexdigest() for payload in whole] == hashes
    salvaged = payloads(file, salvage=True)
    assert salvaged == whole
    ((start, stop, _),) = file.damages
    assert start == damage["offset"]
    assert stop - start + sum(map(len, map(encode_record, salvaged))) == expected["bytes"]


def test_broken_index_files(shared_data):
    folder = shared_data / "records/broken"
    for name, words in (("idx_past_end", ".*32300"), ("idx_garbage", ".*key TAB offset")):
        with pytest.raises(RecordError, match=rf"{name}\.idx.*{words}"):
            by_key(folder / f"{name}.rec")
        # The last record of idx_past_end is good as well, only not reached by its index.
        assert rebuild_index(RecordFile(folder / f"{name}.rec")).offsets.tolist() == [
            0, 7708, 12688, 18696, 24356
        ]  # fmt: skip


# -- framing -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("payload", "on_disk"),
    [
        (b"abcde", "0a23d7ce 05000000 6162636465 000000"),
        (b"AAAA" + MAGIC + b"BB", "0a23d7ce 04000020 41414141 0a23d7ce 02000060 4242 0000"),
        (MAGIC + b"xyzw", "0a23d7ce 00000020 0a23d7ce 04000060 78797a77"),
        (b"", "0a23d7ce 00000000"),
        (MAGIC * 2, "0a23d7ce 00000020 0a23d7ce 00000040 0a23d7ce 00000060"),
    ],
)
def test_bytes_on_disk(tmp_path, payload, on_disk):
    assert encode_record(payload) == bytes.fromhex(on_disk)
    assert payloads(record_file(tmp_path, bytes.fromhex(on_disk))) == [payload]


@given(planted)
def test_encoder_equals_the_naive_rule(payload):
    encoded = encode_record(payload)
    assert encoded == naive_encode(payload)
    # No aligned magic but those that begin a chunk, so a scan can resume anywhere.
    flags = [encoded[at + 7] >> 5 for at in range(0, len(encoded), 4) if encoded[at:][:4] == MAGIC]
    assert flags == ([0] if len(flags) == 1 else [1, *[2] * (len(flags) - 2), 3])


@settings(max_examples=examples(60), deadline=None)
@given(st.lists(planted, max_size=6), st.randoms(use_true_random=False))
def test_writer_and_readers_round_trip(contents, random):
    keys = random.sample(range(100), len(contents))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "a.rec")
        with record_writer(path) as writer:
            offsets = [writer(p, key) for p, key in zip(contents, keys, strict=True)]
        file, found = by_key(path)
        assert list(file.scan()) == list(zip(offsets, contents, strict=True))
        assert list(found) == keys and [file.read(found[key]) for key in keys] == contents
        if contents:
            assert rebuild_index(file).offsets.tolist() == offsets
        assert payloads(file, salvage=True) == contents
        assert file.damages == []


@pytest.mark.parametrize(
    ("content", "offset", "words"),
    [
        (chunk(0, b"abcd") + chunk(2, b"efgh"), 12, "flag 2"),
        (chunk(1, b"abcd") + chunk(0, b"efgh"), 12, "part .* flag 0"),
        (chunk(1, b"abcd") + chunk(2, b"efgh"), 24, "part .* 0 follow"),
        (chunk(4, b"abcd"), 0, "flag 4"),
        (chunk(0, b"abcd", length=5), 0, "5 bytes where 4 follow"),
        (chunk(0, b"abc")[:-1], 0, "3 bytes where 3 follow"),  # the padding is missing
        (chunk(0, b"abcd") + MAGIC, 12, "record begins .* 0 follow"),
        (chunk(0, b"abcd") + b"not a magic.", 12, r"6e6f7420 \(all have 0a23d7ce"),
    ],
)
def test_grammar(tmp_path, content, offset, words):
    with pytest.raises(RecordError, match=rf"some\.rec, offset {offset}: .*{words}.*; "):
        payloads(record_file(tmp_path, content))


# -- index ---------------------------------------------------------------------------------------


def read_text_index(folder: Path, text: bytes, size: int = 1 << 40):
    path = folder / "a.idx"
    path.write_bytes(text)
    return read_index(path, size)


def test_index_forms(tmp_path):
    for text in (
        b"3\t0\n1\t40\n",
        b"3\t0\r\n1\t40\r\n",
        b"\xef\xbb\xbf3\t0\n1\t40",
        b" 3 \t 0\n1\t40\n\n \n",
        b"0003\t0000\n1\t40",
    ):
        index = read_text_index(tmp_path, text)
        assert (index.keys.tolist(), index.offsets.tolist()) == ([3, 1], [0, 40])
        assert index.keys.dtype == index.offsets.dtype == np.int64
    for text in (b"", b"\n", b"\n\n\n\n\n"):
        assert len(read_text_index(tmp_path, text).keys) == 0


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (b"0\t0\n1 8\n", "key TAB offset"),
        (b"0\t0\n1\t6\n", r"bytes: \[\[1, 6\]\]"),
        (b"0\t0\n-1\t8\n", r"bytes: \[\[-1, 8\]\]"),
        (b"0\t0\n1\t8\n0\t16\n", r"twice: \[0\]"),
        (b"7\t0\n5\t8\n6\t8\n", r"twice: \[8\]"),
        (b"0\t0\n1\t9223372036854775808\n", "key TAB offset"),
        (b"0\t0\n1\t" + b"1" * (3 << 20), "at most are read"),
    ],
)
def test_index_errors(tmp_path, text, words):
    with pytest.raises(RecordError, match=rf"a\.idx: .*{words}"):
        read_text_index(tmp_path, text, size=100)


# -- image records ------------------------------------------------------------------------------

WHERE = "train.rec, key 7, offset 1234"


@pytest.mark.parametrize("name", [*SHARED_FILES, "broken/corrupt_jpeg"])
def test_conformance(shared_data, name):
    expected = json.loads((shared_data / f"records/{name}.expected.json").read_text())
    records = list(RecordFile(shared_data / f"records/{name}.rec").scan())
    assert len(records) == len(expected["records"])
    for (offset, payload), case in zip(records, expected["records"], strict=True):
        assert (offset, len(payload)) == (case["offset"], case["record_bytes"])
        image = payload[len(payload) - case["payload_bytes"] :]
        assert hashlib.sha256(image).hexdigest() == case["payload_sha256"]
        if name == "raw_framing":  # whose payloads are no images
            continue
        record = unpack(payload, WHERE)
        assert (record.flag, record.id, record.id2) == (case["flag"], case["id"], case["id2"])
        labels = record.label.tolist() if record.flag else record.label
        assert labels == case["label"] and record.image == image
        if name != "magic_in_payload":  # which has rubbish in the scalar beside label arrays
            assert pack(record) == payload


float32 = st.floats(width=32, allow_nan=False)


def record_with(*labels: float) -> ImageRecord:
    return ImageRecord(len(labels), np.array(labels, np.float32), 0, 0, b"image")


def test_class():
    assert class_of(ImageRecord(0, 294.0, 0, 0, b""), WHERE, num_classes=295) == 294
    assert class_of(record_with(7), WHERE) == 7
    assert class_of(record_with(7, 1), WHERE) == 7
    assert class_of(record_with(4, 5, 780, 438), WHERE, label_index=2) == 780
    assert class_of(ImageRecord(0, 2.0**24 - 1, 0, 0, b""), WHERE) == 2**24 - 1
    assert type(class_of(record_with(7), WHERE)) is int


@pytest.mark.parametrize("label", [float("nan"), float("inf"), -float("inf"), -1.0, 0.5, 2.0**24])
def test_labels_that_are_no_class(label):
    for record in (ImageRecord(0, label, 0, 0, b""), record_with(label), record_with(label, 1)):
        with pytest.raises(RecordError, match=f"{WHERE}: label .* is not a class"):
            class_of(record, WHERE)
