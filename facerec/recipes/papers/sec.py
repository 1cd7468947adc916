"""The four losses of Deep Metric Learning with Spherical Embedding (Zhang et al., NeurIPS 2020).

    facerec compare recipes/papers/sec.py --features FILE
    facerec compare recipes/papers/sec.py --features FILE --smoke

Triplet, semihard triplet, normalised N-pair and multi-similarity, as the authors' code defines
them, each plain, with SEC and with the L2 penalty on norms (μ = 0). The penalties' weights are
those of the authors' commands for the triplet loss (SEC 1.0, L2 1e-4; those of the other losses are
not public) and then searched, in trials that share all other settings with the plain loss: so that
a penalty that only ever loses can be told from a search without luck. The published tables compare
arms that differ in more than the penalty; here only the penalty differs.
"""

from facerec.heads import SEC, L2Norm
from facerec.recipes._arms import four, paper, sec, weight

recipe = paper(
    "sec",
    "Does a penalty on norms help the four losses of the SEC paper?",
    four,
    ("SEC-authors", SEC(weight=1.0)),
    sec,
    ("L2-authors", L2Norm(weight=1e-4)),
    ("L2", L2Norm(weight=1e-4), weight),
)
