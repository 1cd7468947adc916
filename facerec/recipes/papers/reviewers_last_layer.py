"""Does a normalisation of the last layer do what SEC does, or make it superfluous?

    facerec compare recipes/papers/reviewers_last_layer.py --features FILE

Division by the norm and layer norm fix all norms; batch norm (γ = 1, or learned) and weight
normalisation leave them some freedom, so that SEC is tried on top of these. Each is compared with
the plain linear layer, each with SEC with itself, in trials of the same settings.
"""

from dataclasses import replace
from typing import Any

from facerec.comparison import Arm
from facerec.recipes._arms import n_pair, paper, reality_check, sec, triplet, with_penalties


def layer(base: Arm, kind: str, **trunk: Any) -> Arm:
    """Return a loss on another last layer, compared with the plain one."""
    protocol = replace(reality_check, trunk=replace(reality_check.trunk, **trunk))
    return replace(base, name=f"{base.name}-{kind}", against=base.name, protocol=protocol)


def family(base: Arm) -> tuple[Arm, ...]:
    """Return a loss with every last layer, and with SEC where that leaves norms free."""
    free = (
        layer(base, "BN-gamma-1", embedding_bn="frozen_gamma"),
        layer(base, "BN", embedding_bn="affine"),
        layer(base, "weight-norm", weight_norm=True),
    )
    l2 = layer(base, "L2-layer", last_layer="l2")
    layer_norm = layer(base, "layer-norm", last_layer="layer_norm")
    return (*with_penalties((base, *free), sec), l2, layer_norm)


recipe = paper(
    "reviewers_last_layer",
    "Does a normalisation of the last layer do what SEC does, or make it superfluous?",
    (*family(triplet), *family(n_pair)),
    declared=("trunk.last_layer", "trunk.embedding_bn", "trunk.weight_norm"),
)
