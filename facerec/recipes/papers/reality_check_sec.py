"""SEC on each of the 14 losses of A Metric Learning Reality Check, under its protocol.

    facerec compare recipes/papers/reality_check_sec.py --features FILE
    facerec compare recipes/papers/reality_check_sec.py --features FILE --smoke

Two claims are tested: each loss against the contrastive one, as in `reality_check.py`, and each
with SEC against itself, whose trials are the very same ones with a penalty.
"""

from dataclasses import replace

from facerec.heads import SEC
from facerec.recipes.papers._protocols import weight, with_penalty
from facerec.recipes.papers.reality_check import recipe as reality_check

recipe = replace(
    reality_check,
    name="reality_check_sec",
    question="Does SEC help any loss of the Reality Check?",
    arms=tuple(
        arm
        for base in reality_check.arms
        for arm in (base, with_penalty(base, "SEC", SEC(weight=0.1), weight))
    ),
    paired=True,
)
