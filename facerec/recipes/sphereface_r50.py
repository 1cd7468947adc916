"""SphereFace without SEC, iResNet-50, MS1MV3: the twin of sphereface_sec_r50."""

from dataclasses import replace

from facerec.heads import SphereFace
from facerec.recipes._ms1mv3 import base

# The modern form with a real m. s = 64, m = 1.7: the MS1M iResNet-100 configuration of
# ydwen/opensphere; InsightFace's Paddle generation used 1.35.
recipe = replace(base, margin=SphereFace(scale=64.0, margin=1.7))
