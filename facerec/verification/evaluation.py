"""From scores of labelled pairs to figures, each with its interval, count and source."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray
from scipy.special import stdtrit

from facerec.base.defaults import FPR_TARGETS, Compat
from facerec.base.errors import MetricError
from facerec.base.large_arrays import take
from facerec.cosines.unit_rows import score_pairs
from facerec.embedding.extraction import Embeddings, embed_images
from facerec.embedding.model import EmbeddingModel
from facerec.report import words
from facerec.report.estimate import Estimate
from facerec.statistics.costs import min_cllr, min_dcf
from facerec.statistics.influences import ScoredComparisons
from facerec.statistics.intervals import Interval, wilson
from facerec.statistics.kfold import (
    KFoldAccuracy,
    check_folds,
    insightface_accuracy,
    kfold_accuracy,
)
from facerec.statistics.operating_points import Rate
from facerec.statistics.rates import turned
from facerec.verification.bench import INFERRED, Bench, Pairs, dependence, find_subjects
from facerec.verification.result import Failure, TprEstimate, VerificationResult

PRIORS = ("0.01", "0.001")
"""Prior probabilities of a mated pair for the detection cost, as NIST's evaluations use."""
AREAS = ("1e-1", "1e-2")
"""FPRs up to which partial areas go."""

XNORM = "norm, insightface’s “XNorm”"


def evaluate(
    scores: ArrayLike,
    pairs: Pairs,
    *,
    name: str,
    fpr: Sequence[Rate] = FPR_TARGETS,
    reasons: Mapping[int, str] | None = None,
    notes: Sequence[str] = (),
    subjects_from: str | None = None,
    items: NDArray[np.str_] | None = None,
    **facts: Any,
) -> VerificationResult:
    """Compute all verification figures of scored pairs.

    A pair without a score (NaN) is a failure to acquire, listed in the result and left out of the
    rates. It keeps its place in the folds. Where the subjects of the pairs are known, intervals
    allow for pairs that share a subject.

    Args:
        scores: similarities, ``(n,)``.
        pairs: labels, folds and subjects.
        name: of the bench.
        fpr: targets; text is taken exactly.
        reasons: pair → why it has no score, for the list of failures.
        notes: remarks on the bench, to be passed on.
        subjects_from: how subjects are known, see `Bench`.
        items: ids of the images, ``(m,)``, to name them in notes.
        facts: further fields of the result, such as what a score is.

    Raises:
        MetricError: shapes that do not fit, an impossible target, or a class without any score.
    """
    values, same = np.asarray(scores), pairs.issame
    failures = tuple(
        Failure(pair, bool(same[pair]), (reasons or {}).get(pair, "its score is missing"))
        for pair in np.flatnonzero(np.isnan(values) & ~pairs.itself).tolist()
    )
    values = np.where(pairs.itself, np.float32(np.nan), values)
    valid = ~np.isnan(values)
    if (said := turned(values, same)) and not any(said in note for note in notes):
        notes = (*notes, f"{said}; the labels may be the wrong way round")
    for kind, scored in (("same", valid & same), ("different", valid & ~same)):
        if not scored.any():
            why = "".join(f"; pair {lost.pair}: {lost.reason}" for lost in failures[:1])
            raise MetricError(
                f"{name}: no {kind} pair has a score, so no error rate can be computed{why}"
            )
    kept = pairs[valid]
    scored, subjects = kept.comparisons(values[valid])
    accuracy, by_fold = None, {}
    if kept.folds is not None:
        by_fold["accuracy"], right = held_out(scored, kept.folds)
        around = (
            wilson(int(right.sum()), right.size)
            if subjects is None
            else scored.interval(scored.mean(right))
        )
        accuracy = _over_folds(by_fold["accuracy"], around)
    auc, eer = scored.auc(), scored.eer()
    return VerificationResult(
        name=name,
        pairs=pairs,
        scores=values,
        mated=scored.mated.size,
        non_mated=scored.non_mated.size,
        accuracy=accuracy,
        folds=by_fold,
        points=tuple(_tpr_at(scored, target) for target in fpr),
        auc=Estimate(auc[0], scored.interval(auc), unit="area"),
        eer=Estimate(eer[0], scored.interval(eer)),
        failures=failures,
        notes=(*notes, *_notes(pairs, failures, items, accuracy)),
        basis=dependence(subjects, subjects_from),
        subjects=subjects,
        items=items,
        metrics=_further(scored),
        **facts,
    )


