"""SphereFace with the spherical embedding constraint, iResNet-50, MS1MV3."""

from dataclasses import replace

from facerec.recipes._ms1mv3 import sec
from facerec.recipes.sphereface_r50 import recipe as without_sec

recipe = replace(without_sec, regularizer=sec)
