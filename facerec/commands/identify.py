"""``facerec identify``: who of a gallery is on each image."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import tyro

import facerec
from facerec.base.defaults import IndexKind
from facerec.base.errors import DatasetError, MetricError
from facerec.base.files import write_json
from facerec.base.limits import Cosine, Count, Flags
from facerec.commands.cli import Console, refuse, run_command
from facerec.commands.embedder import LENIENT, Embedder
from facerec.commands.enroll import people_words, print_expired
from facerec.report import words
from facerec.report.progress import progress_bar
from facerec.statistics.operating_points import parse_rate

if TYPE_CHECKING:
    from facerec.galleries.gallery import Identification
    from facerec.galleries.threshold import Fpir

_SHOWN = 20


@dataclass(frozen=True)
class Upgrade(Flags):
    """How a new network searches a gallery of an old one."""

    bridge: Path | None = None
    """What facerec translate wrote: images are embedded by the new network, and translated to
    search the gallery, which the old one filled."""
    strangers: Path | None = None
    """At least 100 photos of people who are not enrolled, such as your own visitors, or their
    embeddings by the new network: the threshold of translated images comes from them alone."""
    old: Path | None = None
    """The gallery of the old network, where --gallery is that of the new one, which is searched
    without translation: who is named by both is named by that. Each takes half of the FPIR."""


def identify(
    images: tyro.conf.Positional[Path],
    gallery: Path,
    fpir: str | None = None,
    threshold: Cosine | None = None,
    candidates: Count = 5,
    among: Count | None = None,
    face: Literal["all", "largest"] = "all",
    index: IndexKind = "exact",
    json: Path | None = None,
    upgrade: tyro.conf.OmitArgPrefixes[Upgrade] = Upgrade(),
    embedder: tyro.conf.OmitArgPrefixes[Embedder] = LENIENT,
) -> None:
    """Search a gallery with every image, and say who it is.

    Each answer has the best candidate's score, its margin to the next one, and, for all alike, the
    FPIR of the threshold in a gallery of this size: the chance that a stranger is taken for
    somebody. Whose enrolment has expired is left out. A score is a cosine; it says how alike two
    faces are, and nothing about whether the face before the camera is alive.

    Args:
        images: a photo, a folder of images, or a file of embeddings (.npz, .parquet).
        gallery: the .npz file that facerec enroll wrote.
        fpir: chance, from 0 to 1, that a stranger is taken for somebody in this gallery; by default
            1e-2. A gallery of few people cannot tell that threshold: without --fpir its candidates
            are then listed and nobody is named.
        threshold: cosine (−1 to 1) from which on somebody is identified.
        candidates: number of candidates to list for each image.
        among: people who may be on an image, each as likely as the others, in the gallery or not:
            where the gallery's model has a calibration (facerec calibrate), the probability that it
            is the best candidate is told. By default one more than the gallery has.
        face: which faces of a photo to search for, where --align names a detector.
        index: how to search: exact looks at everybody; faiss builds an index first, which pays for
            many images and millions of people, and may miss somebody; auto chooses by size.
        json: JSON file to write all answers to.
        upgrade: how a new network searches a gallery of an old one.
        embedder: how images become embeddings.
    """
    from facerec.embedding.photo_faces import PhotoFace
    from facerec.galleries.bridge import FEWEST, Bridge
    from facerec.galleries.gallery import Gallery
    from facerec.galleries.search import faiss

    if index == "faiss":
        faiss.require()
    bridge, strangers, old = upgrade.bridge, upgrade.strangers, upgrade.old
    given = threshold is not None
    refuse(
        {
            "--fpir and --threshold are two ways to say one thing; give one": fpir and given,
            "--strangers and --old go with --bridge": bridge is None and (strangers or old),
            "cosines of two networks have no threshold in common; give --fpir": old and given,
        }
    )
    console = Console()
    sides = {path: Gallery.read(path) for path in (gallery, old) if path is not None}
    space = sides[gallery].space
    if bridge is not None:
        known, last = Bridge.read(bridge), old or gallery
        sides[last], space = sides[last].translated(known), known.new
    if strangers is not None:
        others = embedder.read(strangers, console, space)
        if (usable := len(others.vectors) - len(others.failures)) < FEWEST:
            raise DatasetError(f"{strangers}: {usable} usable photos of strangers; give {FEWEST}")
        sides[last].calibrate(others, where=str(strangers))
    if old is not None:
        space.check(sides[gallery].space, str(gallery), "bridge")
    rate = None if given else parse_rate(fpir or "1e-2") / len(sides)
    points: list[Fpir | float | None] = []
    for path, side in sides.items():
        people = people_words(len(side.current()))
        console.print(f"gallery {path}: {people}, {side.space.name}")
        print_expired(side, path, console)
        if not len(side.current()):
            raise DatasetError(f"{path}: nobody is enrolled, so nobody can be found; enrol people")
        try:  # before the images are embedded
            points.append(side.point(rate, threshold) or threshold)
        except MetricError as problem:
            if fpir is not None:
                raise
            points.append(None)
            how = f"let facerec enroll --gallery {path} --impostors FOLDER find one on"
            how = how if side.bridge is None else "name --strangers,"
            said = f"no threshold is known for {people}: candidates are listed and nobody is named"
            console.print(f"{said}: {problem}, or {how} photos of other people", style="yellow")
    probes = embedder.read(images, console, space, every_face=face == "all")
    assert probes.ids is not None  # the readers see to that
    names = probes.ids.tolist()
    search = partial(Gallery.identify, count=candidates, index=index, among=among)
    with progress_bar(console, "probes") as progress:
        found = [
            search(side, probes, threshold=point, where=str(images), progress=progress)
            for side, point in zip(sides.values(), points, strict=True)
        ]
    if json is not None:  # first, as the reader of a pipe may go away
        places = [place._asdict() for place in probes.faces or map(PhotoFace, names)]
        documents = []
        for path, one in zip(sides, found, strict=True):
            about = {"path": str(path), "people": len(one.subjects)}
            about |= {"expired": len(sides[path].expired), "model": sides[path].space.model}
            documents.append({"gallery": about, "score": "cosine", **one.to_json(places)})
        document = {"facerec": facerec.__version__, **documents[0]}
        document |= {"old": documents[1]} if old is not None else {}
        write_json(json, document, private=True)
        console.print(f"answers: {json}")
    faces = sum(place.face is not None for place in probes.faces)
    for path, one in zip(sides, found, strict=True):
        if old is not None:
            console.print(f"gallery {path}:")
        _print(one, names, faces, console)
        if among is not None and not any(answer.probability for answer in one):
            why = "the gallery has none; it takes that of a calibrated --model that enrols photos"
            if one.score_calibration is not None:
                why = "the calibration is of pairs of photos, and templates of several score higher"
            console.print(f"no likelihood ratio, and so no probability: {why}", style="yellow")


def _print(found: Identification, names: Sequence[str], faces: int, console: Console) -> None:
    """Print how many are identified at which threshold, and the first answers."""
    from facerec.galleries.report import fpir_words
    from facerec.galleries.tables import answers_table

    if found.fpir is not None:
        console.print(fpir_words(found.fpir))
    elif found.threshold is not None:
        console.print(f"threshold {words.threshold(found.threshold)}; its FPIR is not known")
    named = sum(answer.subject is not None for answer in found)
    failed = sum(answer.failure is not None for answer in found)
    what = words.counted(faces, "face") if faces else words.counted(len(names), "image")
    lost = words.counted(failed, "failure")
    console.print(f"{named:,} of {what} identified, {lost} to acquire", style="bold")
    console.print(answers_table(found, names[:_SHOWN]).terminal())
    if found.score_calibration is not None and any(answer.probability for answer in found):
        among = f"probability of the best candidate among {found.among:,} equally likely people"
        basis = f"{found.score_calibration.basis}; templates of several images have none"
        console.print(f"{among}; {basis}", style="dim italic")
    if found.likeness is not None:
        console.print(str(found.likeness), style="dim italic" if found.likeness.alike else "yellow")
    if len(names) > _SHOWN:
        console.print(f"… and {len(names) - _SHOWN:,} more; --json lists all")


main = partial(run_command, identify)
