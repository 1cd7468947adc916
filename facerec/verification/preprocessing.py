"""Which preprocessing and placement does a model want? The likely ones, scored on the same pairs.

A wrong placement, channel order or scaling raises no error, it only costs accuracy, often so little
that it is taken for the model's. Candidates are ranked by d′ of the scores, which tells them apart
with fewer pairs than an accuracy near 100 % can; differences have intervals over subjects.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from facerec.backbones.preprocessing import (
    IMAGENET_MEAN,
    IMAGENET_STD,
    PerChannel,
    Preprocessing,
    numbers_words,
)
from facerec.base.errors import MetricError
from facerec.base.progress import Progress, section
from facerec.embedding.align import Aligner
from facerec.embedding.extraction import draw_faces, embed_images
from facerec.embedding.model import EmbeddingModel
from facerec.embedding.placement import Shift, try_placements
from facerec.report.documents import plain
from facerec.report.estimate import Estimate
from facerec.report.table import Cell, Table
from facerec.report.tidy import cell, figure_row, records, tidy
from facerec.statistics.clustered import paired_difference
from facerec.statistics.influences import ScoredComparisons
from facerec.verification.bench import Bench, dependence
from facerec.verification.evaluation import held_out, score_pairs

if TYPE_CHECKING:
    import pandas as pd

PAIRS = 1200
"""Pairs of a bench that are scored: whole folds, one after another, or some where it has none."""

FACES = 240
"""Images on which placements are tried."""

NEGLIGIBLE = 0.01
"""Share of the best d′ by which a candidate may lie behind and still be as good: a std of 127.5 in
place of 128 is told from it by 1,200 pairs already, and changes no decision."""


SCALINGS: tuple[tuple[PerChannel, PerChannel], ...] = (
    (127.5, 127.5),
    (127.5, 128.0),
    (0.0, 255.0),
    (0.0, 1.0),
    (IMAGENET_MEAN, IMAGENET_STD),
)
"""Mean and std that models of faces are trained with: InsightFace's, facenet's, 0…1, 0…255, and
ImageNet's, which many networks that began there keep."""


@dataclass(frozen=True)
class Way:
    """A preprocessing and a placement that are tried together."""

    preprocessing: Preprocessing
    shift: Shift = (0, 0)

    def __str__(self) -> str:
        """Return the flags that ask for it."""
        pixels = self.preprocessing
        return (
            f"--channels {pixels.channels} --mean {numbers_words(pixels.mean)} --std "
            f"{numbers_words(pixels.std)} --shift {self.shift[0]} {self.shift[1]}"
        )


@dataclass(frozen=True)
class Trials:
    """How all candidates do on the pairs."""

    figures: pd.DataFrame = field(repr=False, compare=False)
    """Accuracy over the folds, d′, and how far it lies behind the best one's, of each ``way``, the
    best first; the intervals of the latter are simultaneous for all candidates."""
    verdict: str
    """Which is best, whether others can be told from it, and what of the one assumed."""
    placements: Mapping[Shift, float]
    """Mean raw norm at each placement that was tried without labels, the largest first."""
    bench: str
    pairs: int
    basis: str
    """What the intervals rest on."""

    def table(self, caption: str) -> Table:
        """Return one line for each way, the best first."""
        ways = self.figures.groupby("way", sort=False)
        lines = [
            [Cell(re.sub(r"--\w+ ", "", str(way))), *map(cell, records(rows))] for way, rows in ways
        ]
        return Table(caption, ("channels mean std shift", "accuracy", "d′", "behind"), lines)

    def to_json(self) -> dict[str, Any]:
        """Return everything as JSON types."""
        placements = [{"shift": at, "norm": norm} for at, norm in self.placements.items()]
        given = {**vars(self), "figures": records(self.figures), "placements": placements}
        return dict(plain(given))


def likely(model: EmbeddingModel) -> tuple[Preprocessing, ...]:
    """Return the candidates for a model, the one assumed first; what is known is held."""
    known = model.preprocessing
    channels = ("rgb", "bgr") if "channels" in model.assumed else (known.channels,)
    scalings = SCALINGS if {"mean", "std"} <= {*model.assumed} else ((known.mean, known.std),)
    others = []
    for order, (mean, std) in itertools.product(channels, scalings):
        if order == "bgr" and isinstance(mean, tuple) and isinstance(std, tuple):
            mean, std = mean[::-1], std[::-1]  # of the same colours
        others.append(Preprocessing(order, mean, std))  # type: ignore[arg-type]
    return tuple(dict.fromkeys([known, *others]))


