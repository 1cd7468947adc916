"""Losses to compare: a configuration dataclass each, behind one ``loss(embeddings, labels)``.

The losses of *A Metric Learning Reality Check* (Musgrave, Belongie, Lim, ECCV 2020) and relatives
come from pytorch-metric-learning (extra ``compare``, version 2.9 or 3), with the defaults of its
version 2; those of *Spherical
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
import inspect
import math
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from functools import cache, partial
from importlib.metadata import PackageNotFoundError, version
from types import MappingProxyType
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from facerec.comparison import pair_losses
from facerec.comparison.mining import DistanceWeightedMiner
from facerec.comparison.ranges import Range
from facerec.errors import (
    FacerecError,
    MissingExtraError,
    RecipeError,
    TrainingError,
    message_line,
)
from facerec.heads import classifier, margins
from facerec.limits import Checked, Count, Positive

CenterInit = Literal["unit", "normal", "xavier", "standard_normal"]
"""How class centres and proxies start. ``unit``: random directions of norm 1; ``normal``:
N(0, 0.01²), insightface's; ``xavier``: N(0, 2/(C+D)), opensphere's; ``standard_normal``: N(0, 1),
pytorch-metric-learning's, whose norm √D makes centres turn slowly. The Reality Check's learning
rates belong to that last one."""


def _range(low: float, high: float, log: bool = False, integer: bool = False) -> Range:
    """Return where to look for a setting that an arm will name."""
    return Range("", low, high, "log" if log else "linear", integer)


_MARGIN = _range(0.0, 1.0)
_DISTANCE = _range(0.0, 2.0)
_TEMPERATURE = _range(1e-4, 1.0, log=True)
_SCALE = _range(10.0, 300.0, log=True)
_FACTOR = _range(1.0, 100.0, log=True)
_EXPONENT = _range(0.01, 100.0, log=True)


def _setting(default: float, search: Range | None) -> Any:
    """Declare a hyper-parameter of the formula: its default, and where a search looks for it."""
    return field(default=default, metadata={"search": search})


Formula = Callable[[Tensor, Tensor], Tensor]
"""Embeddings and labels → loss: a module where it has parameters."""


def _optimum(**values: float) -> Mapping[str, float]:
    return MappingProxyType(values)


@dataclass(frozen=True)
class _Config(Checked):
    """What all losses share: each is a row of a table, made by the one `build` where it can be.

    Of the search ranges the Reality Check's authors published those of multi-similarity (in
    powerful-benchmarker's manual); the others here contain their published optima and the defaults.
    """

    library: ClassVar[str] = ""
    """Name of the loss in pytorch-metric-learning, which takes the settings by their names."""

    formula: ClassVar[Callable[..., Tensor] | None] = None
    """Where there is no such name: a formula of `pair_losses`, which likewise takes them."""

    unit: ClassVar[bool] = False
    """Whether the library's loss must be given unit vectors."""

    classification: ClassVar[bool] = False
    """Whether the loss has weights for each class. The Reality Check then puts one image of each
    class into a batch (32 × 1), for other losses four (8 × 4)."""

    learns: ClassVar[bool] = False
    """Whether the loss has parameters of its own, whose learning rate is then searched too."""

    mlrc: ClassVar[Mapping[str, float]] = {}
    """The Reality Check's optimum on CUB200, by field, with batch 32, 128 dimensions, RMSprop."""

    mlrc_lr: ClassVar[float | None] = None
    """The learning rate of the loss's own weights in that optimum."""

    factor: ClassVar[str] = "scale"
    """Name of the setting that multiplies cosines, where it is no temperature and there is one."""

    @property
    def search(self) -> Mapping[str, Range]:
        """Hyper-parameters to search, by field."""
        bounds = {each.name: each.metadata.get("search") for each in fields(self)}
        return {name: each for name, each in bounds.items() if each is not None}

    @property
    def views(self) -> int:
        """How many augmented views of each image a batch must hold."""
        return 1

    @property
    def cosine_factor(self) -> float:
        """Factor on cosines in the exponents of a softmax; 1 for a loss that has none."""
        if "temperature" in self.settings:
            return float(1 / self.settings["temperature"])
        return float(self.settings.get(self.factor, 1.0))

    @property
    def settings(self) -> dict[str, Any]:
        """What the formula takes, by its own names."""
        return {each.name: getattr(self, each.name) for each in fields(self) if each.metadata}

    def build(self, num_classes: int, embedding_size: int, seed: int) -> Formula:
        """Make the loss without the guarantees that ``create_loss`` adds."""
        if self.library:
            kind = _library("losses", self.library)
            loss = kind(**self.settings, **self._more(num_classes, embedding_size, seed))
            return _FromLibrary(loss, self._miner(seed), self.unit)
        formula = type(self).formula
        assert formula is not None  # every loss has one or the other, or its own `build`
        return partial(formula, **self.settings)

    def _more(self, num_classes: int, embedding_size: int, seed: int) -> dict[str, Any]:
        """Return what the library's loss takes besides its settings."""
        return {}

    def _miner(self, seed: int) -> nn.Module | None:
        """Return what chooses pairs or triplets for the library's loss; None for all of them."""
        kind: str = getattr(self, "miner", "none")
        if kind == "none":
            return None
        if kind == "distance_weighted":
            return DistanceWeightedMiner(seed)
        if kind == "batch_hard":
            miner: nn.Module = _library("miners", "BatchHardMiner")()
        else:
            assert isinstance(self, Triplet)
            miner = _library("miners", "TripletMarginMiner")(self.margin, type_of_triplets=kind)
        return miner


