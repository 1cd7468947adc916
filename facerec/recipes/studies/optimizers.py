"""How far does a step turn an embedding under each optimizer, and what does SEC change?

    facerec compare recipes/studies/optimizers.py

Arms are {SGD, SGD with momentum, RMSprop, Adam, AdamW} × {SEC off, on}; learning rates are searched
for every arm, the weight of SEC is given, so that its arms cannot fall back to none. The probe
measures real steps: gradients, the angle by which embeddings turn, the slope of log angle over log
norm (−2 for SGD and −1 for Adam on free embeddings).
"""

from dataclasses import replace

from facerec.comparison import Arm, Comparison, MarginHead, Range
from facerec.heads import SEC, CosFace
from facerec.recipes.studies._generated import faces, protocol, repetitions, trials
from facerec.training import SGD, Adam, AdamW, RMSprop

head = MarginHead(CosFace(scale=8.0, margin=0.2))
optimizers = {
    "SGD": (SGD(lr=0.1, momentum=0.0), 1e-3, 1.0),
    "momentum": (SGD(lr=0.02, momentum=0.9), 1e-4, 0.3),
    "RMSprop": (RMSprop(lr=1e-3), 1e-5, 1e-2),
    "Adam": (Adam(lr=1e-3), 1e-5, 1e-2),
    "AdamW": (AdamW(lr=1e-3, weight_decay=0.01), 1e-5, 1e-2),
}


def arms(name: str, optimizer: object, low: float, high: float) -> tuple[Arm, Arm]:
    """Return the arms of an optimizer, without and with SEC."""
    own = replace(protocol, optimizer=optimizer, probe_every=1)
    rate = Range("protocol.optimizer.lr", low, high, "log")
    return (
        Arm(name, head, search=(rate,), protocol=own),
        Arm(f"{name}+SEC", head, SEC(weight=0.1), against=name, search=(rate,), protocol=own),
    )


recipe = Comparison(
    name="optimizers",
    question="Does the optimizer decide whether SEC helps, and how do norms and steps relate?",
    data=faces,
    protocol=replace(protocol, probe_every=1),
    declared=("optimizer",),
    arms=tuple(arm for name, values in optimizers.items() for arm in arms(name, *values)),
    trials=trials,
    repetitions=repetitions,
)
