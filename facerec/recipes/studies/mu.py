"""Zero, the mean, a moving average, a trained or a fixed radius: which centre for the norms?

    facerec compare recipes/studies/mu.py

Measures what each centre μ of the penalty η (‖f‖ − μ)² does to a margin head and to triplets at two
given weights. Zero is also tried at 1e-4, which the authors of SEC take for it beside 1.0 for the
mean (the examples of Dyfine/SphericalEmbedding): norms are many times their spread. Nothing is
searched: with the weight left to a search, most arms end at weight 0 on these faces and say nothing
of their centre. The last layer is plain linear, so that the norms are free.
"""

from facerec.comparison import MarginHead, MetricLoss
from facerec.heads import SEC, CosFace, FixedNorm, L2Norm, RingLoss
from facerec.recipes._arms import arms, with_penalties
from facerec.recipes.studies._generated import fixed

losses = arms(
    CosFace=MarginHead(CosFace(scale=8.0, margin=0.2)),
    Triplet=MetricLoss("Triplet"),
)
centres = [("zero0.0001", L2Norm(weight=1e-4))]
for weight in (0.1, 1.0):
    centres += [
        (f"zero{weight:g}", L2Norm(weight=weight)),
        (f"mean{weight:g}", SEC(weight=weight)),
        (f"ema{weight:g}", SEC(weight=weight, rho=0.1)),
        (f"learned{weight:g}", RingLoss(weight=weight)),
        (f"fixed{weight:g}", FixedNorm(weight=weight, radius=5.0)),
    ]

recipe = fixed(
    "mu",
    "Does it matter to what the norms are pulled: zero, their mean, or a radius?",
    with_penalties(losses, *centres),
)