@dataclass(frozen=True)
class _WithCenters(_Config):
    """What the library's losses with a weight vector for each class share."""

    classification = True
    learns = True
    columns: ClassVar[bool] = True
    """Whether the centres are the columns of the parameter in the library's version 2; in version
    3 they are always its rows."""

    center_init: CenterInit = field(default="unit", kw_only=True)
    """How class centres or proxies start: alike for all losses. pytorch-metric-learning has
    standard_normal, but for SoftTriple norms near 0.1 and for ProxyAnchor near 1."""

    def _more(self, num_classes: int, embedding_size: int, seed: int) -> dict[str, Any]:
        columns = self.columns and not _is_version_3()
        return {
            "num_classes": num_classes,
            "embedding_size": embedding_size,
            "weight_init_func": partial(
                _fill, center_init=self.center_init, seed=seed, columns=columns
            ),
        }


@dataclass(frozen=True)
class Contrastive(_Config):
    """Contrastive loss (Hadsell et al., 2006): [d_p − m_p]₊ and [m_n − d_n]₊, Euclidean d.

    Each is averaged over its pairs that are not 0.
    """

    library = "ContrastiveLoss"
    # Published as -0.2, which has the gradient of 0.
    mlrc = _optimum(pos_margin=0.0, neg_margin=0.3841)

    pos_margin: float = _setting(0.0, _MARGIN)
    """Distance below which a positive pair costs nothing (pytorch-metric-learning)."""

    neg_margin: float = _setting(1.0, _DISTANCE)
    """Distance above which a negative pair costs nothing (pytorch-metric-learning)."""

    miner: Literal["none", "batch_hard", "distance_weighted"] = "none"
    """Pairs that count: all; each anchor's farthest positive and nearest negative (Hermans et al.,
    2017); or all positives, each with a negative drawn evenly over distances (Wu et al., 2017)."""


@dataclass(frozen=True)
class Triplet(_Config):
    """Triplet loss: [d_ap − d_an + m]₊ with Euclidean d, averaged over triplets that are not 0."""

    library = "TripletMarginLoss"
    mlrc = _optimum(margin=0.0961)

    margin: float = _setting(0.05, _MARGIN)
    """Margin m (pytorch-metric-learning)."""

    miner: Literal["none", "semihard", "hard", "batch_hard", "distance_weighted"] = "none"
    """Triplets that count: all; those whose negative is farther than the positive but within the
    margin; those whose negative is nearer; else as in Contrastive."""


@dataclass(frozen=True)
class NTXent(_Config):
    """NT-Xent: cross-entropy from each positive to the anchor's negatives, logits c/τ.

    The authors of *Spherical Embedding Constraint* multiply the loss of two views by τ/0.07. It has
    no factor here, so divide their weight of a norm penalty by it (7.14 at τ = 0.5).
    """

    mlrc = _optimum(temperature=0.0091)

    temperature: Positive = _setting(0.07, _TEMPERATURE)
    """Temperature τ (pytorch-metric-learning; SimCLR with SEC: 0.5)."""

    views: Literal[1, 2] = 1
    """2 is SimCLR: positives are the two augmented views of an image, whatever its class. The first
    half of the rows is one view, the second half the other, in the same order."""

    def build(self, num_classes: int, embedding_size: int, seed: int) -> Formula:
        """Make the module."""
        formula = pair_losses.nt_xent if self.views == 1 else pair_losses.two_view_nt_xent
        return partial(formula, **self.settings)


