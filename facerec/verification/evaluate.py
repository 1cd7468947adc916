"""From raw embeddings of labelled pairs to figures, each with its interval, count and source."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from facerec.embedding.extract import extract
from facerec.embedding.model import EmbeddingModel
from facerec.errors import ImageError, MetricError
from facerec.files import sha256
from facerec.records.decode import decode_image
from facerec.records.packs import Pack
from facerec.statistics.intervals import Interval, normal, wilson
from facerec.statistics.kfold import (
    KFoldAccuracy,
    check_folds,
    check_labels,
    fold_indices,
    insightface_accuracy,
    kfold_accuracy,
)
from facerec.statistics.rates import (
    OperatingPoint,
    Rate,
    StepEqualErrorRate,
    parse_rate,
    sort_scores,
)

FPR_TARGETS = ("1e-1", "1e-2", "1e-3", "1e-4")

# Rows that are normalised together, in float64: small enough to stay in a core's cache.
_CHUNK = 512


@dataclass(frozen=True)
class Estimate:
    """A figure and its confidence interval."""

    value: float
    interval: Interval


@dataclass(frozen=True)
class TprEstimate:
    """TPR at an FPR, with Wilson intervals of both rates."""

    point: OperatingPoint
    tpr_interval: Interval
    """Of the TPR, with the threshold taken as given."""
    fpr_interval: Interval
    """Of the FPR that the threshold realises."""


@dataclass(frozen=True)
class NormSummary:
    """Raw embedding norms over the images of all pairs; the mean is insightface's "XNorm"."""

    mean: float
    std: float
    """Standard deviation with ddof 0."""
    interval: Interval
    """Of the mean; images that occur in several pairs count once."""
    values: NDArray[np.float32] = field(repr=False, compare=False)
    """The norms of all images with an embedding; with flip each is the mean of the two views."""

    @property
    def cv(self) -> float:
        """Coefficient of variation, standard deviation over mean."""
        return self.std / self.mean if self.mean > 0 else math.nan


@dataclass(frozen=True)
class Failure:
    """A pair without a score: one of its images has no usable embedding (failure to acquire)."""

    pair: int
    issame: bool
    reason: str


@dataclass(frozen=True)
class VerificationResult:
    """Everything that verification found on one bench."""

    name: str
    same: int
    """Same pairs with a score."""
    different: int
    """Different pairs with a score."""
    accuracy: KFoldAccuracy
    accuracy_interval: Interval
    """Of the share of held-out pairs judged rightly, over all folds together."""
    insightface: KFoldAccuracy | None
    """Accuracy as insightface computes it, if asked for."""
    points: tuple[TprEstimate, ...]
    auc: Estimate
    eer: Estimate
    """On the convex hull of the ROC."""
    eer_step: StepEqualErrorRate
    """Of the step functions, as FVC2000 reports it."""
    d_prime: float
    norms: NormSummary | None
    failures: tuple[Failure, ...]
    notes: tuple[str, ...]
    """What a reader must know to judge the figures, one sentence each."""
    scores: NDArray[np.float32] = field(repr=False, compare=False)
    """Cosine of every pair, ``(n,)``; NaN where there is none."""
    issame: NDArray[np.bool_] = field(repr=False, compare=False)
    flip: bool | None = None
    """Whether the raw embeddings of each image and its mirror image were summed; None: unknown."""
    model: Mapping[str, Any] | None = None
    pack: Mapping[str, Any] | None = None
    """Path and SHA-256 of the pack."""

    def point(self, fpr: Rate) -> TprEstimate:
        """Return the TPR at an FPR that was asked for.

        Raises:
            MetricError: it was not among the targets.
        """
        wanted = parse_rate(fpr)
        for found in self.points:
            if parse_rate(found.point.target) == wanted:
                return found
        targets = ", ".join(found.point.target for found in self.points)
        raise MetricError(f"{self.name}: no TPR was computed at FPR {fpr}, only at {targets}")

    @property
    def positives(self) -> NDArray[np.float32]:
        """Scores of same pairs."""
        return self.scores[self.issame & ~np.isnan(self.scores)]

    @property
    def negatives(self) -> NDArray[np.float32]:
        """Scores of different pairs."""
        return self.scores[~self.issame & ~np.isnan(self.scores)]

    def to_json(self) -> dict[str, Any]:
        """Return all figures with intervals, counts and thresholds as JSON types.

        A TPR that the data cannot resolve is null; a threshold that is not finite is the text
        "inf", "-inf" (accept all) or "nan" (reject all).
        """
        return {
            "bench": self.name,
            "pairs": {
                "same": self.same,
                "different": self.different,
                "failures": [asdict(failure) for failure in self.failures],
            },
            "accuracy": _accuracy(self.accuracy),
            "insightface": None if self.insightface is None else _accuracy(self.insightface),
            "tpr_at_fpr": [_point(estimate) for estimate in self.points],
            "auc": asdict(self.auc),
            "eer": {**asdict(self.eer), "method": "ROC convex hull"},
            "eer_step": {"value": self.eer_step.rate, **asdict(self.eer_step)},
            "d_prime": self.d_prime if math.isfinite(self.d_prime) else None,
            "norms": None if self.norms is None else _norms(self.norms),
            "flip": self.flip,
            "score": "cosine of raw embeddings, float32",
            "model": None if self.model is None else dict(self.model),
            "pack": None if self.pack is None else dict(self.pack),
            "notes": list(self.notes),
        }


