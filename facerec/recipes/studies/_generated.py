"""What the quick studies on generated faces share: a small network on 28×28 pixels, minutes."""

from functools import partial

from facerec.comparison import (
    Batch,
    Comparison,
    FaceTransform,
    MarginHead,
    Protocol,
    Range,
    Trunk,
)
from facerec.heads import SEC, ArcFace, CosFace
from facerec.records import Augmentation
from facerec.records.synthetic import SyntheticSet
from facerec.training import Adam

protocol = Protocol(
    trunk=Trunk(name="small_cnn", embedding_size=64, image_size=28),
    transform=FaceTransform(size=28, shrink=4, augmentation=Augmentation(flip=0.5)),
    optimizer=Adam(lr=1e-3),
    batch=Batch(classes=8, per_class=4),
    steps_per_epoch=20,
    epochs=8,
    patience=3,
)
cosface = MarginHead(CosFace(scale=32.0, margin=0.2))
arcface = MarginHead(ArcFace(scale=32.0, margin=0.3))
scale = Range("loss.margin.scale", 4.0, 64.0, "log")
weight = Range("regularizer.weight", 0.0, 10.0, "log_with_zero")
sec = ("SEC", SEC(weight=0.1), weight)
"""A penalty of `with_penalties`."""

faces = SyntheticSet(identities=160, images_per_identity=12, pairs_per_fold=4)
fixed = partial(Comparison, data=faces, protocol=protocol, repetitions=6)
"""A comparison in which nothing is searched."""
searched = partial(fixed, trials=6)
"""A comparison in which each arm has six trials."""
