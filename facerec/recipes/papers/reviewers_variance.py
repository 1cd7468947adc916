"""Does the gain of SEC follow the reduction of the variance of the norms?

    facerec compare recipes/papers/reviewers_variance.py --features FILE

SEC at fixed weights from 0.001 to 10 on six losses; nothing is searched, so that weights are all
that differs. The report's findings give Spearman's correlation of the gains with the reductions
of norm variance, resampled over the losses.
"""

from facerec.recipes._arms import contrastive, fixed, four, losses, paper, sec_at

recipe = paper(
    "reviewers_variance",
    "Does the gain of SEC follow the reduction of the variance of the norms?",
    fixed((*four, contrastive, *losses("N.Softmax=NormalizedSoftmax"))),
    *sec_at(0.001, 0.01, 0.1, 1.0, 10.0),
    declared=("batch",),
    repetitions=12,  # ten cannot give p below 0.05 after Holm over 30 pairs
    paired=False,
)
