"""SEC on each of the 14 losses of A Metric Learning Reality Check, under its protocol.

    facerec compare recipes/papers/reality_check_sec.py --features FILE
    facerec compare recipes/papers/reality_check_sec.py --features FILE --smoke

Two claims are tested: each loss against the contrastive one, as in `reality_check.py`, and each
with SEC against itself, whose trials are the very same ones with a penalty.
"""

from facerec.heads import SEC
from facerec.recipes._arms import paper, weight
from facerec.recipes.papers.reality_check import recipe as reality_check

recipe = paper(
    "reality_check_sec",
    "Does SEC help any loss of the Reality Check?",
    reality_check.arms,
    ("SEC", SEC(weight=0.1), weight),
    declared=("batch",),
)
