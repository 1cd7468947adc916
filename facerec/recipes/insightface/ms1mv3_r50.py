"""InsightFace's ms1mv3_r50 to the letter: ArcFace on MS1MV3 with iResNet-50, for comparisons.

After deepinsight/insightface, recognition/arcface_torch: configs/ms1mv3_r50.py, losses.py,
partial_fc_v2.py and train_v2.py of November 2024. Meant for eight processes with 128 images each:

    torchrun --nproc-per-node 8 tools/train.py recipes/insightface/ms1mv3_r50.py

On one GPU add `--accumulation 8`, which keeps batch-norm groups of 128 images; their single-GPU
configuration has a rate of 0.02 and a batch of 128 instead. What cannot be the same: the drawn
weights, the order of the images, and class shards, whose borders follow torch.chunk here. MS1MV3
derives from a set that was withdrawn; see BROADER_IMPACT.md.
"""

from dataclasses import replace

from facerec.heads import ArcFace
from facerec.recipes._ms1mv3 import base
from facerec.training import DataParallel

# What `base` has otherwise: the margin, the precision, and what processes send.
recipe = replace(
    base,
    # cos(θ + m) everywhere, also where it rises again; the gradient passes as if it were cos θ.
    margin=ArcFace(scale=64.0, margin=0.5, wrap="none", gradient="straight_through"),
    precision="fp16",
    data_parallel=DataParallel(bucket_mb=16, compression="fp16"),
    workers=2,
)
