"""``facerec all-pairs``: every image of an embeddings file against every other."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import numpy as np

import facerec
from facerec.base.defaults import ALL_PAIRS_TARGETS
from facerec.base.errors import DatasetError
from facerec.base.files import write_json
from facerec.base.large_arrays import take
from facerec.commands.cli import Console, called_columns, exact_rates, run_command
from facerec.commands.embedder import print_notes
from facerec.records.people import read_members
from facerec.report.progress import progress_bar

_PAIRS = "mated", "non_mated", "lost_mated", "lost_non_mated"


def all_pairs(
    embeddings: Path,
    subjects: Path | None = None,
    group: str | None = None,
    fpr: tuple[str, ...] = ALL_PAIRS_TARGETS,
    threshold: tuple[float, ...] = (),
    json: Path | None = None,
    device: str = "cpu",
    columns: tuple[str, ...] = (),
) -> None:
    """Compare every image of an embeddings file with every other.

    Prints the TPR at fixed FPRs and the errors at fixed thresholds over all N(N − 1)/2 pairs, with
    counts and intervals that allow for pairs that share a person. Thresholds are exact.

    Args:
        embeddings: an .npz file as facerec embed writes it, with raw embeddings and image ids, or a
            .parquet table of image_id and embedding (a list), or a folder of such shards.
        subjects: a .csv file with the columns image_id and subject_id, needed if the embeddings
            file does not say who is on the images; rows of other images are passed over.
        group: a column of that file, with one value a subject; errors are also counted within and
            between its values. Images without a value are left out of all figures, and counted.
        fpr: false positive rates, as 1e-3,1e-4, at which the true positive rate is measured; never
            rounded.
        threshold: cosines at which errors are counted; a pair at or above is accepted.
        json: JSON file to write all figures to, and where they come from.
        columns: what a file of embeddings calls its columns, as id=image_id vector=embedding.
        device: where to compute: auto, cpu, cuda, cuda:1 or mps.
    """
    from facerec.embedding.extraction import constant
    from facerec.embedding.file import embeddings_sha256, read_embeddings
    from facerec.report.documents import plain
    from facerec.report.tidy import records, rows_table
    from facerec.verification.scoring import score_all_pairs
    from facerec.verification.scoring.all_pairs import MOST_BY_PAIR
    from facerec.verification.scoring.rows import all_pairs_rows

    fpr = exact_rates(fpr)  # before minutes of work
    console = Console()
    file = read_embeddings(embeddings, columns=called_columns(columns))
    assert file.ids is not None  # the reader sees to that
    names, groups, unused = file.subjects, None, 0
    if subjects is not None:
        names, groups, unused = read_members(subjects, file.ids, group)
    elif group is not None or names is None or (names == "").any():
        how = "name a table with the columns image_id,subject_id with --subjects"
        raise DatasetError(f"{embeddings}: it does not say who is on all images, nor groups; {how}")
    assert names is not None
    compared = np.ones(len(names), bool) if groups is None else groups != ""
    left_out = int(np.count_nonzero(~compared))
    console.print(f"embeddings {embeddings}: {len(names):,} images")
    with progress_bar(console) as show:
        result = score_all_pairs(
            file.vectors if compared.all() else take(file.vectors, np.flatnonzero(compared)),
            names[compared],
            fpr=fpr,
            thresholds=threshold,
            pair_limit=2**25 if groups is None else MOST_BY_PAIR,
            device=device,
            progress=show,
        )
    console.print(
        f"{result.images:,} images of {len(result.subjects):,} subjects: {result.mated:,} "
        f"mated and {result.non_mated:,} non-mated pairs",
        style="bold",
    )
    places = {}
    if groups is not None:
        of = dict(zip(names[compared].tolist(), groups[compared].tolist(), strict=True))
        group_of = np.array([of[subject] for subject in result.subjects.tolist()])
        places = {str(each): np.flatnonzero(group_of == each) for each in np.unique(group_of)}
    figures = all_pairs_rows(result, places)
    console.print(rows_table("", figures).terminal())
    basis = "score: cosine, float32; intervals allow for pairs that share a subject"
    console.print(f"{basis}, at thresholds taken as known", style="dim italic")
    lost = f"{result.lost_mated:,} mated and {result.lost_non_mated:,} non-mated pairs"
    counts = {
        f"rows of {subjects} have no embedding": unused,
        f"images have no {group} in {subjects} and are left out of all figures": left_out,
        f"images were not acquired; their {lost} are in no rate": result.failures.size,
    }
    notes = [f"{count:,} {what}" for what, count in counts.items() if count]
    print_notes([constant(file) or "", *notes], console)
    if json is not None:
        sha256 = embeddings_sha256(embeddings)
        facts = {
            "facerec": facerec.__version__,
            "embeddings": {"path": str(embeddings), "sha256": sha256, "note": dict(file.note)},
            "subjects": None if subjects is None else str(subjects),
            "group": group,
            "images_without_group": left_out,
            "failures": file.ids[compared][result.failures].tolist(),
            "images": result.images,
            "subjects_with_images": len(result.subjects),
            "pairs": {name: getattr(result, name) for name in _PAIRS},
            "rows": records(figures),
        }
        write_json(json, plain(facts))
        console.print(f"figures: {json}")


main = partial(run_command, all_pairs)
