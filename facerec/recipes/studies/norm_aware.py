"""SEC together with margins that read quality from the norm: a negative control.

    facerec compare recipes/studies/norm_aware.py

AdaFace and MagFace want norms that differ between good and bad images; SEC takes the difference
away. If SEC helps them as much as it helps ArcFace, it does not help for the reason given.
"""

from facerec.comparison import MarginHead
from facerec.heads import AdaFace, MagFace
from facerec.recipes._arms import arms, with_penalties
from facerec.recipes.studies._generated import arcface, scale, searched, sec

adaface = MarginHead(AdaFace(scale=32.0, margin=0.3))
magface = MarginHead(MagFace(scale=32.0))

recipe = searched(
    "norm_aware",
    "Does SEC hurt margins that depend on the norm?",
    with_penalties(arms(scale, ArcFace=arcface, AdaFace=adaface, MagFace=magface), sec),
)