def held_out(
    scored: ScoredComparisons, folds: NDArray[np.int64]
) -> tuple[KFoldAccuracy, NDArray[np.bool_]]:
    """Return the accuracy over folds, and which comparisons the threshold of the others judges."""
    accuracy = kfold_accuracy(scored.scores, scored.same, folds)
    accepted = scored.scores >= np.asarray(accuracy.thresholds)[folds]
    return accuracy, accepted == scored.same


def evaluate_embeddings(
    embeddings: Embeddings,
    bench: Bench,
    *,
    fpr: Sequence[Rate] = FPR_TARGETS,
    compat: Compat | None = None,
) -> VerificationResult:
    """Score the pairs of a bench and compute all figures.

    Where the bench knows subjects by nothing but its same pairs, and the embeddings name the
    subject on each image without contradicting a label, those names count. Embeddings are in the
    order of the bench's images (see `select_embeddings`); ``compat`` adds the accuracy
    as that project computes it; all else is as in `evaluate`.

    Raises:
        MetricError: an impossible target, or a class without any score.
    """
    vectors, pairs = embeddings.vectors, bench.pairs
    subjects_from, notes = bench.subjects_from, bench.notes
    # An embeddings file of such a bench holds what the pairs tell, and nothing more.
    named = embeddings.note.get("source", {}).get("subjects_from") != INFERRED
    if subjects_from == INFERRED and named and embeddings.subjects is not None:
        pairs, subjects_from, remarks = find_subjects(
            pairs, len(vectors), embeddings.subjects, "the embeddings file"
        )
        notes = (*notes, *remarks)
    scores = score_pairs(vectors, pairs.first, pairs.second)
    missing = np.flatnonzero(np.isnan(scores)).tolist()
    result = evaluate(
        scores,
        pairs,
        name=bench.name,
        fpr=fpr,
        reasons={pair: _why(embeddings, pairs, pair) for pair in missing},
        notes=notes,
        subjects_from=subjects_from,
        items=bench.images.ids,
        norms=embeddings.norms,
        flip=embeddings.flip,
        align=embeddings.note.get("align"),
        source=bench.source or None,
    )
    metrics, folds = {**result.metrics, **_norms(embeddings.norms, pairs)}, {**result.folds}
    kept = pairs[~np.isnan(result.scores)]
    if compat is not None and kept.folds is not None:
        sides = vectors[kept.first], vectors[kept.second]
        found = folds["insightface"] = insightface_accuracy(*sides, kept.issame, kept.folds)
        around = wilson(found.correct, found.pairs)
        metrics["accuracy as insightface’s"] = _over_folds(found, around)
    return replace(result, metrics=metrics, folds=folds)


def evaluate_bench(
    model: EmbeddingModel,
    bench: Bench,
    *,
    flip: bool = True,
    fpr: Sequence[Rate] = FPR_TARGETS,
    compat: Compat | None = None,
    **how: Any,
) -> VerificationResult:
    """Embed each image of a bench once, and compute all figures as `evaluate_embeddings` does.

    With ``flip`` the raw embeddings of each image and its mirror image are summed. All else is
    given to `facerec.embedding.extraction.embed_images`: ``align``, ``batch_size``, ``progress``
    and ``on_error``, by which an image that does not decode ends the evaluation or, with "skip",
    makes its pairs failures to acquire.

    Raises:
        ImageError: an image does not decode and is not skipped.
        MetricError: an impossible target, or a class without any score.
    """
    embeddings = embed_images(model, bench.images, flip=flip, **how)
    result = evaluate_embeddings(embeddings, bench, fpr=fpr, compat=compat)
    return replace(result, model=model.describe())


