"""The tensors of a run by name: what a checkpoint holds, whatever the number of ranks."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor, Shard

from facerec.heads.classifier import MarginClassifier
from facerec.heads.tiles import Kernel
from facerec.records.dataset import Skipped
from facerec.training.distributed import Processes
from facerec.training.row_update import RowUpdate


@dataclass(frozen=True)
class SavedFacts:
    """What a checkpoint holds besides tensors; fields with a default came in later releases."""

    retired: ClassVar = ("validated",)
    step: int
    world_size: int
    best_accuracy: float
    benches: tuple[str, ...]
    scaler: dict[str, Any]
    """Of fp16, else empty."""
    skipped_images: tuple[Skipped, ...] = ()
    """By all ranks."""
    kernel: Kernel = "torch"
    """Who computed the head's tiles."""
    kernel_shape: int = 0
    """Of the blocks of Triton's kernels."""
    precision: str | None = None
    """Of the backbone, as the recipe says or its ``auto`` came to mean; None was not written."""
    losses: tuple[float, ...] = ()
    """Of the steps since the last line of ``metrics.jsonl``."""


class TrainingState:
    """Everything that a step changes, by name and over the same memory.

    Rows of the class-sharded head, and optimizer state of the same shape, become `DTensor`, so that
    loading fills them in place on any number of ranks.

    Args:
        modules: what learns or keeps buffers, by the prefix of its names; None takes no part.
        head: the one of these whose rows the ranks share, if there is one.
        optimizer: over their parameters.
        centers: takes the head's steps, if it learns.
        processes: this rank among its peers.
    """

    def __init__(
        self,
        modules: Mapping[str, nn.Module | None],
        head: MarginClassifier | None,
        optimizer: torch.optim.Optimizer,
        centers: RowUpdate | None,
        processes: Processes,
    ) -> None:
        self.modules = {name: module for name, module in modules.items() if module is not None}
        self.head, self.optimizer, self.centers = head, optimizer, centers
        self.processes = processes

    def tensors(self) -> dict[str, Tensor]:
        """Name what all ranks share."""
        tensors: dict[str, Tensor] = {}
        names: dict[int, str] = {}
        for prefix, module in self.modules.items():
            names |= {id(p): f"{prefix}.{name}" for name, p in module.named_parameters()}
            tensors |= {f"{prefix}.{name}": t for name, t in module.state_dict().items()}
        for parameter, values in self.optimizer.state.items():
            for key, value in values.items():
                if isinstance(value, Tensor):
                    tensors[f"optimizer.{names[id(parameter)]}.{key}"] = value
        per_class = 1 if self.head is None else self.head.centers_per_class
        if self.head is not None and (self.processes.world_size > 1 or per_class > 1):
            sharded, shape = "head.weight", self.head.weight.shape
            for name, value in tensors.items():
                if (
                    name == sharded or name.startswith(f"optimizer.{sharded}.")
                ) and value.shape == shape:
                    # Ranks share out classes, so that all centres of one lie in a row of their own.
                    rows = value if per_class == 1 else value.view(-1, per_class, shape[1])
                    several = self.processes.world_size > 1
                    tensors[name] = self._as_sharded(rows) if several else rows
        return tensors

    def random(self) -> dict[str, Tensor]:
        """Name copies of this rank's states of random generators."""
        rank = self.processes.rank
        states = {f"random.rank{rank}.cpu": torch.get_rng_state()}
        if self.processes.device.type == "cuda":
            states[f"random.rank{rank}.cuda"] = torch.cuda.get_rng_state()
        return states

    @staticmethod
    def set_random(states: Mapping[str, Tensor]) -> None:
        """Give the generators the states that `random` named."""
        for name, value in states.items():
            (torch.cuda.set_rng_state if "cuda" in name else torch.set_rng_state)(value)

    def share_buffers(self) -> None:
        """Give all ranks rank 0's batch-norm statistics, as DDP would before the next step."""
        if self.processes.world_size > 1:
            for name in ("backbone", "ema"):
                for buffer in self.modules[name].buffers() if name in self.modules else ():
                    dist.broadcast(buffer, src=0)

    def create_optimizer_state(self) -> None:
        """Let the optimizer make its state tensors, by a step of rate 0 with zero gradients."""
        saved = [group["lr"] for group in self.optimizer.param_groups]
        for group in self.optimizer.param_groups:
            group["lr"] = 0.0
            for parameter in group["params"]:
                if self.centers is None or parameter is not self.centers.weight:
                    parameter.grad = torch.zeros_like(parameter)
        self.optimizer.step()
        if self.centers is not None:
            self.centers.state()
        self.optimizer.zero_grad(set_to_none=True)
        for group, rate in zip(self.optimizer.param_groups, saved, strict=True):
            group["lr"] = rate

    @functools.cached_property
    def _mesh(self) -> DeviceMesh:
        return init_device_mesh(self.processes.device.type, (self.processes.world_size,))

    def _as_sharded(self, rows: Tensor) -> DTensor:
        assert self.head is not None
        whole = torch.Size((self.head.num_classes, *rows.shape[1:]))
        return DTensor.from_local(
            rows.detach(),
            self._mesh,
            [Shard(0)],
            run_check=False,
            shape=whole,
            stride=rows.stride(),
        )
