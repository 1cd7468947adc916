"""What a training step needs on each rank: memory, network traffic and arithmetic, before any run.

Nothing is allocated and no data is read. The backbone goes forward and backward once on tensors
without content (``FakeTensorMode``), while every block of memory that comes or goes is counted; so
activations are those that autograd keeps. The head follows formulas, see `_head_work`, and so does
the network, for which ring algorithms are assumed: a rank sends as many bytes as it receives.

The rank planned for is rank 0, which holds the most classes.
"""

from __future__ import annotations

import contextlib
import functools
import weakref
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode, unset_fake_temporarily
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import FlopCounterMode, conv_flop_count

from facerec.backbones import Backbone, create_backbone, recompute_activations
from facerec.devices import has_fast_bf16
from facerec.errors import RecipeError
from facerec.heads.class_sampling import sample_size
from facerec.heads.collectives import shard_bounds
from facerec.heads.margin_softmax import default_chunk
from facerec.training.finetuning import Finetune, Freezing, refuse_single_images
from facerec.training.optimization import Optimizer
from facerec.training.recipe import Recipe
from facerec.training.row_update import chunk_rows

PIXELS = 112 * 112 * 3
"""Numbers in the input of a backbone."""

DeviceType = Literal["cuda", "cpu"]


class Use(NamedTuple):
    """Bytes of one use of a rank's memory at the three moments when it is fullest."""

    head: int
    """While the head's backward pass is at work: all activations are there, and the tiles."""
    backbone: int
    """At the fullest moment of the backbone's passes: in that backward, or forward through layers
    that are frozen for good."""
    update: int
    """While the optimizer is at work."""


@dataclass(frozen=True)
class Plan:
    """The needs of one rank in one optimizer step."""

    precision: str
    """That of the backbone: fp32, bf16 or fp16."""
    classes: int
    """Classes whose centres the rank holds."""
    visited: int
    """Classes that it visits in a step."""
    uses: dict[str, Use]
    """Of its memory, by name."""
    transfers: dict[str, int]
    """Bytes that the rank sends in a step, by purpose; it receives as many."""
    backbone_flop: int
    head_flop: int

    @property
    def totals(self) -> Use:
        """All uses together."""
        return Use(*map(sum, zip(*self.uses.values(), strict=True)))

    @property
    def memory(self) -> int:
        """Bytes at the fullest moment."""
        return max(self.totals)


def plan_step(
    recipe: Recipe, num_classes: int, ranks: int = 1, device: DeviceType = "cuda"
) -> Plan:
    """Predict what a step of ``recipe`` needs on rank 0 of ``ranks``.

    Args:
        recipe: the whole configuration.
        num_classes: identities in the training set.
        ranks: processes, each with a device of its own.
        device: kind of device, on which the sizes of the head's tiles depend. ``cuda`` stands for a
            GPU that computes in bfloat16; ``cpu`` is this computer's.

    Raises:
        RecipeError: the batch does not divide among the ranks and micro-batches, or there are no
            identities or ranks.
    """
    for name, value in (("number of classes", num_classes), ("number of ranks", ranks)):
        if value < 1:
            raise RecipeError(f"the {name} must be at least 1, found {value}")
    if recipe.batch_size % (ranks * recipe.accumulation):
        raise RecipeError(
            f"batch_size {recipe.batch_size} does not divide among {ranks} ranks × "
            f"{recipe.accumulation} micro-batches; change one of the three"
        )
    fast_bf16 = device == "cuda" or has_fast_bf16(torch.device(device))
    precision = recipe.precision
    if precision == "auto":
        precision = "bf16" if fast_bf16 else "fp32"
    share = recipe.batch_size // ranks
    classes = 0 if recipe.margin is None else shard_bounds(num_classes, ranks, 0)[1]
    rate = recipe.head.largest_sample_rate
    visited = classes if rate == 1 else sample_size(rate, classes, recipe.batch_size)
    backbone = _backbone_step(
        recipe.backbone,
        share // recipe.accumulation,
        precision,
        finetune=recipe.finetune,
        recompute=recipe.recompute,
        bucketed=ranks > 1,
        accumulating=recipe.accumulation > 1,
    )
    centers = recipe.head.centers_per_class
    return Plan(
        precision=precision,
        classes=classes,
        visited=visited,
        uses=dict(
            (
                *_backbone_memory(recipe, backbone, share, ranks, device),
                *_head_memory(
                    recipe, classes * centers, visited * centers, ranks, device, fast_bf16
                ),
            )
        ),
        transfers=_transfers(recipe, backbone, ranks) if ranks > 1 else {},
        backbone_flop=share * backbone_flop(recipe),
        head_flop=head_flop(recipe.batch_size, visited * centers, recipe.backbone.embedding_size),
    )


