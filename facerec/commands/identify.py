"""``facerec identify``: who of a gallery is on each image."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import tyro

import facerec
from facerec.commands.cli import Console, run_command
from facerec.commands.embedder import DEFAULT, Embedder
from facerec.commands.enroll import fpir_words
from facerec.defaults import IndexKind
from facerec.errors import DatasetError, FacerecError, MetricError
from facerec.files import check_file_name, write_json
from facerec.limits import Count, Number
from facerec.report import words
from facerec.report.csv_tables import save_csv
from facerec.report.progress import progress_bar
from facerec.report.table import text_table

if TYPE_CHECKING:
    from facerec.galleries.gallery import Gallery, Identification

_SHOWN = 20


def identify(
    images: tyro.conf.Positional[Path],
    gallery: Path,
    fpir: str | None = None,
    threshold: Number | None = None,
    candidates: Count = 5,
    index: IndexKind = "exact",
    out: Path | None = None,
    json: Path | None = None,
    embedder: tyro.conf.OmitArgPrefixes[Embedder] = DEFAULT,
) -> None:
    """Search a gallery with every image, and say who it is.

    Each answer has the best candidate's score, its margin to the next one, and, for all alike, the
    FPIR of the threshold in a gallery of this size: the chance that a stranger is taken for
    somebody. A score is a cosine; it says how alike two faces are, and nothing about whether the
    face before the camera is alive.

    Args:
        images: a photo, a folder of images, or a file of embeddings (.npz, .parquet).
        gallery: the .npz file that facerec enroll wrote.
        fpir: chance that a stranger is taken for somebody in this gallery; default 1e-2, unless a
            threshold is given. Where the gallery does not tell the threshold of the default, as one
            of few people, candidates are listed and nobody is named.
        threshold: cosine from which on somebody is identified.
        candidates: how many are listed for each image.
        index: exact looks at everybody; faiss takes an index, which is built first, pays for many
            probes on millions of people, and may miss somebody.
        out: write all answers to this .csv file, one row a candidate.
        json: write all answers to this file.
        embedder: how images become embeddings.
    """
    if fpir is not None and threshold is not None:
        raise FacerecError("--fpir and --threshold are two ways to say one thing; give one")
    if out is not None:
        check_file_name(out)
    from facerec.galleries.gallery import Gallery

    console = Console(highlight=False, soft_wrap=True)
    enrolled = Gallery.read(gallery)
    people = words.counted(len(enrolled), "person", "people")
    console.print(f"gallery {gallery}: {people}, {enrolled.space.name}")
    if not len(enrolled):
        raise DatasetError(f"{gallery}: nobody is enrolled, so nobody can be found; enrol people")
    point = None
    try:  # before the images are embedded
        point = enrolled.point(fpir or ("1e-2" if threshold is None else None), threshold)
    except MetricError as problem:
        if fpir is not None:
            raise
        console.print(
            f"no threshold is known for {people}, so candidates are listed and nobody is named: "
            f"{problem}, or let facerec enroll --gallery {gallery} --impostors FOLDER find one on "
            "photos of other people",
            style="yellow",
        )
    probes = embedder.read(images, bool(enrolled.space.flip), None, console, enrolled.space)
    assert probes.ids is not None  # the readers see to that
    names = probes.ids.tolist()
    with progress_bar(console, "probes") as progress:
        identification = enrolled.identify(
            probes,
            threshold=threshold,
            point=point,
            count=candidates,
            index=index,
            where=str(images),
            progress=progress,
        )
    # First, as the reader of a pipe may go away.
    if out is not None:
        save_csv(out, _HEADER, _rows(identification, names))
    if json is not None:
        write_json(json, _to_json(identification, names, gallery, enrolled))
    _print(identification, names, console)
    for path in filter(None, (out, json)):
        console.print(f"answers: {path}")


def _print(identification: Identification, names: Sequence[str], console: Console) -> None:
    if identification.fpir is not None:
        console.print(fpir_words(identification.fpir))
    elif identification.threshold is not None:
        console.print(
            f"threshold {words.threshold(identification.threshold)}; its FPIR is not known, "
            "because the gallery is not calibrated",
            style="yellow",
        )
    named = failed = 0
    for answer in identification:
        named += answer.subject is not None
        failed += answer.failure is not None
    console.print(
        f"{named:,} of {words.counted(len(identification), 'image')} identified, "
        f"{words.counted(failed, 'failure')} to acquire",
        style="bold",
    )
    rows = []
    for name, answer in zip(names[:_SHOWN], identification, strict=False):
        remark = answer.failure or ""
        if not remark and identification.threshold is None:
            remark = ", ".join(f"{each.subject} {each.score:.4f}" for each in answer.candidates)
        elif not remark and answer.subject is None:
            remark = "below the threshold"
        subject = answer.subject or words.NOTHING
        figures = (words.number(value, ".4f") for value in (answer.score, answer.margin))
        rows.append((name, subject, *figures, remark))
    headings = ("image", "subject", "score", "margin", "remark")
    console.print(text_table("", headings, rows, words=("subject", "remark")).terminal())
    if len(identification) > _SHOWN:
        console.print(f"… and {len(identification) - _SHOWN:,} more; --out or --json lists all")


_HEADER = (
    "image_id", "subject_id", "score", "margin", "rank", "candidate", "candidate_score",
    "threshold", "fpir", "fpir_low", "fpir_high", "failure",
)  # fmt: skip


def _rows(identification: Identification, names: Sequence[str]) -> Iterator[Sequence[object]]:
    point = identification.fpir
    fpir = (None, None, None) if point is None else (point.value, point.low, point.high)
    common = identification.threshold, *fpir
    for name, answer in zip(names, identification, strict=True):
        first = name, answer.subject, answer.score, answer.margin
        for rank, candidate in enumerate(answer.candidates, 1):
            yield *first, rank, candidate.subject, candidate.score, *common, None
        if answer.failure is not None:
            yield *first, None, None, None, *common, answer.failure


def _to_json(
    identification: Identification, names: Sequence[str], path: Path, gallery: Gallery
) -> dict[str, object]:
    return {
        "facerec": facerec.__version__,
        "gallery": {"path": str(path), "people": len(gallery), "model": gallery.space.model},
        "score": "cosine",
        "threshold": identification.threshold,
        "fpir": None if identification.fpir is None else identification.fpir.to_json(),
        "answers": [
            {"image_id": name, **answer.to_json()}
            for name, answer in zip(names, identification, strict=True)
        ],
    }


main = partial(run_command, identify)
