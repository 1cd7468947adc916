"""Does the gain of SEC follow the reduction of the variance of the norms?

    facerec compare recipes/papers/reviewers_variance.py --features FILE

SEC at fixed weights from 0.001 to 10 on six losses; nothing is searched, so that weights are all
that differs. The report's findings give Spearman's correlation of the gains with the reductions
of norm variance, resampled over the losses.
"""

from facerec.comparison import Arm, Comparison, MetricLoss
from facerec.heads import SEC
from facerec.recipes.papers._protocols import classes_alone, features, reality_check, with_penalty
from facerec.recipes.papers.sec import four

six = {
    **four,
    "Contrastive": MetricLoss("Contrastive"),
    "N.Softmax": MetricLoss("NormalizedSoftmax"),
}


def plain(name: str, loss: MetricLoss) -> Arm:
    """Return a loss with its own settings."""
    alone = classes_alone(reality_check) if loss.entry.classification else None
    return Arm(name, loss, search=(), protocol=alone)


recipe = Comparison(
    name="reviewers_variance",
    question="Does the gain of SEC follow the reduction of the variance of the norms?",
    data=features,
    protocol=reality_check,
    declared=("batch",),
    arms=tuple(
        arm
        for base in (plain(name, loss) for name, loss in six.items())
        for arm in (
            base,
            *(
                with_penalty(base, f"SEC{weight:g}", SEC(weight=weight))
                for weight in (0.001, 0.01, 0.1, 1.0, 10.0)
            ),
        )
    ),
    repetitions=12,  # ten cannot give p below 0.05 after Holm over 30 pairs
)
