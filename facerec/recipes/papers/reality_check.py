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

from facerec.recipes._arms import contrastive, losses, paper

table = """
    Triplet=Triplet NT-Xent=NTXent ProxyNCA=ProxyNCA Margin=Margin Margin-class=MarginPerClass
    N.Softmax=NormalizedSoftmax CosFace=PmlCosFace ArcFace=PmlArcFace FastAP=FastAP
    SNR=SNRContrastive MS=MultiSimilarity MS+Miner=MultiSimilarityMined SoftTriple=SoftTriple
"""

recipe = paper(
    "reality_check",
    "Which losses differ from the contrastive loss of 2006?",
    (contrastive, *losses(table, "Contrastive")),
    declared=("batch",),
    paired=False,
)
