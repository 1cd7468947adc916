"""``facerec audit``: embeddings and recorded attributes → norms and error rates by group."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro

from facerec.base.defaults import AUDIT_FPIR_TARGETS, FMR_TARGETS, PERMUTATIONS, REPLICATES
from facerec.base.errors import DatasetError
from facerec.base.limits import MOST, Cosine, Flags, Limits, Seed
from facerec.commands.cli import Console, command_line, exact_rates, named_columns, run_command
from facerec.commands.sources import open_image_benches
from facerec.report.progress import progress_bar

if TYPE_CHECKING:
    from facerec.fairness.rates import Thresholds
    from facerec.fairness.result import Audit, AuditSettings

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


@dataclass(frozen=True)
class Precision(Flags):
    """How exactly."""

    fmr: tuple[str, ...] = FMR_TARGETS
    """False match rates, as 1e-3,1e-4, at which thresholds are set; never rounded."""
    # The fewest with which a test can reject at 5 %, and with an order statistic in both tails.
    permutations: Annotated[int, Limits(19, MOST)] = PERMUTATIONS
    """Permutations in the test on norms."""
    replicates: Annotated[int, Limits(40, MOST)] = REPLICATES
    """Bootstrap samples of the subjects, for intervals."""
    seed: Seed = 0
    """Seed of permutations and bootstrap samples."""
    intersect: bool = False
    """Also take the combinations of all groups as groups."""
    allow_inferred_labels: bool = False
    """Accept groups of which label_source does not say how they were recorded (self-reported,
    annotated by people, document, study); every page then says so."""

    def settings(self, threshold: float | None) -> AuditSettings:
        """Return what the audit takes of them."""
        from facerec.fairness.result import AuditSettings

        how = exact_rates(self.fmr), self.permutations, self.replicates, self.seed
        return AuditSettings(self.intersect, *how, threshold)


@dataclass(frozen=True)
class OneToMany(Flags):
    """Identification (1:N) by group."""

    one_to_many: bool = False
    """Also audit identification: half of the subjects are enrolled and all are searched for, then
    the other half; FPIR, FNIR and rank 1 by group."""
    fpir: tuple[str, ...] = AUDIT_FPIR_TARGETS
    """With --one-to-many: target FPIRs of the thresholds, as 1e-2,2e-3; never rounded."""
    reference: str | None = None
    """With --one-to-many: group on which thresholds are set too, and with which the others are
    compared; by default the one with most subjects."""


GROUPS, PRECISION = Groups(), Precision()


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
    precision: tyro.conf.OmitArgPrefixes[Precision] = PRECISION,
    searches: tyro.conf.OmitArgPrefixes[OneToMany] = OneToMany(),
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
        precision: error rates, tests and intervals.
        searches: identification (1:N).
    """
    from facerec.embedding.check import ROLES
    from facerec.embedding.file import is_embeddings, read_embeddings
    from facerec.embedding.space import Space
    from facerec.fairness.attributes import read_attributes
    from facerec.fairness.audit import audit_embeddings
    from facerec.fairness.one_to_many import OtherSubjects, SearchPlan
    from facerec.fairness.page import check_audit_folder
    from facerec.fairness.rates import pooled
    from facerec.records.quality import read_quality
    from facerec.verification.scoring import score_all_pairs

    console = Console()
    check_audit_folder(out)
    (groups, called), plan = named_columns(compared.columns, compared.group), None
    stored = {role: called.pop(role) for role in ROLES if role in called}
    settings = precision.settings(threshold)
    if searches != OneToMany():
        plan = SearchPlan(exact_rates(searches.fpir), searches.reference, precision.seed)
        if threshold_from is not None and not is_embeddings(threshold_from):
            raise DatasetError(
                f"{threshold_from}: scores of pairs set no threshold for --one-to-many, which must "
                "hold for the best score in a gallery; give embeddings that say who is on the "
                "images, or leave one of both flags out"
            )
    inferred = precision.allow_inferred_labels
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
    with progress_bar(console) as show:
        thresholds, others = None, None
        if threshold_from is not None and is_embeddings(threshold_from):
            apart = read_embeddings(threshold_from, columns=stored)
            names = f"{threshold_from} and the audited images"
            unknown = NOT_KNOWN if Space.of(apart).compare(Space.of(audited), names) else ""
            others = OtherSubjects.of(apart, threshold_from.name)
            scored = score_all_pairs(
                others.vectors, others.subjects, fpr=settings.targets, progress=show
            )
            thresholds = pooled(f"threshold setting on {others.name}{unknown}", scored.points)
        elif threshold_from is not None:
            thresholds = fix_on_scores(threshold_from, settings.targets)
        result = audit_embeddings(
            audited,
            labels,
            settings=settings,
            pairs=bench,
            thresholds=thresholds,
            baseline=other,
            searches=plan,
            others=others,
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