@dataclass(frozen=True)
class SupCon(_Config):
    """Supervised contrastive loss (Khosla et al., NeurIPS 2020): −log p averaged over positives.

    p is the softmax over all other samples, logits c/τ; anchors with loss 0 do not count. As with
    NTXent there is no factor τ/0.07.
    """

    library = "SupConLoss"

    temperature: Positive = _setting(0.1, _TEMPERATURE)
    """Temperature τ (pytorch-metric-learning)."""

    views: Literal[1, 2] = 1
    """2 asks for two augmented views of each image, all of which are positives within a class."""


@dataclass(frozen=True)
class ProxyNCA(_WithCenters):
    """ProxyNCA (Movshovitz-Attias et al., ICCV 2017): softmax over proxies, logits −s·d².

    The positive proxy is in the denominator, as in pytorch-metric-learning. Since d² = 2 − 2c this
    is NormalizedSoftmax with τ = 1/(2s), and it is computed so, which does not underflow.
    """

    library = "NormalizedSoftmaxLoss"
    mlrc = _optimum(softmax_scale=13.98)
    mlrc_lr = 6.04e-3

    softmax_scale: Positive = _setting(1.0, _FACTOR)
    """Factor s (pytorch-metric-learning)."""

    @property
    def settings(self) -> dict[str, Any]:
        """What the formula takes."""
        return {"temperature": 1 / (2 * self.softmax_scale)}


@dataclass(frozen=True)
class Margin(_Config):
    """Margin loss (Wu et al., ICCV 2017): [d_ap − β + α]₊ + [β − d_an + α]₊ with one learned β.

    Divided by the number of terms that are not 0.
    """

    library = "MarginLoss"
    learns = True
    per_class: ClassVar[bool] = False
    """Whether each class has its β."""
    mlrc = _optimum(margin=0.0878, beta=0.7838)
    mlrc_lr = 1.31e-3

    margin: float = _setting(0.2, _MARGIN)
    """Margin α (pytorch-metric-learning)."""

    beta: float = _setting(1.2, _DISTANCE)
    """Where β starts (pytorch-metric-learning)."""

    miner: Literal["none", "distance_weighted"] = "none"
    """All triplets, as in the Reality Check, or a negative for each positive pair drawn evenly over
    distances, as in the paper."""

    def _more(self, num_classes: int, embedding_size: int, seed: int) -> dict[str, Any]:
        return {"learn_beta": True, "num_classes": num_classes if self.per_class else None}


@dataclass(frozen=True)
class MarginPerClass(Margin):
    """Margin loss with a learned β for each class."""

    per_class = True
    mlrc = _optimum(margin=0.0779, beta=0.9796)
    mlrc_lr = 2.65e-4


@dataclass(frozen=True)
class NormalizedSoftmax(_WithCenters):
    """Normalised softmax (Zhai and Wu, BMVC 2019): cross-entropy with logits c/τ."""

    library = "NormalizedSoftmaxLoss"
    mlrc = _optimum(temperature=0.1087)
    mlrc_lr = 4.46e-3

    temperature: Positive = _setting(0.05, _range(0.01, 1.0, log=True))
    """Temperature τ (pytorch-metric-learning)."""


@dataclass(frozen=True)
class PmlSphereFace(_WithCenters):
    """pytorch-metric-learning's SphereFace: the form of 2017 without annealing.

    Its logits are multiplied by the embedding's norm, so norms matter here. The margin is a whole
    number; MarginHead(SphereFace(...)) takes any and has a fixed scale.
    """

    library = "SphereFaceLoss"

    margin: Count = _setting(4, _range(1, 5, integer=True))
    """Factor m on the target angle (pytorch-metric-learning; the paper)."""

    scale: Positive = _setting(1.0, _range(0.1, 100.0, log=True))
    """Factor on all logits besides the norm (pytorch-metric-learning)."""


