"""``facerec audit-scores``: labelled scores with recorded groups → error rates by group."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path

import tyro

from facerec.base.limits import Number
from facerec.commands.audit import (
    GROUPS,
    Groups,
    files_read,
    fix_on_scores,
    tell_audit,
)
from facerec.commands.cli import Console, exact_rates, named_columns, run_command
from facerec.commands.embedder import print_notes
from facerec.fairness.settings import SETTINGS, AuditSettings


def audit_scores(
    scores: Path,
    out: Path,
    attributes: Path | None = None,
    distances: bool = False,
    threshold: Number | None = None,
    threshold_from: Path | None = None,
    compared: tyro.conf.OmitArgPrefixes[Groups] = GROUPS,
    settings: tyro.conf.OmitArgPrefixes[AuditSettings] = SETTINGS,
) -> None:
    """Audit error rates by recorded groups from scores alone, of any system.

    False match and false non-match rates (FMR, FNMR) by group at one threshold for all, and how far
    they lie apart, each with its interval and counts. Scores tell nothing of norms; see facerec
    audit.

    Args:
        scores: a table with the columns label, score and GROUP, or GROUP_1 and GROUP_2 where the
            two sides of a pair differ (bob's bio_ref_GROUP and probe_GROUP); subjects likewise, by
            the name of --subject.
        out: folder for audit.html, audit.csv, audit.json, pictures and a model card's section.
        attributes: a .csv file of subjects and their groups, if these are not columns of the
            scores.
        distances: the scores are distances: smaller means more alike.
        threshold: a score (or distance), such as that of the system in use: sentences, tables and
            pictures are of rates there; by default at the one of --fmr nearest to 1e-3 that tells
            both rates.
        threshold_from: set the thresholds on these other labelled scores (.csv).
        compared: whose groups are compared, and what tables call their columns.
        settings: error rates, tests and intervals.
    """
    from facerec.fairness.attributes import read_attributes
    from facerec.fairness.page import check_audit_folder
    from facerec.fairness.scores import audit_scores as audit
    from facerec.verification.protocols import read_scores

    console = Console()
    check_audit_folder(out)
    at = -threshold if threshold is not None and distances else threshold
    settings, subject = replace(settings, fmr=exact_rates(settings.fmr)), compared.subject
    groups, called = named_columns(compared.columns, compared.group)
    labels = None
    if attributes is not None:
        inferred = settings.allow_inferred_labels
        labels = read_attributes(attributes, groups, subject=subject, allow_inferred=inferred)
    asked = () if labels is not None else groups
    scored = read_scores(scores, distances=distances, groups=asked, subject=subject, called=called)
    if at is not None and not (scored.scores >= at).any():
        print_notes([f"no score of {scores} reaches --threshold {threshold:g}"], console)
    thresholds = None
    if threshold_from is not None:
        thresholds = fix_on_scores(threshold_from, settings.fmr, distances, called)
    result = audit(
        scored,
        groups,
        name=scores.name,
        settings=settings,
        threshold=at,
        thresholds=thresholds,
        attributes=labels,
        inputs=files_read(scores=scores, attributes=attributes, calibration=threshold_from),
    )
    tell_audit(result, out, console)


main = partial(run_command, audit_scores)
