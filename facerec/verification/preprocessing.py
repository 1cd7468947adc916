"""Which preprocessing does a model of others want? The likely ones, scored on the same pairs.

A wrong channel order or scaling raises no error, it only costs accuracy, often so little that it is
taken for the model's. Candidates are ranked by d′ of the scores, which tells them apart with fewer
pairs than an accuracy near 100 % can; differences have intervals over the same resamples.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from facerec.backbones import Preprocessing
from facerec.embedding.align import Aligner
from facerec.embedding.extraction import embed_images
from facerec.embedding.model import EmbeddingModel
from facerec.errors import MetricError, ModelError
from facerec.progress import Progress, section
from facerec.report.documents import plain
from facerec.report.estimate import Estimate
from facerec.report.tidy import figure_row, records, tidy
from facerec.statistics.clustered import JACKKNIFE, paired_difference
from facerec.statistics.influences import Influence, ScoredComparisons
from facerec.verification.bench import Bench
from facerec.verification.evaluation import held_out, score_pairs

if TYPE_CHECKING:
    import pandas as pd

FOLDS = 2
"""Folds of a bench that are scored."""

MOST_PAIRS = 1200
"""Pairs of a bench without folds that are scored."""

NEGLIGIBLE = 0.01
"""Share of the best d′ by which a candidate may lie behind and still be as good: a std of 127.5 in
place of 128 is told from it by 1,200 pairs already, and changes no decision."""


SCALINGS = ((127.5, 127.5), (127.5, 128.0), (0.0, 255.0), (0.0, 1.0))
"""Mean and std that models of faces are trained with: InsightFace's, facenet's, 0…1 and 0…255."""


@dataclass(frozen=True)
class Trials:
    """How all candidates do on the pairs."""

    figures: pd.DataFrame = field(repr=False, compare=False)
    """Accuracy over the folds, d′, and how far it lies behind the best one's, of each ``way``, the
    best first; the intervals of the latter are simultaneous for all candidates."""
    verdict: str
    """Which is best, whether others can be told from it, and what of the one assumed."""
    bench: str
    pairs: int
    basis: str
    """What the intervals rest on."""

    def to_json(self) -> dict[str, Any]:
        """Return everything as JSON types."""
        return dict(plain({**vars(self), "figures": records(self.figures)}))


def flags(preprocessing: Preprocessing) -> str:
    """Return the flags that ask for a preprocessing."""
    return (
        f"--channels {preprocessing.channels} --mean {preprocessing.mean:g} "
        f"--std {preprocessing.std:g}"
    )


def likely(model: EmbeddingModel) -> tuple[Preprocessing, ...]:
    """Return the candidates for a model, the one assumed first; what is known is held.

    Raises:
        ModelError: nothing is left to try.
    """
    known = model.preprocessing
    channels = ("rgb", "bgr") if "channels" in model.assumed else (known.channels,)
    scalings = SCALINGS if {"mean", "std"} <= {*model.assumed} else ((known.mean, known.std),)
    others = [
        Preprocessing(order, mean, std)  # type: ignore[arg-type]
        for order, (mean, std) in itertools.product(channels, scalings)
    ]
    candidates = dict.fromkeys([known, *others])
    if len(candidates) < 2:
        raise ModelError(
            f"{model.path}: its preprocessing is known ({model.evidence[0]}); leave out "
            "--try-preprocessing"
        )
    return tuple(candidates)


def try_preprocessing(
    model: EmbeddingModel,
    bench: Bench,
    *,
    align: Aligner | None = None,
    batch_size: int = 64,
    progress: Progress | None = None,
) -> Trials:
    """Score pairs of a bench with every likely preprocessing of others' model, without flip.

    The first two folds are used, or 1,200 pairs where it has no folds. ``align`` finds the face in
    photos that are not aligned yet.

    Raises:
        ModelError: the preprocessing is known.
        MetricError: the pairs are of one class only.
        ImageError: an image does not decode or is not aligned.
    """
    candidates = likely(model)
    chosen, used = sample(bench)
    pairs = bench.pairs
    scores = []
    total, doing = len(candidates) * len(used), "trying ways of preprocessing"
    for number, candidate in enumerate(candidates):
        embeddings = embed_images(
            model.with_preprocessing(candidate),
            bench.images,
            flip=False,
            align=align,
            batch_size=batch_size,
            indices=used,
            progress=section(progress, doing, number * len(used), total),
        )
        vectors = np.full((len(bench.images), model.embedding_size), np.nan, np.float32)
        vectors[used] = embeddings.vectors
        scores.append(score_pairs(vectors, pairs.first[chosen], pairs.second[chosen]))
    return _rank(bench, chosen, candidates, np.array(scores))


def sample(bench: Bench) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the pairs of a bench that are scored, and the images in them."""
    folds = bench.pairs.folds
    if folds is None:
        # The same share of both kinds, however they are ordered.
        every = max(1, math.ceil(len(bench.pairs) / MOST_PAIRS))
        chosen = np.arange(0, len(bench.pairs), every)
    else:
        chosen = np.flatnonzero(np.isin(folds, np.unique(folds)[:FOLDS]))
    sides = np.concatenate([bench.pairs.first[chosen], bench.pairs.second[chosen]])
    return chosen, np.unique(sides)


