"""``facerec overlap``: who is in two sets of images at once."""

from __future__ import annotations

import math
import shlex
import sys
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tyro

from facerec.commands.cli import Console, run_command
from facerec.commands.embed import Source, open_source
from facerec.commands.embedder import DEFAULT, Embedder
from facerec.commands.models import print_embeddings
from facerec.defaults import OVERLAP_SHARE
from facerec.errors import DatasetError
from facerec.limits import ProperShare
from facerec.records.images import ImageSource
from facerec.report import words
from facerec.report.progress import progress_bar
from facerec.report.table import Cell, text_table
from facerec.shards import is_pattern

if TYPE_CHECKING:
    from facerec.embedding.extraction import Embeddings
    from facerec.galleries.contact_sheet import Face
    from facerec.galleries.overlap import Overlap, Side

_SHOWN = 20


def overlap(
    a: Annotated[Path, tyro.conf.Positional],
    b: Annotated[Path, tyro.conf.Positional],
    csv: Path | None = None,
    page: Path | None = None,
    share: ProperShare = OVERLAP_SHARE,
    flip: bool = True,
    on_error: Literal["error", "skip"] = "error",
    embedder: tyro.conf.OmitArgPrefixes[Embedder] = DEFAULT,
) -> None:
    """Find the people of a set A who are probably in a set B, such as a training set and a bench.

    Prints them, the surest first, with how many of the list are expected to be false. No labels
    are needed: the threshold comes from the scores of different people in these two sets. Where
    subjects have names, all images of one are taken together.

    Args:
        a: an embeddings file (.npz, .parquet), a record file or its folder, a pack (.bin), or
            a folder of images, whose first folders are taken for subjects.
        b: the same, for the other set.
        csv: write the list that facerec train --data.exclude leaves out, and beside it
            NAME.overlap.json, by which facerec verify knows of the overlap.
        page: write an HTML page that shows of each proposal the two images that are most alike; it
            holds photos of people.
        share: of the list, how many may be false in expectation, between 0 and 1.
        flip: sum the raw embeddings of each image and its mirror image.
        on_error: what an image that does not decode does: error ends the command, skip leaves it
            out.
        embedder: how images become embeddings.
    """
    from facerec.embedding.check import check_alike
    from facerec.embedding.file import read_embeddings
    from facerec.galleries.overlap import find_overlap
    from facerec.galleries.overlap_report import summary, write_exclusions, write_facts

    embedder.refuse_unused(flip)
    console = Console(highlight=False, soft_wrap=True)

    def open_set(path: Path) -> tuple[Embeddings, ImageSource | None, Mapping[str, Any]]:
        """Return embeddings, their images if they are at hand, and what is known of both."""
        if not path.exists() and not is_pattern(path):
            raise DatasetError(f"{path}: there is no such file or folder; check the path")
        if holds_embeddings(path):
            embeddings = read_embeddings(path)
            print_embeddings(path, embeddings, console)
            known = embeddings.note.get("source")
            source = dict(known) if isinstance(known, Mapping) else {}
            made_of, at = str(source.get("kind")), Path(str(source.get("path", "")))
            there = bool(page) and made_of in ("records", "images", "bench") and at.exists()
            images = _open(made_of, at, on_error).images if there else None
            return embeddings, images, {"path": str(path), **source}
        kind = kind_of(path)
        embedder.require(path)
        opened = _open(kind, path, on_error)
        embeddings = embedder.embed(
            path, opened.images, flip, console, on_error=on_error, aligner=opened.aligner
        )
        about = {"path": str(path), **opened.description}
        return replace(embeddings, subjects=opened.subjects()), opened.images, about

    opened = [open_set(path) for path in (a, b)]
    first, second = (embeddings for embeddings, *_ in opened)
    check_alike(first, second, f"{a} and {b}")
    names = (a.stem, b.stem) if a.stem != b.stem else (str(a), str(b))
    with progress_bar(console, "tiles") as show:
        result = find_overlap(
            first,
            second,
            share=share,
            device=embedder.device,
            names=(str(a), str(b)),
            progress=show,
        )
    for name, side in zip(names, (result.a, result.b), strict=True):
        lost = f", {side.failures:,} not acquired" if side.failures else ""
        held = words.counted(len(side.rows), "image"), words.counted(len(side), "subject")
        console.print(f"{name}: {held[0]} of {held[1]}{lost}")
    if result.matches:
        console.print(text_table("", *_table(result, names, _SHOWN)).terminal())
    console.print(f"{summary(result, names)}.", style="bold")
    console.print(
        "Relatives, doubles and one person under two names are proposed too, and are not among "
        "those expected to be false: look before you leave anybody out.",
        style="dim italic",
    )
    if csv is not None:
        command = shlex.join([Path(sys.argv[0]).name, *sys.argv[1:]])
        # The list comes last: without its facts, verify would not know of it.
        facts = write_facts(csv, result, [source for *_, source in opened], command)
        write_exclusions(csv, result)
        console.print(f"list: {csv}, facts: {facts}")
    if page is not None:
        from facerec.galleries.contact_sheet import SHOWN, faces_of, write_contact_sheet

        for path, (_, images, _) in zip((a, b), opened, strict=True):
            if images is None:
                console.print(
                    f"note: {path} does not say where its images are, so none are shown",
                    style="yellow",
                )
        faces = [faces_of(images) for _, images, _ in opened]
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


def _open(kind: str, path: Path, on_error: Literal["error", "skip"]) -> Source:
    chosen: dict[str, Any] = {kind: str(path) if kind == "bench" else path}
    return open_source(**chosen, on_error=on_error)


main = partial(run_command, overlap)
