"""Batch norm after the last linear layer × SEC: does the one make the other superfluous?

    facerec compare recipes/studies/embedding_bn.py

The factorial {none, frozen γ, affine} × {SEC off, on}. With γ = 1 the batch norm pins the mean
squared norm, and SEC can only even the norms out around it.
"""

from facerec.recipes._arms import arms, with_layer, with_penalties
from facerec.recipes.studies._generated import cosface, protocol, scale, searched, sec

(base,) = arms(scale, none=cosface)
layers = [
    with_layer(base, kind, protocol, embedding_bn=kind)
    for kind in ("none", "frozen_gamma", "affine")
]

recipe = searched(
    "embedding_bn",
    "Does SEC add anything to a batch norm of the embedding, and the other way round?",
    with_penalties(layers, sec),
    declared=("trunk.embedding_bn",),
)
