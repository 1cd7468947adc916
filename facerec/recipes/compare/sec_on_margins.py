"""Does SEC help margin heads, when everything else is equal?

    facerec compare recipes/compare/sec_on_margins.py --smoke
    facerec compare recipes/compare/sec_on_margins.py

SphereFace, CosFace and ArcFace with and without the constraint, on generated faces. Both arms of a
pair get the same number of trials, and the one with SEC begins with the other's best setting at
weight 0. Give `data=ImageData(path=…)` and a real trunk for figures that say something of faces.
"""

from dataclasses import replace

from facerec.comparison import Arm, Comparison, FaceTransform, MarginHead, Range
from facerec.heads import SEC, ArcFace, CosFace, SphereFace
from facerec.recipes._arms import faces, small, with_penalties

scale = Range("loss.margin.scale", 8.0, 64.0, "log")
margins = {
    "SphereFace": (SphereFace(scale=32.0), Range("loss.margin.margin", 1.0, 1.7)),
    "CosFace": (CosFace(scale=32.0, margin=0.2), Range("loss.margin.margin", 0.0, 0.5)),
    "ArcFace": (ArcFace(scale=32.0, margin=0.3), Range("loss.margin.margin", 0.0, 0.6)),
}
losses = [
    Arm(name, MarginHead(margin), search=(range_of_margin, scale))
    for name, (margin, range_of_margin) in margins.items()
]

recipe = Comparison(
    "sec_on_margins",
    "Does SEC help SphereFace, CosFace and ArcFace under equal conditions?",
    with_penalties(
        losses, ("SEC", SEC(weight=0.1), Range("regularizer.weight", 0.0, 10.0, "log_with_zero"))
    ),
    data=faces,
    protocol=replace(small, transform=FaceTransform(size=28, shrink=4)),
    trials=6,
    repetitions=6,
)
