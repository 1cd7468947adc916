"""Does the optimizer decide whether SEC helps?

    facerec compare recipes/papers/reviewers_optimizers.py --features FILE

SGD with momentum, RMSprop and Adam. The learning rate is searched with the loss's settings; SEC is
then tried at every one of these settings, with a weight that is searched besides.
"""

from dataclasses import replace

from facerec.comparison import Arm, Comparison, Range
from facerec.heads import SEC
from facerec.recipes.papers._protocols import features, reality_check, weight, with_penalty
from facerec.recipes.papers.sec import four
from facerec.training import SGD, Adam, Optimizer, RMSprop

rate = "protocol.optimizer.lr"
optimizers: dict[str, tuple[Optimizer, Range]] = {
    "momentum": (SGD(lr=0.1, momentum=0.9, weight_decay=0.0), Range(rate, 1e-3, 10.0, "log")),
    "RMSprop": (RMSprop(lr=3e-4), Range(rate, 1e-5, 1e-2, "log")),
    "Adam": (Adam(lr=3e-4), Range(rate, 1e-5, 1e-2, "log")),
}


def plain(name: str, kind: str) -> Arm:
    """Return a loss under an optimizer whose learning rate is searched too."""
    optimizer, rates = optimizers[kind]
    return Arm(
        f"{name}-{kind}",
        four[name],
        search=(*Arm(name, four[name]).ranges, rates),
        protocol=replace(reality_check, optimizer=optimizer),
    )


recipe = Comparison(
    name="reviewers_optimizers",
    question="Does the optimizer decide whether SEC helps?",
    data=features,
    protocol=reality_check,
    declared=("optimizer",),
    arms=tuple(
        arm
        for name in ("Triplet", "N-pair")
        for kind in optimizers
        for base in (plain(name, kind),)
        for arm in (base, with_penalty(base, "SEC", SEC(weight=1.0), weight))
    ),
    paired=True,
    trials=50,
    repetitions=10,
)
