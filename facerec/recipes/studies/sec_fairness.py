"""Do norms follow recorded groups, and does SEC change that or the error rates by group?

    facerec study recipes/studies/sec_fairness.py
    facerec study recipes/studies/sec_fairness.py --real.records data/cfp_train \
        --real.bench data/lfw/lfw.bin --real.attributes data/lfw/attributes.csv

Both arms over three seeds. A run takes minutes on generated faces and two CPU cores, and about ten
minutes on the real ones (with bf16; without, give --real.epochs 5 or so).
"""

from pathlib import Path

from facerec.backbones import Backbone
from facerec.fairness.study import FairnessStudy
from facerec.heads import SEC, ArcFace
from facerec.records import Augmentation, Data
from facerec.records.synthetic import Group, SyntheticSet
from facerec.training import SGD, Checkpoints, Cosine, Recipe

recipe = FairnessStudy(
    generated=Recipe(
        data=Data(path=Path("study/data")),
        backbone=Backbone(name="iresnet18", embedding_size=128, width=0.25),
        margin=ArcFace(scale=32.0, margin=0.3),
        regularizer=SEC(weight=0.1),
        optimizer=SGD(lr=0.1, momentum=0.9, weight_decay=5e-4),
        schedule=Cosine(warmup_epochs=0.3),
        checkpoints=Checkpoints(every_steps=1000, keep=1),
        batch_size=64,
        epochs=3,
        workers=1,
    ),
    real=Recipe(
        data=Data(
            path=Path("data/cfp_train"),
            augmentation=Augmentation(flip=0.5, crop=0.3, low_resolution=0.1, photometric=0.3),
        ),
        backbone=Backbone(name="iresnet18", embedding_size=256, width=0.25, dropout=0.2),
        margin=ArcFace(scale=32.0, margin=0.3),
        regularizer=SEC(weight=0.1),
        optimizer=SGD(lr=0.1, momentum=0.9, weight_decay=1e-3),
        schedule=Cosine(warmup_epochs=1.0),
        checkpoints=Checkpoints(every_steps=200, keep=2),
        batch_size=64,
        epochs=20,
        workers=1,
    ),
    faces=SyntheticSet(
        seed=0,
        identities=200,
        images_per_identity=16,
        pairs_per_fold=60,
        # Photos of B are somewhat worse, in training and in the test.
        groups=(Group("A"), Group("B", contrast=0.6, blur=1.5, noise=10.0)),
    ),
    # Far worse than that: a good audit finds more errors in B.
    harder=Group("B", contrast=0.4, blur=3.0, noise=20.0),
    attribute="gender",
    seeds=(0, 1, 2),
)
