"""Does SEC help margin heads, when everything else is equal?

    facerec compare recipes/compare/sec_on_margins.py --smoke
    facerec compare recipes/compare/sec_on_margins.py

SphereFace, CosFace and ArcFace with and without the constraint, on generated faces. Both arms of a
pair get the same number of trials, and the one with SEC begins with the other's best setting at
weight 0. Give `data=ImageData(path=…)` and a real trunk for figures that say something of faces.
"""

from facerec.comparison import (
    Arm,
    Batch,
    Comparison,
    FaceTransform,
    MarginHead,
    Protocol,
    Range,
    Trunk,
)
from facerec.heads import SEC, ArcFace, CosFace, SphereFace
from facerec.records.synthetic import SyntheticSet
from facerec.training import Adam

scale = Range("loss.margin.scale", 8.0, 64.0, "log")
weight = Range("regularizer.weight", 0.0, 10.0, "log_with_zero")
heads = {
    "SphereFace": (SphereFace(scale=32.0), Range("loss.margin.margin", 1.0, 1.7)),
    "CosFace": (CosFace(scale=32.0, margin=0.2), Range("loss.margin.margin", 0.0, 0.5)),
    "ArcFace": (ArcFace(scale=32.0, margin=0.3), Range("loss.margin.margin", 0.0, 0.6)),
}

recipe = Comparison(
    name="sec_on_margins",
    question="Does SEC help SphereFace, CosFace and ArcFace under equal conditions?",
    data=SyntheticSet(identities=160, images_per_identity=12, pairs_per_fold=4),
    protocol=Protocol(
        trunk=Trunk(name="small_cnn", embedding_size=64, image_size=28),
        transform=FaceTransform(size=28, shrink=4),
        optimizer=Adam(lr=1e-3),
        batch=Batch(classes=8, per_class=4),
        steps_per_epoch=20,
        epochs=8,
        patience=3,
    ),
    arms=tuple(
        arm
        for name, (margin, range_of_margin) in heads.items()
        for arm in (
            Arm(name, MarginHead(margin), search=(range_of_margin, scale)),
            Arm(
                f"{name}+SEC",
                MarginHead(margin),
                SEC(weight=0.1),
                against=name,
                search=(range_of_margin, scale, weight),
            ),
        )
    ),
    trials=6,
    repetitions=6,
)
