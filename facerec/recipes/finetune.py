"""Go on training a network that is there, on people of your own.

    facerec train recipes/finetune.py --init.path runs/NAME --data.path data/mine

The network is the one that the weights belong to, and pixels are prepared as it knows them. For a
.pth, which does not say, set --backbone.name and the fields beside it, and --preprocessing. Rates,
steps and epochs are meant for some hundred people with a dozen photos or more each. They are rules
of thumb, not the outcome of a search: hold out people of your own to choose better ones.
"""

from pathlib import Path

from facerec.backbones import Backbone
from facerec.heads import SEC, ArcFace
from facerec.records import Augmentation, Data
from facerec.training import AdamW, Checkpoints, Cosine, Finetune, Init, Recipe

recipe = Recipe(
    init=Init(path=Path("weights.safetensors"), head="class_means"),
    backbone=Backbone(name="init"),
    data=Data(
        path=Path("data/celeba_train"),
        augmentation=Augmentation(flip=0.5, crop=0.1, low_resolution=0.1, photometric=0.1),
    ),
    margin=ArcFace(scale=32.0, margin=0.3),
    regularizer=SEC(weight=0.2, scale_free=True),
    # The centres begin at the class means, the network where it was trained to be: small steps, the
    # smaller the nearer to the pixels, on the batch statistics that the network has. Adam's steps
    # do not depend on how large the weights are, which differs much between networks whose batch
    # norms rest; SGD at rates that train such networks from a seed undoes them.
    finetune=Finetune(rate_factor=0.2, layer_decay=0.8, batch_norm="frozen"),
    optimizer=AdamW(lr=5e-4, weight_decay=0.05),
    schedule=Cosine(warmup_epochs=0.5),
    ema=0.99,
    checkpoints=Checkpoints(every_steps=200, keep=2),
    batch_size=64,
    epochs=5,
    workers=1,
)
