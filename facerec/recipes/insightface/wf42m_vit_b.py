"""InsightFace's ViT-B on WebFace42M to the letter: CosFace, AdamW, sampled classes.

After deepinsight/insightface, recognition/arcface_torch: backbones/__init__.py
(vit_b_dp005_mask_005), backbones/vit.py, configs/wf42m_pfc03_40epoch_64gpu_vit_b.py and train_v2.py
of November 2024.
Meant for 64 processes with 384 images each (8 hosts, one of which answers at HOST):

    torchrun --nnodes 8 --nproc-per-node 8 --rdzv-backend c10d --rdzv-endpoint HOST:29500 \
        tools/train.py recipes/insightface/wf42m_vit_b.py

Their configurations for T, S and L differ in the backbone alone: vit_t and vit_s have
`--backbone.mask-ratio 0` and need no `recompute`, vit_l is as here. What cannot be the same: drawn
weights and classes, the order of the images, class shards, whose borders follow torch.chunk here,
and the first step, which has the full rate there although a warm-up follows. Classes that a step
leaves out stay as they are here; there they decay and go on along Adam's averages. WebFace42M is
given out for research on request.
"""

from dataclasses import replace
from pathlib import Path

from facerec.heads import CosFace
from facerec.recipes.insightface.ms1mv3_r50 import recipe as ms1mv3
from facerec.training import AdamW, Head, Polynomial, Validation

recipe = replace(
    ms1mv3,
    data=replace(ms1mv3.data, path=Path("data/webface42m")),
    backbone=replace(
        ms1mv3.backbone,
        name="vit_b",
        embedding_bn="affine",
        drop_path=0.05,
        # The name there says 0.05, but `random_masking` is called without it and takes its default.
        mask_ratio=0.1,
    ),
    margin=CosFace(scale=64.0, margin=0.4),
    head=Head(center_init="normal", sample_rate=0.3),
    optimizer=AdamW(lr=1e-3, betas=(0.9, 0.999), weight_decay=0.1, decay="all"),
    schedule=Polynomial(power=1.0, warmup_epochs=4.0),
    batch_size=24576,
    epochs=40,
    recompute=True,
    validation=Validation(),
)