def score_pairs(embeddings: ArrayLike) -> NDArray[np.float32]:
    """Return the cosine of every pair, ``(n,)``; NaN where an embedding is zero or not finite.

    Args:
        embeddings: raw, ``(2n, D)``; pair i is rows 2i and 2i + 1. Half precision is widened
            before anything is normalised; sums run in float64.

    Raises:
        MetricError: not a matrix with an even number of rows.
    """
    matrix = np.asarray(embeddings)
    if matrix.ndim != 2 or len(matrix) % 2 or matrix.dtype.kind != "f":
        raise MetricError(
            f"embeddings of pairs have shape (2n, D) and real values, found {matrix.dtype} of "
            f"shape {matrix.shape}"
        )
    scores = np.empty(len(matrix) // 2, np.float32)
    for start in range(0, len(scores), _CHUNK):
        part = slice(start, min(start + _CHUNK, len(scores)))
        rows = matrix[2 * part.start : 2 * part.stop].astype(np.float64)
        with np.errstate(all="ignore"):  # zero and non-finite rows become NaN, which is meant
            norms = np.sqrt(np.einsum("nd,nd->n", rows, rows))
            norms[norms == 0] = np.nan
            cosines = np.einsum("nd,nd->n", rows[0::2], rows[1::2]) / (norms[0::2] * norms[1::2])
        scores[part] = np.clip(cosines, -1, 1)
    return scores


def evaluate(
    embeddings: ArrayLike,
    issame: ArrayLike,
    *,
    name: str,
    norms: ArrayLike | None = None,
    folds: int = 10,
    fpr: Sequence[Rate] = FPR_TARGETS,
    compat: Literal["insightface"] | None = None,
    flip: bool | None = None,
    images: ArrayLike | None = None,
    broken: Mapping[int, str] | None = None,
) -> VerificationResult:
    """Compute all verification figures of one bench.

    A pair with a zero or non-finite embedding has no score: it is a failure to acquire, listed in
    the result and left out of the rates. It keeps its place in the folds.

    Args:
        embeddings: raw, ``(2n, D)``; pair i is rows 2i and 2i + 1.
        issame: whether each pair shows one person, ``(n,)``; its order defines the folds.
        name: name of the bench.
        norms: raw norms of the images, ``(2n,)``; with flip the mean of both views.
        folds: contiguous folds.
        fpr: targets; text is taken exactly.
        compat: ``"insightface"`` adds the accuracy as that project computes it.
        flip: how the embeddings were made, for the record.
        images: any identifier of each image, ``(2n,)``, to find repeated ones.
        broken: row → why it has no embedding, for the list of failures.

    Raises:
        MetricError: shapes that do not fit, an impossible target, or a class without any score.
    """
    matrix = np.asarray(embeddings)
    scores = score_pairs(matrix)
    same = check_labels(issame, scores.size)
    fold_of = fold_indices(scores.size, folds)
    valid = ~np.isnan(scores)
    failures = tuple(
        Failure(pair, bool(same[pair]), _why(matrix, pair, broken or {}))
        for pair in np.flatnonzero(~valid).tolist()
    )
    for label, kind in ((True, "same"), (False, "different")):
        if not np.any(valid & (same == label)):
            total = int((same == label).sum())
            raise MetricError(
                f"{name}: no {kind} pair has a score ({total} in the pack, {len(failures)} pairs "
                "without a usable embedding in all), so no error rate can be computed"
            )

    figures = sort_scores(scores[valid & same], scores[valid & ~same])
    accuracy = kfold_accuracy(scores[valid], same[valid], fold_of[valid])
    compatible = None
    if compat == "insightface":
        compatible = insightface_accuracy(
            matrix[0::2][valid], matrix[1::2][valid], same[valid], fold_of[valid]
        )
    points = [figures.tpr_at_fpr(target) for target in fpr]
    eer = figures.eer_rocch()
    return VerificationResult(
        name=name,
        same=figures.positives.size,
        different=figures.negatives.size,
        accuracy=accuracy,
        accuracy_interval=wilson(accuracy.correct, accuracy.pairs),
        insightface=compatible,
        points=tuple(
            TprEstimate(
                point,
                wilson(point.true_accepts, point.positives),
                wilson(point.false_accepts, point.negatives),
            )
            for point in points
        ),
        auc=Estimate(figures.auc(), figures.auc_interval()),
        eer=Estimate(eer.rate, eer.interval()),
        eer_step=figures.eer_step(),
        d_prime=figures.d_prime(),
        norms=None if norms is None else _summarise_norms(np.asarray(norms), matrix),
        failures=failures,
        notes=tuple(_notes(same, folds, failures, images)),
        flip=flip,
        scores=scores,
        issame=same,
    )


def evaluate_pack(
    model: EmbeddingModel,
    pack: Pack,
    *,
    flip: bool = True,
    folds: int = 10,
    fpr: Sequence[Rate] = FPR_TARGETS,
    compat: Literal["insightface"] | None = None,
    batch_size: int = 64,
    progress: Callable[[int], None] | None = None,
    on_error: Literal["error", "skip"] = "error",
) -> VerificationResult:
    """Embed the distinct images of a pack once each, and compute all figures.

    Args:
        model: uint8 RGB images to raw embeddings.
        pack: encoded image pairs.
        flip: sum the raw embeddings of each image and its mirror image.
        folds: contiguous folds.
        fpr: targets; text is taken exactly.
        compat: ``"insightface"`` adds the accuracy as that project computes it.
        batch_size: images decoded and embedded at once.
        progress: called with the number of images embedded since the last call.
        on_error: what an image that does not decode does: end the evaluation, or make its pairs
            failures to acquire.

    Raises:
        ImageError: an image does not decode and ``on_error`` is ``"error"``.
        MetricError: an impossible target, or a class without any score.
    """
    for target in fpr:
        parse_rate(target)  # before minutes of embedding
    distinct, inverse = pack.distinct()
    broken: dict[int, str] = {}

    def image(index: int) -> NDArray[np.uint8]:
        entry = int(distinct[index])
        try:
            where = f"{pack.path or pack.name}, image {entry} (pair {entry // 2})"
            return decode_image(pack.encoded(entry), where, model.image_size)
        except ImageError as error:
            if on_error == "error":
                raise
            broken[index] = str(error)
            return np.zeros((*model.image_size, 3), np.uint8)  # its embedding is thrown away

    found = extract(
        model, image, len(distinct), flip=flip, batch_size=batch_size, progress=progress
    )
    vectors, norms = found.vectors, found.norms
    vectors[list(broken)] = np.nan
    norms[list(broken)] = np.nan
    result = evaluate(
        vectors[inverse],
        pack.issame,
        name=pack.name,
        norms=norms[inverse],
        folds=folds,
        fpr=fpr,
        compat=compat,
        flip=found.flip,
        images=inverse,
        broken={
            entry: broken[place] for entry, place in enumerate(inverse.tolist()) if place in broken
        },
    )
    source = None
    if pack.path is not None:
        source = {"path": str(pack.path), "sha256": sha256(pack.path)}
    return replace(result, model=model.describe(), pack=source)


def _why(matrix: NDArray[np.floating], pair: int, broken: Mapping[int, str]) -> str:
    """Say which embedding of a pair is missing and why."""
    reasons = []
    for row, place in ((2 * pair, "first"), (2 * pair + 1, "second")):
        if row in broken:
            reasons.append(broken[row])
        elif not np.isfinite(matrix[row]).all():
            reasons.append(f"the embedding of its {place} image is not finite")
        elif not matrix[row].any():
            reasons.append(f"the embedding of its {place} image is zero")
    # An image compared with itself needs to be named once only.
    return "; ".join(dict.fromkeys(reasons)) or "its embeddings exceed the range of numbers"


def _summarise_norms(norms: NDArray[np.floating], matrix: NDArray[np.floating]) -> NormSummary:
    if norms.shape != (len(matrix),):
        raise MetricError(f"norms have shape {norms.shape}, expected ({len(matrix)},)")
    values = norms[np.isfinite(norms)].astype(np.float64)
    mean, std = float(values.mean()), float(values.std())
    # Equal norms are one image in several pairs; counting it again would narrow the interval.
    images = np.unique(values).size
    return NormSummary(mean, std, normal(mean, std / math.sqrt(images)), values.astype(np.float32))


def _notes(
    same: NDArray[np.bool_],
    folds: int,
    failures: Sequence[Failure],
    images: ArrayLike | None,
) -> list[str]:
    """Collect what makes the figures doubtful."""
    notes = []
    if failures:
        notes.append(
            f"{len(failures)} of {same.size} pairs have no score (failure to acquire) and are left "
            f"out of all rates; the first is pair {failures[0].pair}: {failures[0].reason}"
        )
    pairs = None
    if images is not None:
        pairs = np.sort(np.asarray(images).reshape(-1, 2), axis=1)
        selves = np.flatnonzero(pairs[:, 0] == pairs[:, 1])
        if selves.size:
            notes.append(
                f"{selves.size} pairs compare an image with itself, the first is pair {selves[0]}"
            )
        repeated = len(pairs) - len(np.unique(pairs, axis=0))
        if repeated:
            notes.append(f"{repeated} pairs repeat an earlier pair of the same two images")
    return notes + check_folds(same, folds, images=pairs)


def _number(value: float) -> float | str:
    return value if math.isfinite(value) else str(value)


def _accuracy(accuracy: KFoldAccuracy) -> dict[str, Any]:
    return {
        **asdict(accuracy),
        "accuracies": list(accuracy.accuracies),
        "thresholds": [_number(threshold) for threshold in accuracy.thresholds],
        "interval": asdict(wilson(accuracy.correct, accuracy.pairs)),
    }


def _point(estimate: TprEstimate) -> dict[str, Any]:
    point = estimate.point
    return {
        **asdict(point),
        "threshold": _number(point.threshold),
        "tpr": point.tpr if point.resolvable else None,
        "tpr_interval": asdict(estimate.tpr_interval) if point.resolvable else None,
        "fpr_interval": asdict(estimate.fpr_interval),
    }


def _norms(norms: NormSummary) -> dict[str, Any]:
    return {
        "mean": norms.mean,
        "std": norms.std,
        "cv": norms.cv if math.isfinite(norms.cv) else None,
        "interval": asdict(norms.interval),
        "images": norms.values.size,
    }
