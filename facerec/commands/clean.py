"""``facerec clean``: what may be wrong with the labels of a set, as proposals."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
import tyro
from numpy.typing import NDArray

from facerec.commands.cli import Console, run_command
from facerec.commands.models import print_embeddings, print_model
from facerec.embedding.extract import Embeddings, embed_images
from facerec.embedding.file import is_embeddings, read_embeddings
from facerec.embedding.model import load_model
from facerec.errors import DatasetError
from facerec.galleries.cleaning import Cleaning, clean_set
from facerec.limits import Limits
from facerec.records.dataset import FaceDataset
from facerec.records.proposals import Proposal, write_proposals
from facerec.records.training_set import Data, open_dataset
from facerec.report import words
from facerec.report.progress import progress_bar
from facerec.report.table import Column, Table

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
    limit: Annotated[float, Limits(0.0, 1.0, below=True)] = 0.5,
    flip: bool = True,
    on_error: Literal["error", "skip"] = "error",
    device: str = "auto",
    batch_size: int = 64,
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
        model: A model to embed the images with: a run folder, a .safetensors or an .onnx file.
        embeddings: The embeddings of the images of SOURCE, from facerec embed --records SOURCE.
        limit: Probability from which on a fault is proposed.
        flip: With --model, sum the embeddings of each image and its mirror image.
        on_error: With --model, stop at a bad image, or leave it out.
        device: Where to compute: auto, cpu, cuda, cuda:1, mps.
        batch_size: With --model, images that go through the network at once.
    """
    if out.suffix.lower() != ".csv":
        raise DatasetError(f"{out}: proposals are a table; give it a name that ends in .csv")
    console = Console(highlight=False, soft_wrap=True)
    with progress_bar(console) as progress:
        if is_embeddings(source):
            if model is not None or embeddings is not None:
                raise DatasetError(
                    f"{source}: holds embeddings already; leave out --model and --embeddings, or "
                    "name the records"
                )
            found, labels = _labelled(source, read_embeddings(source))
            print_embeddings(source, found, console)
        else:
            dataset = open_dataset(Data(path=source, on_error=on_error), seed=0)
            labels = _labels(dataset)
            if (model is None) == (embeddings is None):
                raise DatasetError(
                    f"{source}: to compare faces takes embeddings; name a --model, or the file "
                    "of --embeddings that facerec embed made of these images"
                )
            if model is not None:
                network = load_model(model, device=device, batch_size=batch_size)
                print_model(network, flip, None, console)
                found = embed_images(
                    network,
                    dataset,
                    flip=flip,
                    batch_size=batch_size,
                    on_error=on_error,
                    progress=progress,
                )
            else:
                assert embeddings is not None
                found = _matched(embeddings, read_embeddings(embeddings), dataset)
                print_embeddings(embeddings, found, console)
        assert found.ids is not None  # the readers see to that
        cleaning = clean_set(
            found.vectors, labels, found.ids, limit=limit, device=device, progress=progress
        )
    write_proposals(out, cleaning.proposals)
    _report(cleaning, found, console)
    console.print(f"proposals: {out}")


def _labels(dataset: FaceDataset) -> NDArray[np.str_]:
    """Return the name of the class of each image, ``(N,)``, empty where its record is damaged."""
    names = [*(dataset.class_names or map(str, range(dataset.num_classes))), ""]
    return np.array(names, np.str_)[dataset.labels]


def _labelled(path: Path, found: Embeddings) -> tuple[Embeddings, NDArray[np.str_]]:
    if found.subjects is None:
        raise DatasetError(
            f"{path}: does not say who is on the images; make it with facerec embed --records"
        )
    return found, found.subjects


def _matched(path: Path, found: Embeddings, dataset: FaceDataset) -> Embeddings:
    """Return embeddings in the order of a data set."""
    assert found.ids is not None
    place = {name: row for row, name in enumerate(found.ids.tolist())}
    missing = [name for name in dataset.ids.tolist() if name not in place]
    if missing:
        raise DatasetError(
            f"{path}: has no embedding of {len(missing):,} of {len(dataset):,} images, the first "
            f"is {missing[0]!r}; make it with facerec embed --records"
        )
    rows = np.array([place[name] for name in dataset.ids.tolist()])
    return replace(
        found, vectors=found.vectors[rows], norms=found.norms[rows], ids=dataset.ids, failures={}
    )


def _report(cleaning: Cleaning, found: Embeddings, console: Console) -> None:
    """Print how much of what is proposed."""
    left = len(found.vectors) - cleaning.images
    console.print(f"{cleaning.images:,} images of {cleaning.classes:,} labels", style="bold")
    if left:
        console.print(
            f"{left:,} images have no embedding or no label and take no part", style="yellow"
        )
    console.print(summary(cleaning).terminal())
    console.print(examples(cleaning.proposals).terminal())


def summary(cleaning: Cleaning) -> Table[str]:
    """Return how many proposals there are of each kind."""
    counts = Counter(item.kind for item in cleaning.proposals)
    shares = {
        "wrong_label": cleaning.wrong.share,
        "mixture": cleaning.mixtures.share,
        "merge": cleaning.twins.share,
    }

    def share(kind: str) -> str:
        return words.percent(shares[kind]) if kind in shares else ""

    columns: list[Column[str]] = [
        Column("kind", lambda kind: KINDS[kind][0], words=True),
        Column("proposed", lambda kind: f"{counts.get(kind, 0):,}"),  # type: ignore[call-overload]
        Column("share estimated", share),
        Column("what", lambda kind: KINDS[kind][1], words=True),
    ]
    remark = "shares: of images, of labels and of labels, estimated without a threshold"
    return Table("proposals", columns, list(KINDS), [remark])


def examples(proposals: Sequence[Proposal], each: int = 5) -> Table[Proposal]:
    """Return the surest proposals of every kind."""
    rows: list[Proposal] = []
    for kind in KINDS:
        rows += [item for item in proposals if item.kind == kind][:each]
    columns: list[Column[Proposal]] = [
        Column("kind", lambda item: KINDS[item.kind][0], words=True),
        Column("image", lambda item: item.image_id or "all", words=True),
        Column("label", lambda item: item.label, words=True),
        Column("proposed label", lambda item: item.proposed_label or "none: leave out", words=True),
        Column("score", lambda item: f"{item.score:.4f}"),
    ]
    return Table("the surest of each kind", columns, rows)


def main(argv: Sequence[str] | None = None) -> None:
    """Run the command."""
    run_command(clean, argv)
