"""What a training step needs of each rank: memory, network traffic and arithmetic, before any run.

Nothing is allocated and no data is read: the backbone goes forward once on torch's ``meta`` device,
where tensors have shapes and no content, and what autograd would keep for backward is counted.
Everything else follows formulas. The rank planned for is rank 0, which holds the most classes; on
the network ring algorithms are assumed, in which a rank sends as many bytes as it receives.
"""

from __future__ import annotations

import functools
from collections import defaultdict
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from facerec.backbones import Backbone, create_backbone
from facerec.base.devices import has_fast_bf16
from facerec.heads.class_sampling import sample_size
from facerec.heads.collectives import shard_bounds
from facerec.heads.margin_softmax import default_chunk
from facerec.training.optimization import Optimizer
from facerec.training.recipe import Recipe

PIXELS = 112 * 112 * 3
"""Numbers in the input of a backbone."""

_REDUCED = (nn.Conv2d, nn.Linear, nn.BatchNorm1d, nn.BatchNorm2d, nn.PReLU)
"""What keeps its input in the autocast's numbers; of other modules float32 is assumed."""

DeviceType = Literal["cuda", "cpu"]


@dataclass(frozen=True)
class Plan:
    """The needs of one rank in one optimizer step."""

    precision: str
    """Numbers of the backbone: fp32, bf16 or fp16."""
    classes: int
    """Classes whose centres the rank holds."""
    visited: int
    """Classes that it visits in a step."""
    parts: dict[str, int]
    """Bytes of memory by use. Some are there one after the other, so that all together are an
    upper bound."""
    transfers: dict[str, int]
    """Bytes that the rank sends in a step, by purpose; it receives as many."""
    backbone_flop: int
    head_flop: int

    @property
    def memory(self) -> int:
        """Bytes of all parts together."""
        return sum(self.parts.values())


def plan_step(
    recipe: Recipe, num_classes: int, ranks: int = 1, device: DeviceType = "cuda"
) -> Plan:
    """Predict what a step of ``recipe`` needs on rank 0 of ``ranks``.

    Args:
        recipe: the whole configuration.
        num_classes: subjects in the training set.
        ranks: processes, each with a device of its own.
        device: kind of device, on which the sizes of the head's tiles depend. ``cuda`` stands for a
            GPU that computes in bfloat16; ``cpu`` is this computer's.

    Raises:
        RecipeError: the batch does not divide among the ranks and micro-batches.
    """
    micro_batch = recipe.micro_batch(ranks)
    fast_bf16 = device == "cuda" or has_fast_bf16(torch.device(device))
    precision = recipe.precision
    if precision == "auto":
        precision = "bf16" if fast_bf16 else "fp32"
    share = recipe.batch_size // ranks
    classes = 0 if recipe.margin is None else shard_bounds(num_classes, ranks, 0)[1]
    rate = recipe.head.sample_rate
    visited = classes if rate == 1 else sample_size(rate, classes, recipe.batch_size)
    weights, learned = _weights(recipe.backbone)
    learned = 0 if recipe.finetune.freeze_steps is None else learned
    state = optimizer_state(recipe.optimizer)
    centers, size = recipe.head.centers_per_class, recipe.backbone.embedding_size
    # What micro-batches before the last, or all of a step that may be called off, have to keep.
    kept = recipe.precision == "fp16" or recipe.accumulation > 1
    parts = {
        "backbone: weights": weights * (1 if recipe.ema is None else 2),
        "backbone: gradients": 4 * learned,
        "backbone: optimizer state": state * learned,
        "activations": _activations(recipe, micro_batch, precision),
        "images": share * PIXELS,
        "head: class centres": 4 * classes * centers * size,
        "head: optimizer state": state * classes * centers * size,
        "head: gradient": 4 * visited * centers * size if kept else 0,
        "head: tiles and embeddings": _head_work(recipe, visited * centers, device),
    }
    return Plan(
        precision=precision,
        classes=classes,
        visited=visited,
        parts={name: value for name, value in parts.items() if value},
        transfers=_transfers(recipe, learned, ranks) if ranks > 1 else {},
        backbone_flop=share * backbone_flop(recipe),
        head_flop=head_flop(recipe.batch_size, visited * centers, size),
    )


