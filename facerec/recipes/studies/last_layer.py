"""Is a normalisation layer at the end an alternative to SEC?

    facerec compare recipes/studies/last_layer.py

Division by the norm as the last layer is what losses of angles do anyway: that arm must equal the
base exactly. Layer norm makes all norms equal too. The batch norms of the factorial lie in
`embedding_bn.py`.
"""

from dataclasses import replace

from facerec.comparison import Arm, Comparison, MarginHead
from facerec.heads import SEC, CosFace
from facerec.recipes.studies._generated import faces, protocol, repetitions, scale, trials, weight

head = MarginHead(CosFace(scale=32.0, margin=0.2))


def ending(last_layer: str) -> object:
    """Return the protocol with another last layer."""
    return replace(protocol, trunk=replace(protocol.trunk, last_layer=last_layer))


recipe = Comparison(
    name="last_layer",
    question="Does a normalisation layer at the end do what SEC does?",
    data=faces,
    protocol=protocol,
    declared=("trunk.last_layer",),
    arms=(
        Arm("base", head, search=(scale,)),
        Arm("l2", head, against="base", search=(scale,), protocol=ending("l2")),
        Arm("layer_norm", head, against="base", search=(scale,), protocol=ending("layer_norm")),
        Arm("SEC", head, SEC(weight=0.1), against="base", search=(scale, weight)),
    ),
    trials=trials,
    repetitions=repetitions,
)
