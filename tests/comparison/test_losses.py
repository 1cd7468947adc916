"""Every loss of the union against a formula written as plain loops, and the shared promises."""

from __future__ import annotations

import math
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from facerec import heads
from facerec.base import recipe
from facerec.base.errors import RecipeError, TrainingError
from facerec.comparison import loss_table, pair_losses
from facerec.comparison.losses import Loss, LossModule, MarginHead, MetricLoss, searched
from facerec.comparison.own_losses import check_first_step, own_loss
from facerec.comparison.protocol import LOSS_LR_RANGE, Arm
from facerec.heads import margins

pml_losses, distances, regularizers = (
    pytest.importorskip(f"pytorch_metric_learning.{name}")
    for name in ("losses", "distances", "regularizers")
)

HEADS = ("CosFace", "SphereFace2017", "SphereFaceR", "CombinedMargin")

# Each row of the table, and settings that reach its branches.
CONFIGS: list[Any] = [
    *(MetricLoss(name) for name in loss_table.TABLE),
    MarginHead(),
    MetricLoss("Contrastive", pos_margin=0.3, neg_margin=0.8),
    MetricLoss("Contrastive", miner="batch_hard"),
    MetricLoss("Contrastive", miner="distance_weighted"),
    MetricLoss("Triplet", margin=0.4),
    *(MetricLoss("Triplet", margin=0.3, miner=name) for name in ("semihard", "hard")),
    *(MetricLoss("Triplet", miner=name) for name in ("batch_hard", "distance_weighted")),
    *(MetricLoss(name, temperature=0.5, views=2) for name in ("NTXent", "SupCon")),
    *(MetricLoss(name, miner="distance_weighted") for name in ("Margin", "MarginPerClass")),
    MetricLoss("PmlSphereFace", margin=2, scale=0.5),
    MetricLoss("PmlArcFace", margin=80.0),
    MetricLoss("SNRContrastive", pos_margin=0.1, neg_margin=0.9, zero_mean_weight=0.5),
    *(MetricLoss("SoftTriple", centers_per_class=number, reg_weight=0.5) for number in (3, 1)),
    MetricLoss("ProxyNCA", softmax_scale=14.0, center_init="standard_normal"),
    *(MarginHead(getattr(heads, name)()) for name in HEADS),
    MarginHead(heads.SphereFace(), center_init="normal"),
    MarginHead(heads.AdaFace(t_alpha=0.5)),
    MarginHead(heads.MagFace(l_a=2.0, u_a=8.0)),
    MarginHead(heads.Softmax(scale=20.0)),
]
SEES_NORMS = ("PmlSphereFace", "NPairInnerProductL2")

CLASSES, SIZE = 5, 7


def sees_norms(config: Any) -> bool:
    return config.kind in SEES_NORMS or (
        isinstance(config, MarginHead)
        and (config.margin.scales_by_norm or isinstance(config.margin, margins.NormMargin))
    )


def miner(config: Any) -> str:
    return getattr(config, "settings", {}).get("miner", "none")


def name(config: Any) -> str:
    return str(config)[:70]


