"""What verification finds, and its figures as rows of a tidy table."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from facerec.embedding.align import alignment_words
from facerec.embedding.calibration import ScoreCalibration, Threshold
from facerec.report import words
from facerec.report.documents import plain
from facerec.report.estimate import Estimate
from facerec.report.tidy import ALIKE, figure_row, records, tidy
from facerec.statistics.intervals import Interval
from facerec.statistics.kfold import KFoldAccuracy
from facerec.statistics.operating_points import OperatingPoint
from facerec.verification.bench import Pairs

Names = tuple[str, str, str]
"""What the two rates of an operating point are called, and what is or is not mated."""
PAIRS: Names = "TPR", "FPR", "pairs"


@dataclass(frozen=True)
class TprEstimate:
    """TPR at an FPR, the FPR that its threshold realises, and the threshold."""

    point: OperatingPoint
    tpr: Estimate
    """TPR, whose interval allows for the uncertainty of the threshold; no value where the target
    is not resolvable."""
    fpr: Estimate
    threshold: Estimate
    """No interval if the target is not resolvable, or if there are too few subjects."""
    alike: Estimate | None = None
    """The TPR of which each person weighs alike, and not each mated pair, where a few people have
    most pairs; else None."""
    names: Names = PAIRS

    @classmethod
    def of(
        cls, point: OperatingPoint, tpr: Interval | None, fpr: Interval, names: Names = PAIRS
    ) -> TprEstimate:
        """Return a point with the intervals of its rates; its threshold is taken as known."""
        few = "" if point.reliable else "few errors"
        found = Estimate(point.tpr, tpr, point.true_accepts, point.mated, few)
        if not point.resolvable:
            none = f"{point.non_mated:,} non-mated {names[2]} show no {names[1]}"
            why = f"{none} below {1 / point.non_mated:.2g}"
            found = Estimate(None, remark=why, unresolved=True)
        realised = Estimate(point.fpr_realised, fpr, point.false_accepts, point.non_mated)
        said = "" if math.isfinite(point.threshold) else words.threshold(point.threshold)
        known = Estimate(point.threshold, remark=said, unit="score")
        return cls(point, found, realised, known, names=names)

    def figures(self) -> Iterator[tuple[str, Estimate, str]]:
        """Yield name, figure and target of all that there is."""
        (tpr, fpr, _), target = self.names, self.point.target
        yield f"{tpr}@{fpr}", self.tpr, target
        if self.tpr.value is not None:
            if self.alike is not None:
                yield f"{tpr}@{fpr}{ALIKE}", self.alike, target
            yield f"realised {fpr}", self.fpr, target
            yield "threshold", self.threshold, target


def stored_thresholds(points: Iterable[TprEstimate], bench: str, flip: bool) -> Iterator[Threshold]:
    """Yield what a model's calibration has of points; nothing of one without a finite threshold.

    Args:
        points: of cosines.
        bench: on which they were found.
        flip: whether embeddings were sums over image and mirror image.
    """
    for each in points:
        tpr, fpr, ends = each.tpr.interval, each.fpr.interval, each.threshold.interval
        if tpr is None or fpr is None or not math.isfinite(each.point.threshold):
            continue
        limits = None
        if ends is not None and math.isfinite(ends.low) and math.isfinite(ends.high):
            limits = ends.low, ends.high
        point = each.point
        yield Threshold(
            bench=bench,
            fpr=point.target,
            threshold=point.threshold,
            fpr_realised=point.fpr_realised,
            fpr_interval=(fpr.low, fpr.high),
            false_accepts=(point.false_accepts, point.non_mated),
            tpr=point.tpr,
            tpr_interval=(tpr.low, tpr.high),
            true_accepts=(point.true_accepts, point.mated),
            reliable=point.reliable,
            flip=flip,
            threshold_interval=limits,
        )


@dataclass(frozen=True)
class Failure:
    """A pair without a score: one of its images has no usable embedding (failure to acquire)."""

    pair: int
    issame: bool
    reason: str


@dataclass(frozen=True, kw_only=True)
class Result:
    """What was compared, and how."""

    name: str
    notes: tuple[str, ...]
    """What a reader must know to judge the figures, one sentence each."""
    score: str = "cosine of raw embeddings, float32"
    flip: bool | None = None
    """Whether the raw embeddings of each image and its mirror image were summed; None: unknown."""
    align: Mapping[str, Any] | None = None
    """How faces were found in photos, see `Aligner.describe`; None: images as they are."""
    model: Mapping[str, Any] | None = None
    source: Mapping[str, Any] | None = None
    """Where pairs (or scores) came from: path, SHA-256, format."""

    @property
    def title(self) -> str:
        """The bench and, where known, the model."""
        model = None if self.model is None else self.model.get("name")
        return self.name if model is None else f"{self.name} · {model}"

    @property
    def heading(self) -> str:
        """What stands above the rows."""
        return self.title

    @property
    def remarks(self) -> list[str]:
        """How what was compared came to be, a sentence each."""
        flip = {None: "unknown", True: "sum of raw embeddings", False: "none"}[self.flip]
        remarks = [f"flip: {flip}; score: {self.score}"]
        return remarks if self.align is None else [*remarks, alignment_words(self.align)]


@dataclass(frozen=True, kw_only=True)
class VerificationResult(Result):
    """Everything that verification found on one bench."""

    pairs: Pairs = field(repr=False, compare=False)
    scores: NDArray[np.floating] = field(repr=False, compare=False)
    """Similarity of every pair, ``(n,)``; NaN where there is none."""
    mated: int
    """Mated (same) pairs with a score."""
    non_mated: int
    """Non-mated (different) pairs with a score."""
    accuracy: Estimate | None
    """The mean over folds, with the interval of the share of all held-out pairs; None for a
    protocol without folds."""
    folds: Mapping[str, KFoldAccuracy] = field(default_factory=dict)
    """Accuracy of each fold: "accuracy", and if asked for by InsightFace's rule, "insightface"."""
    points: tuple[TprEstimate, ...]
    auc: Estimate
    eer: Estimate
    """On the convex hull of the ROC."""
    failures: tuple[Failure, ...]
    basis: str
    """What the intervals rest on, in a few words."""
    subjects: int | None
    """Different subjects in the pairs, if known."""
    items: NDArray[np.str_] | None = field(default=None, repr=False, compare=False)
    """Ids of the images or templates, ``(m,)``."""
    metrics: Mapping[str, Estimate] = field(default_factory=dict)
    """Further figures by name: those without an interval, as d′ and least costs; raw norms of the
    images of all pairs; the cost of a calibration; accuracy by InsightFace's rule, whose interval
    takes pairs as independent."""
    calibration: ScoreCalibration | None = field(default=None, repr=False, compare=False)
    """Made elsewhere, and judged on these pairs; see `facerec.verification.calibration.judge`."""

    norms: NDArray[np.floating] | None = field(default=None, repr=False, compare=False)
    """Raw norms of the images, ``(m,)``."""

    @property
    def heading(self) -> str:
        """What stands above the rows."""
        return f"{self.title}: {pairs_of(self)}"

    @property
    def remarks(self) -> list[str]:
        """How what was compared came to be, and what intervals rest on."""
        return [*super().remarks, f"intervals: {self.basis}"]

    @property
    def rows(self) -> pd.DataFrame:
        """All figures, a row each, which terminal, page, CSV and JSON show alike."""
        failed = len(self.failures)
        total = failed + self.mated + self.non_mated
        lost = Estimate(failed / total, None, failed, total)
        others = {"AUC": self.auc, "EER on the ROC hull": self.eer, **self.metrics}
        figures = [
            *([] if self.accuracy is None else [("accuracy", self.accuracy, "")]),
            *(figure for point in self.points for figure in point.figures()),
            *((name, figure, "") for name, figure in others.items()),
            ("failures to acquire", lost, ""),
        ]
        return tidy(figure_row(*each, bench=self.name) for each in figures)

    def to_json(self) -> dict[str, Any]:
        """Return what was compared and all figures as rows, as JSON types.

        A value that is not finite is the text "inf" or "-inf" (as a threshold: accept all), or
        null.
        """
        facts = ("folds", "subjects", "flip", "align", "score", "model", "source", "notes")
        document = {
            "bench": self.name,
            "pairs": {
                "mated": self.mated,
                "non_mated": self.non_mated,
                "failures": self.failures,
            },
            "rows": records(self.rows),
            "intervals": self.basis,
            **{name: getattr(self, name) for name in facts},
        }
        return dict(plain(document))

    @property
    def headline_point(self) -> OperatingPoint | None:
        """The finest point that rests on enough errors, else the coarsest that is resolvable."""
        there = [each.point for each in self.points if each.point.resolvable]
        return next(iter([one for one in there if one.reliable][-1:] or there), None)

    def thresholds(self) -> list[Threshold]:
        """Return the thresholds that were found, see `stored_thresholds`."""
        return [*stored_thresholds(self.points, self.name, bool(self.flip))]

    @property
    def mated_scores(self) -> NDArray[np.floating]:
        """Scores of mated pairs."""
        return self.scores[self.pairs.issame & ~np.isnan(self.scores)]

    @property
    def non_mated_scores(self) -> NDArray[np.floating]:
        """Scores of non-mated pairs."""
        return self.scores[~self.pairs.issame & ~np.isnan(self.scores)]


