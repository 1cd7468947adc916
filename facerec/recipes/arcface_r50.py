"""ArcFace without SEC, iResNet-50, MS1MV3: the twin of arcface_sec_r50."""

from facerec.recipes._ms1mv3 import base

recipe = base