def _outline(config: Backbone) -> nn.Module:
    """Return a backbone of tensors that are empty, and in a ``FakeTensorMode`` fake.

    It is made without content first: some rules for weights draw again until all numbers fit,
    which fake tensors cannot tell.
    """
    with unset_fake_temporarily(), torch.device("meta"):
        backbone = create_backbone(config)
    return backbone._apply(lambda tensor: torch.empty(tensor.shape, dtype=tensor.dtype))


# ---------------------------------------------------------------- arithmetic


@functools.cache
def forward_flop(config: Backbone) -> int:
    """Return the FLOP of one image's way through a backbone, an addition and a product each one.

    Counted are convolutions and matrix products, as everywhere in the literature; the rest is small
    beside them.
    """
    with FakeTensorMode(), torch.no_grad():
        backbone = _outline(config).eval()
        # Attention as plain products: the counter does not know the CPU's fused one.
        with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
            backbone(torch.empty(1, 3, 112, 112))
        return int(counter.get_total_flops())


def backbone_flop(recipe: Recipe) -> int:
    """Return the FLOP that the backbone does in a step for each image.

    Backward is two forward passes, the gradients of inputs and of weights, less what layers that
    are frozen for good spare.
    """
    coupled = recipe.regularizer is not None and recipe.regularizer.couples_samples
    again = recipe.recompute + (recipe.accumulation > 1 and coupled)
    frozen, forward = _frozen(recipe.finetune), forward_flop(recipe.backbone)
    return again * forward + (3 * forward if frozen is None else _flop(recipe.backbone, frozen))


def _frozen(finetune: Finetune) -> Finetune | None:
    """Return what rests for good; layers that rest for some steps spare the later ones nothing."""
    return finetune if finetune.freeze_steps is None else None


@functools.cache
def _flop(config: Backbone, frozen: Finetune) -> int:
    """Return the FLOP of one image's way through a backbone and back to what is frozen for good."""
    with FakeTensorMode():
        backbone = _outline(config)
        freezing = Freezing(backbone, frozen)
        freezing.begin(0)
        backbone.eval()  # as a batch norm cannot average over one image
        counter = FlopCounterMode(
            display=False,
            custom_mapping={torch.ops.aten.convolution_backward: _convolution_backward},
        )
        with sdpa_kernel(SDPBackend.MATH), counter:
            with torch.set_grad_enabled(not freezing.whole):
                embeddings = backbone(torch.empty(1, 3, 112, 112))
            if embeddings.requires_grad:
                embeddings.backward(torch.empty_like(embeddings))
        return int(counter.get_total_flops())


def _convolution_backward(gradient: Any, images: Any, weight: Any, *rest: Any, **_: Any) -> int:
    """Return the FLOP of a convolution's gradients; torch's own count takes groups for one."""
    _bias, _stride, _padding, _dilation, transposed, _output_padding, _groups, mask = rest
    return conv_flop_count(images, weight, gradient, transposed=transposed) * sum(mask[:2])


def head_flop(batch_size: int, visited: int, embedding_size: int) -> int:
    """Return the FLOP of the head in a step: four products of N × D × n, of which one is forward.

    Args:
        batch_size: images of all ranks, N.
        visited: classes that this rank visits, n.
        embedding_size: D.
    """
    return 8 * batch_size * visited * embedding_size


# ---------------------------------------------------------------- backbone


