"""Losses to compare: a configuration dataclass each, behind one ``loss(embeddings, labels)``.

The losses of *A Metric Learning Reality Check* (Musgrave, Belongie, Lim, ECCV 2020) and relatives
come from pytorch-metric-learning (extra ``compare``), with its defaults; those of *Spherical
Embedding Constraint* and a few whose library form breaks down are in ``pair_losses``; margin heads
are ``facerec.heads``. Every module made here

* takes raw embeddings of any float type and computes in float32, whatever autocast says;
* has a gradient, if only of zeros, even where a batch holds nothing to learn from;
* owns its parameters, drawn from a seed without touching the global generators;
* sees directions only, except where its configuration says that norms matter.

A norm penalty is not part of a loss: the caller adds it, the same for all.
"""

from __future__ import annotations

import importlib
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from facerec.comparison import pair_losses
from facerec.comparison.mining import DistanceWeightedMiner
from facerec.errors import MissingExtraError, RecipeError, TrainingError
from facerec.heads import classifier, margins

CenterInit = Literal["unit", "normal", "xavier", "standard_normal"]
"""How class centres and proxies start. ``unit``: random directions of norm 1; ``normal``:
N(0, 0.01²), insightface's; ``xavier``: N(0, 2/(C+D)), opensphere's; ``standard_normal``: N(0, 1),
pytorch-metric-learning's, whose norm √D makes centres turn slowly. The Reality Check's learning
rates belong to that last one."""


@dataclass(frozen=True)
class Bounds:
    """The range in which a search looks for a hyper-parameter."""

    low: float
    high: float
    log: bool = False
    """Whether to search on a logarithmic scale."""
    integer: bool = False
    """Whether only whole numbers make sense."""

    def __post_init__(self) -> None:
        if not self.low < self.high or (self.log and self.low <= 0):
            raise RecipeError(
                f"{self}: low must be below high, and above 0 on a logarithmic scale; mend the "
                "bounds in the recipe"
            )


LEARNING_RATE = Bounds(1e-6, 1.0, log=True)
"""The Reality Check's range for the learning rate of a loss's own weights."""

_MARGIN = Bounds(0.0, 1.0)
_DISTANCE = Bounds(0.0, 2.0)
_TEMPERATURE = Bounds(1e-4, 1.0, log=True)
_SCALE = Bounds(10.0, 300.0, log=True)
_EXPONENT = Bounds(0.01, 100.0, log=True)


@dataclass(frozen=True)
class _Config(ABC):
    """What all losses share.

    Of the search ranges the Reality Check's authors published those of multi-similarity (in
    powerful-benchmarker's manual); the others here contain their published optima and the defaults.
    """

    classification: ClassVar[bool] = False
    """Whether the loss has weights for each class. The Reality Check then puts one image of each
    class into a batch (32 × 1), for other losses four (8 × 4)."""

    learns: ClassVar[bool] = False
    """Whether the loss has parameters of its own, whose learning rate is then searched too."""

    search: ClassVar[Mapping[str, Bounds]] = {}
    """Hyper-parameters to search, by field."""

    mlrc: ClassVar[Mapping[str, float]] = {}
    """The Reality Check's optimum on CUB200, by field, with batch 32, 128 dimensions, RMSprop."""

    mlrc_lr: ClassVar[float | None] = None
    """The learning rate of the loss's own weights in that optimum."""

    positive: ClassVar[tuple[str, ...]] = ()
    """Fields that must be above 0."""

    def __post_init__(self) -> None:
        for name in self.positive:
            if not getattr(self, name) > 0:
                raise RecipeError(f"{self}: {name} must be positive; change it in the recipe")

    @property
    def views(self) -> int:
        """How many augmented views of each image a batch must hold."""
        return 1

    @abstractmethod
    def build(self, num_classes: int, embedding_size: int, seed: int) -> nn.Module:
        """Make the module without the guarantees that ``create_loss`` adds."""


@dataclass(frozen=True)
class _WithCenters(_Config):
    """What the library's losses with a weight vector for each class share."""

    classification: ClassVar[bool] = True
    learns: ClassVar[bool] = True

    center_init: CenterInit = field(default="unit", kw_only=True)
    """How class centres or proxies start: alike for all losses. pytorch-metric-learning has
    standard_normal, but for SoftTriple norms near 0.1 and for ProxyAnchor near 1."""

    def _from_library(
        self,
        name: str,
        num_classes: int,
        embedding_size: int,
        seed: int,
        *,
        columns: bool = True,
        **settings: Any,
    ) -> _FromLibrary:
        """Make a loss whose centres are the columns (or else rows) of its parameter."""
        init = _CenterInit(self.center_init, seed, columns)
        kind = getattr(_library("losses"), name)
        return _FromLibrary(kind(num_classes, embedding_size, weight_init_func=init, **settings))


