"""Do arms whose norms vary less also retrieve better? And how wide is the range of good weights?

    facerec compare recipes/studies/gain_vs_variance.py

SEC at fixed weights from 0.001 to 10 on five losses; nothing is searched. The report's
findings give Spearman's correlation of the gains with the reductions of norm variance and its
interval, resampled over losses.
"""

from facerec.comparison import MetricLoss
from facerec.recipes._arms import arms, sec_at, with_penalties
from facerec.recipes.studies._generated import arcface, cosface, fixed

losses = arms(
    CosFace=cosface,
    ArcFace=arcface,
    Triplet=MetricLoss("Triplet"),
    Contrastive=MetricLoss("Contrastive"),
    MS=MetricLoss("MultiSimilarity"),
)

recipe = fixed(
    "gain_vs_variance",
    "Does the gain of SEC follow the reduction of the variance of the norms?",
    with_penalties(losses, *sec_at(0.001, 0.01, 0.1, 1.0, 10.0)),
)
