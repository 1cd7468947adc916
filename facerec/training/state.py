"""The tensors of a run by name: what a checkpoint holds, whatever the number of ranks."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor, Shard

from facerec.training.distributed import Processes
from facerec.training.ema import WeightAverage
from facerec.training.terms import Term, margin_of


class TrainingState:
    """Everything that a step changes, by name and over the same memory.

    Rows of the class-sharded head, and optimizer state of the same shape, become `DTensor`, so that
    loading fills them in place on any number of ranks.

    Args:
        backbone: what is trained.
        terms: of the loss; of a margin the ranks share the head's rows.
        average: of the backbone's weights, if there is one.
        optimizer: over the parameters of backbone and terms.
        processes: this rank among its peers.
    """

    def __init__(
        self,
        backbone: nn.Module,
        terms: Sequence[Term],
        average: WeightAverage | None,
        optimizer: torch.optim.Optimizer,
        processes: Processes,
    ) -> None:
        self.modules = {"backbone": backbone} | {term.name: term.module for term in terms}
        if average is not None:
            self.modules["ema"] = average.module
        margin = margin_of(terms)
        self.head = None if margin is None else margin.module
        self.centers = None if margin is None else margin.update
        self.optimizer, self.processes = optimizer, processes

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
        head, alone = self.head, self.processes.world_size == 1
        for name, value in tensors.items():
            own = name == "head.weight" or name.startswith("optimizer.head.weight.")
            if head is not None and own and value.shape == head.weight.shape:
                if head.centers_per_class > 1:
                    # Ranks share out classes, so that all centres of one lie in a row of their own.
                    value = value.view(-1, head.centers_per_class, value.shape[1])
                tensors[name] = value if alone else sharded(value, self._mesh, head.num_classes)
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
        """Let the optimizer make its state tensors, all of them zero, by a step of rate 0."""
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
        for values in self.optimizer.state.values():
            for value in filter(torch.is_tensor, values.values()):
                value.zero_()
        for group, rate in zip(self.optimizer.param_groups, saved, strict=True):
            group["lr"] = rate

    @functools.cached_property
    def _mesh(self) -> DeviceMesh:
        return init_device_mesh(self.processes.device.type, (self.processes.world_size,))


def sharded(rows: Tensor, mesh: DeviceMesh | None, total: int) -> DTensor:
    """Return this rank's rows as a part of a tensor of ``total`` rows, over the same memory."""
    shape = torch.Size((total, *rows.shape[1:]))
    return DTensor.from_local(
        rows.detach(), mesh, [Shard(0)], run_check=False, shape=shape, stride=rows.stride()
    )
