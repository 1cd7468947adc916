"""Losses that the table of A Metric Learning Reality Check lacks, under its protocol.

    facerec compare recipes/papers/reality_check_others.py --features FILE

Before and after the paper: angular, lifted structure, N-pairs in three forms, SupCon, circle, proxy
anchor, tuplet margin, SphereFace, and those of the SEC authors. Each is compared with the
contrastive loss, as in `reality_check.py`.
"""

from facerec.recipes._arms import contrastive, losses, paper

table = """
    Angular=Angular Lifted=LiftedStructure Lifted-general=GeneralizedLiftedStructure N-pairs=NPairs
    N-pairs-normalised=NPairNormalized N-pairs-L2=NPairInnerProductL2 SupCon=SupCon Circle=Circle
    ProxyAnchor=ProxyAnchor TupletMargin=TupletMargin SphereFace=PmlSphereFace
    Triplet-all=TripletAll Semihard=SemihardTriplet MS-SEC-authors=MultiSimilaritySEC
"""

recipe = paper(
    "reality_check_others",
    "Which losses beyond the Reality Check's table differ from the contrastive loss?",
    (contrastive, *losses(table, "Contrastive")),
    declared=("batch",),
    paired=False,
)
