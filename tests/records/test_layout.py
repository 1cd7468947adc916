"""The two layouts of training packs and their side files."""

from __future__ import annotations

import numpy as np
import pytest
from helpers.examples import examples
from helpers.toy_files import read_files
from hypothesis import given, settings
from hypothesis import strategies as st

from facerec.base.errors import RecordError
from facerec.records import layout as layout_module
from facerec.records.layout import (
    RecordImages,
    write_image_records,
)
from facerec.records.make import repair_records
from facerec.records.recordio import (
    MAGIC,
    ImageRecord,
    RecordFile,
    RecordIndex,
    class_of,
    encode_record,
    pack,
    record_writer,
)


def image(label, key, data=b"\xff\xd8jpeg", id2=0):
    flag = 0 if np.isscalar(label) else len(label)
    return key, ImageRecord(flag, label, key, id2, data)


def span(key, start, stop, id2=0):
    return key, ImageRecord(2, np.array([start, stop], np.float32), key, id2, b"")


def write(folder, records, name="train.rec"):
    """Write (key, record) pairs in this physical order, and return the path."""
    with record_writer(folder / name) as writer:
        for key, record in records:
            writer(pack(record), key)
    return folder / name


IMAGES = [image(0.0, 1), image(0.0, 2), image(1.0, 3, MAGIC + b"abc"), image(4.0, 4)]
IDENTITIES = [span(5, 1, 3), span(6, 3, 4), span(7, 4, 5)]
HEADER = [span(0, 5, 8)]


# -- reading -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "order",
    [
        HEADER + IMAGES + IDENTITIES,
        IMAGES + IDENTITIES + HEADER,
        HEADER + IDENTITIES[::-1] + IMAGES[::-1],
        IMAGES + IDENTITIES + [span(0, 5, 8, id2=1)],
    ],
)
def test_insightface_in_any_physical_order(tmp_path, order):
    write(tmp_path, order)
    records = RecordImages(tmp_path)
    assert records.layout == "insightface"
    assert records.keys.tolist() == [1, 2, 3, 4]
    assert [records.read(i).id for i in range(len(records))] == [1, 2, 3, 4]
    assert records.read(2).image == MAGIC + b"abc"
    assert records.labels.tolist() == [0, 0, 1, 4]
    assert [records.sample(i)[1] for i in range(4)] == [0, 0, 1, 4]
    assert records.where(0) == f"{tmp_path / 'train.rec'}, key 1, offset {records.offsets[0]}"
    assert records.num_classes == 5 and not records.notes


def test_real_packs(shared_data):
    records = RecordImages(shared_data / "cfp_train")
    assert (records.layout, len(records), records.num_classes) == ("insightface", 4130, 295)
    assert records.image_size == (112, 112)
    seen: list[tuple[str, int, int]] = []
    labels = records.load_labels(lambda *now: seen.append(now))
    assert seen[-1] == ("reading labels", 4130, 4130)
    lines = (shared_data / "cfp_train/train.lst").read_text().split("\n")[:-1]
    assert labels.tolist() == [int(float(line.split("\t")[1])) for line in lines]
    assert not records.notes
    records = RecordImages(shared_data / "records/broken/corrupt_jpeg.rec")
    assert (records.layout, len(records)) == ("insightface", 20)
    assert records.labels.tolist() == [0] * 5 + [1] * 5 + [2] * 5 + [3] * 5
    records = RecordImages(shared_data / "records/popkorn_train.rec")
    assert (records.layout, len(records)) == ("im2rec", 8)
    assert sorted(set(records.labels.tolist())) == [0, 1]


@pytest.mark.parametrize(("name", "flag"), [("benz_train", 9), ("pyth_val", 19)])
def test_detection_packs_need_a_label_index(shared_data, name, flag):
    path = shared_data / f"records/{name}.rec"
    with pytest.raises(RecordError, match=rf"{name}\.rec, key 0, offset 0: .* {flag} labels"):
        RecordImages(path)
    records = RecordImages(path, label_index=2)
    assert (records.layout, records.read(1).flag) == ("im2rec", flag)
    assert records.labels.tolist() == [int(records.read(i).label[2]) for i in range(len(records))]


