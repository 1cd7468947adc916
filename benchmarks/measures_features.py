"""Measurements of comparisons on features: what a trial costs, and how often equal arms differ."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from measures_comparison import declared_rows
from numpy.typing import NDArray
from rows import Row

from facerec.comparison import Arm, FeatureData, Protocol, Trunk
from facerec.comparison.features import FeatureSet, open_features
from facerec.comparison.finals import score_models, scored_positions
from facerec.comparison.fit import ArmTrainer, Fit
from facerec.comparison.losses import MetricLoss
from facerec.comparison.significance import adjust, compare_paired, smallest_difference
from facerec.comparison.splits import split_classes
from facerec.heads import SEC
from facerec.training import RMSprop

FEATURES = Path("data/features.npz")

ON_FEATURES = Protocol(
    trunk=Trunk("features"),
    transform=None,
    optimizer=RMSprop(lr=3e-4),
    steps_per_epoch=25,
    epochs=40,
    patience=5,
)
"""As in ``recipes/papers``."""

SEC_LOSSES = tuple(
    MetricLoss(name)
    for name in ("TripletAll", "SemihardTriplet", "NPairNormalized", "MultiSimilaritySEC")
)
"""Those of ``recipes/papers/sec.py``."""

_POINTS = 0.5
"""Of MAP@R, that a design should find."""


def feature_null(
    features: Path = FEATURES, pool: int = 40, seeds: int = 10, families: int = 400
) -> Iterable[Row]:
    """Compare arms that are equal, trained on features, and count declared differences.

    Of each loss many seeds are trained once, briefly and on a part of the classes, which changes
    what is scored but not that the arms are equal; the two arms of a comparison are disjoint draws
    of them. Paired comparison of MAP@R and Holm over the losses are those of a report.

    Args:
        features: an embeddings file with classes.
        pool: seeds trained of each loss.
        seeds: of each arm.
        families: draws.
    """
    every, epochs = 4, 2  # of the classes one in so many is taken
    name = f"equal arms on features, 3 losses × {seeds} seeds"
    if not features.is_file():
        return [Row(name, None, "%", remark=f"needs {features}")]
    torch.set_num_threads(1)
    trainer = ArmTrainer(_some_classes(features, every), torch.device("cpu"))
    losses = [MetricLoss(each) for each in ("Contrastive", "Triplet", "NormalizedSoftmax")]
    protocol = replace(ON_FEATURES, epochs=epochs)
    trained = [_pool(trainer, Arm("a", loss), protocol, pool) for loss in losses]
    generator = np.random.default_rng(0)
    found = []
    for _ in range(families):
        family = []
        for scores, labels in trained:
            drawn = generator.permutation(pool)[: 2 * seeds]
            arm, base = scores[drawn[:seeds]], scores[drawn[seeds:]]
            family.append(compare_paired(arm, base, labels))
        found.append(adjust(family))
    asked = f"{pool} seeds of each loss, 1 class in {every}, {epochs} epochs"
    return [
        replace(row, remark=f"{row.remark}; {asked}")
        for row in declared_rows(name, [[c for c in family if c is not None] for family in found])
    ]


def feature_power(
    features: Path = FEATURES, seeds: int = 4, design: int = 10, pairs: int = 16
) -> Iterable[Row]:
    """Say which difference the design of ``recipes/papers/sec.py`` finds with 80 % power.

    Its four losses are trained plain and with SEC at the authors' weight, at their own settings;
    the spread of the paired differences over seeds is all that is taken from them.

    Args:
        features: an embeddings file with classes.
        seeds: trained here.
        design: seeds of the comparison that is asked about.
        pairs: of the claim, over which Holm adjusts.
    """
    name = f"smallest difference found with 80 % power, {design} seeds, Holm over {pairs} pairs"
    if not features.is_file():
        yield Row(name, None, "points of MAP@R", remark=f"needs {features}")
        return
    torch.set_num_threads(1)
    trainer = ArmTrainer(open_features(FeatureData(features)), torch.device("cpu"))
    for loss in SEC_LOSSES:
        yield _power_of(trainer, loss, name, seeds, design, pairs)


def _power_of(
    trainer: ArmTrainer, loss: MetricLoss, name: str, seeds: int, design: int, pairs: int
) -> Row:
    base, arm = Arm("base", loss), Arm("arm", loss, SEC(weight=1.0))
    means = [100 * _pool(trainer, each, ON_FEATURES, seeds)[0].mean(axis=1) for each in (base, arm)]
    differences = means[1] - means[0]

    def finds(count: int) -> float | None:
        """Return what so many seeds with the spread of these would find."""
        spread = np.linspace(-1, 1, count)
        alike = spread * differences.std(ddof=1) / spread.std(ddof=1)
        return smallest_difference(alike, 0.05 / pairs)

    smallest = finds(design)
    enough = next(
        (n for n in range(2, 51) if (found := finds(n)) is not None and found <= _POINTS),
        "more than 50",
    )
    return Row(
        f"{name}: {loss.name}",
        smallest,
        "points of MAP@R",
        _POINTS,
        remark=f"differences of {seeds} seeds have a standard deviation of "
        f"{differences.std(ddof=1):.3f} points, each arm's {means[0].std(ddof=1):.3f} and "
        f"{means[1].std(ddof=1):.3f}; MAP@R {means[0].mean():.2f} and {means[1].mean():.2f} %; "
        f"{enough} seeds find {_POINTS} points",
    )


def _some_classes(path: Path, every: int) -> FeatureSet:
    """Return the features of every so-many-th class."""
    whole = open_features(FeatureData(path))
    kept = whole.labels % every == 0
    arrays = {"features": whole.features, "labels": whole.labels, "images": whole.ids}
    with tempfile.TemporaryDirectory() as folder:
        part = Path(folder) / "part.npz"
        np.savez(part, **{name: each[kept] for name, each in arrays.items()})
        return open_features(FeatureData(part))


def _pool(
    trainer: ArmTrainer, arm: Arm, protocol: Protocol, count: int
) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Return MAP@R of each seed and query ``(count, q)``, and the class of each query ``(q,)``."""
    split = split_classes(trainer.images.num_classes)
    sides = scored_positions(trainer.images, split)
    rows = []
    for seed in range(count):
        trained = [trainer.fit(arm, protocol, fold, seed) for fold in split.folds]
        fits: list[Fit] = [fit for fit, _ in trained]
        run = score_models(trainer, protocol, [model for _, model in trained], sides, fits)
        rows.append(run.scores["concatenated", "map_at_r"])
    return np.array(rows), run.labels