@dataclass(frozen=True)
class PmlCosFace(_WithCenters):
    """pytorch-metric-learning's CosFace: target logit s·(cos θ − m)."""

    library = "CosFaceLoss"
    mlrc = _optimum(margin=0.6182, scale=100.0)
    mlrc_lr = 2.53e-3

    margin: float = _setting(0.35, _MARGIN)
    """Margin m (pytorch-metric-learning; the paper)."""

    scale: Positive = _setting(64.0, _SCALE)
    """Factor s on all cosines (pytorch-metric-learning; the paper)."""


@dataclass(frozen=True)
class PmlArcFace(_WithCenters):
    """pytorch-metric-learning's ArcFace: s·cos(θ + m), and s·(cos θ − m·sin m) beyond π.

    Angles are kept off 0 and π, where the library's gradient is not a number.
    """

    library = "ArcFaceLoss"
    mlrc = _optimum(margin=23.22, scale=100.0)
    mlrc_lr = 5.13e-3

    margin: float = _setting(28.6, _range(0.0, 60.0))
    """Margin m in degrees (pytorch-metric-learning 2; version 3 and the paper: 0.5 radians)."""

    scale: Positive = _setting(64.0, _SCALE)
    """Factor s on all cosines (pytorch-metric-learning; the paper)."""

    @property
    def settings(self) -> dict[str, Any]:
        """What the formula takes: of the library's version 3 an angle in radians."""
        margin = math.radians(self.margin) if _is_version_3() else self.margin
        return {"margin": margin, "scale": self.scale}

    def build(self, num_classes: int, embedding_size: int, seed: int) -> Formula:
        """Make the module."""
        module = super().build(num_classes, embedding_size, seed)
        if not _is_version_3():
            assert isinstance(module, _FromLibrary)
            module.loss.get_angles = pair_losses.angles
        return module


@dataclass(frozen=True)
class FastAP(_Config):
    """FastAP (Cakir et al., CVPR 2019): average precision from soft histograms of d² in [0, 4]."""

    library = "FastAPLoss"
    mlrc = _optimum(num_bins=17)

    num_bins: Count = _setting(10, _range(2, 100, log=True, integer=True))
    """Bins of the histograms (pytorch-metric-learning)."""


@dataclass(frozen=True)
class SNRContrastive(_Config):
    """Contrastive loss on the distance Var(a − b)/Var(a) (Yuan et al., CVPR 2019).

    The variances are over the coordinates of unit vectors.
    """

    formula = staticmethod(pair_losses.snr_contrastive)
    mlrc = _optimum(pos_margin=0.3264, neg_margin=0.8446, zero_mean_weight=0.1382)

    pos_margin: float = _setting(0.0, _MARGIN)
    """Distance below which a positive pair costs nothing (pytorch-metric-learning)."""

    neg_margin: float = _setting(1.0, _DISTANCE)
    """Distance above which a negative pair costs nothing (pytorch-metric-learning)."""

    zero_mean_weight: float = _setting(0.0, _MARGIN)
    """Factor on the mean of |Σ_d f̂_d|. It is taken of unit vectors as in the Reality Check; the
    library of today would give it raw ones, and the loss would push norms down."""


@dataclass(frozen=True)
class MultiSimilarity(_Config):
    """Multi-similarity loss (Wang et al., CVPR 2019) over all pairs, mean over anchors.

    (1/α)·log(1 + Σ_p e^{−α(c−λ)}) + (1/β)·log(1 + Σ_n e^{β(c−λ)}).
    """

    library = "MultiSimilarityLoss"
    mlrc = _optimum(alpha=0.01, beta=50.60, base=0.56)

    alpha: Positive = _setting(2.0, _EXPONENT)
    """Exponent α of positives (pytorch-metric-learning)."""

    beta: Positive = _setting(50.0, _EXPONENT)
    """Exponent β of negatives (pytorch-metric-learning)."""

    base: float = _setting(0.5, _MARGIN)
    """Cosine λ that exponents count from (pytorch-metric-learning)."""


@dataclass(frozen=True)
class MultiSimilarityMined(MultiSimilarity):
    """Multi-similarity loss with its miner: negatives near the worst positive, and vice versa."""

    mlrc = _optimum(alpha=17.97, beta=75.66, base=0.77, epsilon=0.39)

    epsilon: float = _setting(0.1, _MARGIN)
    """Slack ε of the miner (pytorch-metric-learning)."""

    @property
    def settings(self) -> dict[str, Any]:
        """What the formula takes; ε is the miner's."""
        return {name: value for name, value in super().settings.items() if name != "epsilon"}

    def _miner(self, seed: int) -> nn.Module | None:
        miner: nn.Module = _library("miners", "MultiSimilarityMiner")(self.epsilon)
        return miner


