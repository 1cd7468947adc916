"""Losses that the table of A Metric Learning Reality Check lacks, under its protocol.

    facerec compare recipes/papers/reality_check_others.py --features FILE

Before and after the paper: angular, lifted structure, N-pairs in three forms, SupCon, circle, proxy
anchor, tuplet margin, SphereFace, and those of the SEC authors. Each is compared with the
contrastive loss, as in `reality_check.py`.
"""

from facerec.recipes.papers._protocols import paper
from facerec.recipes.papers.reality_check import contrastive, plain

recipe = paper(
    "reality_check_others",
    "Which losses beyond the Reality Check's table differ from the contrastive loss?",
    (
        contrastive,
        plain("Angular", "Angular"),
        plain("Lifted", "LiftedStructure"),
        plain("Lifted-general", "GeneralizedLiftedStructure"),
        plain("N-pairs", "NPairs"),
        plain("N-pairs-normalised", "NPairNormalized"),
        plain("N-pairs-L2", "NPairInnerProductL2"),
        plain("SupCon", "SupCon"),
        plain("Circle", "Circle"),
        plain("ProxyAnchor", "ProxyAnchor"),
        plain("TupletMargin", "TupletMargin"),
        plain("SphereFace", "PmlSphereFace"),
        plain("Triplet-all", "TripletAll"),
        plain("Semihard", "SemihardTriplet"),
        plain("MS-SEC-authors", "MultiSimilaritySEC"),
    ),
    declared=("batch",),
    paired=False,
)
