"""ArcFace with the spherical embedding constraint, iResNet-100, MS1MV3."""

from dataclasses import replace

from facerec.recipes._ms1mv3 import base, sec

recipe = replace(base, backbone=replace(base.backbone, name="iresnet100"), regularizer=sec)
