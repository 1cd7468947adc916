"""A Metric Learning Reality Check (Musgrave, Belongie and Lim, ECCV 2020).

    facerec compare recipes/papers/reality_check.py --features FILE
    facerec compare recipes/papers/reality_check.py --features FILE --smoke

The 14 losses of the paper's table under its protocol: 32 × 1 batches for losses with a weight
vector for each class and 8 × 4 for the others, 50 trials by the mean of 4 folds, the best setting
trained anew with 10 seeds and scored as concatenated and separated embeddings. Trials begin with
the library's defaults and the paper's optimum on CUB-200. Each loss is compared with the
contrastive one of 2006. `reality_check_sec.py` puts SEC on each, `reality_check_others.py` has
losses that the table lacks, `reality_check_photos.py` trains whole networks.
"""

from facerec.comparison import Arm, MetricLoss
from facerec.recipes.papers._protocols import classes_alone, paper


def plain(name: str, loss: str, against: str | None = "Contrastive") -> Arm:
    """Return a loss as the paper trains it."""
    metric = MetricLoss(loss)
    protocol = classes_alone if metric.entry.classification else None
    return Arm(name, metric, against=against, protocol=protocol)


contrastive = plain("Contrastive", "Contrastive", against=None)

recipe = paper(
    "reality_check",
    "Which losses differ from the contrastive loss of 2006?",
    (
        contrastive,
        plain("Triplet", "Triplet"),
        plain("NT-Xent", "NTXent"),
        plain("ProxyNCA", "ProxyNCA"),
        plain("Margin", "Margin"),
        plain("Margin-class", "MarginPerClass"),
        plain("N.Softmax", "NormalizedSoftmax"),
        plain("CosFace", "PmlCosFace"),
        plain("ArcFace", "PmlArcFace"),
        plain("FastAP", "FastAP"),
        plain("SNR", "SNRContrastive"),
        plain("MS", "MultiSimilarity"),
        plain("MS+Miner", "MultiSimilarityMined"),
        plain("SoftTriple", "SoftTriple"),
    ),
    declared=("batch",),
    paired=False,
)
