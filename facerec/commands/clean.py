"""``facerec clean``: what may be wrong with the labels of a set, as proposals."""

from __future__ import annotations

from collections import Counter
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import tyro

from facerec.base.errors import DatasetError
from facerec.base.files import check_place
from facerec.commands.cli import Console, called_columns, refuse, run_command
from facerec.commands.embedder import print_notes, read_stored
from facerec.records.other_kinds import other_kind
from facerec.records.proposals import write_proposals
from facerec.report import words
from facerec.report.progress import progress_bar
from facerec.report.table import Table

if TYPE_CHECKING:
    from facerec.embedding.extraction import Embeddings
    from facerec.records.dataset import FaceDataset


def clean(
    source: tyro.conf.Positional[Path],
    out: Path,
    embeddings: Path | None = None,
    page: Path | None = None,
    across: bool = True,
    device: str = "auto",
    columns: tuple[str, ...] = (),
) -> None:
    """Find wrong labels, people under two labels, classes of two people, and duplicates.

    Nothing is changed. The proposals are a table: write no into its column accept where you
    disagree, and facerec make-records SOURCE --apply PROPOSALS.csv --out NEW writes records without
    the faults. There is no threshold to choose; it is learned by planting such faults in the set.

    Args:
        source: A record file, its folder, a folder of subject/image.jpg, or an embeddings file
            (.npz, .parquet) that says who is on the images.
        out: The .csv file of proposals to write.
        embeddings: The embeddings of the images of SOURCE, as facerec embed --records writes them.
        page: Also write this .html page, which shows the faces of the surest proposals; it holds
            personal data.
        across: Look for duplicates among images of different labels too; it takes time in
            proportion to the square of their number.
        columns: What a file of embeddings calls its columns, as id=image_id vector=embedding.
        device: Where to compute: auto, cpu, cuda, cuda:1 or mps.
    """
    from facerec.embedding.file import is_embeddings
    from facerec.galleries.cleaning import clean_set
    from facerec.galleries.contact_sheet import SHOWN, faces_of, write_contact_sheet
    from facerec.galleries.tables import KINDS, proposal_tables
    from facerec.records.training_set import Data, open_dataset

    check_place(out, file=True)
    console = Console()
    dataset: FaceDataset | None = None
    stored = source if is_embeddings(source) else embeddings
    itself = f"{source}: it holds embeddings itself; leave out --embeddings"
    refuse({itself: embeddings and stored == source})
    if stored is None:
        raise DatasetError(
            other_kind(source)
            or f"{source}: to compare faces takes their --embeddings, which facerec embed makes"
        )
    embedded = read_stored(stored, called_columns(columns), console)
    labels, titles = embedded.subjects, embedded.ids
    if stored != source:
        dataset = open_dataset(Data(path=source, on_error="skip"), seed=0)
        print_notes(dataset.notes, console)
        labels, titles = dataset.label_names(), dataset.titles
        embedded = _matched(stored, embedded, dataset)
    assert titles is not None  # the readers see to that
    labels = np.zeros(len(titles), "U1") if labels is None else labels
    with progress_bar(console) as progress:
        cleaning = clean_set(
            embedded.vectors,
            labels,
            titles,
            face_scores=embedded.face_scores,
            face_limit=embedded.face_limit,
            across=across,
            device=device,
            progress=progress,
        )
    write_proposals(out, cleaning.proposals)
    verdict = f"{len(cleaning.rows):,} images of {cleaning.classes:,} labels"
    console.print(verdict, style="bold")
    counts = Counter(str(item.kind) for item in cleaning.proposals)
    if left := len(embedded.vectors) - len(cleaning.rows) - counts["no_face"]:
        lost = words.counted(left, "image")
        console.print(f"{lost} without an embedding or a label: no part taken", style="yellow")
    rows = [(name, f"{counts[kind]:,}", meaning) for kind, (name, meaning) in KINDS.items()]
    console.print(Table("", ("kind", "proposed", "what"), rows, words=("what",)).terminal())
    for table in proposal_tables(cleaning.proposals, 5).values():
        console.print(table.terminal())
    console.print(f"proposals: {out}")
    if page is not None:
        # The first image of a label stands for it where none is named.
        first = dict(zip(labels[::-1].tolist(), titles[::-1].tolist(), strict=True))
        sheet = proposal_tables(cleaning.proposals, SHOWN, faces_of(dataset), first)
        write_contact_sheet(page, "Cleaning a set", f"{source}: {verdict}.", sheet)
        console.print(f"page: {page}")


def _matched(path: Path, embeddings: Embeddings, dataset: FaceDataset) -> Embeddings:
    """Return the embeddings of a data set's images, in their order.

    Images of record files are called by numbers, which every record file has: embeddings that name
    the people must name them as the data set does, but for other names of the same people.
    """
    import pandas as pd

    from facerec.verification import select_embeddings

    found = select_embeddings(embeddings, dataset.ids, str(path))
    if found.subjects is not None:
        pairs = pd.DataFrame({"there": found.subjects, "here": dataset.label_names()})
        pairs = pairs[(pairs != "").all(axis=1)].drop_duplicates()
        for _, row in pairs[pairs["there"].duplicated() | pairs["here"].duplicated()].iterrows():
            raise DatasetError(
                f"{path}: is of another set: it has images of {row['there']!r} that are under "
                f"{row['here']!r} in the records, and others that are not; make it of these images "
                "with facerec embed --records"
            )
    return found


main = partial(run_command, clean)