class LiveMemory(TorchDispatchMode):
    """Counts the bytes of the tensors that are alive, real ones or ones without content.

    Attributes:
        now: bytes of what was made in the block and is still alive.
        peak: the largest ``now`` so far.
        gradients: bytes of finished gradients, kept by whoever accumulates them.
        gradients_at_peak: that figure when ``now`` was largest.
    """

    def __init__(self, *present: Tensor) -> None:
        """Start at 0.

        Args:
            present: tensors that are there already and do not count.
        """
        super().__init__()
        self.now = self.peak = self.gradients = self.gradients_at_peak = 0
        self._sizes = {tensor.untyped_storage()._cdata: 0 for tensor in present}
        self._present = present  # their addresses must not be given to others

    def __torch_dispatch__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        """Compute, and count what comes out."""
        result = function(*args, **(kwargs or {}))
        for value in tree_leaves(result):
            if isinstance(value, Tensor) and value.layout == torch.strided:
                self._count(value.untyped_storage())
        return result

    def restart_peak(self) -> None:
        """Look for the peak from now on."""
        self.peak, self.gradients_at_peak = self.now, self.gradients

    def _count(self, storage: torch.UntypedStorage) -> None:
        key = storage._cdata
        if key in self._sizes:
            return
        self._sizes[key] = storage.nbytes()
        self.now += self._sizes[key]
        if self.now > self.peak:
            self.restart_peak()
        weakref.finalize(storage, self._forget, key)

    def _forget(self, key: int) -> None:
        self.now -= self._sizes.pop(key)


@dataclass(frozen=True)
class _BackboneStep:
    """Bytes and counts of the backbone's part of a step on one rank."""

    weights: int
    """Parameters and buffers."""
    buffers: int
    sizes: tuple[int, ...]
    """Numbers in each trainable parameter."""
    activations: int
    """Kept for backward, with the embeddings."""
    gradients: int
    """At the fullest moment of both passes, as far as they are not in buckets."""
    working: int
    """Everything else that forward and backward made, at that moment, but for the images."""
    images: int
    """Float32 images of a micro-batch, if they are kept for backward."""


@functools.cache
def _backbone_step(
    config: Backbone,
    batch: int,
    precision: str,
    *,
    finetune: Finetune,
    recompute: bool,
    bucketed: bool,
    accumulating: bool,
) -> _BackboneStep:
    """Go forward and backward on tensors without content.

    Args:
        config: which backbone.
        batch: images of a micro-batch.
        precision: of the autocast.
        finetune: says what rests for good, of which alone is taken account.
        recompute: whether its blocks compute their activations again.
        bucketed: whether each gradient moves into the memory of DistributedDataParallel.
        accumulating: whether gradients of an earlier micro-batch are there.
    """
    # A CPU's graph keeps the same tensors as a GPU's, and this build of torch may know no GPU.
    with FakeTensorMode():
        backbone = _outline(config).train()
        if recompute:
            recompute_activations(backbone)
        frozen = _frozen(finetune)
        freezing = None if frozen is None else Freezing(backbone, frozen)
        if freezing is not None:
            freezing.begin(0)
        refuse_single_images(batch, backbone, finetune)
        norm = backbone.embedding_norm
        if batch == 1 and isinstance(norm, nn.Module):
            norm.eval()  # frozen, or it was refused
        trainable = [p for p in backbone.parameters() if p.requires_grad]
        present = [*backbone.parameters(), *backbone.buffers()]
        if accumulating and not bucketed:
            for parameter in trainable:
                parameter.grad = torch.empty_like(parameter)
                present.append(parameter.grad)
        live = LiveMemory(*present)

        def finished(parameter: Tensor) -> None:
            assert parameter.grad is not None
            if bucketed:
                parameter.grad = None
            elif not accumulating:
                live.gradients += parameter.grad.nbytes

        for parameter in trainable:
            parameter.register_post_accumulate_grad_hook(finished)
        with live:
            learning = freezing is None or not freezing.whole
            images = torch.empty(batch, 112, 112, 3).permute(0, 3, 1, 2)
            pixels = live.now
            with _autocast(precision), torch.set_grad_enabled(learning):
                embeddings = backbone(images)
            together, forward_peak = live.now, live.peak
            del images
            # Only a first layer that learns, and computes in float32, keeps them for backward.
            pixels = pixels if live.now == together else 0
            activations = live.now - pixels
            slope = torch.empty_like(embeddings)
            live.restart_peak()
            if learning:
                embeddings.backward(slope)
    gradients = 0 if forward_peak > live.peak else live.gradients_at_peak
    return _BackboneStep(
        weights=_bytes(backbone.parameters()) + _bytes(backbone.buffers()),
        buffers=_bytes(backbone.buffers()),
        sizes=tuple(p.numel() for p in trainable),
        activations=activations,
        gradients=gradients,
        working=max(forward_peak, live.peak) - gradients - pixels,
        images=pixels,
    )


