"""``facerec audit``: embeddings and recorded attributes → norms and error rates by group."""

from __future__ import annotations

import operator
import re
import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro

from facerec.commands.benches import open_benches
from facerec.commands.cli import Console, listed, listed_rates, refuse_unused, run_command
from facerec.defaults import AUDIT_FPIR_TARGETS, FMR_TARGETS, PERMUTATIONS, REPLICATES
from facerec.errors import DatasetError, MetricError
from facerec.files import sha256
from facerec.limits import MOST, Flags, Limits, Seed
from facerec.report.progress import progress_bar

if TYPE_CHECKING:
    from facerec.fairness.one_to_many import SearchPlan
    from facerec.fairness.rates import Calibration
    from facerec.fairness.result import Audit, Settings
    from facerec.verification.bench import Bench

_RELATIONS: Mapping[str, Callable[[float, float], bool]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
_FIGURES = ("eta2", "p", "fmr_ratio", "fnmr_ratio")
"""What `--assert` knows of the first attribute."""
_ASSERTION = re.compile(
    rf"\s*({'|'.join(_FIGURES)})\s*(<=|>=|<|>)\s*(\d+\.?\d*(?:[eE][-+]?\d+)?)\s*"
)


@dataclass(frozen=True)
class Precision(Flags):
    """How exactly, and from where on it fails."""

    fmr: tuple[str, ...] = FMR_TARGETS
    """Nominal FMRs of the thresholds, as 1e-3,1e-4; taken exactly."""
    # The fewest with which a test can reject at 5 %, and with an order statistic in both tails.
    permutations: Annotated[int, Limits(19, MOST)] = PERMUTATIONS
    """Of the test on norms."""
    replicates: Annotated[int, Limits(40, MOST)] = REPLICATES
    """Resamples of the subjects."""
    seed: Seed = 0
    """Of permutations and resamples."""
    allow_inferred_labels: bool = False
    """Take inferred labels, which puts a banner on every page."""
    assertion: Annotated[tuple[str, ...], tyro.conf.arg(name="assert")] = ()
    """End with status 1 unless this holds, as in eta2<0.01; known of the first attribute are eta2,
    p, fmr_ratio and fnmr_ratio, the highest rate of a group over the lowest at the smallest FMR
    that all groups have errors enough for."""

    def settings(self, intersect: bool) -> Settings:
        """Return what the audit takes of them."""
        from facerec.fairness.result import Settings

        return Settings(
            intersect, listed_rates(self.fmr), self.permutations, self.replicates, self.seed
        )


@dataclass(frozen=True)
class Searches(Flags):
    """Identification (1:N) by group."""

    one_to_many: bool = False
    """Also audit identification: half of the subjects enrolled, searched by all, then the other
    half; FPIR, FNIR and rank 1 by group."""
    fpir: tuple[str, ...] = AUDIT_FPIR_TARGETS
    """Target FPIRs of the thresholds, as 1e-2,2e-3; taken exactly."""
    reference: str | None = None
    """A group on which thresholds are set too, and to which the others are compared; by default
    the one with most subjects."""

    def plan(self, seed: int) -> SearchPlan | None:
        """Return what is asked of identification, if anything.

        Raises:
            DatasetError: a flag that does nothing.
        """
        from facerec.fairness.one_to_many import SearchPlan

        if not self.one_to_many:
            if self != Searches():
                raise DatasetError(
                    "--fpir and --reference belong to --one-to-many; give both or neither"
                )
            return None
        return SearchPlan(listed_rates(self.fpir), self.reference, seed)


PRECISION, SEARCHES = Precision(), Searches()


def audit(
    embeddings: Path,
    attributes: Path,
    group: tuple[str, ...],
    out: Path,
    subject: str = "subject_id",
    intersect: bool = False,
    pairs: str | None = None,
    data: Path | None = None,
    threshold_from: Path | None = None,
    baseline: Path | None = None,
    precision: tyro.conf.OmitArgPrefixes[Precision] = PRECISION,
    searches: tyro.conf.OmitArgPrefixes[Searches] = SEARCHES,
) -> None:
    """Audit embedding norms and error rates by recorded groups of people.

    Answers whether norms differ between groups, whether that can matter, and how FMR and FNMR
    differ at one threshold for all, each with its interval and counts. Groups are given, never
    guessed. The report holds no image, no embedding and no name. Scores without embeddings are
    audited by facerec audit-scores.

    Args:
        embeddings: a file of facerec embed with raw embeddings, or a .parquet table of image_id
            and embedding (a list).
        attributes: a .csv file with the columns image_id, subject_id, label_source and groups.
        group: columns of groups, as gender,race; the first one's η² is the test declared in
            advance.
        out: folder for audit.html, audit.csv, audit.json, pictures and a model card's section.
        subject: column of the subject; image_id counts every image as a subject of its own.
        intersect: make the combinations of all groups groups too.
        pairs: score the pairs of a bench (lfw, cfp_fp, …), a pack (.bin, .npz) or a pair list, in
            place of every image with every other.
        data: folder of the bench; by default FACEREC_DATA and data/ are looked at.
        threshold_from: fix the thresholds on other data: embeddings that say who is on the images,
            or labelled scores (.csv); by default on the non-mated pairs of these data. With
            --one-to-many embeddings of more subjects than an audited gallery holds.
        baseline: embeddings of the same images by another model, such as one trained without SEC:
            say what changed, paired on the same images.
        precision: targets, resamples and assertions.
        searches: what is asked of identification.
    """
    from facerec.embedding.check import check_alike
    from facerec.embedding.file import is_embeddings, read_embeddings
    from facerec.fairness.attributes import read_attributes
    from facerec.fairness.audit import audit as audit_embeddings
    from facerec.fairness.one_to_many import OtherSubjects
    from facerec.fairness.outputs import check_audit_folder
    from facerec.fairness.rates import calibrate

    console = Console(highlight=False)
    check_audit_folder(out)
    asserted = [assertion(text) for text in precision.assertion]
    settings, plan = precision.settings(intersect), searches.plan(precision.seed)
    if plan is not None and threshold_from is not None and not is_embeddings(threshold_from):
        raise DatasetError(
            f"{threshold_from}: scores of pairs set no threshold for --one-to-many, which must "
            "hold for the best score in a gallery; give embeddings that say who is on the images, "
            "or leave one of both flags out"
        )
    inferred = precision.allow_inferred_labels
    labels = read_attributes(attributes, listed(group), subject=subject, allow_inferred=inferred)
    bench = _open_pairs(pairs, data)
    audited = read_embeddings(embeddings)
    other = None if baseline is None else read_embeddings(baseline)
    inputs = files_read(
        embeddings=embeddings, attributes=attributes, calibration=threshold_from, baseline=baseline
    )
    model = audited.note.get("model", {})
    about = {key: model.get(key) for key in ("name", "sha256", "preprocessing")}
    inputs[0] |= {"images": len(audited.vectors), "flip": audited.flip, "model": about}
    with progress_bar(console) as show:
        calibration, others = None, None
        if threshold_from is not None and is_embeddings(threshold_from):
            apart = read_embeddings(threshold_from)
            check_alike(apart, audited, f"{threshold_from} and the audited images")
            others = OtherSubjects.of(apart, threshold_from.name)
            known, source = (others.vectors, others.subjects), f"calibration on {others.name}"
            calibration = calibrate(*known, settings.targets, source, progress=show)
        elif threshold_from is not None:
            calibration = calibrate_on_scores(threshold_from, settings.targets)
        result = audit_embeddings(
            audited,
            labels,
            settings=settings,
            pairs=bench,
            calibration=calibration,
            baseline=other,
            searches=plan,
            others=others,
            inputs=inputs,
            source=str(embeddings),
            progress=show,
        )
    finish(result, out, asserted, console)


def finish(
    result: Audit,
    out: Path,
    asserted: Sequence[Callable[[Audit], str | None]],
    console: Console,
) -> None:
    """Write and print the result, and end with status 1 if an assertion fails."""
    from facerec.fairness.outputs import write_audit
    from facerec.fairness.page import print_audit

    page = write_audit(out, result, shlex.join([Path(sys.argv[0]).name, *sys.argv[1:]]))
    print_audit(result, console)
    console.print(f"report: {page}", soft_wrap=True)
    failed = [text for failure in asserted if (text := failure(result)) is not None]
    for text in failed:
        console.print(f"assertion failed: {text}", style="red", soft_wrap=True)
    if failed:
        raise SystemExit(1)


def assertion(text: str) -> Callable[[Audit], str | None]:
    """Read ``eta2<0.01``; return what says how an audit does not meet that, None if it does."""
    match = _ASSERTION.fullmatch(text)
    if match is None:
        raise MetricError(
            f"--assert {text!r} is not of the form eta2<0.01; known are {', '.join(_FIGURES)}"
        )
    figure, relation, bound = match[1], match[2], float(match[3])

    def failure(audit: Audit) -> str | None:
        value = _figure(audit, figure)
        if value is not None and _RELATIONS[relation](value, bound):
            return None
        found = "but these data do not tell" if value is None else f"found {value:.6g}"
        return f"{figure}{relation}{bound:g}, {found}"

    return failure


def _figure(audit: Audit, name: str) -> float | None:
    """Return a figure of the first attribute; None where there is none."""
    from facerec.fairness import rows as names
    from facerec.fairness.differentials import NAMES, RATIO
    from facerec.fairness.findings import Of, heading

    grouping = audit.groupings[0]
    if name in ("eta2", "p"):
        figure = names.ETA2 if name == "eta2" else names.p_of(names.ETA2)
        return names.number(audit.rows, figure, grouping=grouping)
    of: Of = "FMR" if name == "fmr_ratio" else "FNMR"
    target = heading(audit.rows, grouping, of)
    if target is None:
        return None
    ratio = f"{NAMES[of]} ({of} {RATIO})"
    return names.number(audit.rows, ratio, grouping=grouping, target=target)


def _open_pairs(pairs: str | None, data: Path | None) -> Bench | None:
    """Open a bench, a pack or a pair list; None if none is named."""
    from facerec.verification.protocols import guess_format
    from facerec.verification.templates import TemplateBench

    if pairs is None:
        refuse_unused("is the folder of --pairs, and no bench is named there", {"--data": data})
        return None
    path = Path(pairs)
    is_list = path.suffix not in ("", ".bin", ".npz") and guess_format(path) is not None
    (opened,) = open_benches([], path) if is_list else open_benches([pairs], data=data)
    if isinstance(opened, TemplateBench):
        raise DatasetError(
            f"{opened.name} compares templates, but norms and groups belong to images; leave "
            "--pairs out"
        )
    return opened


def calibrate_on_scores(path: Path, targets: Sequence[str], distances: bool = False) -> Calibration:
    """Fix thresholds on labelled scores of a file."""
    from facerec.fairness.rates import fix_thresholds
    from facerec.verification.protocols import read_scores

    scored = read_scores(path, distances=distances)
    source = f"calibration on {path.name}, of which it is not known whether it is the same model"
    return fix_thresholds(scored.scores, scored.issame, targets, source)


def files_read(**files: Path | None) -> list[dict[str, Any]]:
    """Return role, name and hash of each file."""
    from facerec.embedding.file import embeddings_sha256, is_embeddings

    return [
        {
            "role": role,
            "name": path.name,
            "sha256": embeddings_sha256(path) if is_embeddings(path) else sha256(path),
        }
        for role, path in files.items()
        if path is not None
    ]


main = partial(run_command, audit)
