"""Two results on the same pairs: differences of their figures, with one joint bootstrap."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from facerec.defaults import REPLICATES
from facerec.errors import MetricError
from facerec.report.documents import plain
from facerec.report.estimate import Estimate
from facerec.report.tidy import UNRESOLVED
from facerec.statistics.bootstrap import VertexBootstrap, percentile_interval
from facerec.statistics.intervals import INDEPENDENT, Interval
from facerec.statistics.kfold import kfold_accuracy
from facerec.statistics.rates import SortedScores, sort_scores
from facerec.verification.evaluation import VerificationResult
from facerec.verification.identification import IdentificationResult
from facerec.verification.uncertainty import MAX_CELLS, MIN_SUBJECTS

MIN_REPLICATES = 200
"""So many are drawn, if asked for, however many pairs there are."""

Scores = NDArray[np.floating]
Replicates = NDArray[np.float64]


@dataclass(frozen=True)
class PairedFigure:
    """One figure of both results, on the pairs that have a score in both."""

    figure: str
    first: Estimate
    """No value where the data cannot resolve it, and no interval: that of the difference counts."""
    second: Estimate
    difference: Estimate
    """Second minus first; no interval where no resample differs from another."""
    reliable: bool = True
    """Whether the rule of 30 holds."""

    def to_json(self) -> dict[str, Any]:
        """Return the figure of both, and their difference with its interval."""
        sides = {name: getattr(self, name).value for name in ("first", "second", "difference")}
        interval = self.difference.interval
        return {"figure": self.figure, **sides, "interval": interval, "reliable": self.reliable}


@dataclass(frozen=True)
class Comparison:
    """How the second of two results differs from the first."""

    first: str
    """Bench and model."""
    second: str
    mated: int
    """Mated pairs with a score in both."""
    non_mated: int
    left_out: int
    """Pairs without a score in one of them or in both."""
    rows: tuple[PairedFigure, ...]
    subjects: int | None
    """Different subjects in the pairs, if known."""
    basis: str
    """What the intervals rest on."""
    notes: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        """Return all figures, differences and intervals as JSON types."""
        document = {
            "first": self.first,
            "second": self.second,
            "pairs": {
                "mated": self.mated,
                "non_mated": self.non_mated,
                "left_out": self.left_out,
            },
            "subjects": self.subjects,
            "differences": [row.to_json() for row in self.rows],
            "intervals": self.basis,
            "notes": self.notes,
        }
        return dict(plain(document))


def compare(
    first: VerificationResult,
    second: VerificationResult,
    replicates: int = REPLICATES,
    seed: int = 0,
) -> Comparison:
    """Return the differences, second minus first, between two results on the same pairs.

    Every figure is computed anew on the pairs that have a score in both. All intervals come from
    one resample, of the subjects where they are known, else of the pairs; both results are weighted
    alike in each replicate, so what they share cancels out. FPR targets and subjects are those of
    the first result; where there are very many pairs, fewer replicates are drawn.

    Raises:
        MetricError: the pairs differ, or those with two scores are of one class only.
    """
    if replicates < 1:
        raise MetricError(f"{replicates} replicates; a comparison needs at least one")
    _check_pairs(first, second)
    notes: list[str] = []
    replicates = min(replicates, max(MIN_REPLICATES, MAX_CELLS // len(first.pairs)))
    valid = ~(np.isnan(first.scores) | np.isnan(second.scores))
    same = first.pairs.issame[valid]
    if same.all() or not same.any():
        raise MetricError(
            f"{_both(first, second)}: of the pairs with a score in both {int(same.sum())} are same "
            f"and {int((~same).sum())} different ones; a comparison needs some of each"
        )
    left_out = int((~valid).sum())
    if left_out:
        notes.append(
            f"{left_out} of {valid.size} pairs have no score in one result or in both and are "
            "left out of both, so figures may differ from those of the single results"
        )
    folds = None
    if first.pairs.folds is not None and second.pairs.folds is not None:
        folds = first.pairs.folds[valid]
    targets = tuple(estimate.point.target for estimate in first.points)
    sides = [_Side(result.scores[valid], same, folds, targets) for result in (first, second)]
    clusters = first.pairs.clusters(valid)
    number = None if clusters is None else clusters[2]
    if clusters is not None and clusters[2] >= MIN_SUBJECTS:
        bootstrap = VertexBootstrap(*clusters[:2], same, replicates, seed)
        drawn = [_over_subjects(side, bootstrap) for side in sides]
        over, independent = f"{number:,} subjects", False
    else:
        drawn = [_over_pairs(side, replicates, seed) for side in sides]
        doubt = "subjects are unknown" if number is None else f"only {number} subjects"
        over, independent = f"pairs, {INDEPENDENT} ({doubt})", True
    rows = []
    for (name, a, reliable), (_, b, _) in zip(*(side.figures() for side in sides), strict=True):
        difference = Estimate(None)
        if a.value is not None and b.value is not None:
            differences = drawn[1][name] - drawn[0][name]
            value = b.value - a.value
            difference = Estimate(value, _interval(value, differences, independent))
        rows.append(PairedFigure(name, a, b, difference, reliable))
    constant = [
        row.figure
        for row in rows
        if row.difference.value is not None and row.difference.interval is None
    ]
    if constant:
        notes.append(
            f"no interval for {', '.join(constant)}: the difference is the same in all "
            f"{replicates:,} resamples"
        )
    notes += [f"B: {note}" for note in second.notes if note not in first.notes]
    names = _names(first, second)
    return Comparison(
        first=names[0],
        second=names[1],
        mated=int(same.sum()),
        non_mated=int((~same).sum()),
        left_out=left_out,
        rows=tuple(rows),
        subjects=number,
        basis=f"{replicates:,} joint bootstraps over {over}",
        notes=tuple(notes),
    )


def describe_result(result: VerificationResult | IdentificationResult) -> str:
    """Name the bench and, where known, the model."""
    model = None if result.model is None else result.model.get("name")
    return result.name if model is None else f"{result.name} · {model}"


@dataclass(frozen=True, eq=False)
class _Side:
    """One result on the pairs that have a score in both."""

    scores: Scores
    same: NDArray[np.bool_]
    folds: NDArray[np.int64] | None
    targets: tuple[str, ...]

    @cached_property
    def right(self) -> NDArray[np.bool_] | None:
        """Which pairs the threshold of the other folds judges rightly, ``(n,)``."""
        if self.folds is None:
            return None
        thresholds = kfold_accuracy(self.scores, self.same, self.folds).thresholds
        return (self.scores >= np.asarray(thresholds)[self.folds]) == self.same

    def figures(self) -> list[tuple[str, Estimate, bool]]:
        """Return accuracy, TPR at every target, AUC and EER, and whether each is reliable."""
        figures = []
        if self.right is not None:
            events, total = int(self.right.sum()), self.right.size
            figures.append(("accuracy", Estimate(events / total, None, events, total), True))
        ordered = sort_scores(self.scores[self.same], self.scores[~self.same])
        for point in map(ordered.tpr_at_fpr, self.targets):
            tpr = Estimate(None, remark=f"{UNRESOLVED}: N={point.non_mated}")
            if point.resolvable:
                tpr = Estimate(point.tpr, None, point.true_accepts, point.mated)
            figures.append((_tpr(point.target), tpr, point.reliable))
        eer = Estimate(ordered.eer_rocch().rate)
        return [*figures, ("AUC", Estimate(ordered.auc()), True), ("EER", eer, True)]


def _tpr(target: str) -> str:
    return f"TPR@FPR={target}"


def _over_subjects(side: _Side, bootstrap: VertexBootstrap) -> dict[str, Replicates]:
    """Return the figures of one side in every resample of the subjects, ``(R,)`` each."""
    drawn = {"AUC": bootstrap.auc(side.scores), "EER": bootstrap.eer(side.scores)}
    if side.right is not None:
        drawn["accuracy"] = bootstrap.mean(side.right)
    if side.targets:
        points = bootstrap.tpr_at_fpr(side.scores, side.targets)
        for target, point in zip(side.targets, points, strict=True):
            drawn[_tpr(target)] = point.tpr
    return drawn


def _over_pairs(side: _Side, replicates: int, seed: int) -> dict[str, Replicates]:
    """Return the figures of one side in every resample of the pairs of each kind, ``(R,)`` each."""
    generator = np.random.default_rng(seed)  # equal seeds draw equal pairs
    # Sorted once; repeating keeps the order.
    order = np.argsort(side.scores, kind="stable")
    same = side.same[order]
    scores = side.scores[order]
    drawn: dict[str, list[float]] = {}
    for _ in range(replicates):
        counts = np.empty(order.size, np.int64)
        for label in (True, False):
            rows = np.flatnonzero(side.same == label)
            picks = generator.integers(rows.size, size=rows.size)
            counts[rows] = np.bincount(picks, minlength=rows.size)
        times = counts[order]
        resampled = SortedScores(
            np.repeat(scores[same], times[same]), np.repeat(scores[~same], times[~same])
        )
        figures = {_tpr(target): resampled.tpr_at_fpr(target).tpr for target in side.targets}
        if side.right is not None:
            figures["accuracy"] = float(counts @ side.right) / counts.size
        figures |= {"AUC": resampled.auc(), "EER": resampled.eer_rocch().rate}
        for name, value in figures.items():
            drawn.setdefault(name, []).append(value)
    return {name: np.array(values) for name, values in drawn.items()}


def _interval(difference: float, replicates: Replicates, independent: bool) -> Interval | None:
    """Return the interval of a difference; None where no replicate differs from another."""
    defined = replicates[~np.isnan(replicates)]
    if defined.size and np.ptp(defined) == 0:
        return None
    interval = percentile_interval(difference, replicates)
    if not independent:
        return interval
    return replace(interval, method="bootstrap over pairs, percentile", assumption=INDEPENDENT)


def _names(first: VerificationResult, second: VerificationResult) -> tuple[str, str]:
    """Name both results; where that is the same, add the hashes of the models."""
    names = describe_result(first), describe_result(second)
    if names[0] != names[1] or first.model is None or second.model is None:
        return names
    hashes = [str(result.model.get("sha256"))[:12] for result in (first, second) if result.model]
    return f"{names[0]} ({hashes[0]})", f"{names[1]} ({hashes[1]})"


def _check_pairs(first: VerificationResult, second: VerificationResult) -> None:
    """Refuse results on different pairs, or on pairs in another order."""
    one, other = first.pairs, second.pairs
    if len(one) != len(other):
        raise MetricError(
            f"{_both(first, second)}: the first has {len(one)} pairs and the second {len(other)}; "
            "verify both models on the same bench"
        )
    facts: dict[str, list[NDArray[Any]]] = {"label": [pairs.issame for pairs in (one, other)]}
    for side in ("first", "second"):
        rows = getattr(one, side), getattr(other, side)
        if first.items is not None and second.items is not None:
            facts[f"{side} image"] = [first.items[rows[0]], second.items[rows[1]]]
        elif one.subjects is not None and other.subjects is not None:
            # Numbered by their names, or else as they first occur: equal where the lists are.
            facts[f"{side} subject"] = [one.subjects[rows[0]], other.subjects[rows[1]]]
    if one.folds is not None and other.folds is not None:
        facts["fold"] = [one.folds, other.folds]
    for what, (left, right) in facts.items():
        unequal = np.flatnonzero(left != right)
        if unequal.size:
            raise MetricError(
                f"{_both(first, second)}: {unequal.size} of {len(one)} pairs have another {what} "
                f"in the second result, the first is pair {unequal[0]}; verify both models on the "
                "same bench, with its pairs in the same order"
            )


def _both(first: VerificationResult, second: VerificationResult) -> str:
    return f"{describe_result(first)} and {describe_result(second)}"
