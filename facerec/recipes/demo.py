"""A narrow iResNet-18 on generated faces: minutes on two CPU cores.

`make demo` generates the faces under demo/data and trains this recipe and its twin without SEC.
"""

from pathlib import Path

from facerec.backbones import Backbone
from facerec.heads import SEC, ArcFace
from facerec.records import Data
from facerec.training import SGD, Checkpoints, Cosine, Recipe, Validation

recipe = Recipe(
    data=Data(path=Path("demo/data")),
    backbone=Backbone(name="iresnet18", embedding_size=128, width=0.25),
    # Few people and a small net: a smaller scale and margin than for millions of images.
    margin=ArcFace(scale=32.0, margin=0.2),
    regularizer=SEC(weight=0.2, scale_free=True),
    optimizer=SGD(lr=0.1, momentum=0.9, weight_decay=5e-4),
    schedule=Cosine(warmup_epochs=0.15),
    validation=Validation(benches=(), data=Path("demo/data")),
    checkpoints=Checkpoints(every_steps=1000, keep=1),
    # A single pass in small batches: on a core without bf16 an image takes some 30 ms.
    batch_size=32,
    epochs=1,
    workers=1,
)
