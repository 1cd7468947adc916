"""``facerec translate``: a bridge from a new network to a gallery of the old one."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import tyro

from facerec.commands.cli import Console, print_first, run_command
from facerec.commands.embedder import DEFAULT
from facerec.commands.enroll import people_words
from facerec.report import words

if TYPE_CHECKING:
    from facerec.embedding.extraction import Embeddings


def translate(
    old: tyro.conf.Positional[Path], new: tyro.conf.Positional[Path], gallery: Path, out: Path
) -> None:
    """Let a new network search a gallery of the old one, and say first what that costs.

    A gallery holds no photos, so a new network cannot enrol its people anew. But photos of other
    people, embedded by both networks, teach how to translate from one to the other: a bridge, of
    100 people or more with two photos each (400 are better). With it facerec identify --bridge
    translates what it searches for; the gallery stays as it is.

    The price is measured on people of the bridge whom the map has not seen: how many pairs of
    photos of one person are missed at one FPR if you stay with the old network, if you translate,
    and if everybody were enrolled anew. Above 1 the ratio says: stay, or enrol anew.

    Args:
        old: embeddings of the bridge's photos by the old network, as facerec embed writes them.
        new: embeddings of the same photos, by their ids, by the new network.
        gallery: that will be searched, of the old network; people of the bridge who are in it, by
            their embeddings, are named and left out of the bridge.
        out: the bridge, an .npz file for its owner alone; nobody's embedding is in it.
    """
    from facerec.embedding.file import read_embeddings
    from facerec.galleries.bridge import Bridge

    console = Console()
    mine, theirs = (DEFAULT.known(read_embeddings(path), console) for path in (old, new))
    mine = _not_enrolled(mine, old, gallery, console)
    bridge = Bridge.build(mine, theirs, f"{old} and {new}")
    bridge.write(out)
    price = bridge.price
    used = f"{price.photos:,} photos of {price.people:,} people, which both files name, each once"
    networks = f"from {bridge.new.name} to {bridge.old.name}"
    console.print(f"bridge {out}: {networks}, by {used}", style="bold")
    console.print(f"missed at FPR {price.fpr:.2g}, among people whom the map has not seen:")
    ways = {"stay": price.old, "translate": price.translated, "enrol anew": price.anew}
    for way, missed in ways.items():
        share = words.percent(missed / price.mated)
        console.print(f"  {way:<10} {missed:,} of {price.mated:,} pairs of one person, {share}")
    said = f"{words.UNRESOLVED}: too few are missed; bridge more people, or harder photos"
    if price.ratio is not None and price.low is not None and price.high is not None:
        advice = "stay, or enrol anew" if price.low > 1 else "which of both misses less is open"
        advice = "translate" if price.high < 1 else advice
        said = f"{price.ratio:.2f} [{price.low:.2f}, {price.high:.2f}]: {advice}"
    console.print(f"misses translated over misses of staying {said}", style="bold")
    console.print(
        "that holds for photos like those of the bridge; its people give no threshold, for theirs "
        "may have several times the FPIR that it promises: name facerec identify --strangers"
    )


def _not_enrolled(mine: Embeddings, where: Path, path: Path, console: Console) -> Embeddings:
    """Return embeddings without the names of people who are in a gallery, which it prints."""
    from facerec.embedding.extraction import Embeddings
    from facerec.embedding.space import Space
    from facerec.galleries.gallery import Gallery
    from facerec.galleries.overlap import find_overlap

    gallery = Gallery.read(path)
    gallery.space.check(Space.of(mine), str(where))
    names = gallery.subjects
    enrolled = Embeddings(gallery.templates, gallery.lengths, None, names, names)
    found = find_overlap(mine, enrolled, names=(str(where), str(path)))
    who = found.a.names[found.matches["subject"]], found.b.names[found.matches["other"]]
    both = dict(zip(*who, strict=True))
    if not both or mine.subjects is None:
        return mine
    console.print(f"{people_words(len(both))} left out, who are probably in the gallery:")
    print_first([f"{one}, enrolled as {other}" for one, other in both.items()], "", console)
    gone = np.isin(mine.subjects, [*both])
    return replace(mine, subjects=np.where(gone, "", mine.subjects))


main = partial(run_command, translate)
