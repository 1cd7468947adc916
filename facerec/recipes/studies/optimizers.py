"""How far does a step turn an embedding under each optimizer, and what does SEC change?

    facerec compare recipes/studies/optimizers.py

Arms are {SGD, SGD with momentum, RMSprop, Adam, AdamW} × {SEC off, on}; learning rates are searched
for every arm, the weight of SEC is given, so that its arms cannot fall back to none. The probe
measures real steps: gradients, the angle by which embeddings turn, the slope of log angle over log
norm (−2 for SGD and −1 for Adam on free embeddings).
"""

from dataclasses import replace

from facerec.comparison import Arm, MarginHead, Range
from facerec.heads import SEC, CosFace
from facerec.recipes._arms import with_penalties
from facerec.recipes.studies._generated import protocol, searched
from facerec.training import SGD, Adam, AdamW, RMSprop

head = MarginHead(CosFace(scale=8.0, margin=0.2))
probed = replace(protocol, probe_every=1)
optimizers = {
    "SGD": (SGD(lr=0.1, momentum=0.0), 1e-3, 1.0),
    "momentum": (SGD(lr=0.02, momentum=0.9), 1e-4, 0.3),
    "RMSprop": (RMSprop(lr=1e-3), 1e-5, 1e-2),
    "Adam": (Adam(lr=1e-3), 1e-5, 1e-2),
    "AdamW": (AdamW(lr=1e-3, weight_decay=0.01), 1e-5, 1e-2),
}
arms = [
    Arm(
        name,
        head,
        search=(Range("protocol.optimizer.lr", low, high, "log"),),
        protocol=replace(probed, optimizer=optimizer),
    )
    for name, (optimizer, low, high) in optimizers.items()
]

recipe = searched(
    "optimizers",
    "Does the optimizer decide whether SEC helps, and how do norms and steps relate?",
    with_penalties(arms, ("SEC", SEC(weight=0.1))),
    protocol=probed,
    declared=("optimizer",),
)
