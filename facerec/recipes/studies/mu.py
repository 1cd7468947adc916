"""Zero, the mean, a moving average, a trained or a fixed radius: which centre for the norms?

    facerec compare recipes/studies/mu.py

Measures what each centre μ of the penalty η (‖f‖ − μ)² does to a margin head and to triplets at two
given weights. Zero is also tried at 1e-4, which the authors of SEC take for it beside 1.0 for the
mean (the examples of Dyfine/SphericalEmbedding): norms are many times their spread. Nothing is
searched: with the weight left to a search, most arms end at weight 0 on these faces and say nothing
of their centre. The last layer is plain linear, so that the norms are free.
"""

from facerec.comparison import Arm, Comparison, MarginHead, MetricLoss
from facerec.heads import SEC, CosFace, FixedNorm, L2Norm, RingLoss
from facerec.recipes.studies._generated import faces, protocol, repetitions

bases = {"CosFace": MarginHead(CosFace(scale=8.0, margin=0.2)), "Triplet": MetricLoss("Triplet")}
weights = (0.1, 1.0)
gentle = 1e-4  # of zero

recipe = Comparison(
    name="mu",
    question="Does it matter to what the norms are pulled: zero, their mean, or a radius?",
    data=faces,
    protocol=protocol,
    arms=tuple(
        arm
        for name, loss in bases.items()
        for arm in (
            Arm(name, loss, search=()),
            Arm(f"{name}+zero{gentle:g}", loss, L2Norm(weight=gentle), against=name, search=()),
            *(
                Arm(f"{name}+{kind}{weight:g}", loss, penalty, against=name, search=())
                for weight in weights
                for kind, penalty in {
                    "zero": L2Norm(weight=weight),
                    "mean": SEC(weight=weight),
                    "ema": SEC(weight=weight, rho=0.1),
                    "learned": RingLoss(weight=weight),
                    "fixed": FixedNorm(weight=weight, radius=5.0),
                }.items()
            ),
        )
    ),
    repetitions=repetitions,
)