def _rank(
    bench: Bench,
    chosen: NDArray[np.int64],
    candidates: Sequence[Preprocessing],
    scores: NDArray[np.float32],
) -> Trials:
    """Compare the scores ``(candidates, pairs)`` of the candidates, the assumed one first."""
    there = np.zeros(len(bench.pairs), bool)
    there[chosen] = ~np.isnan(scores).all(axis=0)
    if min(np.bincount(bench.pairs.issame[there], minlength=2)) < 2:
        raise MetricError(f"{bench.name}: two same and two different pairs need a score at least")
    # What one candidate alone drives to infinity tells nothing of a pair.
    every = np.zeros((len(scores), len(bench.pairs)))
    every[:, chosen] = np.nan_to_num(scores.astype(np.float64))
    found = [bench.pairs.comparisons(row, there) for row in every]
    sides, subjects = [scored for scored, _ in found], found[0][1]
    basis = "pairs are taken as independent"
    if subjects is not None:
        basis = f"{JACKKNIFE}, {subjects:,} subjects"
    folds = None if bench.pairs.folds is None else bench.pairs.folds[there]
    if folds is not None:
        folds = np.unique(folds, return_inverse=True)[1].reshape(-1)
    same = sides[0].same
    whole, added = zip(*(_separation(one.scores, same) for one in sides), strict=True)
    order = sorted(range(len(candidates)), key=lambda index: -whole[index])
    best = order[0]
    confidence = 1 - 0.05 / (len(candidates) - 1)
    rows: list[dict[str, object]] = []
    ties: list[int] = []
    worse: list[int] = []
    for index in order:
        lag, behind = whole[best] - whole[index], Estimate(0.0)
        if index != best:
            gap = sides[0].figure((lag, added[best] - added[index]))
            interval = paired_difference([lag], gap.changes, confidence, gap.noise)
            behind = Estimate(lag, interval)
            clear = interval is not None and interval.low > NEGLIGIBLE * whole[best]
            (worse if clear else ties).append(index)
        way = f"{flags(candidates[index])}{'' if index else ' (assumed)'}"
        rows += [
            figure_row("accuracy", _accuracy(sides[index], folds), way=way),
            figure_row("d′", Estimate(whole[index]), way=way),
            figure_row("d′ behind the best", behind, way=way),
        ]
    said = f"best: {flags(candidates[best])}"
    if ties:
        listed = "; ".join(flags(candidates[index]) for index in ties)
        said += f"; these pairs do not tell it from {listed} (by more than {NEGLIGIBLE:.0%} of d′)"
    said += "; all others are worse" if worse else ""
    mine = "is best" if best == 0 else "is worse" if 0 in worse else "may be as good"
    verdict = f"{said}. What is assumed without flags ({flags(candidates[0])}) {mine}."
    basis += f"; each at {100 * confidence:.2f} %, so that all hold together in 95 %"
    return Trials(tidy(rows), verdict, bench.name, int(same.size), basis)


def _accuracy(scored: ScoredComparisons, folds: NDArray[np.int64] | None) -> Estimate:
    if folds is None or not folds.any():
        return Estimate(None)
    accuracy, _ = held_out(scored, folds)
    return Estimate(accuracy.mean, events=accuracy.correct, total=accuracy.pairs)


def _separation(scores: NDArray[np.floating], same: NDArray[np.bool_]) -> Influence:
    """Return d′, and what each comparison adds to its error, ``(N,)``."""
    mated, others = scores[same], scores[~same]
    spread = math.sqrt((mated.var() + others.var()) / 2)
    added = np.zeros(scores.size)
    if not spread > 0:
        return 0.0, added
    value = float((mated.mean() - others.mean()) / spread)
    for kind, sign in ((same, 1), (~same, -1)):
        rest = scores[kind] - scores[kind].mean()
        of_spread = value * (rest**2 - (rest**2).mean()) / (4 * spread**2)
        added[kind] = (sign * rest / spread - of_spread) / rest.size
    return value, added