# ---------------------------------------------------------------- arithmetic


@functools.cache
def forward_flop(config: Backbone) -> int:
    """Return the FLOP of one image's way through a backbone, an addition and a product each one.

    Counted are convolutions and matrix products, as everywhere in the literature; the rest is small
    beside them.
    """
    with torch.device("meta"), torch.no_grad():
        backbone = create_backbone(config).eval()
        # Attention as plain products, which the counter knows on every device.
        with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
            backbone(torch.empty(1, 3, 112, 112))
    return int(counter.get_total_flops())


def backbone_flop(recipe: Recipe) -> int:
    """Return the FLOP that the backbone does in a step for each image.

    Backward is two forward passes, the gradients of inputs and of weights; a backbone that is
    frozen for good has none.
    """
    coupled = recipe.regularizer is not None and recipe.regularizer.couples_samples
    passes = 1 if recipe.finetune.freeze_steps is None else 3 + recipe.recompute
    passes += recipe.accumulation > 1 and coupled
    return passes * forward_flop(recipe.backbone)


def head_flop(batch_size: int, visited: int, embedding_size: int) -> int:
    """Return the FLOP of the head in a step: four products of N × D × n, of which one is forward.

    Args:
        batch_size: images of all ranks, N.
        visited: classes that this rank visits, n.
        embedding_size: D.
    """
    return 8 * batch_size * visited * embedding_size


# ---------------------------------------------------------------- memory


@functools.cache
def _weights(config: Backbone) -> tuple[int, int]:
    """Return the bytes of parameters and buffers, and how many numbers have a gradient."""
    with torch.device("meta"):
        backbone = create_backbone(config)
    learned = sum(p.numel() for p in backbone.parameters() if p.requires_grad)
    size = sum(t.nbytes for t in (*backbone.parameters(), *backbone.buffers()))
    return size, learned