def _autocast(precision: str) -> contextlib.AbstractContextManager[Any]:
    """Return the autocast of a backbone's precision, for tensors without content."""
    if precision == "fp32":
        return contextlib.nullcontext()
    return torch.autocast("cpu", torch.bfloat16)  # fp16 has numbers of the same size


def _bytes(tensors: Iterator[Tensor]) -> int:
    return sum(tensor.nbytes for tensor in tensors)


def _backbone_memory(
    recipe: Recipe, step: _BackboneStep, share: int, ranks: int, device: DeviceType
) -> Iterator[tuple[str, Use]]:
    gradients = 4 * sum(step.sizes)
    state = optimizer_state(recipe.optimizer)
    kept = gradients if recipe.accumulation > 1 else 0
    # A GPU holds the next batch too, see `prefetched`.
    pixels = share * PIXELS * (2 if device == "cuda" else 1)
    embeddings = 4 * share // recipe.accumulation * recipe.backbone.embedding_size
    skipping = recipe.on_nonfinite == "skip"  # a step's statistics are kept to go back to
    weights = step.weights + (step.buffers if skipping else 0)
    yield "backbone: weights", _constant(weights)
    if recipe.ema is not None:
        yield "backbone: moving average", _constant(step.weights)
    yield "backbone: optimizer state", _constant(sum(map(state.size, step.sizes)))
    if ranks > 1:
        yield "backbone: gradients", _constant(gradients)
    else:
        during = gradients if kept else step.gradients
        yield "backbone: gradients", Use(kept, during, gradients)
    yield "activations", Use(step.activations, step.working, embeddings)
    yield "images", Use(pixels + step.images, pixels + step.images, pixels)
    single = max(step.sizes, default=0) if device == "cpu" else sum(step.sizes)
    yield "backbone: optimizer's work", Use(0, 0, state.work * single)


def _constant(size: int) -> Use:
    return Use(size, size, size)


# ---------------------------------------------------------------- optimizer


@dataclass(frozen=True)
class OptimizerState:
    """What an optimizer keeps for a parameter."""

    each: int
    """Bytes for each number of the parameter."""
    fixed: int
    """Bytes for each parameter, such as its count of steps."""
    work: int
    """Bytes for each number that a step needs and gives back."""

    def size(self, count: int) -> int:
        """Return the bytes for a parameter of ``count`` numbers."""
        return self.each * count + self.fixed