@dataclass(frozen=True)
class Contrastive(_Config):
    """Contrastive loss (Hadsell et al., 2006): [d_p − m_p]₊ and [m_n − d_n]₊, Euclidean d.

    Each is averaged over its pairs that are not 0.
    """

    search: ClassVar[Mapping[str, Bounds]] = {"pos_margin": _MARGIN, "neg_margin": _DISTANCE}
    # Published as -0.2, which has the gradient of 0.
    mlrc: ClassVar[Mapping[str, float]] = {"pos_margin": 0.0, "neg_margin": 0.3841}

    pos_margin: float = 0.0
    """Distance below which a positive pair costs nothing (pytorch-metric-learning)."""

    neg_margin: float = 1.0
    """Distance above which a negative pair costs nothing (pytorch-metric-learning)."""

    miner: Literal["none", "batch_hard", "distance_weighted"] = "none"
    """Pairs that count: all; each anchor's farthest positive and nearest negative (Hermans et al.,
    2017); or all positives, each with a negative drawn evenly over distances (Wu et al., 2017)."""

    def build(self, num_classes: int, embedding_size: int, seed: int) -> nn.Module:
        """Make the module."""
        loss = _library("losses").ContrastiveLoss(self.pos_margin, self.neg_margin)
        return _FromLibrary(loss, _miner(self.miner, seed))


@dataclass(frozen=True)
class Triplet(_Config):
    """Triplet loss: [d_ap − d_an + m]₊ with Euclidean d, averaged over triplets that are not 0."""

    search: ClassVar[Mapping[str, Bounds]] = {"margin": _MARGIN}
    mlrc: ClassVar[Mapping[str, float]] = {"margin": 0.0961}

    margin: float = 0.05
    """Margin m (pytorch-metric-learning)."""

    miner: Literal["none", "semihard", "hard", "batch_hard", "distance_weighted"] = "none"
    """Triplets that count: all; those whose negative is farther than the positive but within the
    margin; those whose negative is nearer; else as in Contrastive."""

    def build(self, num_classes: int, embedding_size: int, seed: int) -> nn.Module:
        """Make the module."""
        loss = _library("losses").TripletMarginLoss(self.margin)
        return _FromLibrary(loss, _miner(self.miner, seed, self.margin))


@dataclass(frozen=True)
class NTXent(_Config):
    """NT-Xent: cross-entropy from each positive to the anchor's negatives, logits c/τ.

    The authors of *Spherical Embedding Constraint* multiply the loss of two views by τ/0.07. It has
    no factor here, so divide their weight of a norm penalty by it (7.14 at τ = 0.5).
    """

    search: ClassVar[Mapping[str, Bounds]] = {"temperature": _TEMPERATURE}
    mlrc: ClassVar[Mapping[str, float]] = {"temperature": 0.0091}
    positive: ClassVar[tuple[str, ...]] = ("temperature",)

    temperature: float = 0.07
    """Temperature τ (pytorch-metric-learning; SimCLR with SEC: 0.5)."""

    views: Literal[1, 2] = 1
    """2 is SimCLR: positives are the two augmented views of an image, whatever its class. The first
    half of the rows is one view, the second half the other, in the same order."""

    def build(self, num_classes: int, embedding_size: int, seed: int) -> nn.Module:
        """Make the module."""
        formula = pair_losses.nt_xent if self.views == 1 else pair_losses.two_view_nt_xent
        return _Formula(partial(formula, temperature=self.temperature))


@dataclass(frozen=True)
class SupCon(_Config):
    """Supervised contrastive loss (Khosla et al., NeurIPS 2020): −log p averaged over positives.

    p is the softmax over all other samples, logits c/τ; anchors with loss 0 do not count. As with
    NTXent there is no factor τ/0.07.
    """

    search: ClassVar[Mapping[str, Bounds]] = {"temperature": _TEMPERATURE}
    positive: ClassVar[tuple[str, ...]] = ("temperature",)

    temperature: float = 0.1
    """Temperature τ (pytorch-metric-learning)."""

    views: Literal[1, 2] = 1
    """2 asks for two augmented views of each image, all of which are positives within a class."""

    def build(self, num_classes: int, embedding_size: int, seed: int) -> nn.Module:
        """Make the module."""
        return _FromLibrary(_library("losses").SupConLoss(self.temperature))


@dataclass(frozen=True)
class ProxyNCA(_WithCenters):
    """ProxyNCA (Movshovitz-Attias et al., ICCV 2017): softmax over proxies, logits −s·d².

    The positive proxy is in the denominator, as in pytorch-metric-learning. Since d² = 2 − 2c this
    is NormalizedSoftmax with τ = 1/(2s), and it is computed so, which does not underflow.
    """

    search: ClassVar[Mapping[str, Bounds]] = {"softmax_scale": Bounds(1.0, 100.0, log=True)}
    mlrc: ClassVar[Mapping[str, float]] = {"softmax_scale": 13.98}
    mlrc_lr: ClassVar[float | None] = 6.04e-3
    positive: ClassVar[tuple[str, ...]] = ("softmax_scale",)

    softmax_scale: float = 1.0
    """Factor s (pytorch-metric-learning)."""

    def build(self, num_classes: int, embedding_size: int, seed: int) -> nn.Module:
        """Make the module."""
        return self._from_library(
            "NormalizedSoftmaxLoss",
            num_classes,
            embedding_size,
            seed,
            temperature=1 / (2 * self.softmax_scale),
        )


