"""Error rates by group of subjects at one threshold for all, from scored pairs or from all pairs.

A pair matches if ``score >= threshold``. FMR and FNMR of a group count pairs within the group. One
global threshold comes from calibration data, or else from the impostors of all groups pooled.
Thresholds fixed for one group alone are a diagnostic and never the basis of a decision.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from scipy.special import ndtri

from facerec.defaults import FMR_TARGETS
from facerec.errors import MetricError
from facerec.fairness.pair_counts import (
    ErrorCounts,
    EveryPair,
    GroupAlone,
    LabelledImages,
    PairCounts,
    ScoredPairs,
    SubjectCounts,
)
from facerec.fairness.rate_results import (
    POOLED,
    Calibration,
    DetMark,
    ErrorRate,
    Exclusions,
    GlobalThreshold,
    GroupComposition,
    GroupDet,
    GroupPoint,
    GroupRates,
    GroupThreshold,
    RatesAtThreshold,
    ScoreHistogram,
    error_rate,
    rate_of,
    usable_threshold,
)
from facerec.progress import Progress
from facerec.report.estimate import Estimate
from facerec.statistics.intervals import complement
from facerec.statistics.operating_points import OperatingPoint
from facerec.statistics.rates import operating_points
from facerec.verification.scoring import AllPairs, score_all_pairs

_DET_POINTS = 200
"""Points kept of a DET curve."""

_LACKING = "the group lacks mated pairs or non-mated pairs"


@dataclass(frozen=True, eq=False)
class GroupErrors:
    """Rates to be reported, and the counts by subject that a joint resample needs."""

    rates: GroupRates
    counts: tuple[tuple[SubjectCounts | PairCounts, ...], ...]
    """One a target and group."""
    subjects: int
    """Subjects in all; `SubjectCounts.members` counts among them. 0 where they are not known."""
    histograms: tuple[ScoreHistogram, ...]
    """One a group that has both kinds of pairs."""
    calibration: Calibration
    """The operating points that fix the global thresholds, to use them for other groups too."""

    @property
    def by_subject(self) -> tuple[tuple[SubjectCounts, ...], ...]:
        """``counts`` where subjects are known.

        Raises:
            MetricError: they are not.
        """
        known = tuple(
            tuple(count for count in row if isinstance(count, SubjectCounts)) for row in self.counts
        )
        if not self.subjects:
            raise MetricError("subjects are not known, so nothing can be counted by subject")
        return known


def pair_group_rates(
    scores: ArrayLike,
    first: ArrayLike,
    second: ArrayLike,
    issame: ArrayLike,
    subject: ArrayLike,
    group: ArrayLike,
    names: Sequence[str],
    *,
    targets: Sequence[str] = FMR_TARGETS,
    calibration: Calibration | None = None,
    subjects_known: bool = True,
    seed: int = 0,
) -> GroupErrors:
    """Count errors by group among scored pairs.

    Args:
        scores: similarities, ``(n,)``, NaN where there is none.
        first: image on the first side of each pair, ``(n,)``.
        second: image on the second side, ``(n,)``.
        issame: label of each pair, ``(n,)``.
        subject: code of the subject on each image, ``(m,)``; `UNKNOWN` where not known.
        group: code of the group of each image, 0 to D − 1, ``(m,)``; `UNKNOWN` where not known.
        names: of the groups, D of them.
        targets: nominal FMRs, taken exactly.
        calibration: where the thresholds were fixed; by default on the impostors of the list.
        subjects_known: otherwise the subjects tell mated pairs from others and nothing more, and
            pairs are taken as independent.
        seed: of resamples of pairs, where subjects are not known.

    Raises:
        MetricError: arrays that do not fit, a subject in two groups, a target that is no rate or
            that the calibration lacks, or no mated or no non-mated pair that is left.
    """
    labelled = LabelledImages(subject, group, names)
    independent = None if subjects_known else seed
    pairs = ScoredPairs(scores, first, second, issame, labelled, independent)
    non_mated = pairs.scores[~pairs.same]
    if calibration is None:
        fixed = operating_points(pairs.scores[pairs.same], non_mated, targets)
        source = POOLED
    else:
        fixed = tuple(calibration.point(target) for target in targets)
        source = calibration.source
    return _assemble(
        labelled.names,
        "different pairs of the list, within and between groups",
        pairs.excluded,
        pairs.composition(),
        Calibration(source, tuple(fixed)),
        [pairs.errors(point.threshold) for point in fixed],
        [pairs.alone(code, targets) for code in range(len(labelled.names))],
        pairs.group_of.size if subjects_known else 0,
    )


def all_pairs_group_rates(
    vectors: ArrayLike,
    subject: ArrayLike,
    group: ArrayLike,
    names: Sequence[str],
    *,
    targets: Sequence[str] = FMR_TARGETS,
    calibration: Calibration | None = None,
    device: str | torch.device = "cpu",
    progress: Progress | None = None,
) -> GroupErrors:
    """Compare every image with every other and count errors by group.

    Args:
        vectors: raw embeddings, ``(m, D)``; rows that are zero or not finite are failures.
        subject: see `pair_group_rates`.
        group: see `pair_group_rates`; images without one take no part.
        names: of the groups.
        targets: nominal FMRs, taken exactly.
        calibration: where the thresholds were fixed; by default on all impostors of this data.
        device: where scores are computed.
        progress: see `facerec.progress.Progress`.

    Raises:
        MetricError: as for `pair_group_rates`.
        DeviceError: the device is not there.
    """
    labelled = LabelledImages(subject, group, names)
    rows = np.flatnonzero(labelled.known)
    (errors,) = _score_once(vectors, [labelled], rows, targets, calibration, device, progress)
    if isinstance(errors, MetricError):
        raise errors
    return errors


def all_pairs_rates(
    vectors: ArrayLike,
    subject: ArrayLike,
    groupings: Sequence[tuple[ArrayLike, Sequence[str]]],
    *,
    targets: Sequence[str] = FMR_TARGETS,
    calibration: Calibration | None = None,
    device: str | torch.device = "cpu",
    progress: Progress | None = None,
) -> list[GroupErrors | MetricError]:
    """Compare every image with every other once, and count errors by the groups of each grouping.

    By default the thresholds are fixed on the impostors of all images with a subject, whether they
    have a group or not.

    Args:
        vectors: see `all_pairs_group_rates`.
        subject: see `pair_group_rates`.
        groupings: codes of groups, and their names, see `pair_group_rates`.
        targets: see `all_pairs_group_rates`.
        calibration: see `all_pairs_group_rates`.
        device: see `all_pairs_group_rates`.
        progress: see `all_pairs_group_rates`.

    Returns:
        One a grouping; an error where it has no mated or no non-mated pair.

    Raises:
        MetricError: arrays that do not fit, a subject in two groups of a grouping, a target that is
            no rate, or no mated or no non-mated pair at all.
        DeviceError: the device is not there.
    """
    labelled = [LabelledImages(subject, group, names) for group, names in groupings]
    rows = np.flatnonzero(labelled[0].subject >= 0)
    codes = np.stack([labelled[0].subject, *(one.group for one in labelled)])[:, rows]
    if np.unique(codes, axis=1).shape[1] == np.unique(codes[0]).size:
        return _score_once(vectors, labelled, rows, targets, calibration, device, progress)
    # Some images of a subject lack a label that others have: no cell of groups holds the subject.
    raw = np.asarray(vectors)
    if calibration is None:
        calibration = calibrate(raw[rows], codes[0], targets, device=device, progress=progress)
        if labelled[0].known[rows].all():
            calibration = replace(calibration, source=POOLED)
    return [
        _score_once(raw, [one], np.flatnonzero(one.known), targets, calibration, device, progress)[
            0
        ]
        for one in labelled
    ]


def calibrate(
    vectors: NDArray[np.floating],
    subject: ArrayLike,
    targets: Sequence[str],
    source: str = "this data",
    *,
    device: str | torch.device = "cpu",
    progress: Progress | None = None,
) -> Calibration:
    """Fix thresholds on the impostors among all pairs of images.

    Args:
        vectors: raw embeddings, ``(m, D)``.
        subject: number or name of the subject on each image, ``(m,)``.
        targets: nominal FMRs.
        source: names these data in reports.
        device: see `all_pairs_group_rates`.
        progress: see `all_pairs_group_rates`.

    Raises:
        MetricError: no mated or no non-mated pair, or an impossible target.
        DeviceError: the device is not there.
    """
    pairs = score_all_pairs(
        vectors, subject, fpr=targets, tables_at_points=False, device=device, progress=progress
    )
    return Calibration(f"{source}: {pairs.non_mated:,} non-mated pairs pooled", pairs.points)


def _score_once(
    vectors: ArrayLike,
    labelled: Sequence[LabelledImages],
    rows: NDArray[np.int64],
    targets: Sequence[str],
    calibration: Calibration | None,
    device: str | torch.device,
    progress: Progress | None,
) -> list[GroupErrors | MetricError]:
    """Compare some images with each other, and count errors by every grouping."""
    raw = np.asarray(vectors)
    if raw.shape[:1] != labelled[0].subject.shape:
        raise MetricError(
            f"there are {raw.shape[:1]} embeddings but {labelled[0].subject.size} subjects and "
            "groups; give one each an image"
        )
    thresholds = []
    if calibration is not None:
        points = tuple(calibration.point(target) for target in targets)
        calibration = Calibration(calibration.source, points)
        thresholds = [_reachable(point.threshold) for point in points]
    everyone = score_all_pairs(
        raw[rows],
        labelled[0].subject[rows],
        fpr=targets if calibration is None else (),
        thresholds=thresholds,
        groupings=[one.group[rows] for one in labelled],
        group_fpr=targets,
        device=device,
        progress=progress,
    )
    if calibration is None:
        calibration = Calibration(_pooled(labelled[0], rows, everyone), everyone.points)
    results: list[GroupErrors | MetricError] = []
    for grouping, one in enumerate(labelled):
        try:
            pairs = EveryPair(one, rows[everyone.failures], everyone.by(grouping))
        except MetricError as problem:
            results.append(problem)
            continue
        results.append(
            _assemble(
                one.names,
                "every image with every image of another subject, within and between groups",
                pairs.excluded(),
                pairs.composition(),
                calibration,
                [pairs.errors(table) for table in pairs.pairs.tables],
                [pairs.alone(code) for code in range(len(one.names))],
                pairs.pairs.subjects.size,
            )
        )
    return results


def _pooled(labelled: LabelledImages, rows: NDArray[np.int64], pairs: AllPairs) -> str:
    """Say what thresholds were fixed on: the impostors of all rows."""
    if labelled.known[rows].all():
        return POOLED
    return f"this data: {pairs.non_mated:,} non-mated pairs pooled"


def _assemble(
    names: tuple[str, ...],
    policy: str,
    excluded: Exclusions,
    composition: tuple[GroupComposition, ...],
    fixed: Calibration,
    errors: Sequence[ErrorCounts],
    alone: Sequence[GroupAlone | None],
    subjects: int,
) -> GroupErrors:
    points = tuple(
        RatesAtThreshold(
            threshold=_global_threshold(point, fixed.source),
            fmr=rate_of(counted.overall[0], point.target),
            fnmr=rate_of(counted.overall[1]),
            groups=tuple(
                GroupPoint(
                    name,
                    error_rate(
                        counted.fmr_shares[code, code],
                        counted.false_matches[code, code],
                        counted.non_mated[code, code],
                        point.target,
                    ),
                    error_rate(
                        counted.fnmr_shares[code], counted.missed[code], counted.mated[code]
                    ),
                    _own_threshold(alone[code], index),
                )
                for code, name in enumerate(names)
            ),
            matrix=_matrix(counted),
        )
        for index, (point, counted) in enumerate(zip(fixed.points, errors, strict=True))
    )
    det = tuple(_det(name, alone[code], points, code) for code, name in enumerate(names))
    return GroupErrors(
        GroupRates(names, policy, excluded, composition, points, det),
        tuple(counted.counts for counted in errors),
        subjects,
        tuple(
            ScoreHistogram(name, tuple(group.mated.tolist()), tuple(group.non_mated.tolist()))
            for name, group in zip(names, alone, strict=True)
            if group is not None
        ),
        fixed,
    )


def _global_threshold(point: OperatingPoint, source: str) -> GlobalThreshold:
    value, reason = usable_threshold(point.threshold)
    return GlobalThreshold(
        target=point.target,
        value=value,
        source=source,
        false_matches=point.false_accepts,
        non_mated=point.non_mated,
        resolvable=point.resolvable,
        reliable=point.reliable,
        reason=reason,
    )


def _own_threshold(alone: GroupAlone | None, index: int) -> GroupThreshold:
    if alone is None:
        return GroupThreshold(None, Estimate(None), 0, 0, False, _LACKING)
    point, share = alone.points[index], alone.shares[index]
    counts = point.false_accepts, point.non_mated
    if not point.resolvable:
        few = f"not resolvable with {point.non_mated:,} non-mated pairs"
        return GroupThreshold(None, Estimate(None), *counts, False, few)
    value, reason = usable_threshold(point.threshold)
    missed = None if share is None else share.interval()
    tmr = Estimate(
        point.tpr,
        None if missed is None else complement(missed),
        events=point.true_accepts,
        total=point.mated,
    )
    return GroupThreshold(value, tmr, *counts, True, reason)


def _matrix(counted: ErrorCounts) -> tuple[tuple[ErrorRate, ...], ...]:
    size = range(len(counted.non_mated))
    cells = {
        cell: error_rate(share, counted.false_matches[cell], counted.non_mated[cell])
        for cell, share in counted.fmr_shares.items()
    }
    return tuple(
        tuple(cells[min(first, second), max(first, second)] for second in size) for first in size
    )


def _det(
    name: str, alone: GroupAlone | None, points: Sequence[RatesAtThreshold], code: int
) -> GroupDet:
    marks = tuple(
        DetMark(
            target=point.threshold.target,
            threshold=point.threshold.value,
            fmr=(group := point.groups[code]).fmr.value,
            fnmr=group.fnmr.value,
            x=_probit(group.fmr.value),
            y=_probit(group.fnmr.value),
        )
        for point in points
    )
    if alone is None:
        return GroupDet(name, (), (), (), marks, _LACKING)
    curve = alone.roc.det_points()
    reason = None if curve.x.size else "FMR or FNMR is 0 at every threshold"
    steps = np.abs(np.diff(curve.x)) + np.abs(np.diff(curve.y))
    length = np.concatenate([[0.0], np.cumsum(steps)])[: curve.x.size]
    kept = np.arange(curve.x.size)
    if kept.size > _DET_POINTS:
        # Even steps along the curve, so that rare errors keep their points.
        kept = np.unique(np.searchsorted(length, np.linspace(0, length[-1], _DET_POINTS)))
    return GroupDet(
        name,
        tuple(curve.thresholds[kept].tolist()),
        tuple(curve.x[kept].tolist()),
        tuple(curve.y[kept].tolist()),
        marks,
        reason,
    )


def _reachable(threshold: float) -> float:
    """Return +inf for NaN: both reject every cosine."""
    return math.inf if math.isnan(threshold) else threshold


def _probit(rate: float | None) -> float | None:
    return None if rate is None or rate in (0, 1) else float(ndtri(rate))
