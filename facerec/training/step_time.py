"""How long a training step takes on a card, predicted from what it computes and moves.

    step = backbone's products + its passes over activations
         + head's products + its passes over logits and centres
         + optimizer + network + a fixed part

Products are FLOP over a share of the card's rate, passes are bytes over a share of its bandwidth,
and nothing of one hides behind another, but for the all-reduce of the backbone's gradients, of
which only counts what the backward pass does not cover. FLOP are those of the plan. Bytes come from
one forward and backward pass without content, in which every operation between the products reads
its inputs and writes its outputs once, and a batch norm in training reads what it averages twice. A
compiler joins a batch norm with the PReLU and the sum behind it, whose passes then fall away.

The shares are in `Method`: those of facerec are assumptions until a step has been measured on a
GPU; those of the reference trainer were fitted to published steps, see ``docs/performance.md``.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from facerec.backbones import Backbone, create_backbone
from facerec.errors import RecipeError
from facerec.training.plan import Plan, autocast, optimizer_state


@dataclass(frozen=True)
class Card:
    """What a card can do, of dense numbers."""

    name: str
    fp32: float
    """FLOP/s of products in float32, without TF32."""
    tf32: float
    half: float
    """In bf16 or fp16, with sums in float32."""
    bandwidth: float
    """Bytes/s of its memory, read and written together."""
    link: float
    """Bytes/s that it sends to its neighbours, and receives at the same time."""

    def products(self, precision: str) -> float:
        """Return FLOP/s in ``fp32``, ``tf32``, ``bf16`` or ``fp16``."""
        return {"fp32": self.fp32, "tf32": self.tf32}.get(precision, self.half)


CARDS = {
    card.name: card
    for card in (
        # NVIDIA's data sheets: V100 (2020), A100 80 GB SXM (2021), A10 (2021), GA102 whitepaper
        # (2020), H100 SXM (2023), H200 SXM (2024), L40S (2023).
        Card("V100", 15.7e12, 15.7e12, 125e12, 900e9, 150e9),
        Card("A100", 19.5e12, 156e12, 312e12, 2039e9, 300e9),
        Card("A10", 31.2e12, 62.5e12, 125e12, 600e9, 32e9),
        Card("RTX3090", 35.6e12, 35.6e12, 71e12, 936e9, 32e9),
        Card("L40S", 91.6e12, 183e12, 362e12, 864e9, 32e9),
        Card("H100", 66.9e12, 494.5e12, 989.4e12, 3350e9, 450e9),
        Card("H200", 66.9e12, 494.5e12, 989.4e12, 4800e9, 450e9),
    )
}
"""By name; a V100 has no TF32 and computes such products in float32."""


def measured_card(card: Card, products: float | None, bandwidth: float | None) -> Card:
    """Return a card with rates that were measured on it.

    Args:
        card: as its data sheet has it.
        products: FLOP/s in bf16, with which its other rates are scaled; None keeps them.
        bandwidth: bytes/s; None keeps it.
    """
    factor = 1.0 if products is None else products / card.half
    return replace(
        card,
        fp32=factor * card.fp32,
        tf32=factor * card.tf32,
        half=factor * card.half,
        bandwidth=card.bandwidth if bandwidth is None else bandwidth,
    )


@dataclass(frozen=True)
class Method:
    """How well an implementation uses a card."""

    words: str
    convolutions: float
    """Share of the rate of products that convolutions reach."""
    products: float
    """The same of the head's products."""
    passes: float
    """Share of the bandwidth that passes over memory reach."""
    fixed: float
    """Seconds a step that do not depend on anything."""
    compiled: bool
    """Whether a batch norm takes in the PReLU and the sum behind it."""
    transposed: bool
    """Whether convolutions in half precision copy what they read and write (contiguous images)."""
    head_products: int
    """Products of N × D × n in the head: four if they are computed again in backward."""
    logit_bytes: int
    """Bytes that the head moves for each logit."""
    center_bytes: int
    """Bytes that it moves for each number of a centre, the optimizer's step left out."""


FACEREC = Method(
    "compiled, channels-last, Triton's kernels in the head; all shares are assumptions",
    convolutions=0.6,
    products=0.7,
    passes=0.8,
    fixed=0.002,
    compiled=True,
    transposed=False,
    head_products=4,
    logit_bytes=6,  # slopes in bf16: written, and read by two products
    center_bytes=6 * 4,
)
"""Counts of the head: see `facerec.heads.triton_softmax`. Unmeasured on any GPU."""

FACEREC_EAGER = replace(
    FACEREC,
    words="not compiled, channels-last, torch's operations in the head; all shares are assumptions",
    compiled=False,
    logit_bytes=27 * 4,
    center_bytes=8 * 4,
)
"""Passes over a tile as counted in `facerec.heads.margin_softmax`."""

REFERENCE = Method(
    "contiguous, not compiled, dense head; shares fitted to published steps",
    convolutions=0.7,
    products=0.8,
    passes=0.35,
    fixed=0.077,
    compiled=False,
    transposed=True,
    head_products=3,
    logit_bytes=25 * 4,
    center_bytes=9 * 4,
)
"""insightface's arcface_torch; ``passes`` and ``fixed`` are fitted, the other shares assumed."""


