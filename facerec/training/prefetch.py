"""Batches on their way to the device."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator

import torch

from facerec.records.dataset import Batch


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
        tensors = {name: getattr(batch, name) for name in ("images", "labels", "targets")}
        with torch.cuda.stream(stream):
            copies = {
                name: tensor.to(device, non_blocking=True)
                for name, tensor in tensors.items()
                if tensor is not None
            }
        if waiting is not None:
            yield waiting
        # The copy began behind the step just asked for, and ends before the next one begins.
        present = torch.cuda.current_stream(device)
        present.wait_stream(stream)
        for tensor in copies.values():
            tensor.record_stream(present)
        waiting = dataclasses.replace(batch, **copies)
    if waiting is not None:
        yield waiting