def rows_of(embeddings: Embeddings, wanted: NDArray[np.str_], name: str) -> NDArray[np.int64]:
    """Return the rows of the embeddings of ``wanted`` images, ids ``(m,)``; ``name`` is for errors.

    Raises:
        MetricError: one of the images has no embedding.
    """
    assert embeddings.ids is not None  # readers of files see to that
    rows = pd.Index(embeddings.ids).get_indexer(pd.Index(wanted)).astype(np.int64)
    absent = np.flatnonzero(rows < 0)
    if absent.size:
        raise MetricError(
            f"{name}: {absent.size:,} of its {len(wanted):,} images have no embedding, the first "
            f"is {str(wanted[absent[0]])!r}; the first of {len(embeddings.ids):,} embeddings is of "
            f"{str(embeddings.ids[0])!r} (ids must be equal to the letter)"
        )
    return rows


def select_embeddings(embeddings: Embeddings, wanted: NDArray[np.str_], name: str) -> Embeddings:
    """Pick the embeddings of ``wanted`` images, ids ``(m,)``, in their order.

    Raises:
        MetricError: one of the images has no embedding.
    """
    rows = rows_of(embeddings, wanted, name)
    lost = embeddings.failures
    return replace(
        embeddings,
        vectors=take(embeddings.vectors, rows),
        norms=embeddings.norms[rows],
        face_scores=None if embeddings.face_scores is None else embeddings.face_scores[rows],
        ids=wanted,
        failures={place: lost[row] for place, row in enumerate(rows.tolist()) if row in lost},
        subjects=None if embeddings.subjects is None else embeddings.subjects[rows],
    )


def _tpr_at(scored: ScoredComparisons, target: Rate) -> TprEstimate:
    """Return the point of a target with its intervals."""
    point = scored.roc.tpr_at_fpr(target)
    accepted = scored.scores >= point.threshold
    realised = scored.share(accepted, ~scored.same).interval()
    found = TprEstimate.of(point, scored.tpr_interval(point), realised)
    if not point.resolvable:
        return found
    ends, known = scored.threshold_interval(point), found.threshold
    remark = known.remark or ("" if ends else "too few subjects for an interval")
    found = replace(found, threshold=replace(known, interval=ends, remark=remark))
    each, alike = (scored.share(accepted, scored.same, people) for people in (False, True))
    if each.effective_subjects < alike.effective_subjects / 2:
        interval = scored.tpr_interval(point, True)
        found = replace(found, alike=replace(found.tpr, value=alike.value, interval=interval))
    return found


def _why(embeddings: Embeddings, pairs: Pairs, pair: int) -> str:
    """Say which embedding of a pair is missing and why."""
    reasons = [
        embeddings.failures.get(item, f"the embedding of its {side} image is zero or not finite")
        for side, item in (("first", int(pairs.first[pair])), ("second", int(pairs.second[pair])))
        if not np.isfinite(embeddings.vectors[item]).all() or not embeddings.vectors[item].any()
    ]
    return "; ".join(reasons) or "its embeddings exceed the range of numbers"


def _norms(norms: NDArray[np.floating], pairs: Pairs) -> dict[str, Estimate]:
    """Return mean, standard deviation (ddof 0) and coefficient of variation of raw norms."""
    # Images count as often as pairs name them, as in insightface's "XNorm".
    items = np.concatenate([pairs.first, pairs.second])
    items = items[norms[items] > 0]
    values = norms[items].astype(np.float64)
    clusters = items if pairs.subjects is None else pairs.subjects[items]
    mean, std = float(values.mean()), float(values.std())
    return {
        XNORM: Estimate(mean, mean_interval(values, clusters), total=values.size, unit="norm"),
        "norm SD": Estimate(std, unit="norm"),
        "norm CV": Estimate(std / mean, unit="number"),
    }


