"""What is compared in an audit: all pairs of images, or the pairs of a list, and their scores."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray

from facerec.defaults import FMR_TARGETS
from facerec.embedding.extraction import Embeddings
from facerec.errors import DatasetError, MetricError
from facerec.fairness.channels import mated_pairs
from facerec.fairness.rate_results import UNKNOWN, Calibration
from facerec.fairness.rates import GroupErrors, all_pairs_rates, calibrate, pair_group_rates
from facerec.large_arrays import take
from facerec.progress import Progress
from facerec.statistics.operating_points import OperatingPoint
from facerec.statistics.rates import operating_points
from facerec.verification.bench import Bench
from facerec.verification.evaluation import score_pairs
from facerec.verification.protocols import ScoredPairs

MOST_MATED = 2**25
"""Mated pairs up to which norms and scores of pairs are held against each other."""

Rows = NDArray[np.int64]


def calibrate_on_embeddings(
    embeddings: Embeddings,
    targets: Sequence[str] = FMR_TARGETS,
    *,
    name: str,
    device: str | torch.device = "cpu",
    progress: Progress | None = None,
) -> Calibration:
    """Fix thresholds on all pairs of other images.

    Args:
        embeddings: with subjects; images without one are passed over.
        targets: nominal FMRs.
        name: of these data, for reports and errors.
        device: where scores are computed.
        progress: see `audit`.

    Raises:
        DatasetError: the embeddings do not say who is on the images.
        MetricError: no mated or no non-mated pair, or an impossible target.
        DeviceError: the device is not there.
    """
    subjects = embeddings.subjects
    known = np.zeros(len(embeddings.vectors), bool) if subjects is None else subjects != ""
    if subjects is None or not known.any():
        raise DatasetError(
            f"{name}: these embeddings do not say who is on the images, so no threshold can be "
            "fixed on them; embed record files or a folder of identity/image.jpg, or give scores"
        )
    return calibrate(
        take(embeddings.vectors, np.flatnonzero(known)),
        subjects[known],
        targets,
        f"calibration on {name}",
        device=device,
        progress=progress,
    )


def calibrate_on_scores(
    scored: ScoredPairs, targets: Sequence[str] = FMR_TARGETS, *, name: str
) -> Calibration:
    """Fix thresholds on labelled scores.

    Args:
        scored: a larger score means more alike.
        targets: nominal FMRs.
        name: of these data, for reports.

    Raises:
        MetricError: no mated or no impostor score, or an impossible target.
    """
    points = _points(scored.scores, scored.issame, targets)
    return _calibration(f"calibration on {name}", points)


def _points(
    scores: NDArray[np.floating], same: NDArray[np.bool_], targets: Sequence[str]
) -> tuple[OperatingPoint, ...]:
    there = ~np.isnan(scores)
    return operating_points(scores[there & same], scores[there & ~same], targets)


def _calibration(source: str, points: Sequence[OperatingPoint]) -> Calibration:
    pairs = points[0].non_mated if points else 0
    return Calibration(f"{source}: {pairs:,} non-mated pairs pooled", tuple(points))


class Comparisons(ABC):
    """Pairs of rows of the embeddings, and their scores."""

    policy: str
    """Which impostors there are, see `Audit.policy`."""

    @abstractmethod
    def errors(
        self,
        groupings: Sequence[tuple[Rows, tuple[str, ...]]],
        targets: Sequence[str],
        calibration: Calibration | None,
    ) -> list[GroupErrors | MetricError]:
        """Count errors by the groups of every grouping.

        Args:
            groupings: code of the group of each row, ``(N,)``, and names of the groups.
            targets: nominal FMRs.
            calibration: gives the thresholds; by default the impostors of these pairs do.

        Returns:
            One a grouping; an error where that cannot be counted.

        Raises:
            MetricError: no grouping can.
        """

    @abstractmethod
    def mated(self) -> tuple[NDArray[np.float32], Rows, Rows] | None:
        """Return scores and sides of the mated pairs; None if there are too many."""


class AllImages(Comparisons):
    """Every image with every other one, scored once for all groupings."""

    # A value of audits, by which those of releases are held against each other.
    policy = "from all pairs of images of two persons"

    def __init__(
        self,
        vectors: NDArray[np.floating],
        subject: Rows,
        device: str | torch.device,
        progress: Progress | None,
    ) -> None:
        self._vectors, self._subject = vectors, subject
        self._device, self._progress = device, progress

    def errors(
        self,
        groupings: Sequence[tuple[Rows, tuple[str, ...]]],
        targets: Sequence[str],
        calibration: Calibration | None,
    ) -> list[GroupErrors | MetricError]:
        """Count errors by the groups of every grouping."""
        return all_pairs_rates(
            self._vectors,
            self._subject,
            groupings,
            targets=targets,
            calibration=calibration,
            device=self._device,
            progress=self._progress,
        )

    def mated(self) -> tuple[NDArray[np.float32], Rows, Rows] | None:
        """Return scores and sides of the mated pairs; None if there are too many."""
        images = np.bincount(self._subject[self._subject != UNKNOWN])
        if (images * (images - 1) // 2).sum() > MOST_MATED:
            return None
        first, second = mated_pairs(self._subject)
        return score_pairs(self._vectors, first, second), first, second


class ListedPairs(Comparisons):
    """The pairs of a list with their scores.

    Args:
        name: of the list.
        scores: ``(n,)``, NaN where there is none.
        sides: rows of the two images of each pair, ``(2, n)``.
        same: whether each pair is labelled mated, ``(n,)``.
        subject: code of the subject of each row.
        subjects_known: see `pair_group_rates`.
        seed: see `pair_group_rates`.
    """

    def __init__(
        self,
        name: str,
        scores: NDArray[np.floating],
        sides: Rows,
        same: NDArray[np.bool_],
        subject: Rows,
        subjects_known: bool = True,
        seed: int = 0,
    ) -> None:
        self.policy = f"from the pair list of {name}"
        self._name, self._scores, self._sides, self._same = name, scores, sides, same
        self._subject = subject
        self._subjects_known, self._seed = subjects_known, seed

    @classmethod
    def of_bench(
        cls, vectors: NDArray[np.floating], subject: Rows, bench: Bench, ids: NDArray[np.str_]
    ) -> ListedPairs:
        """Score the pairs of a bench.

        Args:
            vectors: raw embeddings, ``(N, D)``.
            subject: code of the subject of each, ``(N,)``.
            bench: has the pairs.
            ids: of the embeddings, ``(N,)``.

        Raises:
            DatasetError: an image of the bench has no embedding.
        """
        rows = pd.Index(ids).get_indexer(pd.Index(bench.images.ids)).astype(np.int64)
        absent = np.flatnonzero(rows < 0)
        if absent.size:
            raise DatasetError(
                f"{bench.name}: {absent.size:,} of its {rows.size:,} images have no embedding, the "
                f"first is {str(bench.images.ids[absent[0]])!r}; ids must be equal to the letter"
            )
        sides = rows[np.stack([bench.pairs.first, bench.pairs.second])]
        scores = score_pairs(vectors, sides[0], sides[1])
        return cls(bench.name, scores, sides, bench.pairs.issame, subject)

    def errors(
        self,
        groupings: Sequence[tuple[Rows, tuple[str, ...]]],
        targets: Sequence[str],
        calibration: Calibration | None,
    ) -> list[GroupErrors | MetricError]:
        """Count errors by the groups of every grouping."""
        if calibration is None:
            # As for the rates: else subjects who are not shown would follow from these counts.
            sides = self._subject[self._sides]
            used = (sides != UNKNOWN).all(axis=0) & ((sides[0] == sides[1]) == self._same)
            points = _points(self._scores[used], self._same[used], targets)
            calibration = _calibration(f"this data, {self._name}", points)
        results: list[GroupErrors | MetricError] = []
        for group, names in groupings:
            try:
                errors = pair_group_rates(
                    self._scores,
                    self._sides[0],
                    self._sides[1],
                    self._same,
                    self._subject,
                    group,
                    names,
                    targets=targets,
                    calibration=calibration,
                    subjects_known=self._subjects_known,
                    seed=self._seed,
                )
            except MetricError as problem:
                results.append(problem)
            else:
                results.append(errors)
        return results

    def mated(self) -> tuple[NDArray[np.float32], Rows, Rows] | None:
        """Return scores and sides of the mated pairs; None if there are too many."""
        sides = self._subject[self._sides]
        # A label that the subjects contradict is counted with the rates and used nowhere.
        used = self._same & ((sides[0] == sides[1]) | (sides == UNKNOWN).any(axis=0))
        first, second = self._sides[:, used]
        return self._scores[used].astype(np.float32, copy=False), first, second
