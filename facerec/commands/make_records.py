"""``facerec make-records``: a folder of aligned faces → a record file, and back; damage mended."""

from __future__ import annotations

import shutil
from collections import Counter
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import tyro

from facerec.base.errors import DatasetError
from facerec.base.files import atomic_path, exclusive
from facerec.base.progress import Progress
from facerec.commands.cli import Console, run_command
from facerec.embedding.crops import CROPS, LOG, FaceCrops, cut_faces
from facerec.records.images import OnError, SubjectFolders
from facerec.report.csv_tables import to_csv
from facerec.report.progress import progress_bar
from facerec.report.words import counted

if TYPE_CHECKING:
    from facerec.records.make import Made

AS_THEY_ARE = FaceCrops()


def make_records(
    source: tyro.conf.Positional[Path],
    out: Path | None = None,
    unpack: bool = False,
    repair: bool = False,
    apply: Path | None = None,
    on_error: Literal["error", "skip"] = "error",
    force: bool = False,
    photos: tyro.conf.OmitArgPrefixes[FaceCrops] = AS_THEY_ARE,
) -> None:
    """Pack a folder of faces into record files; unpack, repair or correct them.

    Writes train.rec, .idx, .lst, property and classes.txt. Images of 112×112 pixels are stored byte
    for byte; subjects become classes in the order of their names. With --align faces are first cut
    out of photos of any size: OUT_photos.csv says what was found in each, and a stopped command
    goes on where it was when it is run again. With --apply the source may be a record file too, and
    its labels are changed as proposed. --unpack writes the images of a record file into the folder
    OUT, as subject/image.jpg. --repair writes the lost index of a record file anew, or with --out
    X.rec copies what is whole of a damaged one.

    Args:
        source: A folder of subject/image.jpg; a Parquet table with the columns image and label,
            or a folder of such; or a record file or its folder.
        out: Folder to write into; with --repair a new record file.
        unpack: Write the images of a record file into OUT, which must be new or empty.
        repair: Write FILE.idx beside FILE.rec and keep the old one as FILE.idx.old; or with --out
            pass over what is damaged and list it. The record file stays as it is.
        apply: A .csv file of proposals from facerec clean to apply, but for lines with no in the
            column accept. Images stay as they are, of whatever size.
        on_error: What to do with a bad image: error ends the command, skip leaves it out and lists
            it.
        force: Replace the records that OUT holds already.
        photos: how faces are cut out of photos.
    """
    cuts, target = photos != AS_THEY_ARE, out or photos.crops
    tasks = unpack + repair + (apply is not None) + cuts
    if tasks > 1 or (cuts and photos.align is None) or not (target or repair):
        raise DatasetError(
            "give --out, and at most one of --unpack, --repair, --apply and --align; --crops, "
            "--align-threshold, --faces, --model and --processes need --align"
        )
    if repair:
        from facerec.records.make import repair_records

        for line in repair_records(source, out):
            print(line)
        return
    assert target is not None
    if (target / "train.rec").exists() and not unpack and not force:
        raise DatasetError(
            f"{target}: holds a train.rec already; choose another --out, or replace it by --force"
        )
    from facerec.records import make

    with progress_bar(Console(stderr=True)) as progress:
        if photos.align is not None:
            made = _from_photos(source, out, photos, on_error, progress)
        elif apply is not None:
            made = make.apply_proposals(source, apply, target, on_error=on_error, progress=progress)
        else:
            write = make.export_folder if unpack else make.make_records
            made = write(source, target, on_error=on_error, progress=progress)
    for cause in made.skipped:
        print(f"left out: {cause}")
    for note in made.notes:
        print(f"note: {note}")
    said = ", ".join(f"{count:,} {what}" for what, count in made.counts.items())
    print(f"{made.path}: {made.images:,} images of {made.subjects:,} subjects; {said}")


def _from_photos(
    source: Path, out: Path | None, how: FaceCrops, on_error: OnError, progress: Progress
) -> Made:
    """Write the faces in a folder of photos as records, as a folder of crops, or as both."""
    from facerec.records import make

    photos, target = SubjectFolders(source), how.crops or out
    assert target is not None
    make.check_outside(photos, target)
    if how.crops is not None:
        make.check_new(how.crops)
    parts, table = (target.with_name(f"{target.name}{end}") for end in (".parts", "_photos.csv"))
    with exclusive(parts):
        lines = cut_faces(photos, how, parts, on_error, progress)
        with atomic_path(table, private=True) as temporary:
            temporary.write_bytes(to_csv(lines))
        counts = {"photos": len(lines), **Counter(line["result"] for line in lines)}
        people = {line["image_id"].split("/")[0] for line in lines if line["crops"]}
        if not people:
            shutil.rmtree(parts)
            said = ", ".join(f"{count:,} {what}" for what, count in counts.items())
            raise DatasetError(f"{source}: no face is left of {said}; {table} says why")
        if out is not None:
            make.make_records(parts / CROPS, out, progress=progress)
        if how.crops is not None:
            (parts / CROPS).replace(how.crops)
        (parts / LOG).unlink()  # first, as it would speak of crops that are gone
        shutil.rmtree(parts)
    notes = [*photos.notes, f"{table}: what was found in each photo"]
    if lost := [name for name in photos.names_of_classes() if name not in people]:
        whose = counted(len(lost), "person has", "people have")
        notes.append(f"{whose} no crop: {', '.join(lost[:10])}{', …' * (len(lost) > 10)}")
    skipped = [line["reason"] for line in lines if line["result"] == "unreadable"]
    images = sum(line["crops"] for line in lines)
    path = target if out is None else out / "train.rec"
    return make.Made(path, images, len(people), skipped, notes, counts)


main = partial(run_command, make_records)
