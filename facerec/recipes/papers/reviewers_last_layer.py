"""Does a normalisation of the last layer do what SEC does, or make it superfluous?

    facerec compare recipes/papers/reviewers_last_layer.py --features FILE

Division by the norm and layer norm fix all norms; batch norm (γ = 1, or learned) and weight
normalisation leave them some freedom, so that SEC is tried on top of these. Each is compared with
the plain linear layer, each with SEC with itself, in trials of the same settings.
"""

from dataclasses import replace

from facerec.comparison import Arm, Comparison, Trunk
from facerec.heads import SEC
from facerec.recipes.papers._protocols import features, reality_check, weight, with_penalty
from facerec.recipes.papers.sec import four

plain = reality_check.trunk
fixed = {
    "L2-layer": replace(plain, last_layer="l2"),
    "layer-norm": replace(plain, last_layer="layer_norm"),
}
free = {
    "BN-gamma-1": replace(plain, embedding_bn="frozen_gamma"),
    "BN": replace(plain, embedding_bn="affine"),
    "weight-norm": replace(plain, weight_norm=True),
}


def ending(base: Arm, kind: str, trunk: Trunk) -> Arm:
    """Return the base's loss with another last layer."""
    protocol = replace(reality_check, trunk=trunk)
    return Arm(f"{base.name}-{kind}", base.loss, against=base.name, protocol=protocol)


def family(name: str) -> tuple[Arm, ...]:
    """Return a loss with every last layer, and with SEC where that leaves norms free."""
    base = Arm(name, four[name])
    open_ended = [base, *(ending(base, kind, trunk) for kind, trunk in free.items())]
    return (
        *(ending(base, kind, trunk) for kind, trunk in fixed.items()),
        *(
            arm
            for each in open_ended
            for arm in (each, with_penalty(each, "SEC", SEC(weight=1.0), weight))
        ),
    )


recipe = Comparison(
    name="reviewers_last_layer",
    question="Does a normalisation of the last layer do what SEC does, or make it superfluous?",
    data=features,
    protocol=reality_check,
    declared=("trunk.last_layer", "trunk.embedding_bn", "trunk.weight_norm"),
    arms=(*family("Triplet"), *family("N-pair")),
    paired=True,
    trials=50,
    repetitions=10,
)