@dataclass(frozen=True)
class SoftTriple(_WithCenters):
    """SoftTriple (Qian et al., ICCV 2019): softmax over classes that have several centres.

    A class's similarity is the mean over its centres, weighted by their softmax with factor 1/γ;
    cross-entropy has logits la·(similarity − m at the target).
    """

    library = "SoftTripleLoss"
    factor = "la"
    mlrc = _optimum(la=78.02, gamma=58.95, reg_weight=0.3754, margin=0.4307)
    mlrc_lr = 5.37e-5

    centers_per_class: Count = _setting(10, None)
    """Centres of each class (pytorch-metric-learning)."""

    la: Positive = _setting(20.0, _FACTOR)
    """Factor on similarities (pytorch-metric-learning)."""

    gamma: Positive = _setting(0.1, _EXPONENT)
    """Softness of the choice among a class's centres (pytorch-metric-learning). At the
    Reality Check's 59 the centres act as their mean."""

    reg_weight: float = _setting(0.0, _MARGIN)
    """Factor on the distances between a class's centres, which lets surplus ones merge
    (pytorch-metric-learning: none)."""

    margin: float = _setting(0.01, _MARGIN)
    """Margin m (pytorch-metric-learning)."""

    @property
    def settings(self) -> dict[str, Any]:
        """What the formula takes."""
        settings = super().settings
        settings["weight_reg_weight"] = settings.pop("reg_weight")
        return settings

    def _more(self, num_classes: int, embedding_size: int, seed: int) -> dict[str, Any]:
        more = super()._more(num_classes, embedding_size, seed)
        if self.reg_weight and self.centers_per_class > 1:
            shape = (num_classes, self.centers_per_class, embedding_size)
            more["weight_regularizer"] = _SparseCenters(shape)
        return more


@dataclass(frozen=True)
class Angular(_Config):
    """Angular loss (Wang et al., ICCV 2017), on unit vectors, mean over positive pairs.

    log(1 + Σ_n e^{4·tan²α·(f_a + f_p)·f_n − 2(1 + tan²α)·f_a·f_p}). The library normalises anchors
    and positives but not negatives, so it is given unit vectors.
    """

    library = "AngularLoss"
    unit = True

    alpha: Positive = _setting(40.0, _range(10.0, 60.0))
    """Angle α in degrees (pytorch-metric-learning)."""


@dataclass(frozen=True)
class LiftedStructure(_Config):
    """Lifted structure (Oh Song et al., CVPR 2016), mean over positive pairs.

    ½·[log Σ_n e^{m_n − d} + d_ap − m_p]₊² with n over the negatives of anchor and positive.
    """

    formula = staticmethod(pair_losses.lifted_structure)

    neg_margin: float = _setting(1.0, _DISTANCE)
    """Margin m_n (pytorch-metric-learning)."""

    pos_margin: float = _setting(0.0, _MARGIN)
    """Margin m_p (pytorch-metric-learning)."""


@dataclass(frozen=True)
class GeneralizedLiftedStructure(LiftedStructure):
    """Lifted structure of Hermans et al. (2017), mean over anchors.

    [log Σ_p e^{d − m_p} + log Σ_n e^{m_n − d}]₊.
    """

    library = "GeneralizedLiftedStructureLoss"


@dataclass(frozen=True)
class NPairs(_Config):
    """pytorch-metric-learning's N-pairs with its defaults: logits are plain cosines.

    Compare NPairNormalized, whose logits are 25 times as large, and NPairInnerProductL2, the
    published form.
    """

    library = "NPairsLoss"


@dataclass(frozen=True)
class NPairNormalized(_Config):
    """The SEC authors' N-pair (tuplet) loss: cross-entropy from first to second samples, s·cos.

    Not to be taken for TupletMargin.
    """

    formula = staticmethod(pair_losses.npair_normalized)

    scale: Positive = _setting(25.0, _FACTOR)
    """Factor s on cosines (Dyfine/SphericalEmbedding, which multiplies unit vectors by 5)."""