@dataclass(frozen=True)
class Margin(_Config):
    """Margin loss (Wu et al., ICCV 2017): [d_ap − β + α]₊ + [β − d_an + α]₊ with one learned β.

    Divided by the number of terms that are not 0.
    """

    search: ClassVar[Mapping[str, Bounds]] = {"margin": _MARGIN, "beta": _DISTANCE}
    learns: ClassVar[bool] = True
    mlrc: ClassVar[Mapping[str, float]] = {"margin": 0.0878, "beta": 0.7838}
    mlrc_lr: ClassVar[float | None] = 1.31e-3

    margin: float = 0.2
    """Margin α (pytorch-metric-learning)."""

    beta: float = 1.2
    """Where β starts (pytorch-metric-learning)."""

    miner: Literal["none", "distance_weighted"] = "none"
    """All triplets, as in the Reality Check, or a negative for each positive pair drawn evenly over
    distances, as in the paper."""

    def build(self, num_classes: int, embedding_size: int, seed: int) -> nn.Module:
        """Make the module."""
        return self._build(None, seed)

    def _build(self, num_classes: int | None, seed: int) -> nn.Module:
        loss = _library("losses").MarginLoss(
            margin=self.margin, beta=self.beta, learn_beta=True, num_classes=num_classes
        )
        return _FromLibrary(loss, _miner(self.miner, seed))


@dataclass(frozen=True)
class MarginPerClass(Margin):
    """Margin loss with a learned β for each class."""

    mlrc: ClassVar[Mapping[str, float]] = {"margin": 0.0779, "beta": 0.9796}
    mlrc_lr: ClassVar[float | None] = 2.65e-4

    def build(self, num_classes: int, embedding_size: int, seed: int) -> nn.Module:
        """Make the module."""
        return self._build(num_classes, seed)


@dataclass(frozen=True)
class NormalizedSoftmax(_WithCenters):
    """Normalised softmax (Zhai and Wu, BMVC 2019): cross-entropy with logits c/τ."""

    search: ClassVar[Mapping[str, Bounds]] = {"temperature": Bounds(0.01, 1.0, log=True)}
    mlrc: ClassVar[Mapping[str, float]] = {"temperature": 0.1087}
    mlrc_lr: ClassVar[float | None] = 4.46e-3
    positive: ClassVar[tuple[str, ...]] = ("temperature",)

    temperature: float = 0.05
    """Temperature τ (pytorch-metric-learning)."""

    def build(self, num_classes: int, embedding_size: int, seed: int) -> nn.Module:
        """Make the module."""
        return self._from_library(
            "NormalizedSoftmaxLoss",
            num_classes,
            embedding_size,
            seed,
            temperature=self.temperature,
        )


@dataclass(frozen=True)
class PmlSphereFace(_WithCenters):
    """pytorch-metric-learning's SphereFace: the form of 2017 without annealing.

    Its logits are multiplied by the embedding's norm, so norms matter here. The margin is a whole
    number; MarginHead(SphereFace(...)) takes any and has a fixed scale.
    """

    search: ClassVar[Mapping[str, Bounds]] = {
        "margin": Bounds(1, 5, integer=True),
        "scale": Bounds(0.1, 100.0, log=True),
    }
    positive: ClassVar[tuple[str, ...]] = ("margin", "scale")

    margin: int = 4
    """Factor m on the target angle (pytorch-metric-learning; the paper)."""

    scale: float = 1.0
    """Factor on all logits besides the norm (pytorch-metric-learning)."""

    def build(self, num_classes: int, embedding_size: int, seed: int) -> nn.Module:
        """Make the module."""
        return self._from_library(
            "SphereFaceLoss",
            num_classes,
            embedding_size,
            seed,
            margin=self.margin,
            scale=self.scale,
        )


@dataclass(frozen=True)
class PmlCosFace(_WithCenters):
    """pytorch-metric-learning's CosFace: target logit s·(cos θ − m)."""

    search: ClassVar[Mapping[str, Bounds]] = {"margin": _MARGIN, "scale": _SCALE}
    mlrc: ClassVar[Mapping[str, float]] = {"margin": 0.6182, "scale": 100.0}
    mlrc_lr: ClassVar[float | None] = 2.53e-3
    positive: ClassVar[tuple[str, ...]] = ("scale",)

    margin: float = 0.35
    """Margin m (pytorch-metric-learning; the paper)."""

    scale: float = 64.0
    """Factor s on all cosines (pytorch-metric-learning; the paper)."""

    def build(self, num_classes: int, embedding_size: int, seed: int) -> nn.Module:
        """Make the module."""
        return self._from_library(
            "CosFaceLoss",
            num_classes,
            embedding_size,
            seed,
            margin=self.margin,
            scale=self.scale,
        )


