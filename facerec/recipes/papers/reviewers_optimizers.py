"""Does the optimizer decide whether SEC helps?

    facerec compare recipes/papers/reviewers_optimizers.py --features FILE

SGD with momentum, RMSprop and Adam. The learning rate is searched with the loss's settings; SEC is
then tried at every one of these settings, with a weight that is searched besides.
"""

from dataclasses import replace

from facerec.comparison import Range
from facerec.recipes._arms import n_pair, paper, reality_check, sec, triplet
from facerec.training import SGD, Adam, RMSprop

optimizers = (
    ("momentum", SGD(lr=0.1, momentum=0.9, weight_decay=0.0), 1e-3, 10.0),
    ("RMSprop", RMSprop(lr=3e-4), 1e-5, 1e-2),
    ("Adam", Adam(lr=3e-4), 1e-5, 1e-2),
)

recipe = paper(
    "reviewers_optimizers",
    "Does the optimizer decide whether SEC helps?",
    [
        replace(
            base,
            name=f"{base.name}-{kind}",
            search=(*base.ranges, Range("protocol.optimizer.lr", low, high, "log")),
            protocol=replace(reality_check, optimizer=optimizer),
        )
        for base in (triplet, n_pair)
        for kind, optimizer, low, high in optimizers
    ],
    sec,
    declared=("optimizer",),
)