@dataclass(frozen=True)
class NPairInnerProductL2(_Config):
    """N-pairs as first published (Sohn, NeurIPS 2016): inner products and a penalty on norms.

    Norms matter here. A norm penalty beside it stacks two of them.
    """

    formula = staticmethod(pair_losses.npair_inner_product_l2)

    l2_weight: float = _setting(1e-3, _range(1e-5, 0.1, log=True))
    """Factor λ on the mean squared norm (tf.contrib's npairs_loss: 0.002 · 0.25 for each side)."""


@dataclass(frozen=True)
class TupletMargin(_Config):
    """Tuplet margin loss (Yu and Tao, ICCV 2019), mean over positive pairs.

    log(1 + Σ_n e^{s(cos θ_an − cos(θ_ap − m))}).
    """

    formula = staticmethod(pair_losses.tuplet_margin)

    margin: float = _setting(5.73, _range(0.0, 30.0))
    """Slack m in degrees (pytorch-metric-learning; 0.1 radians)."""

    scale: Positive = _setting(64.0, _SCALE)
    """Factor s on cosines (pytorch-metric-learning)."""

    @property
    def settings(self) -> dict[str, Any]:
        """What the formula takes."""
        return {"scale": self.scale, "margin": math.radians(self.margin)}


@dataclass(frozen=True)
class Circle(_Config):
    """Circle loss (Sun et al., CVPR 2020), mean over anchors with positives and negatives.

    softplus(log Σ_n e^{γ[c+m]₊(c−m)} + log Σ_p e^{−γ[1+m−c]₊(c−1+m)}), brackets without gradient.
    """

    library = "CircleLoss"
    factor = "gamma"

    m: float = _setting(0.4, _MARGIN)
    """Relaxation m (pytorch-metric-learning; the paper: 0.25 for faces)."""

    gamma: Positive = _setting(80.0, _range(10, 500, log=True))
    """Scale γ (pytorch-metric-learning; the paper: 256 for faces)."""


@dataclass(frozen=True)
class ProxyAnchor(_WithCenters):
    """Proxy anchor loss (Kim et al., CVPR 2020): a proxy a class, each an anchor for the batch."""

    library = "ProxyAnchorLoss"
    factor = "alpha"
    columns = False

    margin: float = _setting(0.1, _MARGIN)
    """Margin on cosines (pytorch-metric-learning)."""

    alpha: Positive = _setting(32.0, _FACTOR)
    """Factor in the exponents (pytorch-metric-learning)."""


@dataclass(frozen=True)
class TripletAll(_Config):
    """The SEC authors' triplet loss: squared distances, mean over all triplets, zeros included."""

    formula = staticmethod(pair_losses.triplet_all)

    margin: float = _setting(1.0, _DISTANCE)
    """Margin m on squared distances (Dyfine/SphericalEmbedding)."""


@dataclass(frozen=True)
class SemihardTriplet(_Config):
    """The SEC authors' semihard triplet loss: squared distances, one negative a positive pair."""

    formula = staticmethod(pair_losses.semihard_triplet)

    margin: float = _setting(0.2, _DISTANCE)
    """Margin m on squared distances (Dyfine/SphericalEmbedding)."""


@dataclass(frozen=True)
class MultiSimilaritySEC(_Config):
    """The SEC authors' multi-similarity loss: mined, the sum divided by the batch size."""

    formula = staticmethod(pair_losses.multi_similarity)

    alpha: Positive = _setting(2.0, _EXPONENT)
    """Exponent α of positives (Dyfine/SphericalEmbedding)."""

    beta: Positive = _setting(40.0, _EXPONENT)
    """Exponent β of negatives (Dyfine/SphericalEmbedding)."""

    base: float = _setting(0.5, _MARGIN)
    """Cosine λ that exponents count from (Dyfine/SphericalEmbedding)."""

    epsilon: float = _setting(0.1, _MARGIN)
    """Slack ε of the mining (Dyfine/SphericalEmbedding)."""


