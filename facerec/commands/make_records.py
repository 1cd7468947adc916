"""``facerec make-records``: a folder of aligned faces becomes a record file."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import tyro

from facerec.commands.cli import Console, run_command
from facerec.environment import available_cores
from facerec.errors import DatasetError
from facerec.limits import Count
from facerec.report.progress import progress_bar

if TYPE_CHECKING:
    from facerec.records.dataset import Skipped
    from facerec.records.make import ApplySummary, MakeSummary


def make_records(
    folder: tyro.conf.Positional[Path],
    out: Path,
    processes: Count | None = None,
    size: int = 112,
    resize: bool = False,
    quality: int = 95,
    layout: Literal["auto", "insightface", "im2rec"] = "auto",
    on_error: Literal["error", "skip"] = "error",
    apply: Path | None = None,
    force: bool = False,
) -> None:
    """Write train.rec, .idx, .lst, property and classes.txt from a folder of aligned faces.

    Images are stored byte for byte; identities become classes in the order of their names. With
    --apply the source may be a record file too, and its labels are changed as proposed; images stay
    as they are, of whatever size.

    Args:
        folder: Holds identity/image.jpg; with --apply, or a record file or its folder.
        out: Folder to write into.
        processes: Processes that read and check images; by default one per core.
        size: Height and width that every image must have, in pixels.
        resize: Scale square images of other sizes instead of refusing them.
        quality: JPEG quality of scaled images.
        layout: Layout of the records; auto is insightface as long as its numbers are exact.
        on_error: Stop at a bad image, or leave it out and list it.
        apply: A .csv file of proposals from facerec clean; lines with no in the column accept are
            passed over.
        force: Replace the records that OUT holds already.
    """
    from facerec.records.dataset import FolderDataset
    from facerec.records.make import apply_proposals
    from facerec.records.make import make_records as write_records
    from facerec.records.training_set import Data, open_dataset

    if (out / "train.rec").exists() and not force:
        raise DatasetError(
            f"{out}: holds a train.rec already; choose another --out, or replace it by --force"
        )
    if apply is not None and (size != 112 or resize or quality != 95):
        raise DatasetError(
            "--apply stores images as they are and takes no --size, --resize or --quality; leave "
            "these out, or scale the images before they are embedded"
        )
    summary: MakeSummary | ApplySummary
    bar = progress_bar(Console(stderr=True))
    if apply is None:
        images = FolderDataset(folder)
        with bar as progress:
            summary = write_records(
                images,
                out,
                processes=processes or available_cores(),
                size=size,
                resize=resize,
                quality=quality,
                layout=layout,
                on_error=on_error,
                progress=progress,
            )
        scaled = f", {summary.resized:,} of them scaled" if summary.resized else ""
        left_out = f"{len(summary.skipped):,} of {len(images):,} left out"
        said = f"{scaled}, {summary.layout} layout; {left_out}"
    else:
        dataset = open_dataset(Data(path=folder, on_error=on_error), seed=0)
        with bar as progress:
            summary = apply_proposals(
                dataset, apply, out, layout=layout, on_error=on_error, progress=progress
            )
        said = (
            f"; {summary.dropped:,} images left out and {summary.relabelled:,} relabelled as "
            f"proposed, {summary.merged:,} labels merged, {summary.refused:,} proposals not "
            "accepted"
        )
    print_skipped(summary.skipped)
    for note in summary.notes:
        print(f"note: {note}")
    print(f"{summary.path}: {summary.images:,} images of {summary.identities:,} identities{said}")


def print_skipped(skipped: Sequence[Skipped]) -> None:
    """List what was left out, one sentence a line."""
    for item in skipped:
        print(f"left out: {item.cause}")


main = partial(run_command, make_records)
