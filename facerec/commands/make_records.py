"""``facerec make-records``: a folder of aligned faces → a record file, and back; damage mended."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Literal

import tyro

from facerec.base.errors import DatasetError
from facerec.commands.cli import Console, run_command
from facerec.report.progress import progress_bar


def make_records(
    source: tyro.conf.Positional[Path],
    out: Path | None = None,
    unpack: bool = False,
    repair: bool = False,
    apply: Path | None = None,
    on_error: Literal["error", "skip"] = "error",
    force: bool = False,
) -> None:
    """Pack a folder of aligned faces into record files; unpack, repair or correct them.

    Writes train.rec, .idx, .lst, property and classes.txt. Images of 112×112 pixels are stored byte
    for byte; subjects become classes in the order of their names. With --apply the source may be a
    record file too, and its labels are changed as proposed. --unpack writes the images of a record
    file into the folder OUT, as subject/image.jpg. --repair writes the lost index of a record file
    anew, or with --out X.rec copies what is whole of a damaged one.

    Args:
        source: A folder of subject/image.jpg; or a record file or its folder.
        out: Folder to write into; with --repair a new record file.
        unpack: Write the images of a record file into OUT, which must be new or empty.
        repair: Write FILE.idx beside FILE.rec and keep the old one as FILE.idx.old; or with --out
            pass over what is damaged and list it. The record file stays as it is.
        apply: A .csv file of proposals from facerec clean to apply, but for lines with no in the
            column accept. Images stay as they are, of whatever size.
        on_error: What to do with a bad image: error ends the command, skip leaves it out and lists
            it.
        force: Replace the records that OUT holds already.
    """
    if unpack + repair + (apply is not None) > 1:
        raise DatasetError("--unpack, --repair and --apply are three tasks; give one of them")
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

    with progress_bar(Console(stderr=True)) as progress:
        if apply is not None:
            made = make.apply_proposals(source, apply, out, on_error=on_error, progress=progress)
        else:
            write = make.export_folder if unpack else make.make_records
            made = write(source, out, on_error=on_error, progress=progress)
    for cause in made.skipped:
        print(f"left out: {cause}")
    for note in made.notes:
        print(f"note: {note}")
    said = ", ".join(f"{count:,} {what}" for what, count in made.counts.items())
    print(f"{made.path}: {made.images:,} images of {made.subjects:,} subjects; {said}")


main = partial(run_command, make_records)