def batch(seed: int = 0, dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor]:
    """Twelve samples of four of the five classes, one class with a single sample."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.tensor([0, 2, 0, 3, 2, 4, 3, 0, 2, 3, 3, 0])
    centers = torch.randn(CLASSES, SIZE, generator=generator, dtype=torch.float64)
    noise = torch.randn(len(labels), SIZE, generator=generator, dtype=torch.float64)
    return ((centers[labels] + 0.8 * noise) * 2).to(dtype), labels


# --- naive formulas -------------------------------------------------------------------------------


class Naive:
    """What the loops need: cosines, distances, and lists of pairs and triplets, in plain Python."""

    def __init__(self, embeddings: Tensor, labels: Tensor, weights: list[Tensor]) -> None:
        self.raw = embeddings.detach().numpy()
        self.unit = self.raw / np.sqrt((self.raw**2).sum(1, keepdims=True))
        self.labels = labels.tolist()
        self.weights = [w.detach().double().numpy() for w in weights]
        self.n = len(self.labels)
        rows = range(self.n)
        self.cos = [[float(self.unit[i] @ self.unit[j]) for j in rows] for i in rows]
        self.dist = [
            [math.sqrt(float(((self.unit[i] - self.unit[j]) ** 2).sum())) for j in rows]
            for i in rows
        ]
        self.positives = [
            (i, j) for i in rows for j in rows if i != j and self.labels[i] == self.labels[j]
        ]
        self.negatives = [(i, j) for i in rows for j in rows if self.labels[i] != self.labels[j]]
        self.triplets = [(a, p, n) for a, p in self.positives for n in self.negatives_of(a)]

    def negatives_of(self, anchor: int) -> list[int]:
        return [j for j in range(self.n) if self.labels[j] != self.labels[anchor]]

    def positives_of(self, anchor: int) -> list[int]:
        return [p for a, p in self.positives if a == anchor]

    def class_cosines(self, centers: Any) -> list[list[float]]:
        lengths = [math.sqrt(float(c @ c)) for c in centers]
        return [
            [float(u @ c) / length for c, length in zip(centers, lengths, strict=True)]
            for u in self.unit
        ]


def relu(x: float) -> float:
    return max(x, 0.0)


def mean(values: list[float]) -> float:
    return sum(values) / len(values) if values else 0.0


def log_softmax(logits: list[float], target: int) -> float:
    top = max(logits)
    return logits[target] - top - math.log(sum(math.exp(z - top) for z in logits))


def proxy_nca(c: Any, x: Naive) -> float:
    (columns,) = x.weights
    values = []
    for i, row in enumerate(x.class_cosines(columns.T)):
        logits = [-c.softmax_scale * (2 - 2 * cosine) for cosine in row]
        values.append(-log_softmax(logits, x.labels[i]))
    return mean(values)


def multi_similarity_terms(c: Any, pull: list[float], push: list[float]) -> float:
    first = math.log(1 + sum(math.exp(-c.alpha * (z - c.base)) for z in pull)) / c.alpha
    return first + math.log(1 + sum(math.exp(c.beta * (z - c.base)) for z in push)) / c.beta


def multi_similarity_mined(c: Any, x: Naive) -> float:
    total = 0.0
    for a in range(x.n):
        pull = [x.cos[a][p] for p in x.positives_of(a) if x.cos[a][p] < 1 - 1e-5]
        push = [x.cos[a][n] for n in x.negatives_of(a)]
        if not pull or not push:
            continue
        kept_push = [z for z in push if z + c.epsilon > min(pull)]
        kept_pull = [z for z in pull if z - c.epsilon < max(push)]
        if kept_push and kept_pull:
            total += multi_similarity_terms(c, kept_pull, kept_push)
    return total / x.n


def n_pairs(vectors: Any, labels: list[int]) -> float:
    pairs = []
    for label in sorted(set(labels)):
        members = [i for i, y in enumerate(labels) if y == label]
        if len(members) > 1:
            pairs.append((members[0], members[1]))
    return mean(
        [
            -log_softmax([float(vectors[a] @ vectors[p]) for _, p in pairs], k)
            for k, (a, _) in enumerate(pairs)
        ]
    )


def n_pairs_l2(c: Any, x: Naive) -> float:
    used = [
        i
        for label in set(x.labels)
        if x.labels.count(label) > 1
        for i in [k for k, y in enumerate(x.labels) if y == label][:2]
    ]
    return n_pairs(x.raw, x.labels) + c.l2_weight * mean([float(x.raw[i] @ x.raw[i]) for i in used])


def triplet_all(c: Any, x: Naive) -> float:
    return mean([relu(c.margin + x.dist[a][p] ** 2 - x.dist[a][n] ** 2) for a, p, n in x.triplets])


def semihard(c: Any, x: Naive) -> float:
    values = []
    for a, p in x.positives:
        to_negatives = [x.dist[a][n] ** 2 for n in x.negatives_of(a)]
        outside = [d for d in to_negatives if d > x.dist[a][p] ** 2]
        chosen = min(outside) if outside else max(to_negatives)
        values.append(relu(c.margin + x.dist[a][p] ** 2 - chosen))
    return mean(values)


NAIVE: dict[str, Callable[[Any, Naive], float]] = {
    "ProxyNCA": proxy_nca,
    "MultiSimilarityMined": multi_similarity_mined,
    "NPairNormalized": lambda c, x: n_pairs(x.unit * math.sqrt(c.scale), x.labels),
    "NPairInnerProductL2": n_pairs_l2,
    "TripletAll": triplet_all,
    "SemihardTriplet": semihard,
    "MultiSimilaritySEC": multi_similarity_mined,
}


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize(
    "config", [c for c in CONFIGS if c.kind in NAIVE and miner(c) == "none"], ids=name
)
def test_equals_a_naive_loop(config: Any, seed: int) -> None:
    embeddings, labels = batch(seed)
    loss = LossModule(config, CLASSES, SIZE, seed).double()
    settings = SimpleNamespace(**config.settings)
    expected = NAIVE[config.kind](settings, Naive(embeddings, labels, list(loss.parameters())))
    found = loss(embeddings, labels)
    assert found.shape == () and found.dtype == torch.float64
    assert expected > 0
    # 1e-7: centres and some constants of the library are float32.
    assert found.item() == pytest.approx(expected, rel=2e-7)


def contrastive_snr(zero_mean_weight: float, **margins: float) -> Any:
    reg = {"embedding_regularizer": regularizers.ZeroMeanRegularizer()}
    reg["embedding_reg_weight"] = zero_mean_weight
    return pml_losses.ContrastiveLoss(distance=distances.SNRDistance(), **margins, **reg)


def soft_triple(reg_weight: float, **settings: Any) -> Any:
    sparse, count = regularizers.SparseCentersRegularizer, settings["centers_per_class"]
    if count > 1:
        settings["weight_regularizer"] = sparse(CLASSES, count)
    return pml_losses.SoftTripleLoss(**settings, weight_reg_weight=reg_weight)


LIBRARY = {
    **dict.fromkeys(("Contrastive", "SupCon", "NormalizedSoftmax", "FastAP", "MultiSimilarity")),
    **dict.fromkeys(("GeneralizedLiftedStructure", "NPairs", "Circle", "ProxyAnchor", "Angular")),
    **dict.fromkeys(("NTXent", "LiftedStructure", "TupletMargin", "Margin")),
    **{"Triplet": "TripletMargin", "PmlSphereFace": "SphereFace", "PmlCosFace": "CosFace"},
    **{"PmlArcFace": "ArcFace", "MarginPerClass": "Margin"},
    **{"SNRContrastive": contrastive_snr, "SoftTriple": soft_triple},
}
"""Rows that are a loss of the library, with its name there where that is another."""


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize(
    "config", [c for c in CONFIGS if c.kind in LIBRARY and miner(c) == "none"], ids=name
)
def test_equals_the_library(config: Any, seed: int) -> None:
    ours = LossModule(config, CLASSES, SIZE, seed).double()
    ways = ("miner", "views", "center_init")
    settings = {key: value for key, value in config.settings.items() if key not in ways}
    if config.kind in ("Margin", "MarginPerClass"):
        settings |= {"learn_beta": True, "num_classes": CLASSES if "Class" in config.kind else None}
    elif config.entry.learns:
        settings |= {"num_classes": CLASSES, "embedding_size": SIZE}
    kind: Any = LIBRARY[config.kind] or config.kind
    make = kind if callable(kind) else getattr(pml_losses, f"{kind}Loss")
    theirs = make(**settings).double()
    theirs.load_state_dict(getattr(getattr(ours.formula, "loss", None), "state_dict", dict)())
    embeddings, labels = batch(seed)
    if config.views == 2:
        labels = torch.arange(len(labels) // 2).repeat(2)
    unit = config.kind in ("Angular", "SNRContrastive")
    seen = pair_losses.unit_vectors(embeddings) if unit else embeddings
    found = ours(embeddings, labels)
    assert found.shape == () and found.dtype == torch.float64
    # Some constants of the library are float32.
    assert 0 < found.item() == pytest.approx(theirs(seen, labels).item(), rel=2e-7)


# --- promises -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("dtype", "autocast"), [(torch.float32, True), (torch.bfloat16, True), (torch.float16, False)]
)
@pytest.mark.parametrize("config", CONFIGS, ids=name)
def test_any_precision_gives_finite_float32(
    config: Any, dtype: torch.dtype, autocast: bool
) -> None:
    embeddings, labels = batch(2, dtype)
    embeddings.requires_grad_()
    loss = LossModule(config, CLASSES, SIZE, 0)
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        found = loss(embeddings, labels)
    found.backward()
    assert found.dtype == torch.float32 and found.isfinite()
    assert embeddings.grad is not None and embeddings.grad.dtype == dtype
    assert embeddings.grad.isfinite().all()
    for parameter in loss.parameters():
        assert parameter.dtype == torch.float32
        assert parameter.grad is not None and parameter.grad.isfinite().all()
    # Lifted before anything is computed: the same as lifting first.
    again = LossModule(config, CLASSES, SIZE, 0)(embeddings.detach().float(), labels)
    # (Not to the last bit: small batched products may depend on the alignment of memory.)
    torch.testing.assert_close(found.detach(), again.detach(), rtol=1e-6, atol=0)


@pytest.mark.parametrize("labels", [[1] * 6, [0, 1, 2, 3, 4, 5], [2, 2, 2, 4, 5, 0]])
@pytest.mark.parametrize("config", CONFIGS, ids=name)
def test_gradient_where_little_or_nothing_is_to_be_learned(config: Any, labels: list[int]) -> None:
    embeddings = torch.randn(6, SIZE, generator=torch.Generator().manual_seed(0))
    embeddings.requires_grad_()
    loss = LossModule(config, 6, SIZE, 0)
    found = loss(embeddings, torch.tensor(labels))
    found.backward()
    assert found.isfinite() and found > -1e-6
    assert embeddings.grad is not None and embeddings.grad.isfinite().all()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in loss.parameters())
    if found == 0:
        assert not embeddings.grad.any()


@pytest.mark.parametrize("config", CONFIGS, ids=name)
def test_which_losses_see_norms(config: Any) -> None:
    embeddings, labels = batch(7)
    lengths = torch.rand(len(labels), 1, generator=torch.Generator().manual_seed(0)).double() + 0.5
    losses = [LossModule(config, CLASSES, SIZE, 0).double() for _ in range(2)]
    plain = embeddings.clone().requires_grad_()
    first, second = losses[0](plain, labels), losses[1](embeddings * lengths, labels)
    first.backward()
    radial = (plain.grad * embeddings).sum(1).abs().max()
    if sees_norms(config):
        assert first.item() != pytest.approx(second.item(), rel=1e-6)
        adaface = isinstance(config, MarginHead) and isinstance(config.margin, heads.AdaFace)
        assert radial < 1e-10 if adaface else radial > 1e-6
    else:
        assert first.item() == pytest.approx(second.item(), rel=1e-12)
        assert radial < 1e-10
        assert plain.grad.abs().max() > 1e-6


@pytest.mark.parametrize("config", CONFIGS, ids=name)
def test_seed_and_state_alone_fix_the_module(config: Any) -> None:
    before = torch.get_rng_state()
    embeddings, labels = batch(1)
    first, again, other = (LossModule(config, CLASSES, SIZE, seed) for seed in (3, 3, 4))
    values = [loss(embeddings, labels) for loss in (first, again, other)]
    torch.testing.assert_close(torch.get_rng_state(), before)
    assert values[0] == values[1]
    learned = list(first.parameters())
    assert bool(learned) == config.entry.learns
    assert config.entry.learns or "center_init" not in getattr(config, "settings", {})
    if any(parameter.ndim == 2 for parameter in learned):
        assert values[0] != values[2]
    # A resumed one goes on as the whole.
    resumed = LossModule(config, CLASSES, SIZE, 3)
    resumed.load_state_dict(again.state_dict())
    assert first(embeddings, labels) == resumed(embeddings, labels)


# --- configuration --------------------------------------------------------------------------------


def test_every_loss_of_the_table_is_tested() -> None:
    table = {name for name, entry in loss_table.TABLE.items() if not entry.sha256}
    assert {*NAIVE, *LIBRARY} == table  # tests/heads has loops for every margin


@pytest.mark.parametrize("config", CONFIGS, ids=name)
def test_search_ranges_hold_defaults_and_published_optima(config: Any) -> None:
    default = (
        MarginHead(config.margin) if isinstance(config, MarginHead) else MetricLoss(config.name)
    )
    arm, optimum, rate = Arm("arm", default), config.published, config.entry.best_lr
    for each in arm.ranges:
        value = arm.defaults[each.field]
        if value != 0 or each.scale != "log":
            assert each.low <= value <= each.high, each.field
    assert set(optimum) <= set(config.search)
    for field, value in optimum.items():
        assert config.search[field].low <= value <= config.search[field].high, field
    assert (rate is not None) <= config.entry.learns
    assert rate is None or LOSS_LR_RANGE.low <= rate <= LOSS_LR_RANGE.high
    # Both ends and the optimum must give a loss that works.
    embeddings, labels = batch(0, torch.float32)
    own = {f"loss.{field}": bounds for field, bounds in config.search.items()}
    ends = [{field: getattr(b, end) for field, b in own.items()} for end in ("low", "high")]
    for setting_ in [*ends, {f"loss.{field}": value for field, value in optimum.items()}]:
        chosen = arm.at(setting_).loss
        assert recipe.check(Loss, chosen, "here") == chosen
        assert LossModule(chosen, CLASSES, SIZE, 0)(embeddings, labels).isfinite()


@pytest.mark.parametrize(
    ("loss", "settings", "words"),
    [
        ("NTXent", {"temperature": 0.0}, "NTXent: temperature must be finite and above 0"),
        ("Triplet", {"miner": "soft"}, "must be one of 'none', 'semihard'"),
        ("Triplet", {"margn": 0.1}, "a setting must be one of 'margin', 'miner', found 'margn'"),
        ("PmlSphereFace", {"margin": 1.5}, "PmlSphereFace: margin must be int, found 1.5"),
        ("Tripplet", {}, "name must be one of 'Contrastive', .* found 'Tripplet'"),
    ],
)
def test_wrong_settings_are_refused(loss: str, settings: Any, words: str) -> None:
    with pytest.raises(RecipeError, match=words):
        MetricLoss(loss, **settings)


# --- a loss of one's own --------------------------------------------------------------------------


def far_apart(embeddings: Tensor, labels: Tensor, scale: float) -> Tensor:
    """Pull no pair and push all that are of two classes."""
    cosines = pair_losses.unit_vectors(embeddings) @ pair_losses.unit_vectors(embeddings).T
    return scale * cosines[labels[:, None] != labels].mean()


def test_a_loss_of_ones_own_is_like_any_other() -> None:
    embeddings, labels = batch()
    own = own_loss(far_apart, scale=searched(2.0, 0.5, 8.0, log=True))
    arm = Arm("own", own)
    naive = Naive(embeddings, labels, [])
    tuned = arm.at({"loss.scale": 3.0}).loss
    found = LossModule(tuned, CLASSES, SIZE, 0)(embeddings, labels)
    assert float(found) == pytest.approx(3 * mean([naive.cos[a][b] for a, b in naive.negatives]))
    assert [(r.field, r.low, r.high, r.scale) for r in arm.ranges] == [
        ("loss.scale", 0.5, 8.0, "log")
    ]
    checked = recipe.check(Arm, arm, "here")
    assert checked == arm
    stored = {"type": "MetricLoss", "name": "far_apart", "settings": {"scale": 2.0}}
    assert recipe.to_dict(checked)["loss"] == stored


def test_a_loss_of_ones_own_may_learn() -> None:
    def linear(num_classes: int, embedding_size: int, seed: int) -> Any:
        return pml_losses.NormalizedSoftmaxLoss(num_classes, embedding_size)

    arm = Arm("own", linear)  # type: ignore[arg-type]
    assert [each.field for each in arm.ranges] == ["loss_lr"]
    loss = LossModule(arm.loss, CLASSES, SIZE, 0)
    assert len(list(loss.parameters())) == 1
    loss(*batch(dtype=torch.float32)).backward()


def misspelt(embeddings: Tensor, labels: Tensor) -> Any:
    return embeddings.summ()  # type: ignore[operator]


def detached(embeddings: Tensor, labels: Tensor) -> Tensor:
    return embeddings.detach().sum()


@pytest.mark.parametrize("formula", [misspelt, detached])
def test_what_is_wrong_with_a_loss_of_ones_own_is_said(formula: Any) -> None:
    loss = LossModule(own_loss(formula), CLASSES, SIZE, 0)
    with pytest.raises(TrainingError, match=f"the loss {formula.__name__} .*cannot be computed"):
        check_first_step(loss, per_class=2)


def pml_arm(**given: float) -> Any:
    return Arm("own", pml_losses.MultiSimilarityLoss(**given))


def test_objects_and_classes_of_the_library_are_losses_as_they_are() -> None:
    embeddings, labels = batch(0, torch.float32)
    for arm, same in (
        (pml_arm(alpha=1), pml_losses.MultiSimilarityLoss(alpha=1)),
        (pml_arm(), pml_losses.MultiSimilarityLoss()),
        (Arm("own", pml_losses.NCALoss), pml_losses.NCALoss()),
    ):
        found = LossModule(arm.loss, CLASSES, SIZE, 0)(embeddings, labels)
        assert float(found) == float(same(embeddings, labels))
    # Equal settings are one loss, which a penalty may be added to; others are another.
    assert pml_arm(alpha=1).loss == pml_arm(alpha=1).loss != pml_arm(alpha=3).loss
    # Weights of classes are drawn from the seed, and leave the global generator alone.
    state = torch.get_rng_state()
    arm = Arm("own", pml_losses.ArcFaceLoss)
    weights = [LossModule(arm.loss, 7, 5, seed).formula.W for seed in (0, 0, 1)]
    assert weights[0].shape == (5, 7) and torch.equal(weights[0], weights[1])
    assert not torch.equal(weights[0], weights[2]) and torch.equal(state, torch.get_rng_state())
    assert [each.field for each in arm.ranges] == ["loss_lr"]
    with pytest.raises(RecipeError, match="new weights; give its class"):
        own_loss(pml_losses.ProxyAnchorLoss(4, 8))


# --- relations between losses ---------------------------------------------------------------------


def value_and_gradient(loss: Any, embeddings: Tensor, *rest: Any) -> tuple[Tensor, Tensor]:
    embeddings = embeddings.clone().requires_grad_()
    value = loss(embeddings, *rest)
    (gradient,) = torch.autograd.grad(value, embeddings)
    return value.detach(), gradient


def test_nt_xent_keeps_its_gradient_at_low_temperature() -> None:
    # A positive far behind a negative: exponentials underflow before the library's logarithm.
    embeddings = torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 0.05], [0.05, 1.0]])
    labels = torch.tensor([0, 0, 1, 1])
    ours, gradient = value_and_gradient(
        LossModule(MetricLoss("NTXent", temperature=0.0091), 2, 2, 0), embeddings, labels
    )
    theirs, lost = value_and_gradient(pml_losses.NTXentLoss(0.0091), embeddings, labels)
    assert float(ours) > float(theirs) and gradient.abs().max() > 10
    assert lost.abs().max() < 1e-2
