"""ArcFace with the spherical embedding constraint, MobileFaceNet, MS1MV3."""

from dataclasses import replace

from facerec.recipes._ms1mv3 import base, sec

# Decay 1e-4 and 40 epochs: InsightFace's ms1mv3_mbf configuration. Its last batch-norm has a
# gamma that learns.
recipe = replace(
    base,
    backbone=replace(base.backbone, name="mbf", embedding_bn="affine"),
    optimizer=replace(base.optimizer, weight_decay=1e-4),
    epochs=40,
    regularizer=sec,
)
