"""The study of `sec_fairness_finetuned`, with CosFace in place of ArcFace."""

from dataclasses import replace

from facerec.heads import CosFace
from facerec.recipes.studies.sec_fairness_finetuned import recipe as arcface

recipe = replace(arcface, real=replace(arcface.real, margin=CosFace(scale=32.0, margin=0.2)))
