"""A lost index is written again, and whole records leave a damaged file."""

from __future__ import annotations

from array import array
from pathlib import Path

import numpy as np

from facerec.errors import RecordError
from facerec.files import full_disk_sentence
from facerec.records.image_record import unpack
from facerec.records.recordio import RecordFile, RecordIndex, RecordWriter, write_index


def repair_records(records: Path, out: Path | None = None) -> list[str]:
    """Write the index of a record file anew, or copy its whole records into a new file.

    Keys are the ids in the records where these differ, which InsightFace's ``train.rec`` needs (it
    announces identities as a range of keys), else the numbers 0, 1, … in file order.

    Args:
        records: a ``.rec`` file, which stays as it is.
        out: new ``.rec`` file; without one, ``FILE.idx`` is written, and what was there is kept as
            ``FILE.idx.old``.

    Returns:
        Sentences on what was written and what was passed over. InsightFace's header and identity
        records go where others are lost: they announce keys that are no more, and the labels are in
        the images too.

    Raises:
        RecordError: the file is damaged (without ``out``) or has no whole record, or what would be
            written is there already or cannot be written.
    """
    if out is not None and (out.suffix != ".rec" or out.exists()):
        why = "is there already" if out.exists() else "is not called X.rec"
        raise RecordError(f"{out}: the new record file {why}; choose another name")
    file = RecordFile(records)
    ids, offsets, ranges, parsed = array("Q"), array("q"), set[int](), True
    for offset, payload in file.scan(salvage=out is not None):
        offsets.append(offset)
        try:
            record = unpack(payload, "")
        except RecordError:
            parsed = False
            continue
        ids.append(record.id)
        if record.flag == 2 and not record.image:
            ranges.add(offset)
    if not offsets:
        raise RecordError(
            f"{records}: no whole record among its {file.size:,} bytes; check that this is a "
            "record file, and restore it from its source"
        )
    keys = np.asarray(ids)
    if not parsed or len(np.unique(keys)) < len(keys) or keys.max() >= 1 << 63:
        keys = np.arange(len(offsets))
    index = RecordIndex(keys.astype(np.int64), np.asarray(offsets))
    if out is None:
        return _write_index(records, index)
    said = [
        f"passed over {stop - start:,} bytes from offset {start:,}: {reason}"
        for start, stop, reason in file.damages
    ]
    if not file.damages:
        ranges.clear()
    with RecordWriter(out) as writer:
        for key, offset in zip(index.keys.tolist(), offsets, strict=True):
            if offset not in ranges:
                writer.write(file.read(offset), key)
    if ranges:
        said.append(f"left out {len(ranges):,} records without an image, announcing lost keys")
    return [
        *said,
        f"{out}: {len(index) - len(ranges):,} whole records, damaged places passed over: "
        f"{len(file.damages):,}",
    ]


def _write_index(records: Path, index: RecordIndex) -> list[str]:
    path, old, new = (records.with_suffix(f".idx{end}") for end in ("", ".old", ".new"))
    kept = path.exists()
    if kept and old.exists():
        raise RecordError(
            f"{old}: an older index is kept here already; move it away, then run this again"
        )
    # The old index moves only once the new one is safe on the disk.
    write_index(new, index)
    try:
        if kept:
            path.rename(old)
        new.rename(path)
    except OSError as problem:
        raise RecordError(full_disk_sentence(path, problem)) from problem
    return [f"{old}: the index as it was"] * kept + [f"{path}: {len(index):,} records"]
