"""``facerec enroll``: people into a gallery, and out of it."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import tyro

from facerec.commands.cli import Console, refuse_unused, run_command
from facerec.commands.embedder import DEFAULT, Embedder
from facerec.errors import DatasetError, FacerecError, MetricError
from facerec.names import same_name
from facerec.report import words
from facerec.report.csv_tables import save_csv
from facerec.report.progress import progress_bar

if TYPE_CHECKING:
    from facerec.galleries.gallery import Enrolment
    from facerec.galleries.threshold import Calibration, Fpir

FPIRS = ("1e-1", "1e-2", "1e-3")

_SHOWN_FAILURES = 10


def enroll(
    gallery: Path,
    images: tyro.conf.Positional[Path | None] = None,
    subjects: Path | None = None,
    flip: bool | None = None,
    impostors: Path | None = None,
    delete: tuple[str, ...] = (),
    failures: Path | None = None,
    export: Path | None = None,
    embedder: tyro.conf.OmitArgPrefixes[Embedder] = DEFAULT,
) -> None:
    """Enrol people in a gallery file, which is made if it is not there; or delete people from it.

    A person's template is the mean of all their images, which count alike; images of somebody who
    is enrolled already join theirs. The file knows model and preprocessing and takes no embeddings
    of others. It also holds how high strangers score, from which facerec identify finds the
    threshold for an FPIR.

    Args:
        gallery: the .npz file; it holds personal data, and only its owner may read it.
        images: a folder PERSON/image.jpg, or a file of embeddings (.npz, .parquet).
        subjects: a .csv file with the columns image_id and subject_id, in place of folders.
        flip: add mirror images; by default as the gallery has it, and yes in a new one.
        impostors: images of people who will not be in the gallery, as a folder or embeddings: their
            scores tell which threshold has which FPIR. Without it, the gallery's own people stand
            in for strangers, unless impostors did so before.
        delete: people to take out, by name; nothing of them stays in the file.
        failures: write the images that could not be enrolled, and why, to this .csv file.
        export: also write all templates to this .parquet file, one row a person, for a database.
        embedder: how images become embeddings.
    """
    from facerec.embedding.file import is_embeddings
    from facerec.galleries.gallery import Gallery
    from facerec.galleries.space import Space

    if images is None and not delete and impostors is None and export is None:
        raise FacerecError("there is nothing to do: name images, or people to --delete")
    for path, suffix in ((export, ".parquet"), (gallery, ".npz")):
        if path is not None and path.suffix.lower() != suffix:
            raise DatasetError(f"{path}: let its name end in {suffix}, as the format is that")
    if images is None or is_embeddings(images):
        refuse_unused("says how photos are embedded, and none are enrolled here", {"--flip": flip})
    console = Console(highlight=False, soft_wrap=True)
    # Whoever reads the file to write it again must be alone with it from the first to the last.
    with Gallery.claim(gallery):
        opened = Gallery.read(gallery) if gallery.exists() else None
        if opened is None and (images is None or delete):
            raise DatasetError(f"{gallery}: there is no such gallery; enrol people first")
        space = None if opened is None else opened.space
        for name in dict.fromkeys(map(same_name, delete)):
            assert opened is not None
            opened.delete(name)
        enrolled = None
        if images is not None:
            mirrored = flip if flip is not None else space is None or bool(space.flip)
            embeddings = embedder.read(images, mirrored, subjects, console, space)
            if opened is None:
                opened = Gallery(Space.of(embeddings))
            enrolled = opened.enroll(embeddings, where=str(images))
            del embeddings
        assert opened is not None
        strangers = None
        if impostors is not None:
            flipped = bool(opened.space.flip)
            strangers = embedder.read(impostors, flipped, None, console, opened.space)
        with progress_bar(console, "probes") as progress:
            if strangers is None:
                opened.recalibrate(progress)
            else:
                opened.calibrate(strangers, where=str(impostors), progress=progress)
        # What failed is said before anything can go wrong with the file.
        if enrolled is not None:
            _print_enrolment(enrolled, console)
            if failures is not None:
                save_csv(failures, ("image_id", "failure"), enrolled.failures.items())
        if not len(opened):
            if not delete:
                raise DatasetError(f"{images}: nobody could be enrolled, so no gallery is written")
            console.print("nobody is left in the gallery")
        # Before the gallery: a command that failed is run again, and its images would join twice.
        if export is not None:
            opened.export(export)
        opened.write(gallery)
    if delete:
        console.print(f"deleted: {', '.join(delete)}")
    images_in = words.counted(int(opened.images.sum()), "image")
    console.print(
        f"gallery {gallery}: {_people(len(opened))} with {images_in}, "
        f"{opened.space.embedding_size} dimensions",
        style="bold",
    )
    if len(opened):
        print_thresholds(opened.calibration, len(opened), console)
    if export is not None:
        console.print(f"templates: {export}")


def _print_enrolment(enrolled: Enrolment, console: Console) -> None:
    failed = len(enrolled.failures)
    console.print(
        f"{_people(len(enrolled.enrolled))} enrolled, {len(enrolled.extended):,} extended, with "
        f"{words.counted(enrolled.images, 'image')}; {words.counted(failed, 'image')} failed, "
        f"{_people(len(enrolled.not_enrolled))} not enrolled"
    )
    for image, why in list(enrolled.failures.items())[:_SHOWN_FAILURES]:
        console.print(f"  not enrolled: {image}: {why}", style="yellow")
    if failed > _SHOWN_FAILURES:
        console.print(f"  … and {failed - _SHOWN_FAILURES:,} more; --failures lists all")
    for name in enrolled.not_enrolled[:_SHOWN_FAILURES]:
        console.print(f"  failure to enrol: {name}", style="yellow")


def _people(count: int) -> str:
    return words.counted(count, "person", "people")


def print_thresholds(calibration: Calibration | None, size: int, console: Console) -> None:
    """Say which thresholds have which FPIR in a gallery of a size."""
    if calibration is None:
        console.print("no calibration: a gallery of one person needs --impostors for an FPIR")
        return
    probes = calibration.note.get("probes", "unknown")
    console.print(
        f"calibrated with {words.counted(len(calibration.scores), 'probe')} ({probes}) on "
        f"{words.counted(calibration.entry_subjects.size, 'template')}"
    )
    for target in FPIRS:
        try:
            console.print(f"  FPIR {target}: {fpir_words(calibration.threshold(target, size))}")
        except MetricError as problem:
            console.print(f"  FPIR {target}: not resolvable ({problem})")


def fpir_words(point: Fpir) -> str:
    """Say threshold, FPIR, interval and method in one line."""
    remark = f"; {point.remark}" if point.remark else ""
    return (
        f"threshold {words.threshold(point.threshold)} has FPIR {words.percent(point.value)} "
        f"{words.percent_limits(point.interval)} among {point.size:,} people "
        f"({point.method}{remark})"
    )


main = partial(run_command, enroll)
