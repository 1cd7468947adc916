"""The table of losses: what makes each one, its settings, and where a search looks for them.

Most come from pytorch-metric-learning (extra ``compare``), with its defaults; those of *Spherical
Embedding Constraint* and a few whose library form breaks down are formulas of `pair_losses`. Of the
search ranges the authors of *A Metric Learning Reality Check* (Musgrave, Belongie, Lim, ECCV 2020)
published those of multi-similarity; the others contain their published optima and the defaults.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from facerec.base.libraries import Library
from facerec.comparison import pair_losses
from facerec.comparison.ranges import Range
from facerec.heads import classifier

_LOSSES = Library("pytorch_metric_learning.losses", "'facerec[compare]'")
_MINERS = Library("pytorch_metric_learning.miners", "'facerec[compare]'")

Formula = Callable[[Tensor, Tensor], Tensor]
"""Embeddings and labels → loss: a module where it has parameters."""

Value = int | float | str


class Shape(NamedTuple):
    """What a loss is made for."""

    num_classes: int
    embedding_size: int
    seed: int


class Setting(NamedTuple):
    """A setting of a loss: its default, and what else it may be."""

    default: Value
    search: Range | None = None
    """Where a search looks for a number; None is not searched."""
    best: float | None = None
    """The Reality Check's optimum on CUB200, with batch 32, 128 dimensions, RMSprop."""
    choices: tuple[Value, ...] = ()
    """All values where they are few."""


def searched(
    default: float, low: float, high: float, log: bool = False, best: float | None = None
) -> Setting:
    """Return a number of a loss with its default, and where a search looks for it.

    A default without decimals makes it a whole number, which must be at least 1; on a logarithmic
    scale numbers must be above 0.

    Args:
        default: its value where nothing is searched.
        low: smallest value that a search tries.
        high: largest one.
        log: whether to search on a logarithmic scale.
        best: a published value that a search tries too.
    """
    scale = Range("", low, high, "log" if log else "linear", isinstance(default, int))
    return Setting(default, scale, best)


@dataclass(frozen=True)
class Entry:
    """A row of the table."""

    make: Callable[..., Formula]
    """Shape and settings by their names → the loss."""
    settings: Mapping[str, Setting] = field(default_factory=dict)
    learns: bool = False
    """Whether the loss has parameters of its own, whose learning rate is then searched too."""
    factor: str = ""
    """The setting that is the factor on cosines in the exponents of a softmax, or a temperature."""
    best_lr: float | None = None
    """The learning rate of the loss's own weights in the Reality Check's optimum."""
    sha256: str = ""
    """SHA-256 of the code of a user's own loss; empty for those of facerec."""


# ---------------------------------------------------------------- what makes losses


def _formula(function: Callable[..., Tensor]) -> Callable[..., Formula]:
    """Return what makes a formula of `pair_losses`."""
    return lambda shape, **settings: partial(function, **settings)


def _nt_xent(shape: Shape, temperature: float, views: int) -> Formula:
    formula = pair_losses.nt_xent if views == 1 else pair_losses.two_view_nt_xent
    return partial(formula, temperature=temperature)


def _tuplet_margin(shape: Shape, scale: float, margin: float) -> Formula:
    return partial(pair_losses.tuplet_margin, scale=scale, margin=math.radians(margin))


def _pml(name: str, *, unit: bool = False, columns: bool = True) -> Callable[..., _FromLibrary]:
    """Return what makes a loss of pytorch-metric-learning, which takes settings by their names.

    Args:
        name: of the loss there.
        unit: whether it must be given unit vectors.
        columns: whether its centres are the columns of the parameter, else its rows.
    """

    def make(shape: Shape, miner: str = "none", views: int = 1, **settings: Any) -> _FromLibrary:
        if kind := settings.pop("center_init", ""):
            fill = partial(_fill, center_init=kind, seed=shape.seed, columns=columns)
            settings |= dict(zip(("num_classes", "embedding_size"), shape[:2], strict=True))
            settings["weight_init_func"] = fill
        chosen = _miner(miner, settings.get("margin"), shape.seed)
        return _FromLibrary(getattr(_LOSSES, name)(**settings), chosen, unit)

    return make


def _margin_loss(shape: Shape, per_class: bool = False, **settings: Any) -> Formula:
    count = shape.num_classes if per_class else None
    return _pml("MarginLoss")(shape, learn_beta=True, num_classes=count, **settings)


