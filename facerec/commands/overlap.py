"""``facerec overlap``: who is in two sets of images at once."""

from __future__ import annotations

import math
import shlex
import sys
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tyro

from facerec.commands.cli import Console, run_command
from facerec.commands.embed import Source, open_source
from facerec.commands.models import print_embeddings, print_model, print_notes
from facerec.commands.networks import NETWORK, Network, refuse_network_flags
from facerec.defaults import OVERLAP_SHARE
from facerec.embedding.align import parse_align
from facerec.errors import DatasetError
from facerec.limits import ProperShare
from facerec.progress import section
from facerec.records.images import ImageSource
from facerec.report import words
from facerec.report.progress import progress_bar
from facerec.report.table import Cell, text_table
from facerec.shards import is_pattern

if TYPE_CHECKING:
    from facerec.embedding.extraction import Embeddings
    from facerec.embedding.model import EmbeddingModel
    from facerec.galleries.contact_sheet import Face
    from facerec.galleries.overlap import Overlap, Side

_SHOWN = 20


@dataclass(frozen=True, eq=False)
class OpenSet:
    """One of the two sets."""

    embeddings: Embeddings
    images: ImageSource | None
    """None where an embeddings file does not say where they are, or they are no more there."""
    source: Mapping[str, Any]
    """Kind, path, and what else is known, as JSON types."""


def overlap(
    a: Annotated[Path, tyro.conf.Positional],
    b: Annotated[Path, tyro.conf.Positional],
    model: Path | None = None,
    csv: Path | None = None,
    page: Path | None = None,
    share: ProperShare = OVERLAP_SHARE,
    flip: bool = True,
    align: str | None = None,
    on_error: Literal["error", "skip"] = "error",
    network: tyro.conf.OmitArgPrefixes[Network] = NETWORK,
) -> None:
    """Find the people of a set A who are probably in a set B, such as a training set and a bench.

    Prints them, the surest first, with how many of the list are expected to be false. No labels
    are needed: the threshold comes from the scores of different people in these two sets. Where
    subjects have names, all images of one are taken together.

    Args:
        a: an embeddings file (.npz, .parquet), a record file or its folder, a pack (.bin), or
            a folder of images, whose first folders are taken for subjects.
        b: the same, for the other set.
        model: a run folder, a .safetensors, .pth or .onnx file that embeds images; embeddings files
            need none.
        csv: write the list that facerec train --data.exclude leaves out, and beside it
            NAME.overlap.json, by which facerec verify knows of the overlap.
        page: write an HTML page that shows of each proposal the two images that are most alike; it
            holds photos of people.
        share: of the list, how many may be false in expectation, between 0 and 1.
        flip: sum the raw embeddings of each image and its mirror image.
        align: find the face in photos of any size: a .csv of points, insightface, or a YuNet file.
        on_error: what an image that does not decode does: error ends the command, skip leaves it
            out.
        network: how the network is loaded.
    """
    from facerec.embedding.check import check_alike
    from facerec.embedding.extraction import embed_images
    from facerec.embedding.file import read_embeddings
    from facerec.galleries.overlap import find_overlap
    from facerec.galleries.overlap_report import summary, write_exclusions, write_facts

    if model is None:
        refuse_network_flags(network, flip, align, None)
    console = Console(highlight=False, soft_wrap=True)

    loaded: EmbeddingModel | None = None

    def open_set(path: Path) -> OpenSet:
        nonlocal loaded
        if not path.exists() and not is_pattern(path):
            raise DatasetError(f"{path}: there is no such file or folder; check the path")
        if holds_embeddings(path):
            embeddings = read_embeddings(path)
            print_embeddings(path, embeddings, console)
            known = embeddings.note.get("source")
            source = dict(known) if isinstance(known, Mapping) else {}
            return OpenSet(embeddings, _images_of(source, on_error) if page else None, source)
        kind = kind_of(path)
        if model is None:
            raise DatasetError(
                f"{path}: to embed its images takes a model; name one with --model, or give an "
                "embeddings file"
            )
        opened = _open(kind, path, on_error)
        print_notes(opened.images.notes, console)
        if loaded is None:
            loaded = network.load(model)
            print_model(loaded, flip, parse_align(align), console)
        aligner = parse_align(align) or opened.aligner
        with progress_bar(console, "images") as show:
            embedded = embed_images(
                loaded,
                opened.images,
                flip=flip,
                align=aligner,
                batch_size=network.batch_size,
                on_error=on_error,
                progress=section(show, f"embedding {path.name}"),
            )
        return OpenSet(
            replace(embedded, subjects=opened.subjects()), opened.images, opened.description
        )

    first, second = open_set(a), open_set(b)
    check_alike(first.embeddings, second.embeddings, f"{a} and {b}")
    names = (a.stem, b.stem) if a.stem != b.stem else (str(a), str(b))
    with progress_bar(console, "tiles") as show:
        result = find_overlap(
            first.embeddings,
            second.embeddings,
            share=share,
            device=network.device,
            names=(str(a), str(b)),
            progress=show,
        )
    for name, side in zip(names, (result.a, result.b), strict=True):
        lost = f", {side.failures:,} not acquired" if side.failures else ""
        held = words.counted(len(side.rows), "image"), words.counted(len(side), "subject")
        console.print(f"{name}: {held[0]} of {held[1]}{lost}")
    table = text_table("", *_table(result, names, _SHOWN))
    if result.matches:
        console.print(table.terminal())
    console.print(f"{summary(result, names)}.", style="bold")
    console.print(
        "Relatives, doubles and one person under two names are proposed too, and are not among "
        "those expected to be false: look before you leave anybody out.",
        style="dim italic",
    )
    sources = [{"path": str(path), **each.source} for path, each in ((a, first), (b, second))]
    given = sys.argv[1:]
    command = shlex.join(["facerec", *(["overlap"] if given[:1] != ["overlap"] else []), *given])
    if csv is not None:
        # The list comes last: without its facts, verify would not know of it.
        facts = write_facts(csv, result, sources, command)
        write_exclusions(csv, result)
        console.print(f"list: {csv}, facts: {facts}")
    if page is not None:
        from facerec.galleries.contact_sheet import SHOWN, faces_of, write_contact_sheet

        faces = faces_of(first.images), faces_of(second.images)
        for path, each in ((a, first), (b, second)):
            if each.images is None:
                console.print(
                    f"note: {path} does not say where its images are, so none are shown",
                    style="yellow",
                )
        title = f"Overlap of {names[0]} and {names[1]}"
        proposals = {"People in both": _table(result, names, SHOWN, faces)}
        write_contact_sheet(page, title, f"{summary(result, names)}.", proposals)
        console.print(f"page: {page}")


