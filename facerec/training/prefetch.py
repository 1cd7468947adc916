"""Batches on their way to the device."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator

import torch

from facerec.records.dataset import Batch


def on_device(batch: Batch, device: torch.device) -> Batch:
    """Return a batch whose images, labels and targets are on a device, perhaps not yet whole."""
    held = {name: getattr(batch, name) for name in ("images", "labels", "targets")}
    moved = {n: t.to(device, non_blocking=True) for n, t in held.items() if t is not None}
    return dataclasses.replace(batch, **moved)


def prefetched(batches: Iterable[Batch], device: torch.device) -> Iterator[Batch]:
    """Copy every batch to a GPU while the step before it is computed; a CPU needs no copy.

    Args:
        batches: from the loader, in page-locked memory for a GPU.
        device: where the steps are computed.
    """
    if device.type != "cuda":
        yield from batches
        return
    stream = torch.cuda.Stream(device)
    waiting: Batch | None = None
    for batch in batches:
        with torch.cuda.stream(stream):
            copy = on_device(batch, device)
        if waiting is not None:
            yield waiting
        # The copy began behind the step just asked for, and ends before the next one begins.
        present = torch.cuda.current_stream(device)
        present.wait_stream(stream)
        for tensor in (copy.images, copy.labels, copy.targets):
            if tensor is not None:
                tensor.record_stream(present)
        waiting = copy
    if waiting is not None:
        yield waiting