@dataclass(frozen=True)
class PmlArcFace(_WithCenters):
    """pytorch-metric-learning's ArcFace: s·cos(θ + m), and s·(cos θ − m·sin m) beyond π.

    Angles are kept off 0 and π, where the library's gradient is not a number.
    """

    search: ClassVar[Mapping[str, Bounds]] = {"margin": Bounds(0.0, 60.0), "scale": _SCALE}
    mlrc: ClassVar[Mapping[str, float]] = {"margin": 23.22, "scale": 100.0}
    mlrc_lr: ClassVar[float | None] = 5.13e-3
    positive: ClassVar[tuple[str, ...]] = ("scale",)

    margin: float = 28.6
    """Margin m in degrees (pytorch-metric-learning; 0.5 radians in the paper)."""

    scale: float = 64.0
    """Factor s on all cosines (pytorch-metric-learning; the paper)."""

    def build(self, num_classes: int, embedding_size: int, seed: int) -> nn.Module:
        """Make the module."""
        found = self._from_library(
            "ArcFaceLoss", num_classes, embedding_size, seed, margin=self.margin, scale=self.scale
        )
        found.loss.get_angles = pair_losses.angles
        return found


@dataclass(frozen=True)
class FastAP(_Config):
    """FastAP (Cakir et al., CVPR 2019): average precision from soft histograms of d² in [0, 4]."""

    search: ClassVar[Mapping[str, Bounds]] = {"num_bins": Bounds(2, 100, log=True, integer=True)}
    mlrc: ClassVar[Mapping[str, float]] = {"num_bins": 17}
    positive: ClassVar[tuple[str, ...]] = ("num_bins",)

    num_bins: int = 10
    """Bins of the histograms (pytorch-metric-learning)."""

    def build(self, num_classes: int, embedding_size: int, seed: int) -> nn.Module:
        """Make the module."""
        return _FromLibrary(_library("losses").FastAPLoss(self.num_bins))


@dataclass(frozen=True)
class SNRContrastive(_Config):
    """Contrastive loss on the distance Var(a − b)/Var(a) (Yuan et al., CVPR 2019).

    The variances are over the coordinates of unit vectors.
    """

    search: ClassVar[Mapping[str, Bounds]] = {
        "pos_margin": _MARGIN,
        "neg_margin": _DISTANCE,
        "zero_mean_weight": _MARGIN,
    }
    mlrc: ClassVar[Mapping[str, float]] = {
        "pos_margin": 0.3264,
        "neg_margin": 0.8446,
        "zero_mean_weight": 0.1382,
    }

    pos_margin: float = 0.0
    """Distance below which a positive pair costs nothing (pytorch-metric-learning)."""

    neg_margin: float = 1.0
    """Distance above which a negative pair costs nothing (pytorch-metric-learning)."""

    zero_mean_weight: float = 0.0
    """Factor on the mean of |Σ_d f̂_d|. It is taken of unit vectors as in the Reality Check; the
    library of today would give it raw ones, and the loss would push norms down."""

    def build(self, num_classes: int, embedding_size: int, seed: int) -> nn.Module:
        """Make the module."""
        return _Formula(
            partial(
                pair_losses.snr_contrastive,
                pos_margin=self.pos_margin,
                neg_margin=self.neg_margin,
                zero_mean_weight=self.zero_mean_weight,
            )
        )


@dataclass(frozen=True)
class MultiSimilarity(_Config):
    """Multi-similarity loss (Wang et al., CVPR 2019) over all pairs, mean over anchors.

    (1/α)·log(1 + Σ_p e^{−α(c−λ)}) + (1/β)·log(1 + Σ_n e^{β(c−λ)}).
    """

    search: ClassVar[Mapping[str, Bounds]] = {
        "alpha": _EXPONENT,
        "beta": _EXPONENT,
        "base": _MARGIN,
    }
    mlrc: ClassVar[Mapping[str, float]] = {"alpha": 0.01, "beta": 50.60, "base": 0.56}
    positive: ClassVar[tuple[str, ...]] = ("alpha", "beta")

    alpha: float = 2.0
    """Exponent α of positives (pytorch-metric-learning)."""

    beta: float = 50.0
    """Exponent β of negatives (pytorch-metric-learning)."""

    base: float = 0.5
    """Cosine λ that exponents count from (pytorch-metric-learning)."""

    def build(self, num_classes: int, embedding_size: int, seed: int) -> nn.Module:
        """Make the module."""
        return _FromLibrary(
            _library("losses").MultiSimilarityLoss(self.alpha, self.beta, self.base)
        )


@dataclass(frozen=True)
class MultiSimilarityMined(MultiSimilarity):
    """Multi-similarity loss with its miner: negatives near the worst positive, and vice versa."""

    search: ClassVar[Mapping[str, Bounds]] = {**MultiSimilarity.search, "epsilon": _MARGIN}
    mlrc: ClassVar[Mapping[str, float]] = {
        "alpha": 17.97,
        "beta": 75.66,
        "base": 0.77,
        "epsilon": 0.39,
    }

    epsilon: float = 0.1
    """Slack ε of the miner (pytorch-metric-learning)."""

    def build(self, num_classes: int, embedding_size: int, seed: int) -> nn.Module:
        """Make the module."""
        loss = _library("losses").MultiSimilarityLoss(self.alpha, self.beta, self.base)
        return _FromLibrary(loss, _library("miners").MultiSimilarityMiner(self.epsilon))


