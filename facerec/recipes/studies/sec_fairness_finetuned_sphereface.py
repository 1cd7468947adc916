"""The study of `sec_fairness_finetuned`, with SphereFace in place of ArcFace."""

from dataclasses import replace

from facerec.heads import SphereFace
from facerec.recipes.studies.sec_fairness_finetuned import recipe as arcface

recipe = replace(arcface, real=replace(arcface.real, margin=SphereFace(scale=32.0, margin=1.35)))
