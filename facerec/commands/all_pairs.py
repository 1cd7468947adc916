"""``facerec all-pairs``: every image of an embeddings file against every other."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

import facerec
from facerec.commands.cli import Console, listed_rates, run_command
from facerec.defaults import ALL_PAIRS_TARGETS
from facerec.errors import DatasetError
from facerec.files import write_json
from facerec.large_arrays import take
from facerec.names import is_missing
from facerec.records.images import text_array
from facerec.report.csv_tables import save_csv
from facerec.report.progress import progress_bar
from facerec.tables import Table

Members: TypeAlias = "tuple[NDArray[np.str_], NDArray[np.str_] | None, int]"
"""Who is on the images ``(N,)``, in which group ``(N,)`` (empty where none is recorded), if groups
are asked for, and how many rows of the table are of other images."""


def all_pairs(
    embeddings: Path,
    subjects: Path | None = None,
    group: str | None = None,
    fpr: tuple[str, ...] = ALL_PAIRS_TARGETS,
    threshold: tuple[float, ...] = (),
    json: Path | None = None,
    csv: Path | None = None,
    device: str = "cpu",
) -> None:
    """Compare every image of an embeddings file with every other.

    Prints the TPR at fixed FPRs and the errors at fixed thresholds over all N(N − 1)/2 pairs, with
    counts and intervals that allow for pairs that share a person. Thresholds are exact.

    Args:
        embeddings: an .npz file as facerec embed writes it, with raw embeddings and image ids, or a
            .parquet table of image_id and embedding (a list), or a folder of such shards.
        subjects: a .csv file with the columns image_id and subject_id, needed if the embeddings
            file does not say who is on the images; rows of other images are passed over.
        group: a column of that file; errors are also counted within and between its values. Images
            without a value are left out of all figures, and counted.
        fpr: false positive rates at which the true positive rate is read, as 1e-3,1e-4; taken
            exactly.
        threshold: cosines at which errors are counted; accepted are pairs at or above.
        json: write all figures, and where they come from, to this file.
        csv: write all figures to this table.
        device: where to compute: auto, cpu, cuda, cuda:1, mps.
    """
    from facerec.embedding.file import embeddings_sha256, read_embeddings
    from facerec.report.documents import plain
    from facerec.report.tidy import figures_table, records
    from facerec.verification.scoring import score_all_pairs
    from facerec.verification.scoring.figures import all_pairs_figures

    fpr = listed_rates(fpr)  # before minutes of work
    console = Console(highlight=False, soft_wrap=True)
    file = read_embeddings(embeddings)
    ids = file.ids
    assert ids is not None  # the reader sees to that
    names, groups, unused = _members(embeddings, ids, file.subjects, subjects, group)
    console.print(f"embeddings {embeddings}: {len(ids):,} images")
    if unused:
        console.print(f"note: {unused:,} rows of {subjects} have no embedding", style="yellow")
    compared = np.ones(len(ids), bool) if groups is None else groups != ""
    blank = np.unique(names[~compared])
    if blank.size:
        console.print(
            f"note: {np.count_nonzero(~compared):,} images of {blank.size:,} subjects have no "
            f"{group} in {subjects} and are left out of all figures",
            style="yellow",
        )
    with progress_bar(console) as show:
        result = score_all_pairs(
            file.vectors if compared.all() else take(file.vectors, np.flatnonzero(compared)),
            names[compared],
            fpr=fpr,
            thresholds=threshold,
            groups=None if groups is None else groups[compared],
            device=device,
            progress=show,
        )
    figures = all_pairs_figures(result)
    console.print(
        f"{result.images:,} images of {len(result.subjects):,} subjects: {result.mated:,} "
        f"mated and {result.non_mated:,} non-mated pairs",
        style="bold",
    )
    console.print(figures_table("", figures).terminal())
    console.print(_SAID, style="dim italic")
    if result.failures.size:
        console.print(
            f"not acquired: {result.failures.size:,} of "
            f"{result.images + result.failures.size:,} images; their {result.lost_mated:,} mated "
            f"and {result.lost_non_mated:,} non-mated pairs are in no rate",
            style="yellow",
        )
    rows = records(figures)
    if json is not None:
        facts = {
            "facerec": facerec.__version__,
            "embeddings": {
                "path": str(embeddings),
                "sha256": embeddings_sha256(embeddings),
                "note": dict(file.note),
            },
            "subjects": None if subjects is None else str(subjects),
            "group": group,
            "images_without_group": int(np.count_nonzero(~compared)),
            "failures": ids[compared][result.failures].tolist(),
            "images": result.images,
            "subjects_with_images": len(result.subjects),
            "pairs": {
                "mated": result.mated,
                "non_mated": result.non_mated,
                "lost_mated": result.lost_mated,
                "lost_non_mated": result.lost_non_mated,
            },
            "score": "cosine of raw embeddings, float32",
            "figures": rows,
        }
        write_json(json, plain(facts))
    if csv is not None:
        save_csv(csv, list(figures.columns), (row.values() for row in rows))
    for path in filter(None, (json, csv)):
        console.print(f"figures: {path}")


_SAID = (
    "score: cosine, float32; pairs that share a subject are dependent: intervals with the "
    "effective number of comparisons, at thresholds taken as known"
)


def read_members(path: Path, ids: NDArray[np.str_], group: str | None) -> Members:
    """Look up subjects and groups of images in a table with the columns image_id and subject_id.

    Raises:
        DatasetError: no such table or column, an image twice or without a row, a row without a
            subject, or no image with a group.
    """
    wanted = ["image_id", "subject_id", *([] if group is None else [group])]
    recorded: dict[str, tuple[str, str]] = {}
    table = Table(path)
    for line, (image, subject, *groups) in table.rows(wanted):
        if not image or not subject:
            raise DatasetError(
                f"{table.where(line)}: image_id or subject_id is empty; fill it in or take the "
                "line away"
            )
        if image in recorded:
            raise DatasetError(
                f"{table.where(line)}: image {image!r} was on an earlier line already; keep one of "
                "them"
            )
        recorded[image] = subject, "".join(value for value in groups if not is_missing(value))
    names = ids.tolist()
    absent = [name for name in names if name not in recorded]
    if absent:
        unused = len(recorded) - (len(names) - len(absent))
        raise DatasetError(
            f"{path}: {len(absent):,} of {len(names):,} images with an embedding have no row, the "
            f"first is {absent[0]!r}, and {unused:,} of {len(recorded):,} rows have no embedding; "
            "image_id must be the id in the embeddings file"
        )
    people, values = zip(*(recorded[name] for name in names), strict=True)
    if group is not None and not any(values):
        raise DatasetError(
            f"{path}: no image with an embedding has a value in the column {group}; name another "
            "column, or leave out --group"
        )
    return (
        text_array(people, str(path)),
        None if group is None else text_array(values, str(path)),
        len(recorded) - len(names),
    )


def _members(
    embeddings: Path,
    ids: NDArray[np.str_],
    known: NDArray[np.str_] | None,
    table: Path | None,
    group: str | None,
) -> Members:
    """Take subjects from the table, or else from the embeddings file."""
    if table is not None:
        return read_members(table, ids, group)
    if group is not None:
        raise DatasetError(f"--group {group}: name the table with that column with --subjects")
    unknown = len(ids) if known is None else int(np.count_nonzero(known == ""))
    if known is None or unknown:
        raise DatasetError(
            f"{embeddings}: of {unknown:,} of {len(ids):,} images it does not say who is on them; "
            "name a table with the columns image_id,subject_id with --subjects"
        )
    return known, None, 0


main = partial(run_command, all_pairs)
