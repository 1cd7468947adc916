"""The plan of a step against real tensors, real messages, and arithmetic by hand."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import pytest
import torch
import torch.distributed as dist
from helpers.gloo_pool import GlooPool
from helpers.tiny_training import make_trainer, tiny_recipe, write_training_set
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook

from facerec.backbones import Backbone, create_backbone, recompute_activations
from facerec.heads import (
    SEC,
    AdaFace,
    ArcFace,
    InterclassFilter,
    MarginClassifier,
    SphereFaceR,
    collectives,
    margin_softmax,
)
from facerec.heads.collectives import shard_bounds
from facerec.heads.margins import Margin
from facerec.training import SGD, Adam, AdamW, DataParallel, Finetune, Head, Recipe, RMSprop
from facerec.training import plan as plans
from facerec.training.distributed import Processes
from facerec.training.plan import (
    LiveMemory,
    Plan,
    Use,
    forward_flop,
    optimizer_state,
    plan_step,
)
from facerec.training.row_update import RowUpdate

pytestmark = pytest.mark.integration

NARROW = Backbone(name="iresnet18", embedding_size=32, width=0.125)
MOBILE = Backbone(name="mbf", embedding_size=32, width=0.25)
PEOPLE = 45


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_training_set(tmp_path_factory.mktemp("records"), people=PEOPLE, images=2)


@pytest.fixture(scope="module")
def pool(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GlooPool]:
    pool = GlooPool(2, tmp_path_factory.mktemp("gloo"))
    yield pool
    pool.close()


def parts(plan: Plan) -> dict[str, Use]:
    return plan.uses


def size(tensors: Any) -> int:
    return sum(tensor.nbytes for tensor in tensors)


# ---------------------------------------------------------------- what lives


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


@pytest.mark.parametrize("config", [NARROW, replace(NARROW, dropout=0.2), MOBILE], ids=str)
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_activations_are_what_autograd_really_saves(config: Backbone, precision: str) -> None:
    backbone = create_backbone(config, seed=0).to(memory_format=torch.channels_last)
    images = torch.randn(3, 112, 112, 3).permute(0, 3, 1, 2)
    real = saved_bytes(backbone, images, precision)
    recipe = Recipe(backbone=config, precision=precision, batch_size=3)
    planned = parts(plan_step(recipe, 10, device="cpu"))["activations"].head
    if precision == "fp32":
        assert planned == real
        return
    # Without content a batch norm keeps mean and deviation in bf16, with content in float32.
    norms = sum(m.num_features for m in backbone.modules() if isinstance(m, nn.BatchNorm2d))
    assert 0 <= real - planned <= 2 * 2 * norms


def test_recomputing_keeps_the_inputs_of_the_blocks() -> None:
    backbone = create_backbone(NARROW, seed=0)
    recompute_activations(backbone)
    inputs = []
    for block in backbone.blocks:  # type: ignore[union-attr]
        block.register_forward_pre_hook(lambda _, given: inputs.append(given[0]))
    images = torch.randn(4, 112, 112, 3).permute(0, 3, 1, 2)
    with LiveMemory(images, *backbone.parameters(), *backbone.buffers()) as live:
        embeddings = backbone(images)
    recipe = Recipe(backbone=NARROW, precision="fp32", batch_size=4, recompute=True)
    planned = parts(plan_step(recipe, 10, device="cpu"))["activations"].head
    assert planned == live.now
    assert len(embeddings) == 4 and size(inputs) < planned
    without = parts(plan_step(replace(recipe, recompute=False), 10, device="cpu"))
    assert planned < 0.5 * without["activations"].head


# ---------------------------------------------------------------- a whole step


STEPS: dict[str, dict[str, Any]] = {
    "plain": {},
    "mobile, AdamW": {"backbone": MOBILE, "optimizer": AdamW()},
    "micro-batches": {"accumulation": 2},
    "RMSprop": {"optimizer": RMSprop(momentum=0.9, weight_decay=0.1)},
    "no momentum": {"optimizer": SGD(momentum=0.0)},
    "sampled": {"head": Head(sample_rate=0.3), "optimizer": Adam()},
    "sampled micro-batches": {"head": Head(sample_rate=0.3), "accumulation": 3},
    "recompute": {"recompute": True},
    "bf16": {"precision": "bf16"},
    "frozen for good": {
        "finetune": Finetune(freeze_steps=None, freeze_layers=("conv1", "bn1", "prelu", "layer1"))
    },
    "class centres alone": {"finetune": Finetune(freeze_steps=None)},
}


@pytest.mark.parametrize("changes", STEPS.values(), ids=STEPS)
def test_a_step_of_a_trainer_takes_what_is_planned(data: Path, changes: dict[str, Any]) -> None:
    recipe = tiny_recipe(data, **{"backbone": NARROW, "precision": "fp32", **changes})
    trainer = make_trainer(recipe)
    batches = trainer.batches()
    trainer.learner.train_step(next(batches))
    planned = parts(plan_step(recipe, PEOPLE, device="cpu"))

    # What stays from step to step is exact.
    for name, module, centers in (
        ("backbone", trainer.learner.backbone, "weights"),
        ("head", trainer.learner.head, "class centres"),
    ):
        weights = [*module.parameters(), *(module.buffers() if name == "backbone" else ())]
        assert planned[f"{name}: {centers}"].update == size(weights)
        state = [
            v for p in module.parameters() for v in trainer.learner.optimizer.state[p].values()
        ]
        tensors = [value for value in state if isinstance(value, Tensor)]
        assert planned[f"{name}: optimizer state"].update == size(tensors)
    gradients = [p.grad for p in trainer.learner.backbone.parameters() if p.grad is not None]
    assert planned["backbone: gradients"].update == size(gradients)
    batch = next(batches)
    images, normalised = batch.images.nbytes, 4 * batch.images.numel() // recipe.accumulation
    # Backward needs the float32 images if the first layer learns, and computes with them.
    first = next(trainer.learner.backbone.parameters())
    kept = first.requires_grad and recipe.precision == "fp32"
    assert planned["images"].update == images
    assert planned["images"].backbone == images + (normalised if kept else 0)

    # So is what comes and goes, but for vectors as long as the batch.
    trainer.learner.optimizer.zero_grad(set_to_none=True)
    modules = [trainer.learner.backbone, *(term.module for term in trainer.learner.terms)]
    present = [t for m in modules for t in (*m.parameters(), *m.buffers())]  # type: ignore[union-attr]
    states = [v for s in trainer.learner.optimizer.state.values() for v in s.values()]
    present += [value for value in states if isinstance(value, Tensor)]
    live, peaks = LiveMemory(*present, batch.images, batch.labels), Counter()

    class Range:
        def __init__(self, name: str) -> None:
            self.name = name

        def __enter__(self) -> None:
            live.restart_peak()

        def __exit__(self, *_: object) -> None:
            peaks[self.name] = max(peaks[self.name], live.peak)

    trainer.learner.phase = Range
    with live:
        trainer.learner.train_step(batch)
    base = size([*present, batch.images])
    plan = plan_step(recipe, PEOPLE, device="cpu")
    passes = max(peaks["forward"], peaks["backward"])
    assert plan.totals.backbone == pytest.approx(base + passes, rel=0.005)
    assert plan.totals.update == pytest.approx(base + peaks["optimizer"], rel=0.03)
    assert plan.memory == pytest.approx(base + max(peaks.values()), rel=0.005)


@pytest.mark.parametrize(
    ("config", "each", "fixed"),
    [
        (SGD(), 4, 0),
        (SGD(momentum=0.0), 0, 0),
        (AdamW(), 8, 4),
        (Adam(), 8, 4),
        (RMSprop(), 4, 4),
        (RMSprop(momentum=0.9), 8, 4),
    ],
    ids=str,
)
def test_optimizer_state_by_hand(config: Any, each: int, fixed: int) -> None:
    state = optimizer_state(config)
    assert (state.each, state.fixed) == (each, fixed)
    assert state.size(1000) == 1000 * each + fixed
    assert (state.work > 0) == isinstance(config, RMSprop)


# ---------------------------------------------------------------- head


HEADS = [
    Head(),
    Head(precision="bf16"),
    Head(sample_rate=0.3),
    Head(sample_rate=0.3, precision="bf16"),
    Head(interclass_filter=InterclassFilter()),
]


@pytest.mark.parametrize("classes", [900, 6000])
@pytest.mark.parametrize(
    ("margin", "head"),
    [(ArcFace(), head) for head in HEADS]
    + [(AdaFace(), Head()), (SphereFaceR(version="v2"), Head())],
    ids=str,
)
@pytest.mark.parametrize("what", ["stop", "skip"])
def test_the_head_takes_what_is_planned(
    classes: int,
    margin: Margin,
    head: Head,
    what: Literal["stop", "skip"],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for module in (margin_softmax, plans):  # emulated, but the tensors are the same
        monkeypatch.setattr(module, "has_fast_bf16", lambda device: True)
    batch, dimensions = 128, 256
    recipe = Recipe(
        backbone=replace(NARROW, embedding_size=dimensions),
        batch_size=batch,
        margin=margin,
        head=head,
        precision="fp32",
        on_nonfinite=what,
    )
    planned = parts(plan_step(recipe, classes, device="cpu"))
    module = MarginClassifier(
        classes,
        dimensions,
        margin,
        seed=0,
        precision=head.precision,
        sample_rate=head.sample_rate,
        interclass_filter=head.interclass_filter,
    )
    leaf = torch.randn(batch, dimensions, requires_grad=True)
    embeddings, labels = leaf * 1, torch.randint(classes, (batch,))
    module.draw(labels, 0)
    optimizer = recipe.optimizer.create([{"params": [module.weight]}])
    updates = RowUpdate(optimizer, module.weight, at_once=what == "stop")
    state = [v for v in updates.state().values() if isinstance(v, Tensor)]
    present = [leaf, embeddings, labels, *module.parameters(), *module.buffers(), *state]
    with LiveMemory(*present) as live:
        module(embeddings, labels, updates.gradients(last=True)).loss.backward()
        peak = live.peak
        live.restart_peak()
        optimizer.step()
    names = ["tiles and embeddings", "gradient", "optimizer's work"]
    names += ["numbers of sampled classes"] if head.sample_rate < 1 else []
    assert peak == pytest.approx(sum(planned[f"head: {name}"].head for name in names), rel=0.03)
    # The embeddings' gradient stays for the backbone.
    update = sum(planned[f"head: {name}"].update for name in names) + 4 * batch * dimensions
    assert live.peak == pytest.approx(update, rel=0.03)


@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
@pytest.mark.parametrize("classes", [1, 7, 9, 45])
def test_rank_0_holds_the_most_classes(ranks: int, classes: int) -> None:
    recipe = Recipe(backbone=NARROW, batch_size=24, precision="fp32")
    plan = plan_step(recipe, classes, ranks)
    shares = [shard_bounds(classes, ranks, rank)[1] for rank in range(ranks)]
    assert plan.classes == plan.visited == max(shares) and sum(shares) == classes
    assert parts(plan)["head: class centres"].head == 4 * 32 * -(-classes // ranks)
    assert parts(plan)["head: optimizer state"].head == 4 * 32 * -(-classes // ranks)
    # Sampling takes the share, or what the batch needs.
    sampled = plan_step(replace(recipe, head=Head(sample_rate=0.5)), classes, ranks)
    assert sampled.visited == max(plan.classes // 2, min(24, plan.classes))
    assert parts(sampled)["head: numbers of sampled classes"].update == 8 * sampled.visited
    assert parts(sampled)["head: gradient"] == Use(0, 0, 0)
    careful = plan_step(replace(recipe, on_nonfinite="skip"), classes, ranks)
    assert parts(careful)["head: gradient"].update == 4 * 32 * plan.visited


# ---------------------------------------------------------------- several ranks


def counted_reduce(buckets, bucket):  # type: ignore[no-untyped-def]
    buckets.append(bucket.buffer().nbytes)
    return allreduce_hook(None, bucket)


# DistributedDataParallel wants to see these, and no text.
counted_reduce.__annotations__ = {
    "bucket": dist.GradBucket,
    "return": torch.futures.Future[Tensor],
}


def step_of_a_rank(group: Any, recipe: Recipe) -> tuple[dict[str, int], dict[str, int]]:
    """Return the bytes that a step's messages carry by kind, and those of this rank's tensors."""
    rank, ranks = group.rank(), group.size()
    trainer = make_trainer(recipe, processes=Processes(rank, ranks, torch.device("cpu")))
    batches = trainer.batches()
    trainer.learner.train_step(next(batches))
    sent: Counter[str] = Counter()

    def counting(name: str, module: Any, function: str, measure: Callable[..., int]) -> None:
        original = getattr(module, function)

        def call(*args: Any, **options: Any) -> Any:
            sent[name] += measure(*args)
            return original(*args, **options)

        undo.append((module, function, original))
        setattr(module, function, call)

    undo: list[tuple[Any, str, Any]] = []
    # Of a gather comes what others sent; of a scatter goes what others get.
    counting("gather", collectives, "_gather", lambda out, own: out.nbytes - own.nbytes)
    counting(
        "scatter", collectives, "_reduce_scatter", lambda own, given: given.nbytes - own.nbytes
    )
    counting("reduce", dist, "all_reduce", lambda tensor, *_: tensor.nbytes)
    counting("broadcast", dist, "_broadcast_coalesced", lambda _, tensors, *__: size(tensors))
    buckets: list[int] = []
    trainer.learner.model.register_comm_hook(buckets, counted_reduce)  # type: ignore[operator]
    try:
        trainer.learner.train_step(next(batches))
    finally:
        for module, function, original in undo:
            setattr(module, function, original)
    sent["reduce"] -= sum(buckets)  # the hook uses it too
    state = [v for s in trainer.learner.optimizer.state.values() for v in s.values()]
    return {**sent, "buckets": sum(buckets)}, {
        "class centres": trainer.learner.head.weight.nbytes,
        "state": size(v for v in state if isinstance(v, Tensor)),
    }


@pytest.mark.parametrize(
    "changes",
    [
        {"regularizer": SEC(weight=0.5)},
        {"regularizer": None},
        {"regularizer": None, "accumulation": 2},
        {"regularizer": None, "head": Head(sample_rate=0.5)},
    ],
    ids=["penalty", "plain", "micro-batches", "sampled"],
)
def test_messages_carry_what_is_planned(
    pool: GlooPool, data: Path, changes: dict[str, Any]
) -> None:
    recipe = tiny_recipe(data, backbone=NARROW, **changes)
    found = pool.run(2, step_of_a_rank, recipe)
    plan = plan_step(recipe, PEOPLE, 2, "cpu")
    sent = {name.split(" (")[0]: size for name, size in plan.transfers.items()}
    for messages, _ in found:
        # On two ranks an all-reduce of S bytes sends S.
        assert sent["gradients of the backbone"] == messages["buckets"]
        assert sent["their gradients"] == messages["scatter"]
        assert "broadcast" not in messages  # running statistics stay where they are
        rest = sum(sent[name] for name in ("embeddings", "labels", "softmax", "checks and norms"))
        assert rest == messages["gather"] + messages["reduce"]
    held = parts(plan)
    assert held["head: class centres"].head == found[0][1]["class centres"]
    assert found[0][1]["class centres"] - found[1][1]["class centres"] == 4 * 32  # 23 and 22
    state = held["head: optimizer state"].head + held["backbone: optimizer state"].head
    assert state == found[0][1]["state"]


def test_traffic_in_closed_form() -> None:
    recipe = Recipe(backbone=Backbone(), batch_size=1024, precision="bf16")
    plan = plan_step(recipe, 93_431, 8)
    sent = {name.split(" (")[0]: size for name, size in plan.transfers.items()}
    trainable = 43_590_848 - 512  # less the frozen γ
    assert sent["gradients of the backbone"] == 2 * 7 * 4 * trainable // 8
    # Each rank's 128 embeddings of 512 numbers go round 7 times, and back as gradients.
    assert sent["embeddings"] == sent["their gradients"] == 7 * 128 * 512 * 4
    assert sent["labels"] == 7 * 128 * 8
    assert sum(sent.values()) == sum(plan.transfers.values())
    halved = plan_step(replace(recipe, data_parallel=DataParallel(compression="bf16")), 93_431, 8)
    (first, *rest), (half, *others) = plan.transfers.values(), halved.transfers.values()
    assert half == first // 2 and rest == others
    assert plan_step(recipe, 93_431, 1).transfers == {}


# ---------------------------------------------------------------- arithmetic


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
    # Behind a frozen layer there is no backward pass, in front of it there is all of it.
    first_layer = "conv1" if config is NARROW else "layers.0.layers.0"
    for layer, back in ((first_layer, 2 * (total - each[0])), ("", 0)):
        finetune = Finetune(freeze_steps=None, freeze_layers=(layer,) if layer else ())
        plan = plan_step(replace(recipe, finetune=finetune), 10)
        assert plan.backbone_flop == 8 * (total + back)
    later = replace(recipe, finetune=Finetune(freeze_steps=100, freeze_layers=(first_layer,)))
    assert plan_step(later, 10).backbone_flop == 3 * 8 * total