def try_preprocessing(
    model: EmbeddingModel,
    bench: Bench,
    *,
    align: Aligner | None = None,
    progress: Progress | None = None,
) -> Trials:
    """Find out where faces lie for a model and how its pixels are prepared, without flip.

    The placement is the one with the largest mean raw norm, which needs no label; it is then scored
    on pairs beside the one that is given, and with every likely preprocessing of others' model.

    Args:
        model: what embeds.
        bench: whole folds are used up to `PAIRS` pairs, or so many where it has no folds.
        align: finds the face in photos that are not aligned yet.
        progress: see `facerec.base.progress.Progress`.

    Raises:
        MetricError: the pairs are of one class only, or no image can be read.
        ImageError: an image does not decode or is not aligned.
    """
    chosen, used = sample(bench)
    faces = draw_faces(model, bench.images, used, FACES, align)
    if not len(faces):
        raise MetricError(f"{bench.name}: no image has a face that can be read; check the images")
    placements = try_placements(model, faces, progress=progress)
    best = next(iter(placements))
    placed = [Way(preprocessing, best) for preprocessing in likely(model)]
    candidates = [*dict.fromkeys([Way(model.preprocessing, model.shift), *placed])]
    pairs, scores = bench.pairs[chosen], []
    first, second = np.searchsorted(used, [pairs.first, pairs.second])
    total, doing = len(candidates) * len(used), "trying ways of preprocessing"
    for number, candidate in enumerate(candidates):
        embeddings = embed_images(
            model.with_preprocessing(candidate.preprocessing, candidate.shift),
            bench.images,
            flip=False,
            align=align,
            batch_size=model.batch_size,
            indices=used,
            progress=section(progress, doing, number * len(used), total),
        )
        scores.append(score_pairs(embeddings.vectors, first, second))
    return _rank(bench, chosen, candidates, np.array(scores), placements)


def sample(bench: Bench) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the pairs of a bench that are scored, and the images in them."""
    folds = bench.pairs.folds
    if folds is None:
        # The same share of both kinds, however they are ordered.
        every = max(1, math.ceil(len(bench.pairs) / PAIRS))
        chosen = np.arange(0, len(bench.pairs), every)
    else:
        numbers, counts = np.unique(folds, return_counts=True)
        enough = int(np.searchsorted(np.cumsum(counts), PAIRS)) + 1
        chosen = np.flatnonzero(np.isin(folds, numbers[:enough]))
    pairs = bench.pairs[chosen]
    return chosen, np.unique([pairs.first, pairs.second])


def _rank(
    bench: Bench,
    chosen: NDArray[np.int64],
    candidates: Sequence[Way],
    scores: NDArray[np.float32],
    placements: Mapping[Shift, float],
) -> Trials:
    """Compare the scores ``(candidates, pairs)`` of the candidates, the assumed one first."""
    there = ~np.isnan(scores).all(axis=0)
    pairs = bench.pairs[chosen[there]]
    if min(np.bincount(pairs.issame, minlength=2)) < 2:
        raise MetricError(f"{bench.name}: two same and two different pairs need a score at least")
    # What one candidate alone drives to infinity tells nothing of a pair.
    known = np.nan_to_num(scores[:, there].astype(np.float64))
    sides, (subjects, *_) = zip(*map(pairs.comparisons, known), strict=True)
    separations, added = zip(*(scored.d_prime() for scored in sides), strict=True)
    whole = np.nan_to_num(separations).tolist()  # of equal scores there is none
    order = sorted(range(len(candidates)), key=lambda index: -whole[index])
    best = order[0]
    confidence = 1 - 0.05 / max(1, len(candidates) - 1)
    rows: list[dict[str, object]] = []
    ties: list[int] = []
    for index in order:
        lag, behind = whole[best] - whole[index], Estimate(0.0, unit="deviations")
        if index != best:
            gap = sides[0].figure((lag, added[best] - added[index]))
            interval = paired_difference([lag], gap.changes, confidence, gap.noise)
            behind = replace(behind, value=lag, interval=interval)
            if interval is None or interval.low <= NEGLIGIBLE * whole[best]:
                ties.append(index)
        way = f"{candidates[index]}{'' if index else ' (assumed)'}"
        rows += [
            figure_row("accuracy", _accuracy(sides[index], pairs.folds), way=way),
            figure_row("d′", Estimate(whole[index], unit="deviations"), way=way),
            figure_row("d′ behind the best", behind, way=way),
        ]
    said = f"best: {candidates[best]}"
    if ties:
        listed = "; ".join(str(candidates[index]) for index in ties)
        said += f"; these pairs do not tell it from {listed} (by more than {NEGLIGIBLE:.0%} of d′)"
    said += "; all others are worse" if len(ties) < len(candidates) - 1 else ""
    mine = "is best" if best == 0 else "may be as good" if 0 in ties else "is worse"
    verdict = f"{said}. What is assumed without flags ({candidates[0]}) {mine}."
    level = f"each at {100 * confidence:.2f} %, so that all hold together in 95 %"
    basis = f"{dependence(subjects)}; {level}"
    return Trials(tidy(rows), verdict, placements, bench.name, len(pairs), basis)


def _accuracy(scored: ScoredComparisons, folds: NDArray[np.int64] | None) -> Estimate:
    if folds is None:
        return Estimate(None)
    accuracy, _ = held_out(scored, folds)
    return Estimate(accuracy.mean, events=accuracy.correct, total=accuracy.pairs)
