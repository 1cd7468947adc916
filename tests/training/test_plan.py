"""The plan of a step against what autograd keeps, what ranks send, and arithmetic by hand."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from helpers.gloo_pool import GlooPool
from helpers.tiny_training import make_trainer, tiny_recipe, write_training_set
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.profiler import ProfilerActivity, profile

from facerec.backbones import Backbone, create_backbone
from facerec.heads import SEC, RingLoss, collectives
from facerec.heads.collectives import shard_bounds
from facerec.training import SGD, Adam, AdamW, Finetune, Head, Recipe, RMSprop
from facerec.training.distributed import Processes
from facerec.training.plan import forward_flop, optimizer_state, plan_step

NARROW = Backbone(name="iresnet18", embedding_size=32, width=0.125)
MOBILE = Backbone(name="mbf", embedding_size=32, width=0.25)
PEOPLE = 45


def size(tensors: Any) -> int:
    return sum(tensor.nbytes for tensor in tensors)


def saved_bytes(backbone: nn.Module, images: Tensor, precision: str) -> int:
    """What autograd keeps for backward, and the embeddings; weights and images are there anyway."""
    storages = {}
    known = [images, *backbone.parameters(), *backbone.buffers()]
    addresses = {tensor.untyped_storage().data_ptr() for tensor in known}

    def keep(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in addresses:
            storages[storage.data_ptr()] = storage
        return tensor

    with (
        torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor),
        torch.autocast("cpu", torch.bfloat16, enabled=precision == "bf16"),
    ):
        keep(backbone(images))
    return sum(storage.nbytes() for storage in storages.values())


@pytest.mark.parametrize("config", [NARROW, MOBILE], ids=str)
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_activations_are_about_what_autograd_saves(config: Backbone, precision: str) -> None:
    backbone = create_backbone(config, seed=0)
    images = torch.randn(6, 112, 112, 3).permute(0, 3, 1, 2)
    real = saved_bytes(backbone, images, precision)
    recipe = Recipe(backbone=config, precision=precision, batch_size=6)
    planned = plan_step(recipe, 10, device="cpu").parts["activations"]
    assert planned == pytest.approx(real, rel=0.05)
    if config is NARROW:
        less = plan_step(replace(recipe, recompute=True), 10, device="cpu").parts["activations"]
        assert less < 0.85 * planned


@pytest.mark.parametrize(
    ("config", "each"),
    [(SGD(), 4), (SGD(momentum=0.0), 0), (AdamW(), 8), (Adam(), 8), (RMSprop(momentum=0.9), 8)],
    ids=str,
)
def test_optimizer_state_by_hand(config: Any, each: int) -> None:
    assert optimizer_state(config) == each


@pytest.mark.parametrize("ranks", [1, 3])
@pytest.mark.parametrize("classes", [1, 9, 45])
def test_rank_0_holds_the_most_classes(ranks: int, classes: int) -> None:
    recipe = Recipe(backbone=NARROW, batch_size=24, precision="fp32")
    plan = plan_step(recipe, classes, ranks)
    shares = [shard_bounds(classes, ranks, rank)[1] for rank in range(ranks)]
    assert plan.classes == plan.visited == max(shares) and sum(shares) == classes
    assert plan.parts["head: class centres"] == 4 * 32 * -(-classes // ranks)
    assert plan.parts["head: optimizer state"] == 4 * 32 * -(-classes // ranks)
    assert "head: gradient" not in plan.parts
    # Sampling takes the share, or what the batch needs.
    sampled = plan_step(replace(recipe, head=Head(sample_rate=0.5)), classes, ranks)
    assert sampled.visited == max(plan.classes // 2, min(24, plan.classes))
    careful = plan_step(replace(recipe, precision="fp16"), classes, ranks)
    assert careful.parts["head: gradient"] == 4 * 32 * plan.visited


# ---------------------------------------------------------------- several ranks


@pytest.fixture(scope="module")
def pool(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GlooPool]:
    """Two processes, as training takes all there are."""
    pool = GlooPool(2, tmp_path_factory.mktemp("gloo"))
    yield pool
    pool.close()


def counted_reduce(buckets, bucket):  # type: ignore[no-untyped-def]
    buckets.append(bucket.buffer().nbytes)
    return allreduce_hook(None, bucket)


# DistributedDataParallel wants to see these, and no text.
counted_reduce.__annotations__ = {"bucket": dist.GradBucket, "return": torch.futures.Future[Tensor]}


def step_of_a_rank(group: Any, recipe: Recipe) -> dict[str, int]:
    """Return the bytes that a step's messages carry by kind."""
    rank, ranks = group.rank(), group.size()
    trainer = make_trainer(recipe, processes=Processes(rank, ranks, torch.device("cpu")))
    batches = trainer.batches()
    trainer.learner.train_step(next(batches))
    sent: Counter[str] = Counter()
    buckets: list[int] = []
    trainer.learner.stepper.model.register_comm_hook(buckets, counted_reduce)  # type: ignore[operator]

    def counting(name: str, module: Any, function: str, measure: Callable[..., int]) -> None:
        original = getattr(module, function)

        def call(*args: Any, **options: Any) -> Any:
            sent[name] += measure(*args)
            return original(*args, **options)

        patch.setattr(module, function, call)

    with pytest.MonkeyPatch.context() as patch:
        # Of a gather comes what others sent; of a scatter goes what others get.
        counting("gather", collectives, "_gather", lambda out, own: out.nbytes - own.nbytes)
        counting(
            "scatter", collectives, "_reduce_scatter", lambda own, given: given.nbytes - own.nbytes
        )
        counting("reduce", dist, "all_reduce", lambda tensor, *_: tensor.nbytes)
        trainer.learner.train_step(next(batches))
    sent["reduce"] -= sum(buckets)  # the hook uses it too
    return {**sent, "buckets": sum(buckets)}


