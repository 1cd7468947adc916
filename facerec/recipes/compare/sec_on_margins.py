"""Does SEC help margin heads, when everything else is equal?

    facerec compare recipes/compare/sec_on_margins.py --smoke
    facerec compare recipes/compare/sec_on_margins.py

SphereFace, CosFace and ArcFace with and without the constraint, on generated faces. Both arms of a
pair get the same number of trials, and the one with SEC begins with the other's best setting at
weight 0. Give `data=ImageData(path=…)` and a real trunk for figures that say something of faces.
"""

from facerec.comparison import Comparison, Range
from facerec.heads import SEC
from facerec.recipes._arms import faces, margin_heads, small, with_penalties

weight = Range("regularizer.weight", 0.0, 10.0, "log_with_zero")

recipe = Comparison(
    "sec_on_margins",
    "Does SEC help SphereFace, CosFace and ArcFace under equal conditions?",
    with_penalties(margin_heads, ("SEC", SEC(weight=0.1), weight)),
    data=faces,
    protocol=small,
    trials=6,
    repetitions=6,
)
