"""Zero, the mean, a moving average, a trained or a fixed radius: which centre for the norms?

    facerec compare recipes/studies/mu.py

Measures what each centre μ of the penalty adds to a margin head and to triplets, weights searched
per arm at equal budget. The last layer is plain linear, so that the norms are free.
"""

from _generated import faces, protocol, repetitions, scale, trials, weight

from facerec.comparison import Arm, Comparison, MarginHead, Range, losses
from facerec.heads import SEC, CosFace, FixedNorm, L2Norm, RingLoss

bases = {
    "CosFace": (MarginHead(CosFace(scale=32.0, margin=0.2)), scale),
    "Triplet": (losses.Triplet(), Range("loss.margin", 0.0, 1.0)),
}
penalties = {
    "zero": L2Norm(weight=0.01),
    "mean": SEC(weight=0.1),
    "ema0.1": SEC(weight=0.1, rho=0.1),
    "learned": RingLoss(weight=0.1),
    "fixed": FixedNorm(weight=0.1, radius=5.0),
}

recipe = Comparison(
    name="mu",
    question="Does it matter to what the norms are pulled: zero, their mean, or a radius?",
    data=faces,
    protocol=protocol,
    arms=tuple(
        arm
        for name, (loss, own) in bases.items()
        for arm in (
            Arm(name, loss, search=(own,)),
            *(
                Arm(f"{name}+{kind}", loss, penalty, against=name, search=(own, weight))
                for kind, penalty in penalties.items()
            ),
        )
    ),
    trials=trials,
    repetitions=repetitions,
)