def _miner(kind: str, margin: float | None, seed: int) -> nn.Module | None:
    """Return what chooses pairs or triplets for the library's loss; None for all of them."""
    if kind == "distance_weighted":
        return pair_losses.DistanceWeightedMiner(seed)
    miner: nn.Module | None = None
    if kind == "batch_hard":
        miner = _MINERS.BatchHardMiner()
    elif kind != "none":
        miner = _MINERS.TripletMarginMiner(margin, type_of_triplets=kind)
    return miner


def _proxy_nca(shape: Shape, softmax_scale: float, center_init: str) -> Formula:
    softmax = _pml("NormalizedSoftmaxLoss")
    return softmax(shape, temperature=1 / (2 * softmax_scale), center_init=center_init)


def _arcface(shape: Shape, **settings: Any) -> Formula:
    module = _pml("ArcFaceLoss")(shape, **settings)
    module.loss.get_angles = pair_losses.angles
    return module


def _mined_multi_similarity(shape: Shape, epsilon: float, **settings: float) -> Formula:
    module = _pml("MultiSimilarityLoss")(shape, **settings)
    module.miner = _MINERS.MultiSimilarityMiner(epsilon)
    return module


def _soft_triple(shape: Shape, reg_weight: float, **settings: Any) -> Formula:
    count = settings["centers_per_class"]
    if reg_weight and count > 1:
        size = (shape.num_classes, count, shape.embedding_size)
        settings["weight_regularizer"] = lambda own: pair_losses.sparse_centers(own.reshape(size))
    return _pml("SoftTripleLoss")(shape, weight_reg_weight=reg_weight, **settings)


class _FromLibrary(nn.Module):
    """A loss of pytorch-metric-learning, with a miner that chooses its pairs or triplets."""

    def __init__(self, loss: Any, miner: nn.Module | None, unit: bool) -> None:
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


@torch.no_grad()
def _fill(parameter: Tensor, center_init: str, seed: int, columns: bool) -> None:
    """Fill a parameter with centres, its rows or its columns, that depend on the seed alone."""
    centers = parameter.T if columns else parameter
    count, size = centers.shape
    kind: Any = "normal" if center_init == "standard_normal" else center_init
    drawn = classifier.draw_centers(count, size, range(count), seed=seed, center_init=kind)
    centers.copy_(drawn * 100 if center_init == "standard_normal" else drawn)


# ---------------------------------------------------------------- the table


def _row(
    make: Callable[..., Formula], factor: str = "", best_lr: float | None = None, **own: Setting
) -> Entry:
    """Return a row; it learns vectors of classes, or a β, for which there is a rate."""
    return Entry(make, own, "center_init" in own or best_lr is not None, factor, best_lr)


def _among(*values: Value) -> Setting:
    """Return a setting with few values, the default first."""
    return Setting(values[0], choices=values)


_margin = partial(searched, low=0.0, high=1.0)
_distance = partial(searched, low=0.0, high=2.0)
_temperature = partial(searched, low=1e-4, high=1.0, log=True)
_scale = partial(searched, low=10.0, high=300.0, log=True)
_multiple = partial(searched, low=1.0, high=100.0, log=True)
_exponent = partial(searched, low=0.01, high=100.0, log=True)

_of_classes = partial(_row, center_init=_among("unit", "normal", "xavier", "standard_normal"))
"""Makes rows with a weight vector for each class; the setting says how these start. ``unit``:
random directions of norm 1; ``normal``: N(0, 0.01²), insightface's; ``xavier``: N(0, 2/(C+D)),
opensphere's; ``standard_normal``: N(0, 1), pytorch-metric-learning's, whose norm √D makes centres
turn slowly. The Reality Check's learning rates belong to that last one."""

