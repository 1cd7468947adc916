"""What the quick studies on generated faces share: a small network on 28×28 pixels, minutes."""

from facerec.comparison import Batch, FaceTransform, Protocol, Range, Trunk
from facerec.records import Augmentation
from facerec.records.synthetic import SyntheticSet
from facerec.training import Adam

faces = SyntheticSet(identities=160, images_per_identity=12, pairs_per_fold=4)

protocol = Protocol(
    trunk=Trunk(name="small_cnn", embedding_size=64, image_size=28),
    transform=FaceTransform(size=28, shrink=4, augmentation=Augmentation(flip=0.5)),
    optimizer=Adam(lr=1e-3),
    batch=Batch(classes=8, per_class=4),
    steps_per_epoch=20,
    epochs=8,
    patience=3,
)

weight = Range("regularizer.weight", 0.0, 10.0, "log_with_zero")
scale = Range("loss.margin.scale", 4.0, 64.0, "log")
trials, repetitions = 6, 6
