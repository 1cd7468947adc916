"""SEC together with margins that read quality from the norm: a negative control.

    facerec compare recipes/studies/norm_aware.py

AdaFace and MagFace want norms that differ between good and bad images; SEC takes the difference
away. If SEC helps them as much as it helps ArcFace, it does not help for the reason given.
"""

from facerec.comparison import Arm, Comparison, MarginHead
from facerec.heads import SEC, AdaFace, ArcFace, MagFace
from facerec.recipes.studies._generated import faces, protocol, repetitions, scale, trials, weight

heads = {
    "ArcFace": MarginHead(ArcFace(scale=32.0, margin=0.3)),
    "AdaFace": MarginHead(AdaFace(scale=32.0, margin=0.3)),
    "MagFace": MarginHead(MagFace(scale=32.0)),
}

recipe = Comparison(
    name="norm_aware",
    question="Does SEC hurt margins that depend on the norm?",
    data=faces,
    protocol=protocol,
    arms=tuple(
        arm
        for name, head in heads.items()
        for arm in (
            Arm(name, head, search=(scale,)),
            Arm(f"{name}+SEC", head, SEC(weight=0.1), against=name, search=(scale, weight)),
        )
    ),
    trials=trials,
    repetitions=repetitions,
)
