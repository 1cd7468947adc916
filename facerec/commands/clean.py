"""``facerec clean``: what may be wrong with the labels of a set, as proposals."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import numpy as np
import tyro
from numpy.typing import NDArray

from facerec.commands.cli import Console, run_command
from facerec.commands.models import print_embeddings, print_model, print_notes
from facerec.commands.networks import NETWORK, Network, refuse_network_flags
from facerec.errors import DatasetError, MetricError
from facerec.files import atomic_path, check_file_name
from facerec.large_arrays import take
from facerec.limits import Limits
from facerec.records.proposals import Proposal, write_proposals
from facerec.report import words
from facerec.report.csv_tables import save_csv
from facerec.report.progress import progress_bar
from facerec.report.table import Cell, Table, text_table

if TYPE_CHECKING:
    from facerec.embedding.extraction import Embeddings
    from facerec.galleries.cleaning import Cleaning
    from facerec.records.dataset import FaceDataset
    from facerec.report.page import Page

_SHOWN = 60
"""Proposals of a kind on a page."""

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
    model: Path | None = None,
    embeddings: Path | None = None,
    scores: Path | None = None,
    page: Path | None = None,
    images: bool = False,
    limit: Annotated[float, Limits(0.0, 1.0, below=True)] = 0.5,
    across: bool = True,
    flip: bool = True,
    on_error: Literal["error", "skip"] = "error",
    network: tyro.conf.OmitArgPrefixes[Network] = NETWORK,
) -> None:
    """Find wrong labels, people under two labels, classes of two people, and duplicates.

    Nothing is changed: the proposals go into a table, of which you may set lines to no in the
    column accept; facerec make-records SOURCE --apply PROPOSALS.csv --out NEW writes records
    without the faults. How sure a proposal must be needs no number: what a wrong label, a split
    person or a mixture looks like in these embeddings is seen by planting such faults in the set.

    Args:
        source: A record file, its folder, a folder of identity/image.jpg, or an embeddings file
            (.npz, .parquet, .csv) that says who is on the images.
        out: The .csv file of proposals to write.
        model: A model to embed the images with: a run folder, a .safetensors, .pth or .onnx file.
        embeddings: The embeddings of the images of SOURCE, as facerec embed writes them.
        scores: Also write of every image how probable it is that it does not belong under its
            label, and its cosines to its own and to the nearest other label, into this .csv file.
        page: Also write the proposals as a page, .html.
        images: Show the faces on that page; it then holds personal data.
        limit: Probability from which on a fault is proposed.
        across: Look for duplicates among images of different labels too: a comparison of all pairs,
            whose time grows with the square of their number.
        flip: With --model, sum the embeddings of each image and its mirror image.
        on_error: With --model, stop at a bad image, or leave it out.
        network: How the network is loaded.
    """
    from facerec.embedding.extraction import embed_images
    from facerec.embedding.file import is_embeddings, read_embeddings
    from facerec.galleries.cleaning import clean_set
    from facerec.records.training_set import Data, open_dataset

    if out.suffix.lower() != ".csv":
        raise DatasetError(f"{out}: proposals are a table; give it a name that ends in .csv")
    if images and page is None:
        raise DatasetError("--images are shown on a page; name one with --page FILE.html")
    for file in (out, scores):
        if file is not None:
            check_file_name(file, DatasetError)
    if model is None:
        refuse_network_flags(network, flip, None, None)
    dataset: FaceDataset | None = None
    console = Console(highlight=False, soft_wrap=True)
    with progress_bar(console) as progress:
        if is_embeddings(source):
            if model is not None or embeddings is not None:
                raise DatasetError(
                    f"{source}: holds embeddings already; leave out --model and --embeddings, or "
                    "name the records"
                )
            if images:
                raise DatasetError(f"{source}: holds no faces to show; leave out --images")
            embedded = read_embeddings(source)
            if embedded.subjects is None:
                raise DatasetError(
                    f"{source}: does not say who is on the images; make it with facerec embed "
                    "--records"
                )
            labels = embedded.subjects
            print_embeddings(source, embedded, console)
        else:
            dataset = open_dataset(Data(path=source, on_error=on_error), seed=0)
            labels = dataset.label_names()
            print_notes(dataset.notes, console)
            if (model is None) == (embeddings is None):
                raise DatasetError(
                    f"{source}: to compare faces takes embeddings; name a --model, or the file "
                    "of --embeddings that facerec embed made of these images"
                )
            if model is not None:
                loaded = network.load(model)
                print_model(loaded, flip, None, console)
                embedded = embed_images(
                    loaded,
                    dataset,
                    flip=flip,
                    batch_size=network.batch_size,
                    on_error=on_error,
                    progress=progress,
                )
            else:
                assert embeddings is not None
                embedded = _matched(embeddings, read_embeddings(embeddings), dataset)
                print_embeddings(embeddings, embedded, console)
        names = embedded.ids if dataset is None else dataset.titles
        assert names is not None  # the readers see to that
        for note in [] if dataset is None else dataset.notes:
            console.print(f"note: {note}", style="yellow")
        try:
            cleaning = clean_set(
                embedded.vectors,
                labels,
                names,
                limit=limit,
                across=across,
                device=network.device,
                progress=progress,
            )
        except MetricError as problem:
            raise DatasetError(f"{source}: {problem}") from problem
    write_proposals(out, cleaning.proposals)
    _report(cleaning, embedded, console)
    console.print(f"proposals: {out}")
    if scores is not None:
        _write_scores(scores, cleaning, labels, names)
        console.print(f"scores: {scores}")
    if page is not None:
        text = contact_sheet(cleaning, str(source), dataset if images else None).render()
        with atomic_path(page, private=images) as temporary:
            temporary.write_text(text, encoding="utf-8")
        console.print(f"page: {page}")


def _matched(path: Path, embeddings: Embeddings, dataset: FaceDataset) -> Embeddings:
    """Return embeddings in the order of a data set."""
    assert embeddings.ids is not None
    row_of = {name: row for row, name in enumerate(embeddings.ids.tolist())}
    missing = [name for name in dataset.ids.tolist() if name not in row_of]
    if missing:
        raise DatasetError(
            f"{path}: has no embedding of {len(missing):,} of {len(dataset):,} images, the first "
            f"is {missing[0]!r}; make it with facerec embed --records"
        )
    rows = np.array([row_of[name] for name in dataset.ids.tolist()])
    if embeddings.subjects is not None:
        # Images of record files are called by numbers, which every record file has.
        label_of: dict[str, str] = {}
        subject_of: dict[str, str] = {}
        subjects, labels = embeddings.subjects[rows].tolist(), dataset.label_names().tolist()
        for name, subject, label in zip(dataset.ids.tolist(), subjects, labels, strict=True):
            if not subject or not label:
                continue
            others = label_of.setdefault(subject, label), subject_of.setdefault(label, subject)
            if others != (label, subject):
                raise DatasetError(
                    f"{path}: is of another set: image {name!r} is of {subject!r} there and under "
                    f"{label!r} here, which does not hold for all images of either; make it of "
                    "these images with facerec embed --records"
                )
    return replace(
        embeddings,
        vectors=take(embeddings.vectors, rows),
        norms=embeddings.norms[rows],
        ids=dataset.ids,
        failures={},
    )


def _report(cleaning: Cleaning, embeddings: Embeddings, console: Console) -> None:
    """Print how much of what is proposed."""
    left = len(embeddings.vectors) - cleaning.images
    console.print(f"{cleaning.images:,} images of {cleaning.classes:,} labels", style="bold")
    if left:
        console.print(
            f"{left:,} images have no embedding or no label and take no part", style="yellow"
        )
    console.print(summary(cleaning).terminal())
    console.print(examples(cleaning.proposals).terminal())


def _write_scores(
    path: Path, cleaning: Cleaning, labels: NDArray[np.str_], ids: NDArray[np.str_]
) -> None:
    header = "image_id", "label", "probability", "own_cosine", "other_cosine"
    columns = (
        ids[cleaning.rows].tolist(),
        labels[cleaning.rows].tolist(),
        cleaning.probability.tolist(),
        [None if np.isnan(value) else value for value in cleaning.wrong.own.tolist()],
        cleaning.wrong.other.tolist(),
    )
    save_csv(path, header, zip(*columns, strict=True), DatasetError)


def contact_sheet(cleaning: Cleaning, source: str, dataset: FaceDataset | None) -> Page:
    """Return a page of the surest proposals of each kind, with the faces of a data set if given."""
    from facerec.report.page import Page, Section
    from facerec.verification.page import face_picture

    index_of = {} if dataset is None else dataset.samples_by_name()
    first: dict[str, str] = {}
    if dataset is not None:
        labels = dataset.label_names().tolist()
        for name, label in zip(dataset.titles.tolist(), labels, strict=True):
            first.setdefault(label, name)

    def face(image: str, text: str, small: str = "") -> Cell:
        if dataset is None or image not in index_of:
            return Cell(text, small)
        return Cell(text, small, face_picture(dataset.encoded, index_of[image]))

    headings = "image", "label", "proposed label", "score"
    sections = []
    for kind, (name, meaning) in KINDS.items():
        chosen = [item for item in cleaning.proposals if item.kind == kind]
        rows = [
            (
                face(item.image_id or first.get(item.label, ""), item.image_id or "all"),
                face(first.get(item.label, ""), item.label),
                face(
                    item.other_id or first.get(item.proposed_label, ""),
                    item.proposed_label or "none: leave out",
                    f"{item.other_id} stays" if item.other_id else "",
                ),
                f"{item.score:.4f}",
            )
            for item in chosen[:_SHOWN]
        ]
        if rows:
            shown = f"the surest {_SHOWN} of {len(chosen):,}" if len(chosen) > _SHOWN else "all"
            table = text_table(f"{name}: {shown}", headings, rows, words=headings[:3])
            lead = f"{meaning}: {words.counted(len(chosen), 'proposal')}."
            sections.append(Section(name, [table], lead))
    faces = (
        "" if dataset is None else "This page shows faces of real people: keep it as you keep them."
    )
    proposals = words.counted(len(cleaning.proposals), "proposal")
    verdict = f"{proposals} for {cleaning.images:,} images"
    lead = (
        f"{source}: {cleaning.images:,} images of {cleaning.classes:,} labels. Nothing was changed."
        " Faces stand for their labels where no image is named; a label's is its first image."
    )
    return Page("Cleaning a set", verdict, lead, [], [summary(cleaning)], sections, banner=faces)


def summary(cleaning: Cleaning) -> Table[Any]:
    """Return how many proposals there are of each kind."""
    counts = Counter(str(item.kind) for item in cleaning.proposals)
    shares = {
        "wrong_label": words.percent(cleaning.wrong.share),
        "mixture": words.percent(cleaning.mixtures.share),
        "merge": words.percent(cleaning.twins.share),
    }
    rows = [
        (name, f"{counts[kind]:,}", shares.get(kind, ""), meaning)
        for kind, (name, meaning) in KINDS.items()
    ]
    headings = "kind", "proposed", "share estimated", "what"
    remark = "shares: of images, of labels and of labels, estimated without a threshold"
    return text_table("proposals", headings, rows, words=("what",), remarks=[remark])


def examples(proposals: Sequence[Proposal]) -> Table[Any]:
    """Return the five surest proposals of every kind."""
    chosen: list[Proposal] = []
    for kind in KINDS:
        chosen += [item for item in proposals if item.kind == kind][:5]
    rows = [
        (
            KINDS[item.kind][0],
            item.image_id or "all",
            item.label,
            item.proposed_label or "none: leave out",
            f"{item.score:.4f}",
        )
        for item in chosen
    ]
    headings = "kind", "image", "label", "proposed label", "score"
    return text_table("the surest of each kind", headings, rows, words=("image", "proposed label"))


main = partial(run_command, clean)
