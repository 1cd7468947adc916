"""``facerec convert``: a bench of any form → a pack."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from facerec.base.errors import DatasetError
from facerec.commands.cli import Console, run_command
from facerec.commands.embedder import print_notes
from facerec.commands.sources import open_image_benches
from facerec.report.progress import progress_bar


def convert(
    out: Path,
    bench: str | None = None,
    pairs: Path | None = None,
    format: str | None = None,
    images: Path | None = None,
    data: Path | None = None,
) -> None:
    """Turn a verification set into a pack: one file with its images and pairs.

    Give --bench, or --pairs and, if needed, --format. Images are copied byte for byte.

    Args:
        out: the pack to write, X.npz or X.bin; the names of its images go into X_images.csv beside
            it.
        bench: a verification set: its name (lfw, cfp_fp, agedb_30, …) or its pack (.bin, .npz).
        pairs: a list of pairs, or the folder of lists for CFP and RFW.
        format: form of the list: lfw, xqlfw, calfw, cplfw, cfp-ff, cfp-fp, agedb, rfw, flat,
            parquet, bin or npz; not needed where its suffix tells, as .mat or .parquet.
        images: folder that the paths in the list begin at; by default that of the list.
        data: folder to look for the verification set in, before FACEREC_DATA and data/.
    """
    from facerec.verification.bench import SUFFIXES
    from facerec.verification.protocols.export import export_pack

    if out.suffix not in SUFFIXES:
        raise DatasetError(f"{out}: a pack ends with .npz, or with .bin; rename it")
    names = () if bench is None else (bench,)
    (source,) = open_image_benches(names, pairs, format, images, data)
    errors = Console(stderr=True)
    with progress_bar(errors) as progress:
        notes = export_pack(source, out, progress)
    pickle = ".bin is a pickle, and most readers run whatever such a file says; keep and share .npz"
    print_notes([*source.notes, *notes, pickle * (out.suffix == ".bin")], errors)
    same = int(source.pairs.issame.sum())
    print(
        f"{out}: {len(source.pairs):,} pairs, {same:,} same and {len(source.pairs) - same:,} "
        f"different, of {len(source.images):,} images"
    )


main = partial(run_command, convert)