TABLE: dict[str, Entry] = {
    # ------------------------------------------------ pairs and triplets
    # Hadsell et al., 2006: [d_p − m_p]₊ and [m_n − d_n]₊, Euclidean d, each averaged over its pairs
    # that are not 0. batch_hard: each anchor's farthest positive and nearest negative (Hermans et
    # al., 2017); distance_weighted: a negative for each positive pair, drawn evenly over distances
    # (Wu et al., 2017). The optimum was published as -0.2, which has the gradient of 0.
    "Contrastive": _row(
        _pml("ContrastiveLoss"),
        pos_margin=_margin(0.0, best=0.0),
        neg_margin=_distance(1.0, best=0.3841),
        miner=_among("none", "batch_hard", "distance_weighted"),
    ),
    # [d_ap − d_an + m]₊ with Euclidean d, averaged over triplets that are not 0. semihard: those
    # whose negative is farther than the positive but within the margin; hard: nearer.
    "Triplet": _row(
        _pml("TripletMarginLoss"),
        margin=_margin(0.05, best=0.0961),
        miner=_among("none", "semihard", "hard", "batch_hard", "distance_weighted"),
    ),
    # Cross-entropy from each positive to the anchor's negatives, logits c/τ. views=2 is SimCLR
    # (Chen et al., ICML 2020): positives are the two views of an image, whatever its class. The
    # authors of *Spherical Embedding Constraint* multiply it by τ/0.07; it has no factor here, so
    # divide their weight of a norm penalty by it (7.14 at τ = 0.5).
    "NTXent": _row(
        _nt_xent, "temperature", temperature=_temperature(0.07, best=0.0091), views=_among(1, 2)
    ),
    # Khosla et al., NeurIPS 2020: −log p averaged over positives, p the softmax over all other
    # samples; anchors with loss 0 do not count.
    "SupCon": _row(
        _pml("SupConLoss"), "temperature", temperature=_temperature(0.1), views=_among(1, 2)
    ),
    # Wu et al., ICCV 2017: [d_ap − β + α]₊ + [β − d_an + α]₊, β is learned, or one for each class.
    "Margin": _row(
        _margin_loss,
        best_lr=1.31e-3,
        margin=_margin(0.2, best=0.0878),
        beta=_distance(1.2, best=0.7838),
        miner=_among("none", "distance_weighted"),
    ),
    "MarginPerClass": _row(
        partial(_margin_loss, per_class=True),
        best_lr=2.65e-4,
        margin=_margin(0.2, best=0.0779),
        beta=_distance(1.2, best=0.9796),
        miner=_among("none", "distance_weighted"),
    ),
    # Cakir et al., CVPR 2019: average precision from soft histograms of d² in [0, 4].
    "FastAP": _row(_pml("FastAPLoss"), num_bins=searched(10, 2, 100, log=True, best=17)),
    # Yuan et al., CVPR 2019: contrastive on Var(a − b)/Var(a). The factor on the mean of |Σ_d f̂_d|
    # is taken of unit vectors as in the Reality Check; the library of today would give it raw ones.
    "SNRContrastive": _row(
        _formula(pair_losses.snr_contrastive),
        pos_margin=_margin(0.0, best=0.3264),
        neg_margin=_distance(1.0, best=0.8446),
        zero_mean_weight=_margin(0.0, best=0.1382),
    ),
    # Wang et al., CVPR 2019: over all pairs, mean over anchors; or with its miner, by which
    # negatives near the worst positive count, and vice versa.
    "MultiSimilarity": _row(
        _pml("MultiSimilarityLoss"),
        alpha=_exponent(2.0, best=0.01),
        beta=_exponent(50.0, best=50.60),
        base=_margin(0.5, best=0.56),
    ),
    "MultiSimilarityMined": _row(
        _mined_multi_similarity,
        alpha=_exponent(2.0, best=17.97),
        beta=_exponent(50.0, best=75.66),
        base=_margin(0.5, best=0.77),
        epsilon=_margin(0.1, best=0.39),
    ),
    # Wang et al., ICCV 2017, α in degrees. The library normalises anchors and positives but not
    # negatives, so it is given unit vectors.
    "Angular": _row(_pml("AngularLoss", unit=True), alpha=searched(40.0, 10.0, 60.0)),
    # Oh Song et al., CVPR 2016; and Hermans et al., 2017, mean over anchors.
    "LiftedStructure": _row(
        _formula(pair_losses.lifted_structure), neg_margin=_distance(1.0), pos_margin=_margin(0.0)
    ),
    "GeneralizedLiftedStructure": _row(
        _pml("GeneralizedLiftedStructureLoss"), neg_margin=_distance(1.0), pos_margin=_margin(0.0)
    ),
    # The library's N-pairs with its defaults: logits are plain cosines.
    "NPairs": _row(_pml("NPairsLoss")),
    # As first published (Sohn, NeurIPS 2016): inner products and a penalty on norms, which matter
    # here; a norm penalty beside it stacks two of them.
    "NPairInnerProductL2": _row(
        _formula(pair_losses.npair_inner_product_l2), l2_weight=searched(1e-3, 1e-5, 0.1, log=True)
    ),
    # Yu and Tao, ICCV 2019; the slack m is in degrees.
    "TupletMargin": _row(
        _tuplet_margin, "scale", margin=searched(5.73, 0.0, 30.0), scale=_scale(64.0)
    ),
    # Sun et al., CVPR 2020, mean over anchors (for faces the paper has m 0.25, γ 256).
    "Circle": _row(
        _pml("CircleLoss"), "gamma", m=_margin(0.4), gamma=searched(80.0, 10, 500, log=True)
    ),
    # ------------------------------------------------ a weight vector for each class
    # Movshovitz-Attias et al., ICCV 2017: softmax over proxies, logits −s·d², the positive proxy in
    # the denominator. Since d² = 2 − 2c this is NormalizedSoftmax with τ = 1/(2s), and it is
    # computed so, which does not underflow.
    "ProxyNCA": _of_classes(
        _proxy_nca, "softmax_scale", 6.04e-3, softmax_scale=_multiple(1.0, best=13.98)
    ),
    # Zhai and Wu, BMVC 2019: logits c/τ.
    "NormalizedSoftmax": _of_classes(
        _pml("NormalizedSoftmaxLoss"),
        "temperature",
        4.46e-3,
        temperature=searched(0.05, 0.01, 1.0, log=True, best=0.1087),
    ),
    # The library's form of 2017 without annealing, logits times the embedding's norm, which so
    # matters. MarginHead(SphereFace(...)) takes any margin and has a fixed scale.
    "PmlSphereFace": _of_classes(
        _pml("SphereFaceLoss"),
        "scale",
        margin=searched(4, 1, 5),
        scale=searched(1.0, 0.1, 100.0, log=True),
    ),
    # The library's: s·(cos θ − m) at the target.
    "PmlCosFace": _of_classes(
        _pml("CosFaceLoss"),
        "scale",
        2.53e-3,
        margin=_margin(0.35, best=0.6182),
        scale=_scale(64.0, best=100.0),
    ),
    # The library's: s·cos(θ + m), and s·(cos θ − m·sin m) beyond π, m in degrees. Angles are kept
    # off 0 and π, where the library's gradient is not a number.
    "PmlArcFace": _of_classes(
        _arcface,
        "scale",
        5.13e-3,
        margin=searched(28.6, 0.0, 60.0, best=23.22),
        scale=_scale(64.0, best=100.0),
    ),
    # Qian et al., ICCV 2019: softmax over classes that have several centres; a class's similarity
    # is their mean, weighted by their softmax with factor 1/γ. At the Reality Check's γ of 59 the
    # centres act as their mean. reg_weight lets surplus centres merge.
    "SoftTriple": _of_classes(
        _soft_triple,
        "la",
        5.37e-5,
        centers_per_class=Setting(10),
        la=_multiple(20.0, best=78.02),
        gamma=_exponent(0.1, best=58.95),
        reg_weight=_margin(0.0, best=0.3754),
        margin=_margin(0.01, best=0.4307),
    ),
    # Kim et al., CVPR 2020: each proxy an anchor for the batch.
    "ProxyAnchor": _of_classes(
        _pml("ProxyAnchorLoss", columns=False), "alpha", margin=_margin(0.1), alpha=_multiple(32.0)
    ),
    # ------------------------------------------------ as the SEC authors define them
    # (Dyfine/SphericalEmbedding, loss.py, with the defaults there). NPairNormalized is not to be
    # taken for TupletMargin.
    "TripletAll": _row(_formula(pair_losses.triplet_all), margin=_distance(1.0)),
    "SemihardTriplet": _row(_formula(pair_losses.semihard_triplet), margin=_distance(0.2)),
    "NPairNormalized": _row(_formula(pair_losses.npair_normalized), "scale", scale=_multiple(25.0)),
    "MultiSimilaritySEC": _row(
        _formula(pair_losses.multi_similarity),
        alpha=_exponent(2.0),
        beta=_exponent(40.0),
        base=_margin(0.5),
        epsilon=_margin(0.1),
    ),
}
"""Every loss by its name."""
