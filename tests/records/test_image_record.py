"""The header of image records."""

from __future__ import annotations

import hashlib
import json
import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from facerec.errors import RecordError
from facerec.records.image_record import ImageRecord, class_of, pack, unpack
from facerec.records.recordio import RecordFile

WHERE = "train.rec, key 7, offset 1234"


@pytest.mark.parametrize(
    "name",
    [
        "magic_in_payload",
        "popkorn_train",
        "dmlc_sample",
        "benz_train",
        "pyth_val",
        "cgzzt_val",
        "esraa_train",
        "broken/corrupt_jpeg",
    ],
)
def test_conformance(shared_data, name):
    expected = json.loads((shared_data / f"records/{name}.expected.json").read_text())
    records = list(RecordFile(shared_data / f"records/{name}.rec").scan())
    for (_, payload), case in zip(records, expected["records"], strict=True):
        record = unpack(payload, WHERE)
        assert (record.flag, record.id, record.id2) == (case["flag"], case["id"], case["id2"])
        labels = record.label.tolist() if record.flag else record.label
        assert labels == case["label"]
        assert len(record.image) == case["payload_bytes"]
        assert hashlib.sha256(record.image).hexdigest() == case["payload_sha256"]
        if name != "magic_in_payload":  # which has rubbish in the scalar beside label arrays
            assert pack(record) == payload


float32 = st.floats(width=32, allow_nan=False)
u64 = st.integers(0, 2**64 - 1)


@given(st.one_of(float32, st.lists(float32, min_size=1, max_size=5)), u64, u64, st.binary())
def test_round_trip(label, id_, id2, image):
    flag = len(label) if isinstance(label, list) else 0
    payload = pack(ImageRecord(flag, label, id_, id2, image))
    assert len(payload) == 24 + 4 * flag + len(image)
    record = unpack(payload, WHERE)
    assert (record.flag, record.id, record.id2, record.image) == (flag, id_, id2, image)
    assert np.array_equal(record.label, np.asarray(label, dtype=np.float32))


def test_bytes_of_the_header():
    payload = pack(ImageRecord(0, 3.0, 5, 6, b"jpeg"))
    assert payload == bytes.fromhex("00000000 00004040 0500000000000000 0600000000000000") + b"jpeg"
    payload = pack(ImageRecord(2, np.array([21, 25], np.float32), 0, 0, b""))
    assert payload == bytes.fromhex("02000000 00000000") + bytes(16) + struct.pack("<ff", 21, 25)


@pytest.mark.parametrize(
    ("payload", "words"),
    [
        (bytes(23), "23 bytes are too few"),
        (b"", "0 bytes are too few"),
        (b"\x02" + bytes(30), r"2 labels \(32 bytes with the header\), but the record has 31"),
        (b"\xff" * 4 + bytes(40), "4,294,967,295 labels"),
    ],
)
def test_short_payloads(payload, words):
    with pytest.raises(RecordError, match=f"{WHERE}: .*{words}"):
        unpack(payload, WHERE)


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


def test_label_arrays_of_detection_packs():
    with pytest.raises(RecordError, match=f"{WHERE}: 3 labels.*label_index"):
        class_of(record_with(4, 5, 0), WHERE)
    with pytest.raises(RecordError, match=f"{WHERE}: label_index 3 is outside its 3"):
        class_of(record_with(4, 5, 0), WHERE, label_index=3)