def _table(
    overlap: Overlap,
    names: tuple[str, str],
    most: int,
    faces: Sequence[Face] = (lambda name: "", lambda name: ""),
) -> tuple[Sequence[str], list[Sequence[Cell | str]]]:
    """Return headings and rows of the proposals, the surest first."""

    def cell(side: Side, subject: int, image: int, face: Face) -> Cell:
        count = words.counted(int(side.images[subject]), "image")
        return Cell(str(side.names[subject]), count, face(str(side.ids[image])))

    rows: list[Sequence[Cell | str]] = [
        (
            cell(overlap.a, match.subject, match.images[0], faces[0]),
            cell(overlap.b, match.other, match.images[1], faces[1]),
            f"{match.cosine:.3f}",
            f"1e{match.log_p / math.log(10):.0f}",
            f"{match.expected_false:.2g}",
        )
        for match in overlap.matches[:most]
    ]
    first, second = f"subject of {names[0]}", f"probably in {names[1]} as"
    return (first, second, "cosine", "p", "expected false so far"), rows


def holds_embeddings(path: Path) -> bool:
    """Tell embeddings from packs, which may both end in ``.npz``, by what is in the file."""
    from facerec.embedding.check import VECTORS
    from facerec.embedding.file import is_embeddings

    if path.suffix.lower() == ".npz" and path.is_file():
        try:
            with zipfile.ZipFile(path) as archive:
                names = {name.removesuffix(".npy") for name in archive.namelist()}
        except (OSError, zipfile.BadZipFile):
            return True  # whose reader says what is wrong
        # A gallery is none, which its reader says.
        return bool(names & {*VECTORS, "templates"})
    return is_embeddings(path)


def kind_of(path: Path) -> str:
    """Return the flag of ``facerec embed`` that takes such a path: records, images or bench."""
    from facerec.records.tar_shards import is_tar_shards

    if path.suffix == ".rec" or (path.is_dir() and any(path.glob("*.rec"))) or is_tar_shards(path):
        return "records"
    if path.is_dir():
        return "images"
    if path.suffix in (".bin", ".npz"):
        return "bench"
    raise DatasetError(
        f"{path}: neither embeddings (.npz, .parquet) nor records (.rec), a pack (.bin) or a "
        "folder, nor WebDataset shards (.tar); check the path"
    )


def _images_of(source: Mapping[str, Any], on_error: Literal["error", "skip"]) -> ImageSource | None:
    """Open the images that embeddings were made of, if they are still where they were."""
    path = Path(str(source.get("path", "")))
    kind = source.get("kind")
    if kind not in ("records", "images", "bench") or not path.exists():
        return None
    return _open(kind, path, on_error).images


def _open(kind: str, path: Path, on_error: Literal["error", "skip"]) -> Source:
    chosen: dict[str, Any] = {kind: str(path) if kind == "bench" else path}
    return open_source(**chosen, on_error=on_error)


main = partial(run_command, overlap)
