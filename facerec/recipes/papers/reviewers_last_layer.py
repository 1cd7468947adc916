"""Does a normalisation of the last layer do what SEC does, or make it superfluous?

    facerec compare recipes/papers/reviewers_last_layer.py --features FILE

Division by the norm and layer norm fix all norms; batch norm (γ = 1, or learned) and weight
normalisation leave them some freedom, so that SEC is tried on top of these. Each is compared with
the plain linear layer, each with SEC with itself, in trials of the same settings.
"""

from dataclasses import replace
from typing import Any

from facerec.comparison import Arm
from facerec.heads import SEC
from facerec.recipes._arms import with_penalties
from facerec.recipes.papers._protocols import paper, reality_check, weight
from facerec.recipes.papers.sec import n_pair, triplet


def family(base: Arm) -> tuple[Arm, ...]:
    """Return a loss with every last layer, and with SEC where that leaves norms free."""
    layers: dict[str, dict[str, Any]] = {
        "L2-layer": {"last_layer": "l2"},
        "layer-norm": {"last_layer": "layer_norm"},
        "BN-gamma-1": {"embedding_bn": "frozen_gamma"},
        "BN": {"embedding_bn": "affine"},
        "weight-norm": {"weight_norm": True},
    }
    l2, layer_norm, *free = (
        replace(
            base,
            name=f"{base.name}-{kind}",
            against=base.name,
            protocol=replace(reality_check, trunk=replace(reality_check.trunk, **layer)),
        )
        for kind, layer in layers.items()
    )
    return (l2, layer_norm, *with_penalties((base, *free), ("SEC", SEC(weight=1.0), weight)))


recipe = paper(
    "reviewers_last_layer",
    "Does a normalisation of the last layer do what SEC does, or make it superfluous?",
    (*family(triplet), *family(n_pair)),
    declared=("trunk.last_layer", "trunk.embedding_bn", "trunk.weight_norm"),
)
