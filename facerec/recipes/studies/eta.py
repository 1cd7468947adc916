"""Which weight η of SEC for face recipes? Photos of people, and the last layer of face recipes.

    facerec compare recipes/studies/eta.py --data data/cfp

SEC at fixed weights on three margin heads; nothing is searched, so that weights are all that
differs. The batch norm at the end has a frozen γ as in `facerec/recipes/_ms1mv3.py`. Training does
not stop early: on photos the first epochs score below the untrained network. Take the weight by the
validation scores of the report; the test scores then say what it gains.
"""

from dataclasses import replace
from pathlib import Path

from facerec.comparison import Comparison, ImageData
from facerec.recipes._arms import fixed, margin_heads, sec_at, small, with_penalties

recipe = Comparison(
    "eta",
    "Which weight should SEC have on faces?",
    with_penalties(fixed(margin_heads), *sec_at(0.01, 0.1, 1.0, 10.0)),
    data=ImageData(path=Path("data/cfp")),
    protocol=replace(
        small,
        trunk=replace(small.trunk, embedding_bn="frozen_gamma"),
        steps_per_epoch=40,
        epochs=10,
        patience=10,
    ),
    repetitions=6,
)
