"""The losses of A Metric Learning Reality Check under one protocol, each with and without SEC.

    facerec compare recipes/compare/losses.py --smoke

50 trials and 10 seeds for 15 losses are days of work on a GPU; set `data` and `trunk` for it, for
CUB-200-2011 as there: data=ImageData("CUB_200_2011", "cub"), transform=CropTransform(), a trunk
with ImageNet weights from a file, freeze_bn=True, RMSprop(lr=1e-6).
"""

from facerec.comparison import Arm, Batch, Comparison, FaceTransform, Protocol, Trunk, losses
from facerec.heads import SEC
from facerec.records.synthetic import SyntheticSet
from facerec.training import Adam

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

recipe = Comparison(
    name="losses",
    question="Which of the losses of the Reality Check are better than others, and does SEC help?",
    data=SyntheticSet(identities=160, images_per_identity=12, pairs_per_fold=4),
    protocol=Protocol(
        trunk=Trunk(name="small_cnn", embedding_size=64, image_size=28),
        transform=FaceTransform(size=28, shrink=4),
        optimizer=Adam(lr=1e-3),
        batch=Batch(classes=8, per_class=4),
        steps_per_epoch=20,
        epochs=8,
        patience=3,
    ),
    arms=tuple(
        arm
        for name, loss in contestants.items()
        for arm in (Arm(name, loss), Arm(f"{name}+SEC", loss, SEC(weight=0.1), against=name))
    ),
    trials=50,
    repetitions=10,
)
