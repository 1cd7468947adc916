"""InsightFace's ms1mv3_r50 to the letter: ArcFace on MS1MV3 with iResNet-50, for comparisons.

After deepinsight/insightface, recognition/arcface_torch: configs/ms1mv3_r50.py, losses.py,
partial_fc_v2.py and train_v2.py of November 2024. Meant for eight processes with 128 images each:

    torchrun --nproc-per-node 8 tools/train.py recipes/insightface/ms1mv3_r50.py

On one GPU add `--accumulation 8`, which keeps batch-norm groups of 128 images; their single-GPU
configuration has a rate of 0.02 and a batch of 128 instead. What cannot be the same: the drawn
weights, the order of the images, and class shards, whose borders follow torch.chunk here. MS1MV3
derives from a set that was withdrawn; see BROADER_IMPACT.md.
"""

from pathlib import Path

from facerec.backbones import Backbone
from facerec.heads import ArcFace
from facerec.records import Augmentation, Data
from facerec.training import (
    SGD,
    Checkpoints,
    DataParallel,
    Head,
    Polynomial,
    Recipe,
    Validation,
)

recipe = Recipe(
    data=Data(path=Path("data/ms1mv3"), augmentation=Augmentation(flip=0.5)),
    backbone=Backbone(
        name="iresnet50", embedding_size=512, embedding_bn="frozen_gamma", dropout=0.0
    ),
    # cos(θ + m) everywhere, also where it rises again; the gradient passes as if it were cos θ.
    margin=ArcFace(scale=64.0, margin=0.5, wrap="none", gradient="straight_through"),
    head=Head(center_init="normal", sample_rate=1.0),
    optimizer=SGD(lr=0.1, momentum=0.9, weight_decay=5e-4, decay="all"),
    schedule=Polynomial(power=1.0, warmup_epochs=0.0),
    batch_size=1024,
    epochs=20,
    clip_norm=5.0,
    precision="fp16",
    data_parallel=DataParallel(bucket_mb=16, compression="fp16"),
    workers=2,
    validation=Validation(benches=("lfw", "cfp_fp", "agedb_30"), data=Path("data/ms1mv3")),
    checkpoints=Checkpoints(every_steps=2000, keep=2),
)
