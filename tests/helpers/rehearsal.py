"""Training as on a GPU, without one: the whole step on tensors that have no numbers."""

from __future__ import annotations

import contextlib
import importlib.util
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar
from unittest import mock

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.testing._internal.distributed.fake_pg import FakeStore

from facerec.backbones import Backbone, Preprocessing, create_backbone, register_backbone
from facerec.devices import HostCopy
from facerec.embedding import TorchModel, extract
from facerec.heads import SEC, ArcFace
from facerec.records import Data
from facerec.records.dataset import Batch, FaceDataset
from facerec.records.images import LabelledImages
from facerec.training import Head, Recipe
from facerec.training import learner as learner_module
from facerec.training.distributed import Processes
from facerec.training.monitor import Figures
from facerec.training.prefetch import prefetched
from facerec.training.trainer import Trainer
from helpers.host_waits import Watch
from helpers.pretend_cuda import CUDA, Event, is_channels_last, pretend_cuda

BATCH = 8
KERNELS = ("normalize", "forward", "merge", "slopes", "center_gradient", "query_gradient")


@dataclass
class Seen:
    """What `Watch` saw, and what came out."""

    products: Counter[tuple[str, ...]]
    disordered: list[str]
    collectives: dict[str, set[str]]
    figures: dict[str, tuple[str, str]]
    """Device and type of each figure of a step."""
    kernels_in_order: bool
    """Whether the kernels of the convolutions are channels-last after the steps."""
    steps: int
    launches: dict[str, set[str]]
    """Devices of the tensors that each kernel of Triton was given."""