def _activations(recipe: Recipe, batch: int, precision: str) -> int:
    """Return the bytes that autograd keeps for backward of a micro-batch, embeddings included.

    A compiled network keeps less, of iResNet-18 and -50 by 4 and 6 % in bf16; with ``recompute`` by
    a fifth or more.
    """
    embeddings = 4 * batch * recipe.backbone.embedding_size
    if recipe.finetune.freeze_steps is None:
        return embeddings
    reduced = precision != "fp32"
    inputs, inside = _kept(recipe.backbone, batch, reduced)
    # Autocast keeps copies of the weights for backward, too.
    outside = inside[-1] + (_weights(recipe.backbone)[0] // 2 if reduced else 0)
    blocks = [size for number, size in inside.items() if number >= 0]
    if recipe.recompute and blocks:
        return embeddings + outside + inputs + max(blocks)
    return embeddings + outside + sum(blocks)


@functools.cache
def _kept(config: Backbone, batch: int, reduced: bool) -> tuple[int, dict[int, int]]:
    """Return the bytes of the inputs of all blocks, and those kept in each block, −1 outside.

    Args:
        config: which backbone.
        batch: images that go through it together, at least 2 of which are counted.
        reduced: whether convolutions and the like keep numbers of 2 bytes.
    """
    with torch.device("meta"):
        backbone = create_backbone(config).train()
        images = torch.empty(2, 3, 112, 112)
    block, half, inputs = -1, False, 0
    inside: dict[int, int] = defaultdict(int)
    seen: dict[int, torch.UntypedStorage] = {}  # alive, so that no other has its number
    for tensor in (*backbone.parameters(), *backbone.buffers()):
        seen[id(tensor.untyped_storage())] = tensor.untyped_storage()

    def keep(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if id(storage) not in seen:
            seen[id(storage)] = storage
            smaller = half and tensor.dtype == torch.float32
            inside[block] += storage.nbytes() // (2 if smaller else 1)
        return tensor

    def enter(number: int, module: nn.Module, given: tuple[Tensor, ...]) -> None:
        nonlocal block, inputs
        block, inputs = number, inputs + given[0].nbytes // (2 if reduced else 1)

    def leave(*_: Any) -> None:
        nonlocal block
        block = -1

    def begin(module: nn.Module, _: Any) -> None:
        nonlocal half
        half = reduced and isinstance(module, _REDUCED)

    for number, each in enumerate(getattr(backbone, "blocks", ())):
        each.register_forward_pre_hook(functools.partial(enter, number))
        each.register_forward_hook(leave)
    for leaf in (module for module in backbone.modules() if not list(module.children())):
        leaf.register_forward_pre_hook(begin)
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        backbone(images)
    scale = batch / 2
    return int(scale * inputs), {-1: 0} | {n: int(scale * size) for n, size in inside.items()}


@functools.cache
def optimizer_state(config: Optimizer) -> int:
    """Return how many bytes an optimizer keeps for each number, found out by a step on a few."""
    parameter = nn.Parameter(torch.zeros(64))
    parameter.grad = torch.zeros(64)
    optimizer = config.create([{"params": [parameter]}])
    optimizer.step()
    state = optimizer.state[parameter].values()
    return sum(v.itemsize for v in state if isinstance(v, Tensor) and v.shape == parameter.shape)


def _head_work(recipe: Recipe, visited: int, device: DeviceType) -> int:
    """Return what the head's backward pass holds beside centres and their state.

    With N embeddings of D numbers in a global micro-batch, and t of the n classes in a tile, these
    are the gathered embeddings, the queries made of them and their gradient (N × D each); logits
    and their slopes (t × N each); the gradient of a tile's centres and their copy (t × D each); and
    the lengths of all (n). See `facerec.heads.margin_softmax`.
    """
    if not visited:
        return 0
    rows, size = recipe.batch_size // recipe.accumulation, recipe.backbone.embedding_size
    tile = max(1, min(default_chunk(rows, torch.device(device)), visited))
    matrices = 2
    if recipe.margin is not None and recipe.margin.changes_others:
        matrices += _TRANSFORMED
    if recipe.head.centers_per_class > 1:
        matrices += 2
    return 4 * (rows * size * 3 + tile * rows * matrices + 2 * tile * size + visited)


_TRANSFORMED = 11
"""Tiles that autograd holds at once for a margin that changes all logits, as counted."""


# ---------------------------------------------------------------- network


def _transfers(recipe: Recipe, learned: int, ranks: int) -> dict[str, int]:
    """List what a rank sends in a step.

    In rings an all-gather or reduce-scatter of S bytes in all sends S·(W − 1)/W, an all-reduce
    twice that.
    """
    count, size = recipe.accumulation, recipe.backbone.embedding_size
    batch = recipe.batch_size
    width = 4 if recipe.data_parallel.compression == "none" else 2

    def ring(size: int) -> int:
        return size * (ranks - 1) // ranks

    sampled = recipe.head.sample_rate < 1
    coupled = recipe.regularizer is not None and recipe.regularizer.couples_samples
    return {
        "gradients of the backbone (all-reduce)": 2 * ring(width * learned),
        "embeddings (all-gather)": ring(4 * batch * size),
        "their gradients (reduce-scatter)": ring(4 * batch * size),
        "labels and norms (all-gather)": ring(16 * batch)
        + ring(4 * batch) * (coupled and count > 1)  # norms of the whole batch before its parts
        + (ring(8 * batch) + 2 * ring(16)) * sampled,  # labels, of which classes are drawn
        "softmax (all-reduce)": 2 * ring(4 * (batch + 3 * batch + count)),
    }