def _further(scored: ScoredComparisons) -> dict[str, Estimate]:
    """Return the figures that have no interval."""
    roc = scored.roc
    low, high = roc.eer_step()
    ends = f"{words.percent(low)} to {words.percent(high)}" if low < high else ""
    figures = {
        "EER by the step rule": Estimate((low + high) / 2, remark=ends),
        "d′": Estimate(scored.d_prime()[0], unit="deviations"),
    }
    for prior in PRIORS:
        cost, misses, matches = min_dcf(roc, float(prior))
        counts = f"{misses}/{roc.mated} false non-matches, {matches}/{roc.non_mated} false matches"
        figures[f"minDCF, prior {prior}"] = Estimate(cost, remark=counts, unit="cost")
    figures["least Cllr, bits"] = Estimate(min_cllr(roc), unit="bits")
    for end in AREAS:
        area = Estimate(roc.partial_auc(end), remark="standardised (McClish)", unit="area")
        figures[f"partial AUC to FPR {end}"] = area
    return figures


def _notes(
    pairs: Pairs,
    failures: Sequence[Failure],
    items: NDArray[np.str_] | None,
    accuracy: Estimate | None,
) -> list[str]:
    """Collect what makes the figures doubtful."""
    notes, total = [], int(np.count_nonzero(~pairs.itself))
    if failures:
        said = f"{len(failures)} of {total} pairs have no score (failure to acquire) and are left "
        said += f"out of all rates; the first is pair {failures[0].pair}: {failures[0].reason}"
        if accuracy is not None:
            worst = 100 * (accuracy.events or 0) / total
            said += f"; with lost pairs counted as errors, the accuracy is {worst:.2f} %"
        notes.append(said)
    notes += pairs.doubts()
    if pairs.folds is None:
        return notes
    sides = np.stack([pairs.first, pairs.second], axis=1)
    images = np.arange(sides.max() + 1).astype(np.str_) if items is None else items
    things = {"image": (sides, images)}
    if pairs.subjects is not None:
        # A subject goes by one of its images.
        numbers, one = np.unique(pairs.subjects[sides], return_index=True)
        images_of = np.zeros(numbers[-1] + 1, np.int64)
        images_of[numbers] = sides.reshape(-1)[one]
        people = np.char.add("that of ", images[images_of])
        things = {"subject": (pairs.subjects[sides], people), **things}
    return notes + check_folds(pairs.issame, pairs.folds, things)


def _over_folds(folds: KFoldAccuracy, interval: Interval) -> Estimate:
    spread = f"± {100 * folds.sem:.2f} SEM, ± {100 * folds.std:.2f} std"
    remark = f"{folds.folds} folds, {spread}"
    return Estimate(folds.mean, interval, folds.correct, folds.pairs, remark)


def mean_interval(values: NDArray[np.floating], clusters: NDArray[np.integer]) -> Interval:
    """Return the 95 % interval of a mean of values that come in clusters.

    Values of one cluster (images of one subject) may depend on each other; clusters do not. The
    variance is that of the ratio estimator, Σ_c (Σ_{i∈c} (x_i − x̄))² / n² · C/(C − 1), the quantile
    that of t with C − 1 degrees of freedom (Cochran, Sampling Techniques, 1977, 9A).

    Both arrays are ``(n,)``.
    """
    mean = float(values.mean())
    _, cluster = np.unique(clusters, return_inverse=True)
    sums = np.bincount(cluster, values - mean)
    if sums.size < 2:
        return Interval(math.nan, math.nan)
    error = np.sqrt((sums @ sums) * sums.size / (sums.size - 1)) / values.size
    margin = float(stdtrit(sums.size - 1, 0.975) * error)
    return Interval(mean - margin, mean + margin)
