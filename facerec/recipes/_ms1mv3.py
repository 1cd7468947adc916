"""What the MS1MV3 recipes share: InsightFace's published settings of its ms1mv3 configurations.

Source of every value, unless a comment says otherwise: deepinsight/insightface,
recognition/arcface_torch/configs/ms1mv3_*.py and train_v2.py; recipes/insightface/ms1mv3_r50.py
follows them where these recipes do not. MS1MV3 (93,431 people, 5,179,510 images) derives from
MS-Celeb-1M, which was withdrawn; see BROADER_IMPACT.md.
"""

from pathlib import Path

from facerec.backbones import Backbone
from facerec.heads import SEC, ArcFace
from facerec.records import Augmentation, Data
from facerec.training import SGD, Checkpoints, Head, Polynomial, Recipe, Validation

base = Recipe(
    data=Data(
        path=Path("data/ms1mv3"),
        augmentation=Augmentation(flip=0.5),  # the only augmentation there
    ),
    backbone=Backbone(
        name="iresnet50", embedding_size=512, embedding_bn="frozen_gamma", dropout=0.0
    ),
    # There ψ is cos(θ + m) even where θ + m passes π and it rises again, and its gradient is taken
    # as if ψ were cos θ. Here the cosine goes on falling and the gradient is that of ψ.
    margin=ArcFace(scale=64.0, margin=0.5, wrap="fold", gradient="exact"),
    # N(0, 0.01²). With a sample_rate below 1, classes that were not drawn stay as they are here;
    # there they decay and their momentum goes on, because the gradient is dense.
    head=Head(center_init="normal"),
    # Rate 0.1 belongs to 8 × 128 images; decay on everything, batch-norms included, as there.
    optimizer=SGD(lr=0.1, momentum=0.9, weight_decay=5e-4, decay="all"),
    # A warm-up of recipes made from this one begins below the full rate; there the first step has
    # all of it.
    schedule=Polynomial(power=1.0, warmup_epochs=0.0),
    # Batch norm sees each process's share of it: as there with eight processes and 128 images each;
    # on one process `accumulation=8` makes such groups.
    batch_size=1024,
    epochs=20,
    clip_norm=5.0,  # on the backbone alone
    precision="bf16",  # there fp16 with a gradient scaler; bf16 has float32's range and needs none
    workers=4,
    validation=Validation(benches=("lfw", "cfp_fp", "agedb_30"), data=Path("data/ms1mv3")),
    checkpoints=Checkpoints(every_steps=2000, keep=2),
)

# The weight η of SEC. The paper's settings for faces are not public, and no official face code
# exists; its authors use 1.0 for triplet loss on CUB, in the plain form. Of 0, 0.01, 0.1, 1 and 10
# in that form, η = 0.1 has the best mean validation score over SphereFace, CosFace and ArcFace in
# `recipes/studies/eta.py` on 147 people of CFP with this last layer: SphereFace gains, the other
# two stay as they are, and lose from 1 on. There D = 64 and s = 32, where the scale-free weight
# 0.1 · 64 / 32 presses as hard. docs/studies.md has the figures and how little so small a study can
# tell. For a set of your own give that recipe your images and trunk, or train short runs and
# compare their validation on people of your own that are in no benchmark. The iResNet's last
# batch-norm already holds the mean norm near √512 = 22.6, so that SEC only evens out the spread
# around it (`norm_cv` in metrics.jsonl).
sec = SEC(weight=0.2, scale_free=True)