@pytest.mark.integration
def test_messages_carry_what_is_planned(pool: GlooPool, tmp_path: Path) -> None:
    data = write_training_set(tmp_path / "records", people=PEOPLE, images=2)
    for changes in (
        {"regularizer": SEC(weight=0.5)},
        {"regularizer": None, "accumulation": 2},
        {"regularizer": SEC(weight=0.5), "accumulation": 2},
        {"regularizer": None, "head": Head(sample_rate=0.5)},
    ):
        recipe = tiny_recipe(data, backbone=NARROW, **changes)
        found = pool.run(2, step_of_a_rank, recipe)
        plan = plan_step(recipe, PEOPLE, 2, "cpu")
        sent = {name.split(" (")[0]: size for name, size in plan.transfers.items()}
        for messages in found:
            # On two ranks an all-reduce of S bytes sends S.
            assert sent["gradients of the backbone"] == messages["buckets"]
            assert sent["their gradients"] == messages["scatter"]
            kinds = ("embeddings", "labels and norms", "softmax")
            assert sum(map(sent.__getitem__, kinds)) == messages["gather"] + messages["reduce"]


def messages_of_a_step(group: Any, recipe: Recipe) -> list[int]:
    """Return how many numbers a rank gives to each collective of a step, whoever calls it."""
    processes = Processes(group.rank(), group.size(), torch.device("cpu"))
    trainer = make_trainer(recipe, processes=processes)
    first, second, third = islice(trainer.batches(), 3)
    trainer.learner.train_step(first)
    trainer.learner.train_step(second)  # has the buckets that stay
    with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as seen:
        trainer.learner.train_step(third)
    events = [event for event in seen.events() if event.name.startswith("gloo:")]
    return sorted(math.prod(event.input_shapes[0]) for event in events)


@pytest.mark.integration
def test_a_step_has_three_small_collectives(pool: GlooPool, data: Path) -> None:
    # Labels and norms, the softmax's shift, its sums; embeddings, their gradients, the backbone's.
    small, large = [2 * 6, 12, 3 * 12 + 1], [6 * 16, 12 * 16, 16 * 193]
    halves = [2 * 3, 6, 3 * 6 + 1, 3 * 16, 6 * 16] * 2
    for changes, expected in (
        ({}, small + large),
        ({"regularizer": RingLoss(weight=0.5)}, small + large),
        ({"head": Head(sample_rate=0.5)}, [2, 6, *small, *large]),  # sizes and labels for the draw
        ({"accumulation": 2}, [6, *halves, 16 * 193]),  # norms of the whole for the mean
    ):
        found = pool.run(2, messages_of_a_step, tiny_recipe(data, **changes))
        assert found == [sorted(expected)] * 2, changes


@pytest.mark.parametrize("config", [NARROW, MOBILE], ids=str)
def test_flop_of_convolutions_by_hand(config: Backbone) -> None:
    backbone, each = create_backbone(config, seed=0), []

    def add(module: nn.Module, given: Any, result: Tensor) -> None:
        fan_in = module.weight[0].numel()  # type: ignore[union-attr,index]
        each.append(2 * fan_in * result[0].numel())

    for module in backbone.modules():
        if isinstance(module, (nn.Conv2d, nn.Linear)):
            module.register_forward_hook(add)
    backbone.eval()(torch.zeros(1, 3, 112, 112))
    total = sum(each)
    assert forward_flop(config) == total
    recipe = Recipe(backbone=config, batch_size=8, precision="fp32")
    assert plan_step(recipe, 10).backbone_flop == 3 * 8 * total
    assert plan_step(replace(recipe, recompute=True), 10).backbone_flop == 4 * 8 * total
    frozen = replace(recipe, finetune=Finetune(freeze_steps=None))
    assert plan_step(frozen, 10).backbone_flop == 8 * total
