"""``facerec synthesize``: one seed → record files, packs and attributes of generated faces."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated

import tyro

from facerec.commands.cli import Console, run_command
from facerec.errors import DatasetError
from facerec.files import atomic_path
from facerec.limits import Count
from facerec.records import synthetic
from facerec.records.synthetic import SyntheticSet, write_synthetic
from facerec.report.progress import progress_bar


def synthesize(
    out: Path,
    config: Annotated[SyntheticSet, tyro.conf.arg(name="")] = SyntheticSet(),  # noqa: B008
    processes: Count = 2,
    contact_sheet: Path | None = None,
) -> None:
    """Generate faces: a training set, three verification packs and attributes.

    Writes train.rec/.idx/.lst/property, lfw.bin, cfp_fp.bin, agedb_30.bin with their image lists,
    attributes.csv and dataset.json. The same seed gives the same bytes.

    Args:
        out: folder to write to.
        config: what to generate.
        processes: processes that draw faces; the result does not depend on it.
        contact_sheet: also draw an overview of some people into this .png or .jpg.
    """
    if (out / "train.rec").exists() and not (out / synthetic.DATASET_FILE).exists():
        raise DatasetError(
            f"{out}: holds a train.rec that was not generated, and would be replaced; choose "
            "another --out"
        )
    console = Console()
    if contact_sheet is not None:
        sheet = synthetic.contact_sheet(config, suffix=contact_sheet.suffix)
        with atomic_path(contact_sheet, private=True) as temporary:
            temporary.write_bytes(sheet)
        console.print(f"contact sheet: {contact_sheet}", soft_wrap=True)
    with progress_bar(console, "images") as progress:
        summary = write_synthetic(out, config, processes, progress)
    console.print(
        f"{out}: {summary.training_images:,} training images of {summary.identities:,} people; "
        + ", ".join(f"{name} {pairs:,} pairs" for name, pairs in summary.pairs.items())
        + f" from {summary.pack_images:,} images of other people",
        soft_wrap=True,
    )


main = partial(run_command, synthesize)