@dataclass(frozen=True)
class SoftTriple(_WithCenters):
    """SoftTriple (Qian et al., ICCV 2019): softmax over classes that have several centres.

    A class's similarity is the mean over its centres, weighted by their softmax with factor 1/γ;
    cross-entropy has logits la·(similarity − m at the target).
    """

    search: ClassVar[Mapping[str, Bounds]] = {
        "la": Bounds(1.0, 100.0, log=True),
        "gamma": Bounds(0.01, 100.0, log=True),
        "reg_weight": _MARGIN,
        "margin": _MARGIN,
    }
    mlrc: ClassVar[Mapping[str, float]] = {
        "la": 78.02,
        "gamma": 58.95,
        "reg_weight": 0.3754,
        "margin": 0.4307,
    }
    mlrc_lr: ClassVar[float | None] = 5.37e-5
    positive: ClassVar[tuple[str, ...]] = ("centers_per_class", "la", "gamma")

    centers_per_class: int = 10
    """Centres of each class (pytorch-metric-learning)."""

    la: float = 20.0
    """Factor on similarities (pytorch-metric-learning)."""

    gamma: float = 0.1
    """Softness of the choice among a class's centres (pytorch-metric-learning). At the
    Reality Check's 59 the centres act as their mean."""

    margin: float = 0.01
    """Margin m (pytorch-metric-learning)."""

    reg_weight: float = 0.0
    """Factor on the distances between a class's centres, which lets surplus ones merge
    (pytorch-metric-learning: none)."""

    def build(self, num_classes: int, embedding_size: int, seed: int) -> nn.Module:
        """Make the module."""
        regularizer = None
        if self.reg_weight and self.centers_per_class > 1:
            shape = (num_classes, self.centers_per_class, embedding_size)
            regularizer = _SparseCenters(shape)
        return self._from_library(
            "SoftTripleLoss",
            num_classes,
            embedding_size,
            seed,
            centers_per_class=self.centers_per_class,
            la=self.la,
            gamma=self.gamma,
            margin=self.margin,
            weight_regularizer=regularizer,
            weight_reg_weight=self.reg_weight,
        )


@dataclass(frozen=True)
class Angular(_Config):
    """Angular loss (Wang et al., ICCV 2017), on unit vectors, mean over positive pairs.

    log(1 + Σ_n e^{4·tan²α·(f_a + f_p)·f_n − 2(1 + tan²α)·f_a·f_p}). The library normalises anchors
    and positives but not negatives, so it is given unit vectors.
    """

    search: ClassVar[Mapping[str, Bounds]] = {"alpha": Bounds(10.0, 60.0)}

    alpha: float = 40.0
    """Angle α in degrees (pytorch-metric-learning)."""

    def build(self, num_classes: int, embedding_size: int, seed: int) -> nn.Module:
        """Make the module."""
        return _FromLibrary(_library("losses").AngularLoss(self.alpha), unit=True)


@dataclass(frozen=True)
class LiftedStructure(_Config):
    """Lifted structure (Oh Song et al., CVPR 2016), mean over positive pairs.

    ½·[log Σ_n e^{m_n − d} + d_ap − m_p]₊² with n over the negatives of anchor and positive.
    """

    search: ClassVar[Mapping[str, Bounds]] = {"neg_margin": _DISTANCE, "pos_margin": _MARGIN}

    neg_margin: float = 1.0
    """Margin m_n (pytorch-metric-learning)."""

    pos_margin: float = 0.0
    """Margin m_p (pytorch-metric-learning)."""

    def build(self, num_classes: int, embedding_size: int, seed: int) -> nn.Module:
        """Make the module."""
        return _Formula(
            partial(
                pair_losses.lifted_structure,
                neg_margin=self.neg_margin,
                pos_margin=self.pos_margin,
            )
        )


@dataclass(frozen=True)
class GeneralizedLiftedStructure(LiftedStructure):
    """Lifted structure of Hermans et al. (2017), mean over anchors.

    [log Σ_p e^{d − m_p} + log Σ_n e^{m_n − d}]₊.
    """

    def build(self, num_classes: int, embedding_size: int, seed: int) -> nn.Module:
        """Make the module."""
        loss = _library("losses").GeneralizedLiftedStructureLoss
        return _FromLibrary(loss(neg_margin=self.neg_margin, pos_margin=self.pos_margin))


@dataclass(frozen=True)
class NPairs(_Config):
    """pytorch-metric-learning's N-pairs with its defaults: logits are plain cosines.

    Compare NPairNormalized, whose logits are 25 times as large, and NPairInnerProductL2, the
    published form.
    """

    def build(self, num_classes: int, embedding_size: int, seed: int) -> nn.Module:
        """Make the module."""
        return _FromLibrary(_library("losses").NPairsLoss())


@dataclass(frozen=True)
class NPairNormalized(_Config):
    """The SEC authors' N-pair (tuplet) loss: cross-entropy from first to second samples, s·cos.

    Not to be taken for TupletMargin.
    """

    search: ClassVar[Mapping[str, Bounds]] = {"scale": Bounds(1.0, 100.0, log=True)}
    positive: ClassVar[tuple[str, ...]] = ("scale",)

    scale: float = 25.0
    """Factor s on cosines (Dyfine/SphericalEmbedding, which multiplies unit vectors by 5)."""

    def build(self, num_classes: int, embedding_size: int, seed: int) -> nn.Module:
        """Make the module."""
        return _Formula(partial(pair_losses.npair_normalized, scale=self.scale))


