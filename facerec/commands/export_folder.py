"""``facerec export-folder``: a record file becomes a folder of images again."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Literal

import tyro

from facerec.commands.cli import Console, run_command
from facerec.commands.make_records import print_skipped
from facerec.report.progress import progress_bar


def export_folder(
    records: tyro.conf.Positional[Path],
    out: Path,
    on_error: Literal["error", "skip"] = "error",
) -> None:
    """Write the images of a record file to OUT/identity/image.jpg, bytes unchanged.

    Args:
        records: A .rec file, or the folder that holds it.
        out: Folder to write, which must not exist yet or be empty.
        on_error: Stop at a damaged record, or leave it out and list it.
    """
    from facerec.records.dataset import RecordDataset
    from facerec.records.make import export_folder as write_folder

    dataset = RecordDataset(records, on_error=on_error)
    with progress_bar(Console(stderr=True)) as progress:
        summary = write_folder(dataset, out, on_error=on_error, progress=progress)
    print_skipped(summary.skipped)
    print(
        f"{summary.path}: {summary.images:,} images of {summary.identities:,} identities; "
        f"{len(summary.skipped):,} of {len(dataset):,} left out"
    )


main = partial(run_command, export_folder)
