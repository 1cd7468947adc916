"""Batch norm after the last linear layer × SEC: does the one make the other superfluous?

    facerec compare recipes/studies/embedding_bn.py

The factorial {none, frozen γ, affine} × {SEC off, on}. With γ = 1 the batch norm pins the mean
squared norm, and SEC can only even the norms out around it.
"""

from dataclasses import replace

from facerec.comparison import Arm, Comparison, MarginHead
from facerec.heads import SEC, CosFace
from facerec.recipes.studies._generated import faces, protocol, repetitions, scale, trials, weight

head = MarginHead(CosFace(scale=32.0, margin=0.2))
kinds = ("none", "frozen_gamma", "affine")


def arms(kind: str) -> tuple[Arm, Arm]:
    """Return the arms of a kind of batch norm, without and with SEC."""
    own = replace(protocol, trunk=replace(protocol.trunk, embedding_bn=kind))
    return (
        Arm(kind, head, search=(scale,), protocol=own),
        Arm(
            f"{kind}+SEC", head, SEC(weight=0.1), against=kind, search=(scale, weight), protocol=own
        ),
    )


recipe = Comparison(
    name="embedding_bn",
    question="Does SEC add anything to a batch norm of the embedding, and the other way round?",
    data=faces,
    protocol=protocol,
    declared=("trunk.embedding_bn",),
    arms=tuple(arm for kind in kinds for arm in arms(kind)),
    trials=trials,
    repetitions=repetitions,
)
