"""A small network learns the embeddings of a published one, from 9,453 photos, on two cores.

556 people are too few to learn faces from by a margin: such networks are right on 75 to 78 % of
LFW. A teacher's embedding tells far more of an image than the name of who is on it. Each image is
shown in ten fixed augmentations, each with the teacher's embedding of the very same pixels, for a
teacher that looks at other pixels than its student teaches less (Beyer et al., "Knowledge
distillation: A good teacher is patient and consistent", CVPR 2022). The teacher's look at all of
them takes about half an hour of one core, once; see docs/training.md.
"""

from pathlib import Path

from facerec.backbones import Backbone, Preprocessing
from facerec.records import Augmentation, Data, Part
from facerec.training import AdamW, Checkpoints, Cosine, Distillation, Recipe

recipe = Recipe(
    data=Data(
        path=Path("data/cfp_train"),
        also=(Part(path=Path("data/celeba_train")),),
        augmentation=Augmentation(
            flip=0.5, crop=0.2, low_resolution=0.2, blur=0.1, photometric=0.4
        ),
    ),
    # The size of the teacher's embedding, so that no map stands between; the last batch-norm with
    # a scale of its own in each dimension, since the teacher's dimensions differ.
    backbone=Backbone(name="iresnet18", embedding_size=128, width=0.25, embedding_bn="affine"),
    margin=None,
    distillation=Distillation(
        teacher=Path("data/teacher/MobileFaceNet.onnx"),
        preprocessing=Preprocessing(mean=127.5, std=128.0),
        views=10,
    ),
    optimizer=AdamW(lr=2e-3, weight_decay=0.05),
    schedule=Cosine(warmup_epochs=1.0),
    checkpoints=Checkpoints(every_steps=500, keep=2),
    batch_size=64,
    epochs=50,
    workers=1,
)