@dataclass(frozen=True)
class PairedComparison:
    """How the second of two results differs from the first."""

    first: str
    """Bench and model."""
    second: str
    mated: int
    """Mated pairs with a score in both."""
    non_mated: int
    left_out: int
    """Pairs without a score in one of them or in both."""
    rows: pd.DataFrame = field(repr=False, compare=False)
    """A tidy table: each figure of A and of B, and of kind ``change`` that of B less that of A."""
    subjects: int | None
    """Different subjects in the pairs, if known."""
    basis: str
    """What the intervals rest on."""
    notes: tuple[str, ...]

    @property
    def title(self) -> str:
        """Which is subtracted from which."""
        return f"{self.second} less {self.first}"

    @property
    def heading(self) -> str:
        """What stands above the rows."""
        return f"Differences of A: {self.first}; B: {self.second}"

    @property
    def remarks(self) -> list[str]:
        """What the rows rest on, a sentence each."""
        return [
            f"on {pairs_of(self)} with a score in both; {self.left_out:,} are left out",
            f"intervals of the differences: {self.basis}",
        ]

    def to_json(self) -> dict[str, Any]:
        """Return what was compared, and all rows, as JSON types."""
        return dict(plain({**vars(self), "rows": records(self.rows)}))


def pairs_of(one: VerificationResult | PairedComparison) -> str:
    """Return how many pairs of both kinds have a score."""
    return f"{one.mated:,} mated and {one.non_mated:,} non-mated pairs"
