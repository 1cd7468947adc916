"""``facerec overlap``: who is in two sets of images at once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import tyro

from facerec.base.defaults import OVERLAP_SHARE
from facerec.base.limits import ProperShare
from facerec.commands.cli import Console, command_line, run_command
from facerec.commands.embedder import DEFAULT, Embedder, print_notes, read_stored
from facerec.commands.sources import Kind, kind_of, open_set
from facerec.records.images import ImageSource
from facerec.report import words
from facerec.report.progress import progress_bar

if TYPE_CHECKING:
    from facerec.embedding.extraction import Embeddings


def overlap(
    a: Annotated[Path, tyro.conf.Positional],
    b: Annotated[Path, tyro.conf.Positional],
    csv: Path | None = None,
    page: Path | None = None,
    share: ProperShare = OVERLAP_SHARE,
    embedder: tyro.conf.OmitArgPrefixes[Embedder] = DEFAULT,
) -> None:
    """Find the people of a set A who are probably in a set B, such as a training set and a bench.

    Prints them, the surest first, with how many of the list are expected to be false. No labels
    are needed: the threshold comes from the scores of different people in these two sets. Where
    subjects have names, all images of one are taken together. Relatives, doubles and one person
    under two names are proposed too: look before you leave anybody out.

    Args:
        a: an embeddings file (.npz, .parquet), a record file or its folder, a pack (.bin), or
            a folder of images, whose first folders are taken for subjects.
        b: embeddings of the other set, in any of these forms.
        csv: write the list to this .csv file, for facerec train --data.exclude, and
            NAME.overlap.json beside it, from which facerec verify knows of the overlap.
        page: write an .html page with the two images of each proposal that are most alike; it holds
            photos of people.
        share: share of the list that may be false in expectation, between 0 and 1.
        embedder: how images become embeddings.
    """
    from facerec.embedding.file import is_embeddings
    from facerec.embedding.space import Space
    from facerec.galleries.contact_sheet import SHOWN, faces_of, write_contact_sheet
    from facerec.galleries.overlap import find_overlap
    from facerec.galleries.overlap_report import summary, write_exclusions, write_facts
    from facerec.galleries.tables import overlap_table

    if embedder.model is None:
        embedder.refuse_unused()
    console = Console()

    def prepare(path: Path) -> tuple[Embeddings, ImageSource | None, Mapping[str, Any]]:
        """Return embeddings, their images if they are at hand, and what is known of both."""
        if is_embeddings(path):
            stored = read_stored(path, embedder.column_names, console)
            embeddings = embedder.known(stored, console)
            known = embeddings.note.get("source")
            source = dict(known) if isinstance(known, Mapping) else {}
            kind, at = str(source.get("kind")), Path(str(source.get("path", "")))
            there = bool(page) and kind in ("records", "images", "bench") and at.exists()
            images = open_set(cast(Kind, kind), at).images if there else None
            return embeddings, images, {"path": str(path), **source}
        opened = open_set(kind_of(path), path, on_error=embedder.on_error)
        embeddings = embedder.embed(path, opened.images, console, opened.aligner)
        embeddings = embedder.known(embeddings, console)
        about = {"path": str(path), **opened.description}
        return replace(embeddings, subjects=opened.subjects()), opened.images, about

    opened = [prepare(path) for path in (a, b)]
    first, second = (embeddings for embeddings, *_ in opened)
    print_notes([Space.of(first).compare(Space.of(second), f"{a} and {b}")], console)
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
        held = words.counted(len(side.order), "image"), words.counted(side.classes, "subject")
        console.print(f"{name}: {held[0]} of {held[1]}{lost}")
    if len(result.matches):
        console.print(overlap_table(result, names, 20).terminal())
    console.print(f"{summary(result, names)}.", style="bold")
    if csv is not None:
        # The list comes last: without its facts, verify would not know of it.
        facts = write_facts(csv, result, [source for *_, source in opened], command_line())
        write_exclusions(csv, result)
        console.print(f"list: {csv}, facts: {facts}")
    if page is not None:
        faces = [faces_of(images) for _, images, _ in opened]
        title = f"Overlap of {names[0]} and {names[1]}"
        proposals = {"People in both": overlap_table(result, names, SHOWN, faces)}
        write_contact_sheet(page, title, f"{summary(result, names)}.", proposals)
        console.print(f"page: {page}")


main = partial(run_command, overlap)
