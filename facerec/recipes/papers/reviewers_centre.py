"""To what should norms be pulled? The centre μ of the penalty η (‖f‖ − μ)², each at its own weight.

    facerec compare recipes/papers/reviewers_centre.py --features FILE

The reviewers of the SEC paper asked why the mean and not zero, and which mean. Zero, the batch's
mean, a moving average, a learned radius and a fixed one, with a triplet and a softmax loss. The
weight is searched for each, as zero pulls at whole norms and the others at their deviations; its
range for zero contains the authors' 1e-4. All trials share the plain loss's settings.
"""

from facerec.comparison import Range
from facerec.heads import SEC, FixedNorm, L2Norm, RingLoss
from facerec.recipes._arms import n_pair, paper, triplet, weight

of_zero = Range("regularizer.weight", 1e-6, 1.0, "log")
radius = Range("regularizer.radius", 1.0, 100.0, "log")

recipe = paper(
    "reviewers_centre",
    "Does it matter to what the norms are pulled: zero, their mean, or a radius?",
    (triplet, n_pair),
    ("zero", L2Norm(weight=1e-4), of_zero),
    ("mean", SEC(weight=1.0), weight),
    ("moving", SEC(weight=1.0, rho=0.1), weight),
    ("learned", RingLoss(weight=1.0), weight),
    ("fixed", FixedNorm(weight=0.01, radius=10.0), weight, radius),
)
