"""A small real set in MS1M layout: 295 people of CFP, 4,130 images, on two CPU cores.

The set is too small for figures that compare with published ones; it shows that the whole path
works on real faces. Width, epochs, scale and margin were chosen so that a run takes about ten
minutes on two cores; they have no other source.
"""

from pathlib import Path

from facerec.backbones import Backbone
from facerec.heads import SEC, ArcFace
from facerec.records import Augmentation, Data
from facerec.training import SGD, Checkpoints, Cosine, Recipe

recipe = Recipe(
    data=Data(
        path=Path("data/cfp_train"),
        # Fourteen photos a person, cropped tightly: more augmentation than MS1M needs.
        augmentation=Augmentation(flip=0.5, crop=0.3, low_resolution=0.1, photometric=0.3),
    ),
    backbone=Backbone(name="iresnet18", embedding_size=256, width=0.25, dropout=0.2),
    margin=ArcFace(scale=32.0, margin=0.3),
    regularizer=SEC(weight=0.2, scale_free=True),
    optimizer=SGD(lr=0.1, momentum=0.9, weight_decay=1e-3),
    schedule=Cosine(warmup_epochs=1.0),
    checkpoints=Checkpoints(every_steps=200, keep=2),
    batch_size=64,
    epochs=20,
    workers=1,
)