_HEAD_SEARCH: Mapping[type, Mapping[str, Range]] = {
    margins.Softmax: {"scale": _SCALE},
    margins.CosFace: {"scale": _SCALE, "margin": _MARGIN},
    margins.ArcFace: {"scale": _SCALE, "margin": _MARGIN},
    margins.CombinedMargin: {
        "scale": _SCALE,
        "m1": _range(0.5, 2.0),
        "m2": _MARGIN,
        "m3": _MARGIN,
    },
    margins.SphereFace: {"scale": _SCALE, "margin": _range(1.0, 4.0)},
    margins.SphereFace2017: {"margin": _range(1.0, 5.0)},
    margins.SphereFaceR: {"scale": _SCALE, "margin": _range(1.0, 4.0)},
    margins.AdaFace: {"scale": _SCALE, "margin": _MARGIN, "h": _range(0.0, 1.0)},
    margins.MagFace: {
        "scale": _SCALE,
        "l_margin": _range(0.0, 0.5),
        "u_margin": _range(0.5, 1.0),
        "lambda_g": _range(1.0, 100.0, log=True),
    },
}
"""Hyper-parameters of each margin to search, by field."""

_HEAD_OPTIMA: Mapping[type, tuple[Mapping[str, float], float | None]] = {
    margins.CosFace: (PmlCosFace.mlrc, PmlCosFace.mlrc_lr),
    margins.ArcFace: (
        {**PmlArcFace.mlrc, "margin": math.radians(PmlArcFace.mlrc["margin"])},
        PmlArcFace.mlrc_lr,
    ),
}
"""The Reality Check's optimum of the same loss, by field, and the learning rate of the centres."""


@dataclass(frozen=True)
class MarginHead(_Config):
    """facerec's own margin softmax with any of its margins, on one process.

    Norms matter for SphereFace2017, AdaFace and MagFace only. The keys of ``search`` and ``mlrc``
    are dotted, as they are fields of ``margin``; the optima are those of the same loss in the
    Reality Check.
    """

    classification = True
    learns = True

    margin: margins.Margin = field(default_factory=margins.ArcFace)
    """Which margin, with its scale (facerec's defaults are those of face recognition)."""

    center_init: classifier.CenterInit = "unit"
    """How the class centres start."""

    @property
    def cosine_factor(self) -> float:
        """Factor on cosines."""
        return self.margin.scale

    @property
    def search(self) -> Mapping[str, Range]:
        """Hyper-parameters to search, by dotted field."""
        ranges = _HEAD_SEARCH.get(type(self.margin), {})
        return {f"margin.{name}": each for name, each in ranges.items()}

    @property
    def mlrc(self) -> Mapping[str, float]:  # type: ignore[override]
        """The Reality Check's optimum on CUB200, by dotted field."""
        optimum, _ = _HEAD_OPTIMA.get(type(self.margin), ({}, None))
        return {f"margin.{name}": value for name, value in optimum.items()}

    @property
    def mlrc_lr(self) -> float | None:  # type: ignore[override]
        """The learning rate of the centres in that optimum."""
        _, rate = _HEAD_OPTIMA.get(type(self.margin), ({}, None))
        return rate

    def build(self, num_classes: int, embedding_size: int, seed: int) -> Formula:
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


def setting(default: float, low: float, high: float, log: bool = False) -> Any:
    """Declare a hyper-parameter of a loss of one's own, and where a search looks for it.

    What may be set besides is said by the field's type, such as `facerec.limits.Positive`.

    Args:
        default: its value where nothing is searched.
        low: smallest value that a search tries.
        high: largest one.
        log: whether to search on a logarithmic scale.
    """
    return _setting(default, _range(low, high, log=log, integer=isinstance(default, int)))