def test_missing_index(tmp_path, shared_data):
    records = RecordImages(shared_data / "records/cgzzt_val.rec")
    assert (records.layout, len(records)) == ("im2rec", 392)
    assert "cgzzt_val.idx: missing; 392 records; rebuilt in memory" in records.notes[0]

    path = write(tmp_path, IMAGES + HEADER + IDENTITIES)
    original = path.with_suffix(".idx").read_bytes()
    path.with_suffix(".idx").unlink()
    records = RecordImages(path)  # whose ids are the keys
    assert (records.layout, records.labels.tolist()) == ("insightface", [0, 0, 1, 4])
    repair_records(path)
    assert path.with_suffix(".idx").read_bytes() == original
    # Without the keys nobody knows where the images end.
    write(tmp_path, [(key, record._replace(id=0)) for key, record in IMAGES + IDENTITIES + HEADER])
    path.with_suffix(".idx").unlink()
    with pytest.raises(RecordError, match=r"key 4, .* a record without an image.*--repair"):
        RecordImages(path)
    assert RecordImages(path, on_error="skip").labels.tolist() == [0, 0, 1, 4, -1, -1, -1, -1]


def test_index_that_misses_records(tmp_path):
    path = write(tmp_path, [image(float(c), c) for c in range(5)])
    lines = path.with_suffix(".idx").read_text().splitlines(keepends=True)
    for kept in (lines[:3], lines[2:], []):
        path.with_suffix(".idx").write_text("".join(kept))
        records = RecordImages(path)
        assert records.labels.tolist() == [0, 1, 2, 3, 4]
        assert "5 records; rebuilt" in records.notes[0]
    path = write(tmp_path, HEADER + IMAGES + IDENTITIES)
    lines = path.with_suffix(".idx").read_text().splitlines(keepends=True)
    path.with_suffix(".idx").write_text("".join(lines[:-1]))
    assert RecordImages(path).labels.tolist() == [0, 0, 1, 4]
    path.with_suffix(".idx").write_text("".join(lines[:2] + lines[3:]))
    with pytest.raises(
        RecordError, match=r"lists 7 records, the last key 7, .* key 5 and records at 8"
    ):
        RecordImages(path)


def test_property(tmp_path):
    path = write(tmp_path, HEADER + IMAGES + IDENTITIES)
    side = tmp_path / "property"
    for text in ("5,112,96", "5,112,96\r\n4\r\n", "5,112,96\nmany"):
        side.write_text(text)
        records = RecordImages(path)
        assert (records.num_classes, records.image_size) == (5, (112, 96))
    huge = ("1000000000,112,112", "9" * 18 + ",112,112")
    for text in ("", "5,112", "5,112,x", "0,112,112", "5;112;112", *huge, "\xff5"):
        side.write_text(text, encoding="latin1")
        with pytest.raises(RecordError, match="property, line 1: "):
            RecordImages(path)
    side.write_text("4,112,112")
    records = RecordImages(path)
    for action in (records.load_labels, lambda: records.sample(3)):
        with pytest.raises(RecordError, match=r"key 4, offset .*\[4\.0\].*`property`"):
            action()
    assert RecordImages(path, on_error="skip").labels.tolist() == [0, 0, 1, -1]


@pytest.mark.parametrize("name", ["truncated", "bad_magic", "bad_cflag", "huge_length"])
def test_broken_files_fail_where_they_are_broken(shared_data, name):
    path = shared_data / f"records/broken/{name}.rec"
    with pytest.raises(RecordError, match=rf"{name}\.rec, key \d, offset \d+: "):
        RecordImages(path)
    records = RecordImages(path, on_error="skip")
    (lost,) = np.flatnonzero(records.labels < 0)
    with pytest.raises(RecordError, match=f"key {records.keys[lost]}, "):
        records.read(lost)


labels_of_any_kind = st.one_of(
    st.sampled_from([0.0, 1.0, 5.0, 6.0, 2.0**24, -1.0, 0.5, float("nan"), float("inf")]),
    st.lists(st.sampled_from([0.0, 3.0, -1.0, float("nan")]), min_size=1, max_size=3),
)