@dataclass(frozen=True)
class StepTime:
    """Seconds of each phase of a step, by name."""

    plan: Plan
    phases: tuple[tuple[str, float], ...]

    @property
    def seconds(self) -> float:
        """Of the whole step."""
        return sum(seconds for _, seconds in self.phases)

    @property
    def images_per_second(self) -> float:
        """Of all ranks together."""
        return self.plan.recipe.batch_size / self.seconds


def predict(
    plan: Plan,
    card: Card,
    method: Method = FACEREC,
    *,
    backbone: str | None = None,
    head: str | None = None,
) -> StepTime:
    """Predict how long the step of a plan takes on each of its ranks.

    Args:
        plan: of the step.
        card: that every rank has.
        method: how well it is used.
        backbone: numbers of the backbone's products, by default the plan's.
        head: numbers of the head's products, by default the recipe's.

    Raises:
        RecipeError: the plan is one for a CPU.
    """
    if plan.device != "cuda":
        raise RecipeError("times are predicted for GPUs only; leave --card out or plan for cuda")
    recipe = plan.recipe
    backbone = backbone or plan.precision
    head = head or recipe.head.precision
    reached = method.passes * card.bandwidth

    share = recipe.batch_size // plan.ranks
    forward = plan.backbone_flop / (method.convolutions * card.products(backbone))
    moved = activation_bytes(recipe.backbone, backbone in ("bf16", "fp16"))
    each = moved.compiled if method.compiled else moved.eager
    if method.transposed and backbone in ("bf16", "fp16"):
        each += 2 * moved.convolved
    extra = plan.backbone_flop / (3 * share * plan.forward_flop)  # recomputing, or a first pass
    passes = share * each * extra / reached

    size = recipe.backbone.embedding_size
    flop = plan.head_flop * method.head_products / 4
    centers = plan.visited * recipe.head.centers_per_class
    logits = recipe.batch_size * centers
    state = optimizer_state(recipe.optimizer)
    touched = 3 * 4 + 2 * state.each  # gradient, weight and state read, the last two written
    numbers = centers * size
    backbone_numbers = plan.backbone_numbers

    sent = {transfer.name: transfer.size / card.link for transfer in plan.transfers}
    gradients = sum(s for name, s in sent.items() if name.startswith("gradients of the backbone"))
    hidden = min(gradients, (forward + passes) / 2)
    return StepTime(
        plan,
        (
            ("backbone: convolutions", forward),
            ("backbone: passes over activations", passes),
            ("head: products", flop / (method.products * card.products(head))),
            (
                "head: passes over logits and centres",
                (method.logit_bytes * logits + method.center_bytes * numbers) / reached,
            ),
            ("optimizer", touched * (numbers + backbone_numbers) / reached),
            ("network, as far as not hidden", sum(sent.values()) - hidden),
            ("fixed", method.fixed),
        ),
    )


# ---------------------------------------------------------------- bytes


@dataclass(frozen=True)
class Moved:
    """Bytes that the backbone moves for an image, forward and backward, beside its products."""

    eager: float
    """Operation by operation."""
    compiled: float
    """Batch norms joined with what is behind them."""
    convolved: float
    """What convolutions read and write, which only counts where it is copied."""


class _Passes(TorchDispatchMode):
    """Counts what operations read and write, by kind."""

    def __init__(self) -> None:
        super().__init__()
        self.eager = self.compiled = self.convolved = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        result = function(*args, **(kwargs or {}))
        name = function.name()
        if function.is_view or name.startswith(("prim::", "aten::empty", "aten::new_empty")):
            return result
        inputs, outputs = _nbytes((args, kwargs)), _nbytes(result)
        if "convolution" in name:
            self.convolved += inputs + outputs
        elif name not in ("aten::mm", "aten::addmm", "aten::bmm"):
            # The gradients of x and of the output are read twice, as x is forward.
            twice = _nbytes(args[:2] if "backward" in name else args[:1])
            normalises = "batch_norm" in name or "layer_norm" in name
            everything = inputs + outputs + (twice if normalises else 0)
            self.eager += everything
            if normalises:
                self.compiled += everything
            elif "prelu" in name or name == "aten::sum.dim_IntList":
                pass  # computed on the way into, or out of, a batch norm
            elif name == "aten::add.Tensor":
                self.compiled += everything // 3  # the other branch is read
            else:
                self.compiled += everything
        return result


def _nbytes(tree: object) -> int:
    return sum(leaf.nbytes for leaf in tree_leaves(tree) if isinstance(leaf, Tensor))


@functools.cache
def activation_bytes(config: Backbone, half: bool) -> Moved:
    """Count what a backbone moves for an image: twice as many images less once as many.

    Args:
        config: which backbone.
        half: whether activations are bf16 or fp16.
    """
    counted = []
    images = (4, 8)
    for batch in images:
        with FakeTensorMode():
            backbone = create_backbone(config).train()
            pixels = torch.empty(batch, 112, 112, 3).permute(0, 3, 1, 2)
            with _Passes() as passes:
                with autocast("bf16" if half else "fp32"):
                    embeddings = backbone(pixels)
                embeddings.backward(torch.empty_like(embeddings))
        counted.append(passes)
    few, many = counted
    more = images[1] - images[0]
    return Moved(
        eager=(many.eager - few.eager) / more,
        compiled=(many.compiled - few.compiled) / more,
        convolved=(many.convolved - few.convolved) / more,
    )
