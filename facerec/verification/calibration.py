"""Calibrations made of all pairs of a set, and judged on the pairs of a bench."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray
from scipy.special import stdtrit

from facerec.backbones.preprocessing import Preprocessing
from facerec.base.defaults import ALL_PAIRS_TARGETS
from facerec.base.errors import MetricError
from facerec.base.progress import Progress
from facerec.base.recipe import from_dict
from facerec.cosines.counts import Sample
from facerec.cosines.tiles import Tile, blocks, total
from facerec.embedding.calibration import ModelCalibration, ScoreCalibration
from facerec.embedding.extraction import Embeddings
from facerec.embedding.face_score import fit_face_score
from facerec.embedding.model import EmbeddingModel
from facerec.embedding.space import Space
from facerec.report.estimate import Estimate, Unit
from facerec.statistics.calibration import (
    CELLS,
    CENTRES,
    LikelihoodRatio,
    ScoreCounts,
    cell_of,
    cllr,
    cost_of,
)
from facerec.statistics.calibration_checks import shift, shift_p_value
from facerec.statistics.clustered import MIN_EFFECTIVE, ClusteredFigure
from facerec.statistics.costs import min_cllr
from facerec.statistics.curves import RocCurve
from facerec.statistics.intervals import Interval
from facerec.statistics.multiplicity import holm
from facerec.statistics.operating_points import Rate
from facerec.verification.result import VerificationResult, stored_thresholds
from facerec.verification.scoring.all_pairs import score_all_pairs

MOST_SUBJECTS = 5000
"""Subjects that are compared, at most; others add little to what so many tell."""
MOST_IMAGES = 5
"""Images of a subject that are compared, at most, so that nobody's comparisons outweigh others'."""

SMALLEST_GROUP = 10
"""Subjects of a group from which on figures are told."""

SEPARATE = 0.97
"""AUC from which on a set without a likelihood ratio still tells thresholds."""

TOLERATED = 1.3
"""Up to this many times the least cost, ratios count as holding."""
FACTOR = 2.0
"""Ratios that are surely wrong by more than this factor do not hold."""


def calibrate_model(
    embeddings: Embeddings,
    subjects: NDArray[np.str_],
    source: str,
    *,
    network: EmbeddingModel | None = None,
    sample: NDArray[np.uint8] | None = None,
    fpr: Sequence[Rate] = ALL_PAIRS_TARGETS,
    groups: NDArray[np.str_] | None = None,
    progress: Progress | None = None,
) -> ModelCalibration:
    """Return all that decides beside a model's weights, from all pairs of some people's images.

    Args:
        embeddings: of a model that its note names.
        subjects: of the images, ``(N,)``; an image of nobody knows whom, empty, is left out.
        source: file or bench that the images come from.
        network: the model; without it nothing tells which pictures it knows as faces.
        sample: some of the faces, uint8 RGB ``(n, H, W, 3)``, see `fit_face_score`.
        fpr: targets whose thresholds are found; those that the images do not carry are left out.
        groups: of the images, ``(N,)``, empty where none is recorded; those of fewer than
            `SMALLEST_GROUP` subjects, or without a mated pair, are left out.
        progress: see `facerec.base.progress.Progress`.

    Raises:
        MetricError: too few subjects, or scores that do not separate, or the wrong way round.
    """
    flip, about, faces = bool(embeddings.flip), embeddings.note["model"], None
    subjects = np.where(np.isfinite(embeddings.norms), subjects, "")
    rows = draw_images(subjects)
    if (people := len(np.unique(subjects[rows]))) < SMALLEST_GROUP:
        raise MetricError(
            f"{source}: {people} people are too few to decide by; calibrate on {SMALLEST_GROUP} or "
            "more, with two photos or more of most"
        )
    if network is not None:
        pictures = None if sample is None or not len(sample) else sample
        vectors = embeddings.vectors[rows]
        faces = fit_face_score(network, vectors, flip=flip, faces=pictures, progress=progress)
        subjects = np.where(faces.far(embeddings.vectors), "", subjects)
        rows = draw_images(subjects)
    vectors, names = embeddings.vectors[rows], subjects[rows]
    counts, worth = count_scores(vectors, names), None
    if (higher := _roc(*counts.totals).auc()) < 0.5:
        raise MetricError(
            f"{source}: images of different people are more alike than those of one (AUC "
            f"{higher:.2f}): who is on the images is the wrong way round, or wrong; mend the labels"
        )
    try:
        ratio = LikelihoodRatio.fit(counts)
        costs = cross_validate(vectors, names, progress=progress)
        # In bits; 1 is what it costs to say nothing.
        tells = ratio.effective >= MIN_EFFECTIVE and costs[0] < 1
    except (MetricError, np.linalg.LinAlgError):
        tells = False
    if tells:
        of_group = np.full(len(names), "") if groups is None else groups[rows]
        worth = ScoreCalibration(
            model={name: about.get(name) for name in ("name", "sha256", "preprocessing")},
            flip=flip,
            source=source,
            ratio=ratio,
            cllr=costs[0],
            least_cllr=costs[1],
            groups=_compare_groups(ratio, _within(vectors, names, of_group)),
        )
    elif higher < SEPARATE:  # else so well that no score is seen of both kinds often enough
        raise MetricError(
            f"{source}: mated and non-mated scores of {len(counts.images)} people do not separate, "
            "or hardly overlap, so that no likelihood ratio can be told; calibrate on more people, "
            "and check the model and who is on the images"
        )
    found = score_all_pairs(vectors, names, fpr=fpr, progress=progress)
    points = (table.estimate() for table in found.tables)
    across, down = about.get("shift") or (0, 0)
    return ModelCalibration(
        sha256=about["sha256"],
        preprocessing=from_dict(Preprocessing, about["preprocessing"], source),
        shift=(across, down),
        flip=flip,
        align=embeddings.note.get("align"),
        source=source,
        thresholds=tuple(stored_thresholds(points, source, flip)),
        faces=faces,
        score_calibration=worth,
    )


def _within(
    vectors: NDArray[np.floating], subjects: NDArray[np.str_], groups: NDArray[np.str_]
) -> dict[str, ScoreCounts]:
    """Count the scores between images of each group that has enough subjects and a mated pair."""
    counted = {}
    for name in np.unique(groups[groups != ""]).tolist():
        inside = groups == name
        people, images = np.unique(subjects[inside], return_counts=True)
        if len(people) >= SMALLEST_GROUP and images.max() > 1:
            counted[name] = count_scores(vectors[inside], subjects[inside])
    return counted


def _compare_groups(
    ratio: LikelihoodRatio, counted: Mapping[str, ScoreCounts]
) -> tuple[dict[str, Any], ...]:
    """Return how well the ratios hold between people of one group, and whether groups differ."""
    values, told, rows, p_values = ratio.log_ratio(CENTRES), ratio.told(), [], []
    found = {name: shift(told, counts) for name, counts in counted.items()}
    shifts = {name: own for name, own in found.items() if own is not None}
    for name, own in shifts.items():
        counts = counted[name]
        cost, interval = cost_of(values, counts)
        others = [
            (other.mated, other.non_mated, other.images)
            for other in (counted[each] for each in shifts if each != name)
        ]
        if others:
            joined = ScoreCounts(*map(np.concatenate, zip(*others, strict=True)))
            p_values.append(shift_p_value(own, shift(told, joined) or own))
        limits = _too_high(own)
        rows.append(
            {
                "group": name,
                "subjects": len(counts.images),
                "mated": int(counts.totals[0].sum()),
                "non_mated": int(counts.totals[1].sum()),
                "cllr": cost,
                "cllr_interval": [interval.low, interval.high],
                "least_cllr": least_cllr(*counts.totals),
                "too_high": limits[0],
                "too_high_interval": [*limits[1:]],
            }
        )
    # Of two groups it is one test, made twice.
    adjusted: Sequence[float | None] = p_values or [None] * len(rows)
    adjusted = holm(p_values) if len(rows) > 2 else adjusted
    return tuple({**row, "p_holm": p} for row, p in zip(rows, adjusted, strict=True))


def _too_high(own: ClusteredFigure) -> tuple[float, float, float]:
    """Return how many times the shown ratios the claimed ones are, with its 95 % interval."""
    freedom = max(1.0, own.effective_subjects - 1)
    margin = float(stdtrit(freedom, 0.975)) * math.sqrt(own.variance)
    value, low, high = np.exp(np.clip([0, -margin, margin], -700, 700) - own.value).tolist()
    return value, low, high


def differing(rows: Sequence[Mapping[str, Any]], groups: NDArray[np.str_]) -> str:
    """Say in which groups ratios hold otherwise than in the others, and of which none can be told.

    Args:
        rows: of the groups that are compared.
        groups: of all images, ``(N,)``, empty where none is recorded.
    """
    told = [row["group"] for row in rows]
    differ = [row["group"] for row in rows if (row["p_holm"] or 1) < 0.05]
    said = "no difference between groups is detected"
    if differ:
        said = f"the ratios do not hold alike in all groups: {', '.join(differ)}"
    elif len(rows) < 2:
        said = "there are no two groups to compare"
    few = [name for name in np.unique(groups[groups != ""]).tolist() if name not in told]
    return said + (f"; too few people or pairs to judge: {', '.join(few)}" if few else "")


def judge(
    result: VerificationResult,
    calibration: ScoreCalibration,
    where: Path,
    groups: NDArray[np.str_] | None = None,
) -> VerificationResult:
    """Return a result with the cost of a calibration's ratios on its pairs, and what it tells.

    Args:
        result: of a bench whose subjects are known.
        calibration: made elsewhere, of the same model.
        where: the calibration comes from.
        groups: of the items, ``(m,)``, empty where none is recorded: also judge pairs within each.

    Raises:
        ModelError: the calibration is of another model, preprocessing or flip.
        MetricError: nobody knows who is on the images.
    """
    known, scored = (Space.of_model(each.model, each.flip) for each in (calibration, result))
    note = known.compare(scored, f"{where} and {result.name}") or calibration.basis
    counts = counts_of(result)
    values, own = calibration.ratio.log_ratio(CENTRES), shift(calibration.ratio.told(), counts)
    cost, interval = cost_of(values, counts)
    # What lies beyond its ends costs the best of ratios that end there the same.
    least = least_cllr(*counts.totals)
    excess = cost - least_cllr(*counts.totals, (float(values[0]), float(values[-1])))
    times, verdict = 1 + excess / least, "whether its ratios hold for these people cannot be told"
    wrong, said = False, "no pairs of both kinds lie between its ends"
    if own is not None:
        value, low, high = _too_high(own)
        wrong = low > FACTOR or high < 1 / FACTOR
        said = (
            f"between its ends its ratios are {value:.2g} [{low:.2g}, {high:.2g}] times those that "
            f"pairs show, and cost {times:.2f} times the least possible"
        )
    if wrong or times - (cost - interval.low) / least > TOLERATED:
        verdict = "its ratios do not hold for these people: calibrate on people like them"
    elif own is not None and times <= TOLERATED:
        verdict = "its ratios hold for these people"
    judged = [note, f"{said}; {verdict}"]
    told = Estimate(cost, interval, unit="bits")
    metrics = {**result.metrics, f"Cllr by {where.name}, bits": told}
    if groups is not None:
        sides = groups[result.pairs.first], groups[result.pairs.second]
        counted: dict[str, ScoreCounts] = {}
        for name in np.unique(groups[groups != ""]).tolist():
            inside = (sides[0] == name) & (sides[1] == name) & ~np.isnan(result.scores)
            same = result.pairs.issame[inside]
            if same.any() and not same.all():
                counts = counts_of(result, inside)
                if len(counts.images) >= SMALLEST_GROUP:
                    counted[name] = counts
        rows = _compare_groups(calibration.ratio, counted)
        shown: tuple[tuple[str, str, Unit], ...] = (
            ("cllr", "Cllr, bits", "bits"),
            ("too_high", "ratios too high by", "times"),
        )
        for row in rows:
            for name, what, unit in shown:
                limits = Interval(*row[f"{name}_interval"])
                metrics[f"{what}: {row['group']}"] = Estimate(row[name], limits, unit=unit)
        judged.append(differing(rows, groups))
    return replace(
        result,
        metrics=metrics,
        calibration=calibration,
        notes=(*result.notes, *(f"{where.name}: {each}" for each in judged)),
    )


def counts_of(result: VerificationResult, chosen: NDArray[np.bool_] | bool = True) -> ScoreCounts:
    """Return pairs of a result that have a score, counted by subject and score.

    Args:
        result: of a bench whose subjects are known.
        chosen: which pairs, ``(n,)``.

    Raises:
        MetricError: nobody knows who is on the images.
    """
    there = chosen & ~np.isnan(result.scores)
    scored, subjects = result.pairs[there].comparisons(result.scores[there])
    if subjects is None:
        raise MetricError(f"{result.name}: nobody says who is on the images; name the subjects")
    numbers = np.unique([scored.first, scored.second], return_inverse=True)[1]
    return ScoreCounts.of_pairs(scored.scores, *numbers.reshape(2, -1))


class _Cells:
    """Counts scores by cell and subject."""

    def __init__(self, sample: Sample) -> None:
        self._sample, shape = sample, (len(sample.labels), CELLS)
        self.mated, self.non_mated = np.zeros(shape, np.int32), np.zeros(shape, np.int32)

    def __call__(self, tile: Tile) -> None:
        cell, subject = cell_of(tile.exact()), self._sample.subject
        first, second = np.broadcast_arrays(subject[tile.rows][:, None], subject[tile.columns])
        kept: Any = slice(None)
        if (masks := self._sample.mated_pairs(tile)) is not None:
            mated, excluded = masks
            self._add(self.mated, first[mated], cell[mated])
            kept = ~excluded
        for side in (first, second):
            self._add(self.non_mated, side[kept].ravel(), cell[kept].ravel())

    @staticmethod
    def _add(
        counts: NDArray[np.int32], subject: NDArray[np.integer], cell: NDArray[np.int64]
    ) -> None:
        if subject.size:
            first = int(subject.min())  # a tile holds few subjects
            size = int(subject.max()) + 1 - first
            flat = np.bincount((subject - first) * CELLS + cell, minlength=size * CELLS)
            counts[first : first + size] += flat.reshape(size, CELLS).astype(np.int32)


def count_scores(vectors: ArrayLike, subjects: ArrayLike) -> ScoreCounts:
    """Compare every image with every other and count the scores by subject.

    Args:
        vectors: raw embeddings, ``(N, D)``.
        subjects: of the images, ``(N,)``.

    Raises:
        MetricError: no mated or no non-mated pair of usable images.
    """
    return _count(Sample(vectors, subjects))


def _count(sample: Sample, spans: NDArray[np.int64] | None = None) -> ScoreCounts:
    """Count the scores of all pairs, or of some tiles, by subject."""
    kernels = sample.tiles.visit(lambda: _Cells(sample), "comparing", spans)
    return ScoreCounts(total(kernels, "mated"), total(kernels, "non_mated"), sample.images)


def draw_images(subjects: NDArray[np.str_]) -> NDArray[np.int64]:
    """Return the rows of at most `MOST_IMAGES` images of at most `MOST_SUBJECTS` subjects.

    Args:
        subjects: of the images, ``(N,)``; those of nobody knows whom, empty, are left out.
    """
    order = np.random.default_rng(0).permutation(np.flatnonzero(subjects != ""))
    subject = pd.factorize(subjects[order].astype(object))[0]  # numbered as they come
    rank = pd.Series(subject).groupby(subject).cumcount().to_numpy()
    return np.sort(order[(subject < MOST_SUBJECTS) & (rank < MOST_IMAGES)])


def cross_validate(
    vectors: NDArray[np.floating],
    subjects: ArrayLike,
    *,
    folds: int = 10,
    progress: Progress | None = None,
) -> tuple[float, float]:
    """Return the Cllr of people whom the calibration does not know, and the least possible there.

    Each fold of subjects is calibrated on all others; the least is that of the best monotone
    calibration of the comparisons within folds which ends at the same ratios.

    Args:
        vectors: raw embeddings, ``(N, D)``.
        subjects: of the images, ``(N,)``.
        folds: their number.
        progress: see `facerec.base.progress.Progress`.

    Raises:
        MetricError: too few subjects, or scores that hardly overlap.
    """
    names, subject = np.unique(np.asarray(subjects), return_inverse=True)
    fold = np.random.default_rng(0).permutation(len(names)) % folds
    # Subjects are numbered fold by fold, so that the images of a fold lie together.
    sample = Sample(vectors, np.argsort(np.argsort(fold, kind="stable"))[subject])
    fold = np.sort(fold)[sample.labels]
    every, values, found = _count(sample), [], []
    for number in range(folds):
        inside = fold == number
        if progress is not None:
            progress("calibrating folds", number, folds)
        start, stop = np.searchsorted(fold[sample.subject], (number, number + 1))
        others = np.concatenate(
            [blocks(start, sample.SIZE), blocks(len(sample.rows) - stop, sample.SIZE) + stop]
        )
        columns = blocks(stop - start, sample.SIZE) + start
        first, second = np.indices((len(others), len(columns))).reshape(2, -1)
        across = _count(sample, np.stack([others[first], columns[second]], axis=1)).non_mated
        # What no comparison across the fold's border is, lies on one side of it.
        within = every.non_mated - across
        known = ScoreCounts(every.mated[~inside], within[~inside], every.images[~inside])
        values.append(LikelihoodRatio.fit(known).log_ratio(CENTRES))
        found.append((every.mated[inside].sum(axis=0) * 1.0, within[inside].sum(axis=0) / 2))
    mated, non_mated = (np.concatenate(side) for side in zip(*found, strict=True))
    same, different = np.sum(found, axis=0)
    least = [least_cllr(same, different, (float(each[0]), float(each[-1]))) for each in values]
    return cllr(np.concatenate(values), mated, non_mated), float(np.mean(least))


def least_cllr(
    mated: NDArray[np.float64],
    non_mated: NDArray[np.float64],
    ends: tuple[float, float] = (-math.inf, math.inf),
) -> float:
    """Return the least Cllr of comparisons counted by cell of the score, ``(CELLS,)`` each.

    Args:
        mated: mated comparisons in each cell.
        non_mated: non-mated comparisons in each cell.
        ends: between which log-likelihood ratios must lie.
    """
    return min_cllr(_roc(mated, non_mated), (math.exp(ends[0]), float(np.exp(ends[1]))))


def _roc(mated: NDArray[np.float64], non_mated: NDArray[np.float64]) -> RocCurve:
    """Return the curve of comparisons counted by cell of the score, ``(CELLS,)`` each."""
    there = np.flatnonzero(mated + non_mated)[::-1]
    true, false = (
        np.concatenate([[0], np.cumsum(side[there])]).astype(np.int64)
        for side in (mated, non_mated)
    )
    thresholds = np.concatenate([[np.inf], CENTRES[there]])
    return RocCurve(thresholds, false, true, int(false[-1]), int(true[-1]))