@settings(deadline=None, max_examples=examples(50))
@given(st.lists(st.tuples(labels_of_any_kind, st.sampled_from([b"", MAGIC, b"abc"])), min_size=1))
def test_labels_in_one_pass_equal_labels_one_by_one(tmp_path_factory, cases):
    folder = tmp_path_factory.mktemp("labels")
    # A plain record at key 0, so that no header record comes about.
    cases = [(1.0, b"jpeg"), *cases]
    path = write(folder, [image(label, key, data) for key, (label, data) in enumerate(cases)])
    (folder / "property").write_text("6,112,112")
    records = RecordImages(path, on_error="skip")
    expected = []
    for i in range(len(records)):
        try:
            record = records.read(i)
            label = class_of(record, records.where(i), num_classes=6)
            expected.append(label if record.image else -1)
        except RecordError:
            expected.append(-1)
    assert records.labels.tolist() == expected


# -- the float32 trap ----------------------------------------------------------------------------


def test_a_sparse_pack_beyond_float32(tmp_path):
    """17 million keys: images up to an odd key that header0 cannot hold, one range record."""
    end = 2**24 + 5
    path = tmp_path / "train.rec"
    step = 64
    offsets = np.arange(end + 1, dtype=np.int64) * step
    rows = [span(0, end, end + 1), image(7.0, 1), image(8.0, end - 3), image(9.0, end - 2)]
    rows += [image(9.0, end - 1), span(end, 1, end)]
    with path.open("wb") as file:
        for key, record in rows:
            file.seek(int(offsets[key]))
            file.write(encode_record(pack(record)))
    index = RecordIndex(np.arange(end + 1, dtype=np.int64), offsets)
    file = RecordFile(path)
    header = layout_module._header_record(file, index)
    assert header == (float(np.float32(end)), float(np.float32(end + 1)))
    assert header[0] != end
    images = layout_module._images_of_insightface(file, index, header)
    assert (len(images.keys), images.keys[-1]) == (end - 1, end - 1)
    for wrong in (end - 9, end + 9):
        with pytest.raises(RecordError, match=r"train\.rec"):
            layout_module._images_of_insightface(file, index, (float(wrong), header[1]))


# -- writing -------------------------------------------------------------------------------------

ITEMS = [(2, "b/1.jpg", b"\xff\xd8one"), (2, "b/2.jpg", b"\xff\xd8two"), (0, "a/1.jpg", MAGIC)]


def test_writing_insightface(tmp_path):
    summary = write_image_records(tmp_path / "train", iter(ITEMS), image_size=(112, 96))
    assert summary == 3
    assert sorted(read_files(tmp_path)) == ["property", "train.idx", "train.lst", "train.rec"]
    assert (tmp_path / "property").read_text() == "3,112,96\n"
    assert (tmp_path / "train.lst").read_text() == "1\t2\tb/1.jpg\n2\t2\tb/2.jpg\n3\t0\ta/1.jpg\n"
    records = RecordImages(tmp_path)
    assert (records.layout, records.num_classes) == ("insightface", 3)
    assert [records.sample(i) for i in range(3)] == [(data, label) for label, _, data in ITEMS]
    assert [records.read(i).id for i in range(3)] == records.keys.tolist() == [1, 2, 3]
    first = read_files(tmp_path)
    write_image_records(tmp_path / "train", ITEMS, image_size=(112, 96))
    assert read_files(tmp_path) == first
    write_image_records(tmp_path / "train", [*ITEMS, (2, "late.jpg", b"x")])
    records = RecordImages(tmp_path)
    assert (records.layout, records.labels.tolist()) == ("im2rec", [2, 2, 0, 2])


def test_too_many_keys_for_float32(tmp_path, monkeypatch):
    monkeypatch.setattr(layout_module, "EXACT_KEYS", 6)
    write_image_records(tmp_path / "a", ITEMS)  # keys 0 … 5
    assert RecordImages(tmp_path / "a.rec").layout == "insightface"
    more = [*ITEMS, (5, "c.jpg", b"x")]
    write_image_records(tmp_path / "b", more)
    records = RecordImages(tmp_path / "b.rec")
    assert (records.layout, records.labels.tolist()) == ("im2rec", [2, 2, 0, 5])


def test_what_the_writer_refuses(tmp_path):
    (tmp_path / "property").write_text("old")
    with pytest.raises(RecordError, match=r"train\.rec.*name cannot stand"):
        write_image_records(tmp_path / "train", [(0, "a\tb", b"x")], num_classes=9)
    assert read_files(tmp_path) == {"property": b"old"}
