"""One process or many: who this process is, and the few collectives that training needs."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import time
import uuid
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from facerec.base.devices import choose_device
from facerec.base.errors import FacerecError
from facerec.heads import collectives


@dataclasses.dataclass(frozen=True)
class Processes:
    """This process among its peers.

    Without an initialised process group it is rank 0 of 1 and every collective is a no-op.
    """

    rank: int
    world_size: int
    device: torch.device

    @property
    def is_main(self) -> bool:
        """True on the one process that prints and writes."""
        return self.rank == 0

    def barrier(self) -> None:
        """Wait for all peers."""
        if self.world_size > 1:
            dist.barrier()

    def broadcast_object(self, value: Any) -> Any:
        """Return rank 0's ``value`` on every rank."""
        box = [value]
        if self.world_size > 1:
            dist.broadcast_object_list(box, src=0)
        return box[0]

    def on_main(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Call ``function`` on rank 0 and return its value on every rank.

        Raises:
            FacerecError: the one that it raised on rank 0, on every rank, so that none waits.
        """
        outcome = None
        if self.is_main:
            try:
                outcome = function(*arguments)
            except FacerecError as error:
                outcome = error
        outcome = self.broadcast_object(outcome)
        if isinstance(outcome, FacerecError):
            raise outcome
        return outcome

    def gather_objects(self, value: Any, group: dist.ProcessGroup | None = None) -> list[Any]:
        """Return the values of all ranks, in rank order, on every rank."""
        values = [value] * self.world_size
        if self.world_size > 1:
            dist.all_gather_object(values, value, group)
        return values

    def total(self, value: float) -> torch.Tensor:
        """Return the sum of all ranks' values, a scalar that is not waited for."""
        return collectives.all_reduce_(torch.full((), value, device=self.device))


@contextlib.contextmanager
def launched(device: str = "auto", timeout_minutes: float = 30.0) -> Iterator[Processes]:
    """Join the process group that torchrun prepared, or run alone.

    A group that exists already (Ray Train and others make one) is used and left alone.

    Args:
        device: see `choose_device`; a bare ``cuda`` is the GPU of this rank.
        timeout_minutes: how long a collective may wait for a peer.
    """
    local_rank = int(os.environ.get("LOCAL_RANK", "0"))
    chosen = choose_device(device, local_rank)
    if chosen.type == "cuda":
        torch.cuda.set_device(chosen)
    ours = not dist.is_initialized() and int(os.environ.get("WORLD_SIZE", "1")) > 1
    if ours:
        backend = "nccl" if chosen.type == "cuda" else "gloo"
        timeout = timedelta(minutes=timeout_minutes)
        store, rank, world_size = next(dist.rendezvous("env://", timeout=timeout))
        if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True":
            store = own_space(store, rank, world_size, timeout)
        dist.init_process_group(
            backend,
            timeout=timeout,
            store=store,
            rank=rank,
            world_size=world_size,
            # For barriers, among others.
            device_id=chosen if chosen.type == "cuda" else None,
        )
    try:
        yield Processes(collectives.rank(), collectives.world_size(), chosen)
        if ours:
            dist.barrier()  # a rank that leaves early can hang its peers' clean-up
    finally:
        if ours:
            dist.destroy_process_group()


def own_space(store: dist.Store, rank: int, world_size: int, timeout: timedelta) -> dist.Store:
    """Agree on a part of ``store`` into which processes of an earlier life have written nothing.

    torchrun keeps its store when it starts processes again, so that the new ones would find the
    addresses of the dead (pytorch issue 167288). Its count of restarts does not tell lives apart,
    because each machine has its own. Here every process asks under a name that nobody had before
    it, and rank 0 answers.

    Args:
        store: that of torchrun, the same for all.
        rank: this process.
        world_size: number of processes.
        timeout: how long to wait for the others.

    Raises:
        DistStoreError: not all of them came.
    """
    if rank:
        name = uuid.uuid4().hex
        store.set(f"facerec/asks/{rank}", name)
        store.wait([f"facerec/answer/{name}"], timeout)
        life = store.get(f"facerec/answer/{name}").decode()
        store.add(f"facerec/heard/{life}", 1)
        return dist.PrefixStore(life, store)
    life, answered = uuid.uuid4().hex, set()
    deadline = time.monotonic() + timeout.total_seconds()
    while store.add(f"facerec/heard/{life}", 0) < world_size - 1:
        if time.monotonic() > deadline:
            raise dist.DistStoreError(
                f"not all of {world_size} processes came within {timeout.total_seconds():.0f} s"
            )
        for other in range(1, world_size):
            key = f"facerec/asks/{other}"
            if store.check([key]) and (name := store.get(key).decode()) not in answered:
                answered.add(name)
                store.set(f"facerec/answer/{name}", life)
        time.sleep(0.01)
    return dist.PrefixStore(life, store)