class SmallNet(nn.Module):
    """The kinds of layers that an iResNet has, one of each."""

    def __init__(self, config: Backbone) -> None:
        super().__init__()
        self.embedding_size = config.embedding_size
        self.conv1 = nn.Conv2d(3, 16, 3, stride=8, bias=False)
        self.bn1 = nn.BatchNorm2d(16)
        self.prelu = nn.PReLU(16)
        self.conv2 = nn.Conv2d(16, 16, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(16)
        self.dropout = nn.Dropout(config.dropout)
        self.fc = nn.Linear(16 * 14 * 14, config.embedding_size)
        self.embedding_norm = nn.BatchNorm1d(config.embedding_size)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.prelu(self.bn1(self.conv1(x)))
        x = self.dropout(self.bn2(x + self.conv2(x)).flatten(1))
        with torch.autocast(x.device.type, enabled=False):
            return self.embedding_norm(self.fc(x.to(self.fc.weight.dtype)))


@register_backbone
def small_net(config: Backbone) -> nn.Module:
    return SmallNet(config)


def rehearsal_recipe(**changes: object) -> Recipe:
    recipe = Recipe(
        data=Data(Path("faces")),
        backbone=Backbone("small_net", embedding_size=32, dropout=0.1),
        margin=ArcFace(),
        regularizer=SEC(weight=0.1),
        head=Head(kernel="torch"),
        batch_size=BATCH,
        log_every=2,
        compile=False,
        workers=0,
    )
    return replace(recipe, **changes)  # type: ignore[arg-type]


class Faces(LabelledImages):
    """Sizes alone."""

    num_classes = 100

    def __len__(self) -> int:
        return 1 << 12

    def sample(self, i: int) -> tuple[bytes, int]:
        raise NotImplementedError

    where = name = read_labels = sample  # type: ignore[assignment]


class Taught:
    """Stands for a teacher's embeddings; those of a batch come with it."""

    size, scale = 24, 1.0
    note: ClassVar[dict[str, object]] = {}


def page_locked_batches(count: int, size: int, taught: bool) -> Iterator[Batch]:
    for _ in range(count):
        images = torch.zeros(size, 112, 112, 3, dtype=torch.uint8)
        labels = torch.zeros(size, dtype=torch.int64)
        batch = Batch(images, labels, torch.arange(size), [])
        if taught:
            batch.views, batch.targets = labels, torch.zeros(size, Taught.size)
        yield batch.pin_memory()


def rehearse(recipe: Recipe, ranks: int = 1, steps: int = 3) -> Seen:
    """Train some steps as `Trainer.fit` does, and fail at whatever makes the host wait."""
    if ranks > 1:
        dist.init_process_group("fake", rank=0, world_size=ranks, store=FakeStore())
    try:
        # What DistributedDataParallel does in C++ is not looked at.
        with (
            pretend_cuda(),
            mock.patch.object(learner_module, "data_parallel", lambda m, _: m),
            _kernels_noted(),
        ):
            return _rehearse(recipe, Processes(0, ranks, CUDA), steps)
    finally:
        if ranks > 1:
            dist.destroy_process_group()


def _rehearse(recipe: Recipe, processes: Processes, steps: int) -> Seen:
    _Kernel.launches = {}
    taught = recipe.distillation is not None
    targets: Any = Taught() if taught else None
    trainer = Trainer(learner_module.Learner(recipe, FaceDataset(Faces()), processes, targets))
    watch = Watch()
    batches = page_locked_batches(steps + 1, recipe.batch_size // processes.world_size, taught)
    trainer.batches = lambda: prefetched(batches, CUDA)  # type: ignore[method-assign]
    trainer._write_skipped = lambda: None  # type: ignore[method-assign]
    step, figures = trainer.learner.train_step, {}

    def remembered(batch: Batch) -> Figures:
        figures.update(step(batch))
        return figures

    trainer.learner.train_step = remembered  # type: ignore[method-assign]
    with watch:
        trainer.fit(max_steps=steps)
    kernels = [p for p in trainer.learner.backbone.parameters() if p.ndim == 4]
    return Seen(
        watch.products,
        watch.disordered,
        watch.collectives,
        {name: (value.device.type, str(value.dtype)) for name, value in figures.items()},
        all(map(is_channels_last, kernels)),
        trainer.learner.step,
        _Kernel.launches,
    )


class _Kernel:
    """Stands for a kernel of Triton, and remembers what it was given."""

    launches: dict[str, set[str]]

    def __init__(self, name: str) -> None:
        self.name = name

    def __getitem__(self, grid: object) -> Callable[..., None]:
        return self.launch

    def launch(self, *args: object, **options: object) -> None:
        given = [x.device.type for x in (*args, *options.values()) if isinstance(x, torch.Tensor)]
        _Kernel.launches.setdefault(self.name, set()).update(given)


@contextlib.contextmanager
def _kernels_noted() -> Iterator[None]:
    if importlib.util.find_spec("triton") is None:
        yield
        return
    from facerec.heads import triton_kernels

    with mock.patch.multiple(triton_kernels, **{name: _Kernel(name) for name in KERNELS}):
        yield


def extracts() -> tuple[tuple[int, ...], bool, Counter[tuple[str, ...]], int]:
    """Embed five batches with flips.

    Returns:
        The shape of what comes; whether it is all there; the products; how often the host waited
        when the device had nothing else to do.
    """
    Event.idle = 0
    with pretend_cuda():
        backbone = create_backbone("small_net", embedding_size=32).to(CUDA)
        model, watch = TorchModel(backbone, Preprocessing(), batch_size=4), Watch()
        with watch:
            found = extract(model, np.zeros((18, 112, 112, 3), np.uint8), flip=True, batch_size=4)
        return found.vectors.shape, bool((found.vectors == 2).all()), watch.products, Event.idle


def provoke() -> dict[str, str]:
    """Do what `Watch` must stop at, and tell how it ended: empty where nothing stopped it."""
    with pretend_cuda():
        values, mask = torch.ones(5, device=CUDA), torch.ones(5, device=CUDA) > 0
        ordinary, locked = torch.ones(5), torch.ones(5).pin_memory()
        index = torch.zeros(3, dtype=torch.int64)

        def early_on_the_host() -> None:
            values.to("cpu", non_blocking=True).sum()

        def late_on_the_host() -> None:
            copy = HostCopy(values)
            copy.read().tolist()

        def copied_aside(waits: bool, records: bool) -> None:
            side = torch.cuda.Stream(CUDA)
            with torch.cuda.stream(side):
                copied = locked.to(CUDA, non_blocking=True)
            if waits:
                torch.cuda.current_stream().wait_stream(side)
            if records:
                copied.record_stream(torch.cuda.current_stream())
            copied.sum()

        acts: dict[str, Callable[[], object]] = {
            "item": values.sum().item,
            "float": lambda: float(values[0]),
            "bool": lambda: bool(mask.any()),
            "list": values.tolist,
            "nonzero": mask.nonzero,
            "mask": lambda: values[mask],
            "masked_select": lambda: values.masked_select(mask),
            "masked assignment": lambda: values.__setitem__(mask, values),
            "unique": values.unique,
            "index from the host": lambda: values[index],
            "to the host": values.cpu,
            "into ordinary memory": lambda: ordinary.copy_(values, non_blocking=True),
            "from the host": lambda: locked.to(CUDA),
            "from ordinary memory": lambda: ordinary.to(CUDA, non_blocking=True),
            "list to the device": lambda: torch.tensor([1.0, 2.0], device=CUDA),
            "early on the host": early_on_the_host,
            "early in a stream": lambda: copied_aside(waits=False, records=True),
            "unrecorded": lambda: copied_aside(waits=True, records=False),
            "fine: locked": lambda: locked.to(CUDA, non_blocking=True),
            "fine: to locked": lambda: locked.copy_(values, non_blocking=True),
            "fine: late": late_on_the_host,
            "fine: aside": lambda: copied_aside(waits=True, records=True),
            "fine: full": lambda: torch.full((2,), 3.0, device=CUDA).add_(1).neg(),
            "fine: number": lambda: values.__setitem__(0, 1.0),
            "fine: index": lambda: values[index.pin_memory().to(CUDA, non_blocking=True)],
        }
        ends = {}
        for name, act in acts.items():
            try:
                with Watch():
                    act()
                ends[name] = ""
            except Exception as error:
                ends[name] = type(error).__name__
        return ends
