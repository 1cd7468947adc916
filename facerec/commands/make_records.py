"""``facerec make-records``: a folder of aligned faces → a record file, and back; damage mended."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Literal

import tyro

from facerec.commands.cli import Console, run_command
from facerec.environment import available_cores
from facerec.errors import DatasetError
from facerec.limits import Count
from facerec.report.progress import progress_bar


def make_records(
    source: tyro.conf.Positional[Path],
    out: Path | None = None,
    unpack: bool = False,
    repair: bool = False,
    apply: Path | None = None,
    size: int | None = None,
    resize: bool = False,
    on_error: Literal["error", "skip"] = "error",
    processes: Count | None = None,
    force: bool = False,
) -> None:
    """Write train.rec, .idx, .lst, property and classes.txt from a folder of aligned faces.

    Images are stored byte for byte; identities become classes in the order of their names. With
    --apply the source may be a record file too, and its labels are changed as proposed. --unpack
    writes the images of a record file into the folder OUT, as identity/image.jpg. --repair writes
    the lost index of a record file anew, or with --out X.rec copies what is whole of a damaged one.

    Args:
        source: Holds identity/image.jpg; or a record file or its folder.
        out: Folder to write into; with --repair a new record file.
        unpack: From records back to a folder, which must be new or empty.
        repair: Write FILE.idx beside FILE.rec and keep the old one as FILE.idx.old; or with --out
            pass over what is damaged and list it. The record file stays as it is.
        apply: A .csv file of proposals from facerec clean; lines with no in the column accept are
            passed over. Images stay as they are, of whatever size.
        size: Height and width that every image must have, in pixels; by default 112.
        resize: Scale square images of other sizes instead of refusing them.
        on_error: Stop at a bad image, or leave it out and list it.
        processes: Processes that read and check images; by default one per core.
        force: Replace the records that OUT holds already.
    """
    if unpack + repair + (apply is not None) > 1:
        raise DatasetError("--unpack, --repair and --apply are three tasks; give one of them")
    if (unpack or repair or apply is not None) and (size is not None or resize):
        raise DatasetError(
            "--unpack, --repair and --apply leave images as they are; take --size and --resize away"
        )
    if repair:
        from facerec.records.make import repair_records

        for line in repair_records(source, out):
            print(line)
        return
    if out is None:
        raise DatasetError("nothing says where to write; give --out")
    if not unpack and (out / "train.rec").exists() and not force:
        raise DatasetError(
            f"{out}: holds a train.rec already; choose another --out, or replace it by --force"
        )
    from facerec.records import make
    from facerec.records.training_set import Data, open_images

    with progress_bar(Console(stderr=True)) as progress:
        if unpack:
            summary = make.export_folder(source, out, on_error=on_error, progress=progress)
        elif apply is not None:
            images = open_images(source, Data(source, on_error=on_error))
            summary = make.apply_proposals(images, apply, out, on_error=on_error, progress=progress)
        else:
            summary = make.make_records(
                source,
                out,
                processes=processes or available_cores(),
                size=112 if size is None else size,
                resize=resize,
                on_error=on_error,
                progress=progress,
            )
    for item in summary.skipped:
        print(f"left out: {item.cause}")
    for note in summary.notes:
        print(f"note: {note}")
    said = ", ".join(f"{count:,} {what}" for what, count in summary.counts.items())
    print(f"{summary.path}: {summary.images:,} images of {summary.identities:,} identities; {said}")


main = partial(run_command, make_records)
