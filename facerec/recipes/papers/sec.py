"""The four losses of Deep Metric Learning with Spherical Embedding (Zhang et al., NeurIPS 2020).

    facerec compare recipes/papers/sec.py --features FILE
    facerec compare recipes/papers/sec.py --features FILE --smoke

Triplet, semihard triplet, normalised N-pair and multi-similarity, as the authors' code defines
them, each plain, with SEC and with the L2 penalty on norms (μ = 0). The penalties' weights are
those of the authors' commands for the triplet loss (SEC 1.0, L2 1e-4; those of the other losses are
not public) and then searched, in trials that share all other settings with the plain loss: so that
a penalty that only ever loses can be told from a search without luck. The published tables compare
arms that differ in more than the penalty; here only the penalty differs.
"""

from facerec.comparison import Arm, Comparison, MetricLoss
from facerec.heads import SEC, L2Norm, NormPenalty
from facerec.recipes.papers._protocols import features, reality_check, weight, with_penalty

four = {
    "Triplet": MetricLoss("TripletAll"),
    "Semihard": MetricLoss("SemihardTriplet"),
    "N-pair": MetricLoss("NPairNormalized"),
    "MS": MetricLoss("MultiSimilaritySEC"),
}
authors: dict[str, NormPenalty] = {"SEC": SEC(weight=1.0), "L2": L2Norm(weight=1e-4)}


def family(name: str, loss: MetricLoss) -> tuple[Arm, ...]:
    """Return a loss plain, and with each penalty at the authors' weight and at searched ones."""
    base = Arm(name, loss)
    arms = [base]
    for kind, penalty in authors.items():
        for suffix, own in (("-authors", ()), ("", (weight,))):
            arms.append(with_penalty(base, f"{kind}{suffix}", penalty, *own))
    return tuple(arms)


recipe = Comparison(
    name="sec",
    question="Does a penalty on norms help the four losses of the SEC paper?",
    data=features,
    protocol=reality_check,
    arms=tuple(arm for name, loss in four.items() for arm in family(name, loss)),
    paired=True,
    trials=50,
    repetitions=10,
)
