"""Does the gain of SEC follow the reduction of the variance of the norms?

    facerec compare recipes/papers/reviewers_variance.py --features FILE

SEC at fixed weights from 0.001 to 10 on six losses; nothing is searched, so that weights are all
that differs. The report's findings give Spearman's correlation of the gains with the reductions
of norm variance, resampled over the losses.
"""

from dataclasses import replace

from facerec.recipes._arms import sec_at, with_penalties
from facerec.recipes.papers._protocols import paper
from facerec.recipes.papers.reality_check import contrastive, plain
from facerec.recipes.papers.sec import four

six = (*four, contrastive, plain("N.Softmax", "NormalizedSoftmax", against=None))

recipe = paper(
    "reviewers_variance",
    "Does the gain of SEC follow the reduction of the variance of the norms?",
    with_penalties(
        [replace(loss, search=()) for loss in six], *sec_at(0.001, 0.01, 0.1, 1.0, 10.0)
    ),
    declared=("batch",),
    repetitions=12,  # ten cannot give p below 0.05 after Holm over 30 pairs
    paired=False,
)