@dataclass(frozen=True)
class NPairInnerProductL2(_Config):
    """N-pairs as first published (Sohn, NeurIPS 2016): inner products and a penalty on norms.

    Norms matter here. A norm penalty beside it stacks two of them.
    """

    search: ClassVar[Mapping[str, Bounds]] = {"l2_weight": Bounds(1e-5, 0.1, log=True)}

    l2_weight: float = 1e-3
    """Factor λ on the mean squared norm (tf.contrib's npairs_loss: 0.002 · 0.25 for each side)."""

    def build(self, num_classes: int, embedding_size: int, seed: int) -> nn.Module:
        """Make the module."""
        return _Formula(partial(pair_losses.npair_inner_product_l2, l2_weight=self.l2_weight))


@dataclass(frozen=True)
class TupletMargin(_Config):
    """Tuplet margin loss (Yu and Tao, ICCV 2019), mean over positive pairs.

    log(1 + Σ_n e^{s(cos θ_an − cos(θ_ap − m))}).
    """

    search: ClassVar[Mapping[str, Bounds]] = {"margin": Bounds(0.0, 30.0), "scale": _SCALE}
    positive: ClassVar[tuple[str, ...]] = ("scale",)

    margin: float = 5.73
    """Slack m in degrees (pytorch-metric-learning; 0.1 radians)."""

    scale: float = 64.0
    """Factor s on cosines (pytorch-metric-learning)."""

    def build(self, num_classes: int, embedding_size: int, seed: int) -> nn.Module:
        """Make the module."""
        radians = math.radians(self.margin)
        return _Formula(partial(pair_losses.tuplet_margin, scale=self.scale, margin=radians))


@dataclass(frozen=True)
class Circle(_Config):
    """Circle loss (Sun et al., CVPR 2020), mean over anchors with positives and negatives.

    softplus(log Σ_n e^{γ[c+m]₊(c−m)} + log Σ_p e^{−γ[1+m−c]₊(c−1+m)}), brackets without gradient.
    """

    search: ClassVar[Mapping[str, Bounds]] = {"m": _MARGIN, "gamma": Bounds(10, 500, log=True)}
    positive: ClassVar[tuple[str, ...]] = ("gamma",)

    m: float = 0.4
    """Relaxation m (pytorch-metric-learning; the paper: 0.25 for faces)."""

    gamma: float = 80.0
    """Scale γ (pytorch-metric-learning; the paper: 256 for faces)."""

    def build(self, num_classes: int, embedding_size: int, seed: int) -> nn.Module:
        """Make the module."""
        return _FromLibrary(_library("losses").CircleLoss(m=self.m, gamma=self.gamma))


@dataclass(frozen=True)
class ProxyAnchor(_WithCenters):
    """Proxy anchor loss (Kim et al., CVPR 2020): a proxy a class, each an anchor for the batch."""

    search: ClassVar[Mapping[str, Bounds]] = {
        "margin": _MARGIN,
        "alpha": Bounds(1.0, 100.0, log=True),
    }
    positive: ClassVar[tuple[str, ...]] = ("alpha",)

    margin: float = 0.1
    """Margin on cosines (pytorch-metric-learning)."""

    alpha: float = 32.0
    """Factor in the exponents (pytorch-metric-learning)."""

    def build(self, num_classes: int, embedding_size: int, seed: int) -> nn.Module:
        """Make the module."""
        return self._from_library(
            "ProxyAnchorLoss",
            num_classes,
            embedding_size,
            seed,
            columns=False,
            margin=self.margin,
            alpha=self.alpha,
        )


@dataclass(frozen=True)
class TripletAll(_Config):
    """The SEC authors' triplet loss: squared distances, mean over all triplets, zeros included."""

    search: ClassVar[Mapping[str, Bounds]] = {"margin": _DISTANCE}

    margin: float = 1.0
    """Margin m on squared distances (Dyfine/SphericalEmbedding)."""

    def build(self, num_classes: int, embedding_size: int, seed: int) -> nn.Module:
        """Make the module."""
        return _Formula(partial(pair_losses.triplet_all, margin=self.margin))


@dataclass(frozen=True)
class SemihardTriplet(_Config):
    """The SEC authors' semihard triplet loss: squared distances, one negative a positive pair."""

    search: ClassVar[Mapping[str, Bounds]] = {"margin": _DISTANCE}

    margin: float = 0.2
    """Margin m on squared distances (Dyfine/SphericalEmbedding)."""

    def build(self, num_classes: int, embedding_size: int, seed: int) -> nn.Module:
        """Make the module."""
        return _Formula(partial(pair_losses.semihard_triplet, margin=self.margin))


