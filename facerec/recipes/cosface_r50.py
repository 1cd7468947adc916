"""CosFace without SEC, iResNet-50, MS1MV3: the twin of cosface_sec_r50."""

from dataclasses import replace

from facerec.heads import CosFace
from facerec.recipes._ms1mv3 import base

# s = 64, m = 0.40: InsightFace's CosFace configurations (Glint360K, WebFace). Its older MXNet
# generation used 0.35.
recipe = replace(base, margin=CosFace(scale=64.0, margin=0.4))
