"""Do arms whose norms vary less also retrieve better? And how wide is the range of good weights?

    facerec compare recipes/studies/gain_vs_variance.py

SEC at fixed weights from 0.001 to 10 on five losses; nothing is searched. The report's
findings give Spearman's correlation of the gains with the reductions of norm variance and its
interval, resampled over losses.
"""

from facerec.comparison import Arm, Comparison, MarginHead, MetricLoss
from facerec.heads import SEC, ArcFace, CosFace
from facerec.recipes.studies._generated import faces, protocol, repetitions

contestants = {
    "CosFace": MarginHead(CosFace(scale=32.0, margin=0.2)),
    "ArcFace": MarginHead(ArcFace(scale=32.0, margin=0.3)),
    "Triplet": MetricLoss("Triplet"),
    "Contrastive": MetricLoss("Contrastive"),
    "MS": MetricLoss("MultiSimilarity"),
}

recipe = Comparison(
    name="gain_vs_variance",
    question="Does the gain of SEC follow the reduction of the variance of the norms?",
    data=faces,
    protocol=protocol,
    arms=tuple(
        arm
        for name, loss in contestants.items()
        for arm in (
            Arm(name, loss, search=()),
            *(
                Arm(f"{name}+SEC{weight:g}", loss, SEC(weight=weight), against=name, search=())
                for weight in (0.001, 0.01, 0.1, 1.0, 10.0)
            ),
        )
    ),
    repetitions=repetitions,
)
