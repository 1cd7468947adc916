"""SimCLR and SupCon with and without SEC, its weight growing linearly as its authors do.

    facerec compare recipes/studies/contrastive.py

Two augmented views of every image. SimCLR is told nothing of the classes: the other view is the
only positive. Norms are those of the embeddings that the loss sees. L2 is the penalty towards 0.
"""

from dataclasses import replace

from facerec.comparison import Arm, Batch, Comparison, FaceTransform, MetricLoss, Range
from facerec.heads import SEC, L2Norm
from facerec.recipes.studies._generated import faces, protocol, repetitions, trials, weight
from facerec.records import Augmentation

contestants = {
    "SimCLR": MetricLoss("NTXent", temperature=0.2, views=2),
    "SupCon": MetricLoss("SupCon", temperature=0.2, views=2),
}
temperature = Range("loss.temperature", 0.05, 1.0, "log")
views = Augmentation(flip=0.5, crop=0.8, low_resolution=0.2, photometric=0.8)

recipe = Comparison(
    name="contrastive",
    question="Does SEC help SimCLR and SupCon?",
    data=faces,
    protocol=replace(
        protocol,
        transform=FaceTransform(size=28, shrink=4, augmentation=views),
        batch=Batch(classes=32, per_class=1),
    ),
    arms=tuple(
        arm
        for name, loss in contestants.items()
        for arm in (
            Arm(name, loss, search=(temperature,)),
            Arm(
                f"{name}+SEC",
                loss,
                SEC(weight=0.1, schedule="linear"),
                against=name,
                search=(temperature, weight),
            ),
            Arm(
                f"{name}+L2",
                loss,
                L2Norm(weight=0.01, schedule="linear"),
                against=name,
                search=(temperature, weight),
            ),
        )
    ),
    trials=trials,
    repetitions=repetitions,
)