@dataclass(frozen=True)
class MultiSimilaritySEC(_Config):
    """The SEC authors' multi-similarity loss: mined, the sum divided by the batch size."""

    search: ClassVar[Mapping[str, Bounds]] = MultiSimilarityMined.search
    positive: ClassVar[tuple[str, ...]] = ("alpha", "beta")

    alpha: float = 2.0
    """Exponent α of positives (Dyfine/SphericalEmbedding)."""

    beta: float = 40.0
    """Exponent β of negatives (Dyfine/SphericalEmbedding)."""

    base: float = 0.5
    """Cosine λ that exponents count from (Dyfine/SphericalEmbedding)."""

    epsilon: float = 0.1
    """Slack ε of the mining (Dyfine/SphericalEmbedding)."""

    def build(self, num_classes: int, embedding_size: int, seed: int) -> nn.Module:
        """Make the module."""
        return _Formula(
            partial(
                pair_losses.multi_similarity,
                alpha=self.alpha,
                beta=self.beta,
                base=self.base,
                epsilon=self.epsilon,
            )
        )


_HEAD_SEARCH: Mapping[type, Mapping[str, Bounds]] = {
    margins.Softmax: {"margin.scale": _SCALE},
    margins.CosFace: {"margin.scale": _SCALE, "margin.margin": _MARGIN},
    margins.ArcFace: {"margin.scale": _SCALE, "margin.margin": _MARGIN},
    margins.CombinedMargin: {
        "margin.scale": _SCALE,
        "margin.m1": Bounds(0.5, 2.0),
        "margin.m2": _MARGIN,
        "margin.m3": _MARGIN,
    },
    margins.SphereFace: {"margin.scale": _SCALE, "margin.margin": Bounds(1.0, 4.0)},
    margins.SphereFace2017: {"margin.margin": Bounds(1.0, 5.0)},
    margins.SphereFaceR: {"margin.scale": _SCALE, "margin.margin": Bounds(1.0, 4.0)},
    margins.AdaFace: {
        "margin.scale": _SCALE,
        "margin.margin": _MARGIN,
        "margin.h": Bounds(0.0, 1.0),
    },
    margins.MagFace: {
        "margin.scale": _SCALE,
        "margin.l_margin": Bounds(0.0, 0.5),
        "margin.u_margin": Bounds(0.5, 1.0),
        "margin.lambda_g": Bounds(1.0, 100.0, log=True),
    },
}


@dataclass(frozen=True)
class MarginHead(_Config):
    """facerec's own margin softmax with any of its margins, on one process.

    Norms matter for SphereFace2017, AdaFace and MagFace only. The keys of ``search`` and ``mlrc``
    are dotted, as they are fields of ``margin``; the optima are those of the same loss in the
    Reality Check.
    """

    classification: ClassVar[bool] = True
    learns: ClassVar[bool] = True

    margin: margins.Margin = field(default_factory=margins.ArcFace)
    """Which margin, with its scale (facerec's defaults are those of face recognition)."""

    center_init: classifier.CenterInit = "unit"
    """How the class centres start."""

    @property
    def search(self) -> Mapping[str, Bounds]:  # type: ignore[override]
        """Hyper-parameters to search, by dotted field."""
        return _HEAD_SEARCH.get(type(self.margin), {})

    @property
    def mlrc(self) -> Mapping[str, float]:  # type: ignore[override]
        """The Reality Check's optimum on CUB200, by dotted field."""
        if isinstance(self.margin, margins.CosFace):
            return {f"margin.{name}": value for name, value in PmlCosFace.mlrc.items()}
        if isinstance(self.margin, margins.ArcFace):
            radians = math.radians(PmlArcFace.mlrc["margin"])
            return {"margin.margin": radians, "margin.scale": PmlArcFace.mlrc["scale"]}
        return {}

    @property
    def mlrc_lr(self) -> float | None:  # type: ignore[override]
        """The learning rate of the centres in that optimum."""
        if isinstance(self.margin, margins.CosFace):
            return PmlCosFace.mlrc_lr
        return PmlArcFace.mlrc_lr if isinstance(self.margin, margins.ArcFace) else None

    def build(self, num_classes: int, embedding_size: int, seed: int) -> nn.Module:
        """Make the module."""
        return _Head(
            classifier.MarginClassifier(
                num_classes,
                embedding_size,
                self.margin,
                seed=seed,
                center_init=self.center_init,
            )
        )


Loss = (
    Contrastive
    | Triplet
    | NTXent
    | SupCon
    | ProxyNCA
    | Margin
    | MarginPerClass
    | NormalizedSoftmax
    | PmlSphereFace
    | PmlCosFace
    | PmlArcFace
    | FastAP
    | SNRContrastive
    | MultiSimilarity
    | MultiSimilarityMined
    | SoftTriple
    | Angular
    | LiftedStructure
    | GeneralizedLiftedStructure
    | NPairs
    | NPairNormalized
    | NPairInnerProductL2
    | TupletMargin
    | Circle
    | ProxyAnchor
    | TripletAll
    | SemihardTriplet
    | MultiSimilaritySEC
    | MarginHead
)
"""Any loss of this module."""


