"""Does SEC reach the same score in fewer steps?

    facerec compare recipes/studies/convergence.py

Training does not stop early. The report gives the paired ratio of steps until validation reaches
90, 95 and 99 % of the base's final score; runs that never do are kept as censored.
"""

from dataclasses import replace

from facerec.comparison import Arm, Comparison, MarginHead
from facerec.heads import SEC, ArcFace, CosFace
from facerec.recipes.studies._generated import faces, protocol, repetitions, scale, trials, weight

heads = {
    "CosFace": MarginHead(CosFace(scale=32.0, margin=0.2)),
    "ArcFace": MarginHead(ArcFace(scale=32.0, margin=0.3)),
}

recipe = Comparison(
    name="convergence",
    question="Does SEC make training faster?",
    data=faces,
    protocol=replace(protocol, steps_per_epoch=10, epochs=20, patience=20),
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
