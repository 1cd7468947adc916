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
        with torch.cuda.stream(stream):
            copied = dataclasses.replace(
                batch,
                images=batch.images.to(device, non_blocking=True),
                labels=batch.labels.to(device, non_blocking=True),
                targets=(
                    None if batch.targets is None else batch.targets.to(device, non_blocking=True)
                ),
            )
        if waiting is not None:
            yield waiting
        # The copy began behind the step just asked for, and ends before the next one begins.
        present = torch.cuda.current_stream(device)
        present.wait_stream(stream)
        for tensor in (copied.images, copied.labels, copied.targets):
            if tensor is not None:
                tensor.record_stream(present)
        waiting = copied
    if waiting is not None:
        yield waiting