@dataclass(frozen=True)
class OwnLoss(_Config):
    """A loss in a file of one's own: a frozen dataclass that derives from this one, in a recipe.

    It names its ``formula`` of raw embeddings ``(B, D)``, labels ``(B,)`` and its settings, which
    returns a scalar, and declares these as fields with `setting`; or it has a ``build`` that
    returns a module with parameters, and then ``learns = True``. Search, fresh seeds and the paired
    tests come by themselves, and SEC goes on top by a field of the arm.

    Examples:
        >>> from facerec.comparison.pair_losses import unit_vectors
        >>> def pull(embeddings: Tensor, labels: Tensor, margin: float) -> Tensor:
        ...     cosines = unit_vectors(embeddings) @ unit_vectors(embeddings).T
        ...     same = labels[:, None] == labels
        ...     return torch.where(same, 1 - cosines, (cosines - margin).clamp(min=0)).mean()
        >>> @dataclass(frozen=True)
        ... class Pull(OwnLoss):
        ...     formula = staticmethod(pull)
        ...     margin: float = setting(0.2, 0.0, 1.0)
        >>> loss = create_loss(Pull(margin=0.1), num_classes=2, embedding_size=2, seed=0)
        >>> loss(torch.eye(2), torch.tensor([0, 1])).item()
        0.0
    """

    admits_subclasses: ClassVar[bool] = True
    """Whether a recipe may hold what derives from this; see `facerec.recipe.check`."""

    def build(self, num_classes: int, embedding_size: int, seed: int) -> Formula:
        """Make the loss.

        Raises:
            RecipeError: it names no formula.
        """
        if type(self).formula is None:
            raise RecipeError(
                f"{type(self).__name__}: a loss of one's own needs formula = staticmethod(…) or a "
                "build of its own; give it one"
            )
        return super().build(num_classes, embedding_size, seed)

    @property
    def source(self) -> str:
        """Source text of its formula, its methods and the functions of their file that they call.

        Empty where it came from no file.
        """
        kinds = type(self).__mro__[: type(self).__mro__.index(OwnLoss)]
        members = [(name, getattr(kind, name)) for kind in kinds for name in vars(kind)]
        own = [each for name, each in members if inspect.isfunction(each) and name[:2] != "__"]
        for function in own:  # which grows by what each calls
            called = inspect.getclosurevars(function)
            own += [
                each
                for each in (*called.nonlocals.values(), *called.globals.values())
                if inspect.isfunction(each)
                and each.__module__ == function.__module__
                and each not in own
            ]
        try:
            return "\n".join(inspect.getsource(each) for each in own)
        except OSError:
            return ""


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
    | OwnLoss
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
        with torch.autocast(embeddings.device.type, enabled=False), self._explained():
            loss = self.formula(
                embeddings.to(torch.promote_types(own.dtype, torch.float32)), labels
            )
        if not isinstance(loss, Tensor) or loss.ndim:
            shape = tuple(loss.shape) if isinstance(loss, Tensor) else type(loss).__name__
            raise TrainingError(
                f"{type(self.config).__name__} returned {shape}, but a loss is a scalar tensor; "
                "take the mean of it"
            )
        if torch.is_grad_enabled() and embeddings.requires_grad and not loss.requires_grad:
            raise TrainingError(
                f"{type(self.config).__name__} returned a loss without a gradient, from which "
                "nothing can be learned; compute it of the embeddings, without detach or item"
            )
        return loss

    @contextmanager
    def _explained(self) -> Iterator[None]:
        """Word what a loss of one's own raises."""
        try:
            yield
        except Exception as error:  # whatever a stranger's code does
            if isinstance(error, FacerecError) or not isinstance(self.config, OwnLoss):
                raise
            frames = traceback.extract_tb(error.__traceback__)
            # Of its own lines the innermost; below it there is torch.
            own = [each for each in frames if "site-packages" not in each.filename]
            frame = (own or frames)[-1]
            raise TrainingError(
                f"{type(self.config).__name__}: its formula fails in {frame.filename}, line "
                f"{frame.lineno} ({type(error).__name__}: {message_line(error)}); mend it"
            ) from error

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
            if parameter.ndim < 2:
                loss = loss + 0 * parameter.sum()
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


@torch.no_grad()
def _fill(parameter: Tensor, center_init: CenterInit, seed: int, columns: bool) -> None:
    """Fill a parameter with centres, its rows or its columns, that depend on the seed alone."""
    centers = parameter.T if columns else parameter
    count, size = centers.shape
    kind = "normal" if center_init == "standard_normal" else center_init
    drawn = classifier.draw_centers(count, size, range(count), seed=seed, center_init=kind)
    centers.copy_(drawn * 100 if center_init == "standard_normal" else drawn)


@cache
def _is_version_3() -> bool:
    """Tell whether pytorch-metric-learning is of version 3 or later, which broke with version 2.

    What matters here, by its notes on the release and its manual: ArcFace's margin is in radians,
    and class weights are rows. It normalises what `_Config.unit` normalises for version 2.
    """
    try:
        return int(version("pytorch-metric-learning").partition(".")[0]) >= 3
    except PackageNotFoundError:
        return False


def _library(module: str, name: str) -> Any:
    """Return a class of pytorch-metric-learning, whose import takes seconds."""
    try:
        return getattr(importlib.import_module(f"pytorch_metric_learning.{module}"), name)
    except ImportError as error:
        raise MissingExtraError(
            "this loss needs pytorch-metric-learning; run: pip install 'facerec[compare]'"
        ) from error
