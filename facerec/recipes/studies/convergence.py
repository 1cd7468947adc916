"""Does SEC reach the same score in fewer steps?

    facerec compare recipes/studies/convergence.py

Training does not stop early. The report gives the paired ratio of steps until validation reaches
90, 95 and 99 % of the base's final score; runs that never do are kept as censored.
"""

from dataclasses import replace

from facerec.recipes._arms import arms, with_penalties
from facerec.recipes.studies._generated import arcface, cosface, protocol, scale, searched, sec

recipe = searched(
    "convergence",
    "Does SEC make training faster?",
    with_penalties(arms(scale, CosFace=cosface, ArcFace=arcface), sec),
    protocol=replace(protocol, steps_per_epoch=10, epochs=20, patience=20),
)
