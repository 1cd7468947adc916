"""ArcFace with the spherical embedding constraint, iResNet-50, MS1MV3."""

from dataclasses import replace

from facerec.recipes._ms1mv3 import base, sec

recipe = replace(base, regularizer=sec)
