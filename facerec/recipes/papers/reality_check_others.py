"""Losses that the table of A Metric Learning Reality Check lacks, under its protocol.

    facerec compare recipes/papers/reality_check_others.py --features FILE

Before and after the paper: angular, lifted structure, N-pairs in three forms, SupCon, circle, proxy
anchor, tuplet margin, SphereFace, and those of the SEC authors. Each is compared with the
contrastive loss, as in `reality_check.py`.
"""

from dataclasses import replace

from facerec.comparison import MetricLoss
from facerec.recipes.papers.reality_check import BASE, plain, table
from facerec.recipes.papers.reality_check import recipe as reality_check

others = {
    "Angular": MetricLoss("Angular"),
    "Lifted": MetricLoss("LiftedStructure"),
    "Lifted-general": MetricLoss("GeneralizedLiftedStructure"),
    "N-pairs": MetricLoss("NPairs"),
    "N-pairs-normalised": MetricLoss("NPairNormalized"),
    "N-pairs-L2": MetricLoss("NPairInnerProductL2"),
    "SupCon": MetricLoss("SupCon"),
    "Circle": MetricLoss("Circle"),
    "ProxyAnchor": MetricLoss("ProxyAnchor"),
    "TupletMargin": MetricLoss("TupletMargin"),
    "SphereFace": MetricLoss("PmlSphereFace"),
    "Triplet-all": MetricLoss("TripletAll"),
    "Semihard": MetricLoss("SemihardTriplet"),
    "MS-SEC-authors": MetricLoss("MultiSimilaritySEC"),
}

recipe = replace(
    reality_check,
    name="reality_check_others",
    question="Which losses beyond the Reality Check's table differ from the contrastive loss?",
    arms=(plain(BASE, table[BASE]), *(plain(name, loss) for name, loss in others.items())),
)
