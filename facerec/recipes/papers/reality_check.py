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

from facerec.comparison import Arm, Comparison, MetricLoss
from facerec.recipes.papers._protocols import classes_alone, features, reality_check

BASE = "Contrastive"

table = {
    BASE: MetricLoss("Contrastive"),
    "Triplet": MetricLoss("Triplet"),
    "NT-Xent": MetricLoss("NTXent"),
    "ProxyNCA": MetricLoss("ProxyNCA"),
    "Margin": MetricLoss("Margin"),
    "Margin-class": MetricLoss("MarginPerClass"),
    "N.Softmax": MetricLoss("NormalizedSoftmax"),
    "CosFace": MetricLoss("PmlCosFace"),
    "ArcFace": MetricLoss("PmlArcFace"),
    "FastAP": MetricLoss("FastAP"),
    "SNR": MetricLoss("SNRContrastive"),
    "MS": MetricLoss("MultiSimilarity"),
    "MS+Miner": MetricLoss("MultiSimilarityMined"),
    "SoftTriple": MetricLoss("SoftTriple"),
}


def plain(name: str, loss: MetricLoss) -> Arm:
    """Return a loss as the paper trains it."""
    return Arm(
        name,
        loss,
        against=None if name == BASE else BASE,
        protocol=classes_alone(reality_check) if loss.entry.classification else None,
    )


recipe = Comparison(
    name="reality_check",
    question="Which losses differ from the contrastive loss of 2006?",
    data=features,
    protocol=reality_check,
    declared=("batch",),
    arms=tuple(plain(name, loss) for name, loss in table.items()),
    trials=50,
    repetitions=10,
)
