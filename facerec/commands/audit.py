"""``facerec audit``: embeddings and recorded attributes → norms and error rates by group."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import tyro

from facerec.base.errors import DatasetError
from facerec.base.limits import Cosine, Flags
from facerec.commands.cli import Console, command_line, exact_rates, named_columns, run_command
from facerec.commands.sources import open_image_benches
from facerec.fairness.settings import SETTINGS, AuditSettings, SearchPlan
from facerec.report.progress import progress_bar

if TYPE_CHECKING:
    from facerec.fairness.one_to_many import OtherSubjects
    from facerec.fairness.rates import Thresholds
    from facerec.fairness.result import Audit

NOT_KNOWN = ", of which it is not known whether it is the same model"


@dataclass(frozen=True)
class Groups(Flags):
    """Whose groups are compared, and what tables call their columns."""

    group: tuple[str, ...] = ()
    """Columns of groups, as gender,race; of norms the test declared in advance is between those of
    the first."""
    columns: tuple[str, ...] = ()
    """Columns that the attributes, or a table of scores, call otherwise, as image_id=file,
    subject_id=person or score=similarity; group=Sex is --group Sex, and id, subject and vector are
    those of embeddings."""
    subject: str = "subject_id"
    """Column of the subject; for attributes of images image_id counts every image as a subject of
    its own."""


GROUPS, NO_SEARCHES = Groups(), SearchPlan()


def audit(
    embeddings: Path,
    attributes: Path,
    out: Path,
    pairs: str | None = None,
    data: Path | None = None,
    threshold: Cosine | None = None,
    threshold_from: Path | None = None,
    quality: str | None = None,
    baseline: Path | None = None,
    compared: tyro.conf.OmitArgPrefixes[Groups] = GROUPS,
    settings: tyro.conf.OmitArgPrefixes[AuditSettings] = SETTINGS,
    searches: tyro.conf.OmitArgPrefixes[SearchPlan] = NO_SEARCHES,
) -> Any:
    """Audit embedding norms and error rates by recorded groups of people.

    Answers whether norms differ between groups, whether that can matter, and how false match and
    false non-match rates (FMR, FNMR) differ at one threshold for all, each with its interval and
    counts. Groups are given, never guessed. The report holds no image, no embedding and no name.
    Scores without embeddings are audited by facerec audit-scores.

    Args:
        embeddings: a file of facerec embed with raw embeddings, or a .parquet table with the
            columns image_id and embedding (a list).
        attributes: a .csv file with the columns image_id, subject_id, groups, and label_source,
            which says how these were recorded, as self-reported.
        out: folder for audit.html, audit.csv, audit.json, pictures and a model card's section.
        pairs: score the pairs of a bench (lfw, cfp_fp, …), a pack (.bin, .npz) or a pair list, in
            place of every image with every other.
        data: folder to look for the bench in, before FACEREC_DATA and data/.
        threshold: a cosine, such as that of the system in use: sentences, tables and pictures are
            of rates there; by default at the one of --fmr nearest to 1e-3 that tells both rates.
        threshold_from: set the thresholds on other data: embeddings that say who is on the images,
            or labelled scores (.csv); by default on the non-mated pairs of these data. With
            --one-to-many it takes embeddings of more subjects than an audited gallery holds.
        quality: FILE[:COLUMN], a .csv table of quality scores by another program, as OFIQ's, higher
            is better: they are held against errors beside the raw norms.
        baseline: embeddings of the same images by another model, such as one trained without SEC:
            say what changed, paired on the same images.
        compared: whose groups are compared, and what tables call their columns.
        settings: error rates, tests and intervals.
        searches: identification (1:N).
    """
    from facerec.embedding.check import ROLES
    from facerec.embedding.file import is_embeddings, read_embeddings
    from facerec.embedding.space import Space
    from facerec.fairness.attributes import read_attributes
    from facerec.fairness.audit import audit_embeddings
    from facerec.fairness.one_to_many import OtherSubjects
    from facerec.fairness.page import check_audit_folder
    from facerec.records.quality import read_quality

    console = Console()
    check_audit_folder(out)
    groups, called = named_columns(compared.columns, compared.group)
    stored = {role: called.pop(role) for role in ROLES if role in called}
    settings = replace(settings, fmr=exact_rates(settings.fmr))
    plan = replace(searches, fpir=exact_rates(searches.fpir)) if searches != NO_SEARCHES else None
    if plan and threshold_from is not None and not is_embeddings(threshold_from):
        raise DatasetError(
            f"{threshold_from}: scores of pairs set no threshold for --one-to-many, which must "
            "hold for the best score in a gallery; give embeddings that say who is on the images, "
            "or leave one of both flags out"
        )
    inferred = settings.allow_inferred_labels
    labels = read_attributes(
        attributes, groups, subject=compared.subject, allow_inferred=inferred, called=called
    )
    bench = None if pairs is None else open_image_benches([pairs], data=data)[0]
    audited = read_embeddings(embeddings, columns=stored)
    other = None if baseline is None else read_embeddings(baseline, columns=stored)
    inputs = files_read(
        embeddings=embeddings, attributes=attributes, calibration=threshold_from, baseline=baseline
    )
    qualities = None
    if quality is not None:
        assert audited.ids is not None  # readers of files see to that
        qualities = read_quality(quality, audited.ids)
        inputs += files_read(quality=qualities.path)
    model = audited.note.get("model", {})
    about = {key: model.get(key) for key in ("name", "sha256", "preprocessing")}
    inputs[0] |= {"images": len(audited.vectors), "flip": audited.flip, "model": about}
    thresholds: Thresholds | OtherSubjects | None = None
    if threshold_from is not None and is_embeddings(threshold_from):
        apart = read_embeddings(threshold_from, columns=stored)
        names = f"{threshold_from} and the audited images"
        unknown = NOT_KNOWN if Space.of(apart).compare(Space.of(audited), names) else ""
        thresholds = OtherSubjects.of(apart, f"{threshold_from.name}{unknown}")
    elif threshold_from is not None:
        thresholds = fix_on_scores(threshold_from, settings.fmr)
    with progress_bar(console) as show:
        result = audit_embeddings(
            audited,
            labels,
            settings=settings,
            threshold=threshold,
            thresholds=thresholds,
            pairs=bench,
            baseline=other,
            searches=plan,
            quality=qualities,
            inputs=inputs,
            source=str(embeddings),
            progress=show,
        )
    tell_audit(result, out, console)
    return result


def tell_audit(result: Audit, out: Path, console: Console) -> None:
    """Write and print the result."""
    from facerec.fairness.page import print_audit, write_audit

    page = write_audit(out, result, command_line())
    print_audit(result, console)
    console.print(f"report: {page}")


def fix_on_scores(
    path: Path,
    targets: Sequence[str],
    distances: bool = False,
    called: Mapping[str, str] | None = None,
) -> Thresholds:
    """Return the thresholds that labelled scores of a file fix."""
    from facerec.fairness.rates import fix_thresholds
    from facerec.verification.protocols import read_scores

    scored = read_scores(path, distances=distances, called=called)
    source = f"threshold setting on {path.name}{NOT_KNOWN}"
    return fix_thresholds(scored.scores, scored.issame, targets, source)


def files_read(**files: Path | None) -> list[dict[str, Any]]:
    """Return role, name and hash of each file."""
    from facerec.embedding.file import embeddings_sha256

    return [
        {"role": role, "name": path.name, "sha256": embeddings_sha256(path)}
        for role, path in files.items()
        if path is not None
    ]


main = partial(run_command, audit)
