"""``facerec convert``: a bench of any form → a pack."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from facerec.commands.cli import Console, run_command
from facerec.commands.sources import open_benches
from facerec.errors import DatasetError
from facerec.report.progress import progress_bar


def convert(
    out: Path,
    bench: str | None = None,
    pairs: Path | None = None,
    format: str | None = None,
    images: Path | None = None,
    data: Path | None = None,
) -> None:
    """Turn a verification set into a pack.

    Give --bench, or --pairs with its --format. Images are copied byte for byte.

    Args:
        out: X.npz or X.bin, beside which image names go into X_images.csv.
        bench: name (lfw, cfp_fp, agedb_30, …) or pack file (.bin, .npz).
        pairs: pair list, or the folder of lists for CFP and RFW.
        format: form of the pair list: lfw, xqlfw, calfw, cplfw, cfp-ff, cfp-fp, agedb, rfw,
            flat, parquet, bin or npz; a suffix such as .mat or .parquet says enough.
        images: folder that image paths are relative to; by default where the list lies.
        data: folder of the packs for --bench; then FACEREC_DATA and data/ are looked at.
    """
    from facerec.verification.bench import SUFFIXES, Bench
    from facerec.verification.protocols.export import export_pack

    if out.suffix not in SUFFIXES:
        raise DatasetError(f"{out}: a pack ends with .npz, or with .bin; rename it")
    names = () if bench is None else (bench,)
    (source,) = open_benches(names, pairs, format, images, data)
    if not isinstance(source, Bench):
        raise DatasetError(f"{bench} compares templates of several images, which no pack can hold")
    errors = Console(stderr=True, soft_wrap=True, highlight=False)
    with progress_bar(errors) as progress:
        notes = export_pack(source, out, progress)
    for note in (*source.notes, *notes):
        errors.print(f"note: {note}")
    if out.suffix == ".bin":
        errors.print(
            "note: .bin is a pickle, and most readers run whatever such a file says; keep and "
            "share .npz"
        )
    same = int(source.pairs.issame.sum())
    print(
        f"{out}: {len(source.pairs):,} pairs, {same:,} same and {len(source.pairs) - same:,} "
        f"different, of {len(source.images):,} images"
    )


main = partial(run_command, convert)
