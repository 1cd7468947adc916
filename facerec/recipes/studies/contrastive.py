"""SimCLR and SupCon with and without SEC, its weight growing linearly as its authors do.

    facerec compare recipes/studies/contrastive.py

Two augmented views of every image. SimCLR is told nothing of the classes: the other view is the
only positive. Norms are those of the embeddings that the loss sees. L2 is the penalty towards 0.
"""

from dataclasses import replace

from facerec.comparison import Batch, FaceTransform, MetricLoss, Range
from facerec.heads import SEC, L2Norm
from facerec.recipes._arms import arms, with_penalties
from facerec.recipes.studies._generated import protocol, searched, weight
from facerec.records import Augmentation

views = Augmentation(flip=0.5, crop=0.8, low_resolution=0.2, photometric=0.8)
losses = arms(
    Range("loss.temperature", 0.05, 1.0, "log"),
    SimCLR=MetricLoss("NTXent", temperature=0.2, views=2),
    SupCon=MetricLoss("SupCon", temperature=0.2, views=2),
)

recipe = searched(
    "contrastive",
    "Does SEC help SimCLR and SupCon?",
    with_penalties(
        losses,
        ("SEC", SEC(weight=0.1, schedule="linear"), weight),
        ("L2", L2Norm(weight=0.01, schedule="linear"), weight),
    ),
    protocol=replace(
        protocol,
        transform=FaceTransform(size=28, shrink=4, augmentation=views),
        batch=Batch(classes=32, per_class=1),
    ),
)
