"""Is a normalisation layer at the end an alternative to SEC?

    facerec compare recipes/studies/last_layer.py

Division by the norm as the last layer is what losses of angles do anyway: that arm must equal the
base exactly. Layer norm makes all norms equal too. The batch norms of the factorial lie in
`embedding_bn.py`.
"""

from dataclasses import replace

from facerec.recipes._arms import arms, with_layer, with_penalties
from facerec.recipes.studies._generated import cosface, protocol, scale, searched, sec

base, with_sec = with_penalties(arms(scale, base=cosface), sec)
other = replace(base, against="base")

recipe = searched(
    "last_layer",
    "Does a normalisation layer at the end do what SEC does?",
    (
        base,
        with_layer(other, "l2", protocol, last_layer="l2"),
        with_layer(other, "layer_norm", protocol, last_layer="layer_norm"),
        replace(with_sec, name="SEC"),
    ),
    declared=("trunk.last_layer",),
)