@functools.cache
def optimizer_state(config: Optimizer) -> OptimizerState:
    """Find out by two steps on a few numbers what an optimizer keeps."""
    count = 64
    parameter = nn.Parameter(torch.zeros(count))
    parameter.grad = torch.zeros(count)
    optimizer = config.create([{"params": [parameter]}])
    optimizer.step()
    state = [v for v in optimizer.state[parameter].values() if isinstance(v, Tensor)]
    with LiveMemory(parameter, parameter.grad, *state) as live:
        optimizer.step()
    like = [value for value in state if value.shape == parameter.shape]
    each = sum(value.itemsize for value in like)
    fixed = sum(value.nbytes for value in state) - each * count
    return OptimizerState(each, fixed, live.peak // count)


# ---------------------------------------------------------------- head


def _head_memory(
    recipe: Recipe, classes: int, visited: int, ranks: int, device: DeviceType, fast_bf16: bool
) -> Iterator[tuple[str, Use]]:
    # Classes are counted by their centres.
    size, count = recipe.backbone.embedding_size, recipe.accumulation
    state = optimizer_state(recipe.optimizer)
    yield "head: class centres", _constant(4 * classes * size)
    yield "head: optimizer state", _constant(state.size(classes * size))
    # What micro-batches before the last, or all of a step that may be called off, have to keep.
    uncertain = recipe.on_nonfinite == "skip" or recipe.precision == "fp16"
    kept = 4 * visited * size if uncertain or count > 1 else 0
    yield "head: gradient", Use(kept, kept, kept if uncertain else 0)
    if recipe.head.largest_sample_rate < 1:
        yield "head: numbers of sampled classes", _constant(8 * visited)
    work = _head_work(recipe, visited, ranks, device, fast_bf16, at_once=not uncertain)
    yield "head: tiles and embeddings", Use(work, 0, 0)
    piece = min(chunk_rows(4 * size, torch.device(device)), visited)
    later = sum(_update_work(recipe, piece)) if uncertain else 0
    yield "head: optimizer's work", Use(0, 0, later)


def _head_work(
    recipe: Recipe,
    visited: int,
    ranks: int,
    device: DeviceType,
    fast_bf16: bool,
    at_once: bool,
) -> int:
    """Return what the head's backward pass holds beside centres, their state and a kept gradient.

    With N embeddings of D numbers in a global micro-batch, and t of the n classes in a tile, these
    are the gathered embeddings, the queries made of them and their gradient (N × D each); logits
    and their slopes (t × N each); the gradient of a tile's centres (t × D), and what the optimizer
    needs to take its step on them at once; and the lengths of all (n). See
    `facerec.heads.margin_softmax`.
    """
    rows, size = recipe.batch_size // recipe.accumulation, recipe.backbone.embedding_size
    tile = max(1, min(default_chunk(rows, torch.device(device)), visited))
    sampled, reduced = (
        recipe.head.largest_sample_rate < 1,
        recipe.head.precision == "bf16" and fast_bf16,
    )
    total = 4 * rows * size * (2 + (ranks > 1))
    total += 4 * tile * rows * 2 + 4 * tile * size
    total += 4 * visited
    if sampled:
        total += 4 * tile * size  # centres are gathered for each tile
    products = 0
    if reduced:
        # The queries, and whichever product takes most: operands, and on a GPU a float32 result.
        result = 4 if device == "cuda" else 2
        logits = 2 * tile * size + result * tile * rows
        to_queries = 2 * tile * (rows + size) + result * rows * size
        total += 2 * rows * size
        products = max(logits, to_queries)
    copies, step = _update_work(recipe, tile) if at_once else (0, 0)
    # The copies wait for the next tile, if there is one, while the products are computed.
    total += copies + max(products, step) if visited > tile else max(products, copies + step)
    if recipe.margin is not None and recipe.margin.changes_others:
        total += 4 * tile * rows * _TRANSFORMED
    if recipe.head.interclass_filter is not None:
        total += tile * rows
    if (number := recipe.head.centers_per_class) > 1:
        # A copy of the tile, the nearest of each class (int64), and the mask of the others.
        total += tile * rows * 5 + 8 * tile * rows // number
    return total


_TRANSFORMED = 11
"""Tiles that autograd holds at once for a margin that changes all logits, as counted."""


def _update_work(recipe: Recipe, rows: int) -> tuple[int, int]:
    """Return what a step on so many rows of the centres at a time takes: copies, and the rest."""
    state, size = optimizer_state(recipe.optimizer), recipe.backbone.embedding_size
    # Of sampled centres, and of their state, there are copies.
    copies = 4 + state.each if recipe.head.largest_sample_rate < 1 else 0
    return rows * size * copies, rows * size * state.work


# ---------------------------------------------------------------- network


def _transfers(recipe: Recipe, step: _BackboneStep, ranks: int) -> dict[str, int]:
    """List what a rank sends in a step.

    In rings an all-gather or reduce-scatter of S bytes in all sends S·(W − 1)/W, an all-reduce
    twice that.
    """
    count, size = recipe.accumulation, recipe.backbone.embedding_size
    batch = recipe.batch_size
    width = 4 if recipe.data_parallel.compression == "none" else 2

    def ring(size: int) -> int:
        return size * (ranks - 1) // ranks

    penalty, sampled = recipe.regularizer is not None, recipe.head.largest_sample_rate < 1
    return {
        "gradients of the backbone (all-reduce)": 2 * ring(width * sum(step.sizes)),
        "embeddings (all-gather)": ring(4 * batch * size),
        "their gradients (reduce-scatter)": ring(4 * batch * size),
        "labels (all-gather)": ring(8 * batch) * (1 + sampled),
        "softmax (all-reduce)": 2 * ring(4 * (batch + 3 * batch + 2 * count)),
        "checks and norms": count
        * (2 * ring(24) + ring(20 * ranks) * (1 + penalty) + ring(8 * ranks) * penalty)
        + 2 * ring(24) * sampled,
    }
