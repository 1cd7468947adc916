"""``facerec enroll``: people into a gallery, and out of it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import date, datetime, timezone
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import tyro

from facerec.base.errors import DatasetError
from facerec.base.files import atomic_path
from facerec.base.limits import Count
from facerec.base.names import same_name
from facerec.commands.cli import Console, print_first, refuse, run_command
from facerec.commands.embedder import LENIENT, Embedder, print_notes
from facerec.embedding.align import Detector
from facerec.records.people import read_members
from facerec.report import words
from facerec.report.csv_tables import to_csv
from facerec.report.progress import progress_bar

if TYPE_CHECKING:
    from pandas import DataFrame

    from facerec.galleries.gallery import Enrolment, Gallery


@dataclass(frozen=True)
class Written:
    """What enrolment writes beside the gallery."""

    failures: Path | None = None
    """Write the images that could not be enrolled, and why, to this .csv file."""
    export: Path | None = None
    """Also write all templates to this .parquet file, one row a person, for a database."""


def enroll(
    gallery: Path,
    images: tyro.conf.Positional[Path | None] = None,
    subjects: Path | None = None,
    group: str | None = None,
    impostors: Path | None = None,
    expires: date | None = None,
    expire: bool = False,
    delete: tuple[str, ...] = (),
    old: Path | None = None,
    also: tyro.conf.OmitArgPrefixes[Written] = Written(),
    face: Count | None = None,
    embedder: tyro.conf.OmitArgPrefixes[Embedder] = LENIENT,
) -> None:
    """Enrol people in a gallery file, which is made if it is not there; or delete people from it.

    A person's template is the mean embedding of all their images, which count alike; images of
    somebody who is enrolled already join theirs, and an image counts once. The file knows
    its model and preprocessing and takes no embeddings of another. It also holds how high strangers
    score, from which facerec identify finds its threshold.

    Args:
        gallery: the .npz file; it holds personal data, and only its owner may read it.
        images: a folder of PERSON/image.jpg, or a file of embeddings (.npz, .parquet).
        subjects: a .csv file with the columns image_id and subject_id, in place of folders; or the
            groups.csv of facerec group, with names in subject_id, for the embeddings beside it.
        group: a column of that file, with one value a subject: also say which FPIR the thresholds
            have for strangers of each group, for whom the gallery's own people stand in.
        impostors: images of people who will not be in the gallery, a folder or a file of
            embeddings: their scores tell which threshold gives which FPIR (chance that a stranger
            is taken for somebody). Without any, the gallery's own people stand in for strangers,
            unless impostors did so before.
        expires: the last day (UTC) on which the people of these images are found, as 2027-12-31.
            Without it, people who are enrolled already keep theirs, and new ones have none.
        expire: take out the people whose last day is over.
        delete: people to take out, by name; nothing of them stays in the file.
        old: a gallery of an older network: whoever is enrolled by these images is taken out of it,
            so that in the end nobody is left there (docs: Upgrading the model).
        also: what else is written.
        face: which face of each photo is meant, from the largest on, where --align finds several;
            by default the largest one, and a photo with another of similar size is not enrolled.
        embedder: how images become embeddings.
    """
    from facerec.embedding.placement import alike_note
    from facerec.embedding.space import Space
    from facerec.galleries.alarms import find_alarms
    from facerec.galleries.gallery import Gallery, parquet
    from facerec.galleries.group_table import named_groups
    from facerec.galleries.report import print_groups, print_thresholds

    export = also.export
    detector = embedder.aligner if isinstance(embedder.aligner, Detector) else None
    changes, today = delete or expire, datetime.now(timezone.utc).date()
    nothing = images is None and (expires or not (changes or impostors or export))
    mixed = images is None or subjects is None or impostors
    itself = images is None or (old and old.resolve() == gallery.resolve())
    refuse(
        {
            "there is nothing to do: name images, or people to --delete": nothing,
            f"--expires {expires}: that day is over; give a later one": expires and expires < today,
            "--group goes with images and --subjects, and without --impostors": group and mixed,
            f"{export}: let its name end in .parquet": export and export.suffix != ".parquet",
            f"--old {old}: name images of its people, and another --gallery": old and itself,
            "--face chooses among faces that --align finds; name a detector": face and not detector,
        }
    )
    if old is not None:
        Gallery.read(old)  # before anything is embedded
    if export is not None:
        parquet.require()
    console = Console()
    come: list[str] = []
    groups: dict[str, str] = {}
    # Whoever reads the file to write it again must be alone with it from the first to the last.
    with Gallery.claim(gallery):
        opened = None
        if gallery.exists() or changes or images is None:
            opened = Gallery.read(gallery)
            if expire:
                gone = opened.subjects[opened.expired].tolist()
                console.print(f"expired: {len(gone):,} of {people_words(len(opened))}")
                delete = (*delete, *gone)
            if delete:
                opened.delete(*dict.fromkeys(map(same_name, delete)))
        if images is not None:
            if detector is not None:
                detector.number = face
            embeddings = embedder.read(images, console, None if opened is None else opened.space)
            if subjects is not None:
                assert embeddings.ids is not None
                who, values = named_groups(subjects, embeddings.ids), None
                if who is None:
                    who, values, _ = read_members(subjects, embeddings.ids, group)
                if values is not None:
                    groups = dict(zip(who.tolist(), values.tolist(), strict=True))
                embeddings = replace(embeddings, subjects=who)
            print_notes([alike_note(embeddings, embeddings.subjects)], console)
            opened = opened or Gallery(Space.of(embeddings))
            opened.score_calibration = embedder.worth or opened.score_calibration
            enrolled = opened.enroll(embeddings, str(images), expires)
            come = [*enrolled.enrolled, *enrolled.extended]
            del embeddings
            # What failed is said before anything can go wrong with the file.
            _print_enrolment(enrolled, also.failures, console)
        assert opened is not None
        if detector is not None:
            detector.number = 1  # whoever is a stranger's neighbour is a stranger too
        strangers = None if impostors is None else embedder.read(impostors, console, opened.space)
        with progress_bar(console, "probes") as progress:
            if strangers is None:
                opened.recalibrate(progress)
            else:
                opened.calibrate(strangers, where=str(impostors), progress=progress)
        if not (len(opened) or changes):
            raise DatasetError(f"{images}: nobody could be enrolled, so no gallery is written")
        # All else before the gallery, so that a command that ended early has changed nothing.
        if export is not None:
            opened.export(export)
        now = opened.current()
        with progress_bar(console, "templates") as progress:
            alarms = find_alarms(now, come, progress)
        with console.capture() as found:
            print_expired(opened, gallery, console)
            points = print_thresholds(now.calibration, len(now), console) if len(now) else []
            if group is not None:
                own = [groups.get(name, "") for name in now.subjects.tolist()]
                print_groups(now, own, points, console)
            print_alarms(alarms, len(come), console)
        opened.write(gallery)
    if old is not None:
        with Gallery.claim(old):
            before = Gallery.read(old)
            moved = [name for name in come if name in before]
            before.delete(*moved)
            before.write(old)
        rest = f"{len(before):,} left" if len(before) else f"0 left; nobody needs {old} any more"
        console.print(f"old gallery {old}: {people_words(len(moved))} taken out, {rest}")
    if delete:
        console.print(f"deleted: {', '.join(delete)}")
        files = "embeddings files, in what --export, --failures and facerec identify --json wrote"
        copies = "in reports, in copies of the gallery and in that of another network"
        said = f"they may also be in {files}, {copies}; delete them there too"
        console.print(said, style="yellow")
    held = f"{people_words(len(opened))} with {words.counted(int(opened.images.sum()), 'image')}"
    size = opened.space.embedding_size
    console.print(f"gallery {gallery}: {held}, {size} dimensions", style="bold")
    print(found.get(), end="")
    if export is not None:
        console.print(f"templates: {export}")


def _print_enrolment(enrolled: Enrolment, file: Path | None, console: Console) -> None:
    """Print who is enrolled, and write which images failed."""
    failed = enrolled.failures
    console.print(
        f"{people_words(len(enrolled.enrolled))} enrolled, {len(enrolled.extended):,} extended, "
        f"with {words.counted(enrolled.images, 'image')}; {words.counted(len(failed), 'image')} "
        f"failed, {people_words(len(enrolled.not_enrolled))} not enrolled"
    )
    if enrolled.repeated:
        console.print(f"{words.counted(enrolled.repeated, 'image was', 'images were')} in already")
    lines = [f"not enrolled: {image}: {why}" for image, why in failed.items()]
    print_first(lines, "--failures lists all", console)
    print_first([f"failure to enrol: {name}" for name in enrolled.not_enrolled], "", console)
    if file is not None:
        rows = [{"image_id": image, "failure": why} for image, why in failed.items()]
        with atomic_path(file, private=True) as temporary:
            temporary.write_bytes(to_csv(rows))


def print_expired(gallery: Gallery, path: Path, console: Console) -> None:
    """Say how many people have expired, if anybody has."""
    if gone := len(gallery.expired):
        said = f"the enrolment of {gone:,} of {people_words(len(gallery))} has expired: left out"
        how = f"facerec enroll --gallery {path} --expire takes them out of the file"
        console.print(f"{said}; {how}", style="yellow")


def print_alarms(alarms: DataFrame, asked: int, console: Console) -> None:
    """Name the people whose templates will raise alarms, and say what to do."""
    from facerec.galleries.gallery import CALIBRATION_PROBES

    if asked > CALIBRATION_PROBES:
        console.print(f"the first {CALIBRATION_PROBES:,} were looked at for what raises alarms")
    if len(alarms):
        said = f"false alarms are likely with {people_words(len(alarms))}, too much like others"
        how = "if two names are one person, delete one of them, else enrol other photos"
        console.print(f"{said}; {how}:", style="yellow")
    lines = []
    for alarm in alarms.to_dict("records"):
        many = f"; {alarm['reached']} probes reach {words.threshold(alarm['threshold'])}"
        score = f"cosine {words.number(alarm['cosine'], '.4f')} with {alarm['other']}"
        lines.append(f"{alarm['subject']}: {score}{many if alarm['reached'] > 1 else ''}")
    print_first(lines, "facerec.galleries.find_alarms returns all", console, most=50)


def people_words(count: int) -> str:
    """Return how many people there are."""
    return words.counted(count, "person", "people")


main = partial(run_command, enroll)