class LossModule(nn.Module):
    """A loss with its own parameters, which are float32."""

    def __init__(self, config: Loss, num_classes: int, embedding_size: int, seed: int) -> None:
        super().__init__()
        self.config = config
        self.num_classes = num_classes
        self.embedding_size = embedding_size
        self.formula = config.build(num_classes, embedding_size, seed)

    def extra_repr(self) -> str:
        """Show the configuration."""
        return f"{self.config}, {self.num_classes} classes"

    def forward(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        """Return the loss of a batch, a float32 scalar.

        It is float64 where the parameters are, or for a loss without any the embeddings.

        Args:
            embeddings: raw embeddings, ``(N, D)``, any float type.
            labels: their classes, ``(N,)``, int64 in [0, C).

        Raises:
            TrainingError: shapes or types are wrong, or a label lies outside [0, C). On CUDA the
                last is a device-side assertion, which does not make the host wait.
        """
        self._check(embeddings, labels)
        own = next(self.parameters(), embeddings)
        with torch.autocast(embeddings.device.type, enabled=False):
            loss = self.formula(
                embeddings.to(torch.promote_types(own.dtype, torch.float32)), labels
            )
        return loss

    def _check(self, embeddings: Tensor, labels: Tensor) -> None:
        size = len(labels)
        if embeddings.shape != (size, self.embedding_size) or not size:
            raise TrainingError(
                f"the loss got embeddings of shape {tuple(embeddings.shape)} with {size} labels; "
                f"it needs at least one, ({size or 'N'}, {self.embedding_size})"
            )
        if labels.dtype != torch.int64 or labels.ndim != 1:
            raise TrainingError(
                f"the loss got labels of type {labels.dtype} and shape {tuple(labels.shape)}; it "
                "needs a vector of int64"
            )
        outside = (labels < 0) | (labels >= self.num_classes)
        if labels.is_cuda:
            torch._assert_async(~outside.any(), f"a label lies outside [0, {self.num_classes})")
        elif outside.any():
            raise TrainingError(
                f"label {int(labels[outside][0])} lies outside [0, {self.num_classes}), the "
                "classes of the loss; number the classes of the training fold from 0"
            )


def create_loss(config: Loss, num_classes: int, embedding_size: int, seed: int) -> LossModule:
    """Make the module of a loss.

    Args:
        config: which loss.
        num_classes: C, the classes of the training fold.
        embedding_size: D.
        seed: a number >= 0 that fixes the loss's own parameters and the draws of its miner.

    Raises:
        MissingExtraError: the loss needs pytorch-metric-learning.
    """
    return LossModule(config, num_classes, embedding_size, seed)


class _Formula(nn.Module):
    """A loss without parameters."""

    def __init__(self, formula: Callable[[Tensor, Tensor], Tensor]) -> None:
        super().__init__()
        self.formula = formula

    def forward(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        return self.formula(embeddings, labels)


class _FromLibrary(nn.Module):
    """A loss of pytorch-metric-learning, with a miner that chooses its pairs or triplets."""

    def __init__(self, loss: Any, miner: nn.Module | None = None, unit: bool = False) -> None:
        super().__init__()
        self.loss, self.miner, self.unit = loss, miner, unit

    def forward(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        if self.unit:
            embeddings = pair_losses.unit_vectors(embeddings)
        chosen = None if self.miner is None else self.miner(embeddings, labels)
        loss = self.loss(embeddings, labels, chosen)
        for parameter in self.loss.parameters():
            # Where nothing was mined the library leaves the learned β (no matrix) out of the graph.
            if parameter.ndim == 1:
                loss = loss + 0 * parameter[0]
        return loss


class _Head(nn.Module):
    """facerec's margin softmax, which counts its steps itself."""

    def __init__(self, head: classifier.MarginClassifier) -> None:
        super().__init__()
        self.head = head

    def forward(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        loss = self.head(embeddings, labels).loss
        if self.training:
            self.head.advance()
        return loss


class _SparseCenters(nn.Module):
    """SoftTriple's regulariser where the library expects one of its own."""

    def __init__(self, shape: tuple[int, int, int]) -> None:
        super().__init__()
        self.shape = shape

    def forward(self, centers: Tensor) -> Tensor:
        return pair_losses.sparse_centers(centers.reshape(self.shape))


@dataclass(frozen=True)
class _CenterInit:
    """Fill a parameter with centres that depend on the seed alone."""

    kind: CenterInit
    seed: int
    columns: bool = False
    """Whether centres are the columns of the parameter, not its rows."""

    @torch.no_grad()
    def __call__(self, parameter: Tensor) -> None:
        centers = parameter.T if self.columns else parameter
        count, size = centers.shape
        kind = "normal" if self.kind == "standard_normal" else self.kind
        drawn = classifier.draw_centers(count, size, range(count), seed=self.seed, center_init=kind)
        centers.copy_(drawn * 100 if self.kind == "standard_normal" else drawn)


def _miner(kind: str, seed: int, margin: float = 0.0) -> nn.Module | None:
    if kind == "none":
        return None
    if kind == "distance_weighted":
        return DistanceWeightedMiner(seed)
    miners = _library("miners")
    if kind == "batch_hard":
        return miners.BatchHardMiner()
    return miners.TripletMarginMiner(margin, type_of_triplets=kind)


def _library(part: str) -> Any:
    """Import a module of pytorch-metric-learning, which takes seconds."""
    try:
        return importlib.import_module(f"pytorch_metric_learning.{part}")
    except ImportError as error:
        raise MissingExtraError(
            "this loss needs pytorch-metric-learning; run: pip install 'facerec[compare]'"
        ) from error
