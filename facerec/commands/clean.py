"""``facerec clean``: what may be wrong with the labels of a set, as proposals."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Literal

import tyro

from facerec.commands.cli import Console, run_command
from facerec.commands.embedder import DEFAULT, Embedder
from facerec.commands.models import print_embeddings, print_notes
from facerec.errors import DatasetError, MetricError
from facerec.files import check_file_name
from facerec.large_arrays import take
from facerec.records.proposals import Proposal, write_proposals
from facerec.report import words
from facerec.report.progress import progress_bar
from facerec.report.table import Cell, text_table

if TYPE_CHECKING:
    from facerec.embedding.extraction import Embeddings
    from facerec.records.dataset import FaceDataset

KINDS = {
    "wrong_label": ("wrong label", "images whose label is probably not that of the person"),
    "mixture": ("mixture", "images of a second person in a class, for a label of their own"),
    "merge": ("merge", "pairs of labels that are probably one person"),
    "duplicate": ("duplicate", "images that are there twice, almost to the pixel"),
}
"""Names and meanings of the kinds of proposals, in the order of the table."""


def clean(
    source: tyro.conf.Positional[Path],
    out: Path,
    embeddings: Path | None = None,
    page: Path | None = None,
    across: bool = True,
    flip: bool = True,
    on_error: Literal["error", "skip"] = "error",
    embedder: tyro.conf.OmitArgPrefixes[Embedder] = DEFAULT,
) -> None:
    """Find wrong labels, people under two labels, classes of two people, and duplicates.

    Nothing is changed: the proposals go into a table, of which you may set lines to no in the
    column accept; facerec make-records SOURCE --apply PROPOSALS.csv --out NEW writes records
    without the faults. How sure a proposal must be needs no number: what a wrong label or a mixture
    looks like in these embeddings is seen by planting such faults in the set.

    Args:
        source: A record file, its folder, a folder of subject/image.jpg, or an embeddings file
            (.npz, .parquet) that says who is on the images.
        out: The .csv file of proposals to write.
        embeddings: The embeddings of the images of SOURCE, as facerec embed writes them.
        page: Also write a page that shows the faces of the surest proposals, .html; it then holds
            personal data.
        across: Look for duplicates among images of different labels too: a comparison of all pairs,
            whose time grows with the square of their number.
        flip: With --model, sum the embeddings of each image and its mirror image.
        on_error: With --model, stop at a bad image, or leave it out.
        embedder: How images become embeddings.
    """
    from facerec.embedding.file import is_embeddings, read_embeddings
    from facerec.galleries.cleaning import clean_set
    from facerec.records.training_set import Data, open_dataset

    if out.suffix.lower() != ".csv":
        raise DatasetError(f"{out}: proposals are a table; give it a name that ends in .csv")
    check_file_name(out, DatasetError)
    embedder.refuse_unused(flip)
    dataset: FaceDataset | None = None
    console = Console(highlight=False, soft_wrap=True)
    if is_embeddings(source):
        if embedder.model is not None or embeddings is not None or page is not None:
            raise DatasetError(
                f"{source}: holds embeddings already and no faces to show; leave out --model, "
                "--embeddings and --page, or name the records"
            )
        embedded = read_embeddings(source)
        print_embeddings(source, embedded, console)
        if embedded.subjects is None:
            raise DatasetError(
                f"{source}: does not say who is on the images; make it with facerec embed --records"
            )
        labels, titles = embedded.subjects, embedded.ids
    else:
        dataset = open_dataset(Data(path=source, on_error=on_error), seed=0)
        labels, titles = dataset.label_names(), dataset.titles
        if (embedder.model is None) == (embeddings is None):
            raise DatasetError(
                f"{source}: to compare faces takes embeddings; name a --model, or the file "
                "of --embeddings that facerec embed made of these images"
            )
        if embeddings is None:
            embedded = embedder.embed(source, dataset, flip, console, on_error=on_error)
        else:
            print_notes(dataset.notes, console)
            embedded = _matched(embeddings, read_embeddings(embeddings), dataset)
            print_embeddings(embeddings, embedded, console)
    assert titles is not None  # the readers see to that
    with progress_bar(console) as progress:
        try:
            cleaning = clean_set(
                embedded.vectors,
                labels,
                titles,
                across=across,
                device=embedder.device,
                progress=progress,
            )
        except MetricError as problem:
            raise DatasetError(f"{source}: {problem}") from problem
    write_proposals(out, cleaning.proposals)
    verdict = f"{len(cleaning.rows):,} images of {cleaning.classes:,} labels"
    console.print(verdict, style="bold")
    if left := len(embedded.vectors) - len(cleaning.rows):
        lost = words.counted(left, "image")
        console.print(f"{lost} without an embedding or a label: no part taken", style="yellow")
    counts = Counter(str(item.kind) for item in cleaning.proposals)
    rows = [(name, f"{counts[kind]:,}", meaning) for kind, (name, meaning) in KINDS.items()]
    table = text_table("proposals", ("kind", "proposed", "what"), rows, words=("what",))
    console.print(table.terminal())
    for headings, listed in proposal_tables(cleaning.proposals, 5).values():
        console.print(text_table("", headings, listed, words=headings[:-1]).terminal())
    console.print(f"proposals: {out}")
    if page is not None:
        from facerec.galleries.contact_sheet import SHOWN, faces_of, write_contact_sheet

        assert dataset is not None
        first: dict[str, str] = {}  # stands for its label where no image is named
        for name, label in zip(dataset.titles.tolist(), labels.tolist(), strict=True):
            first.setdefault(label, name)
        sheet = proposal_tables(cleaning.proposals, SHOWN, faces_of(dataset), first)
        write_contact_sheet(page, "Cleaning a set", f"{source}: {verdict}.", sheet)
        console.print(f"page: {page}")


def proposal_tables(
    proposals: Sequence[Proposal],
    most: int,
    face: Callable[[str], str] = lambda name: "",
    first: Mapping[str, str] = MappingProxyType({}),
) -> dict[str, tuple[Sequence[str], list[Sequence[Cell | str]]]]:
    """Return headings and rows of the surest proposals of each kind that there is.

    Args:
        proposals: the surest of each kind first.
        most: of a kind.
        face: image → picture.
        first: label → the image that stands for it.
    """
    tables: dict[str, tuple[Sequence[str], list[Sequence[Cell | str]]]] = {}
    for kind, (name, _) in KINDS.items():
        rows: list[Sequence[Cell | str]] = [
            (
                Cell(
                    item.image_id or "all", picture=face(item.image_id or first.get(item.label, ""))
                ),
                Cell(item.label, picture=face(first.get(item.label, ""))),
                Cell(
                    item.other_id or item.proposed_label or "none: leave out",
                    picture=face(item.other_id or first.get(item.proposed_label, "")),
                ),
                f"{item.score:.4f}",
            )
            for item in [each for each in proposals if each.kind == kind][:most]
        ]
        heading = "the one that stays" if kind == "duplicate" else "proposed label"
        if rows:
            tables[name] = ((name, "label", heading, "score"), rows)
    return tables


def _matched(path: Path, embeddings: Embeddings, dataset: FaceDataset) -> Embeddings:
    """Return embeddings in the order of a data set."""
    assert embeddings.ids is not None
    import pandas as pd

    rows = pd.Index(embeddings.ids).get_indexer(pd.Index(dataset.ids))
    missing = dataset.ids[rows < 0]
    if len(missing):
        raise DatasetError(
            f"{path}: has no embedding of {len(missing):,} of {len(dataset):,} images, the first "
            f"is {str(missing[0])!r}; make it with facerec embed --records"
        )
    if embeddings.subjects is not None:
        # Images of record files are called by numbers, which every record file has.
        said = {"there": embeddings.subjects[rows], "here": dataset.label_names()}
        both = pd.DataFrame({**said, "image": dataset.ids})
        both = both[(both["there"] != "") & (both["here"] != "")].drop_duplicates(list(said))
        torn = both[both["there"].duplicated() | both["here"].duplicated()]
        for _, row in torn.head(1).iterrows():
            raise DatasetError(
                f"{path}: is of another set: image {row['image']!r} is of {row['there']!r} there "
                f"and under {row['here']!r} here, which does not hold for all images of either; "
                "make it of these images with facerec embed --records"
            )
    return replace(
        embeddings,
        vectors=take(embeddings.vectors, rows),
        norms=embeddings.norms[rows],
        ids=dataset.ids,
        failures={},
    )


main = partial(run_command, clean)
