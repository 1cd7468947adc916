"""``facerec repair-records``: a lost index is written again, whole records leave a damaged file."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Literal

import tyro

from facerec.commands.cli import run_command
from facerec.errors import RecordError
from facerec.files import full_disk_sentence
from facerec.records.image_record import unpack
from facerec.records.layout import index_from_ids
from facerec.records.recordio import RecordFile, RecordWriter, rebuild_index, write_index
from facerec.report.words import counted


def repair_records(
    records: tyro.conf.Positional[Path],
    out: Path | None = None,
    keys: Literal["ids", "order"] = "ids",
) -> None:
    """Write the index of a record file anew, or copy its whole records into a new file.

    Without --out, FILE.idx is written beside FILE.rec; an index that is there already is kept as
    FILE.idx.old. With --out, records around the damage are copied and what was passed over is
    listed; InsightFace's header and identity records go where others are lost, as the labels are in
    the images too. The damaged file stays as it is.

    Args:
        records: A .rec file.
        out: New .rec file for the records that are whole.
        keys: The ids inside the records, which InsightFace's train.rec needs (it announces
            identities as a range of keys), or the numbers 0, 1, … in file order.
    """
    if out is None:
        _write_index(records, keys)
    else:
        _salvage(records, out, keys)


def _write_index(records: Path, keys: Literal["ids", "order"]) -> None:
    index = rebuild_index(records) if keys == "order" else index_from_ids(records)
    if not len(index):
        raise _no_record(records)
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
    if kept:
        print(f"{old}: the index as it was")
    print(f"{path}: {len(index):,} records")


def _salvage(records: Path, out: Path, keys: Literal["ids", "order"]) -> None:
    if out.suffix != ".rec":
        raise RecordError(f"{out}: a record file is called X.rec; change the name")
    if out.exists():
        raise RecordError(f"{out}: this file is there already; choose another name")
    file = RecordFile(records)
    count = sum(1 for _ in file.scan_offsets(salvage=True))
    if not count:
        raise _no_record(records)
    # Header and identity records announce every key that there was. Where one is lost they would
    # make the file contradict itself, and the labels of its images say the same.
    lost = bool(file.damages)
    ranges = 0
    with RecordWriter(out) as writer:
        for offset, payload in file.scan(salvage=True):
            key = None
            if keys == "ids":
                record = unpack(payload, f"{records}, offset {offset}")
                if lost and record.flag == 2 and not record.image:
                    ranges += 1
                    continue
                key = record.id
            writer.write(payload, key)
    for damage in file.damages:
        size = damage.stop - damage.start
        print(f"passed over {size:,} bytes from offset {damage.start:,}: {damage.reason}")
    if ranges:
        print(
            f"left out {counted(ranges, 'record')} without an image, announcing keys that are lost"
        )
    print(
        f"{out}: {counted(count - ranges, 'whole record')}, "
        f"{counted(len(file.damages), 'damaged place')} passed over"
    )


def _no_record(records: Path) -> RecordError:
    return RecordError(
        f"{records}: no whole record among its {records.stat().st_size:,} bytes; check that "
        "this is a record file, and restore it from its source"
    )


main = partial(run_command, repair_records)
