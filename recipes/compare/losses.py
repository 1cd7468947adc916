"""The losses of A Metric Learning Reality Check under one protocol, each with and without SEC.

    facerec compare recipes/compare/losses.py --smoke

50 trials and 10 seeds for 15 losses are days of work on a GPU; set `data` and `trunk` for it, for
CUB-200-2011 as there: data=ImageData("CUB_200_2011", "cub"), transform=CropTransform(), a trunk
with ImageNet weights from a file, freeze_bn=True, RMSprop(lr=1e-6).
"""

from dataclasses import replace

from sec_on_margins import recipe as margins

from facerec.comparison import Arm, losses
from facerec.heads import SEC

contestants = {
    "Contrastive": losses.Contrastive(),
    "Triplet": losses.Triplet(),
    "NT-Xent": losses.NTXent(),
    "ProxyNCA": losses.ProxyNCA(),
    "Margin": losses.Margin(),
    "Margin-class": losses.MarginPerClass(),
    "N.Softmax": losses.NormalizedSoftmax(),
    "CosFace": losses.PmlCosFace(),
    "ArcFace": losses.PmlArcFace(),
    "FastAP": losses.FastAP(),
    "SNR": losses.SNRContrastive(),
    "MS": losses.MultiSimilarity(),
    "MS+Miner": losses.MultiSimilarityMined(),
    "SoftTriple": losses.SoftTriple(),
}

recipe = replace(
    margins,
    name="losses",
    question="Which of the losses of the Reality Check are better than others, and does SEC help?",
    arms=tuple(
        arm
        for name, loss in contestants.items()
        for arm in (Arm(name, loss), Arm(f"{name}+SEC", loss, SEC(weight=0.1), against=name))
    ),
    trials=50,
    repetitions=10,
)
