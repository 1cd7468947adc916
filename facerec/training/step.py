"""One optimizer step: a batch goes through a network and the terms of its loss, and back.

`facerec.training.learner` takes the steps of a recipe with it, and `facerec.comparison.fit` those
of the arms of a comparison.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.amp import GradScaler
from torch.nn.parallel import DistributedDataParallel
from torch.profiler import record_function

from facerec.heads.norm_regularizer import NormMoments
from facerec.heads.output import Figures, LossOutput
from facerec.training.terms import MicroBatch, Step, Term

AUTOCAST = {"bf16": torch.bfloat16, "fp16": torch.float16}


@dataclass(eq=False)
class Stepper:
    """Takes optimizer steps: a network, the terms of its loss and the optimizer of both."""

    network: nn.Module
    """Images → raw embeddings, ``(B, D)``."""
    terms: Sequence[Term]
    """The losses that are added up."""
    optimizer: torch.optim.Optimizer
    """Moves the parameters of the network and of the terms."""
    total_steps: int
    """Steps of the whole training."""
    model: nn.Module | None = None
    """The network as a step runs it, compiled or averaged over ranks; itself by default."""
    precision: str = "fp32"
    """Numbers that the network computes in: fp32, bf16 or fp16."""
    scaler: GradScaler = field(default_factory=lambda: GradScaler(enabled=False))
    """Scales the loss under fp16."""
    accumulation: int = 1
    """Micro-batches that a batch is cut into."""
    clip_norm: float | None = None
    """Largest norm of the network's gradient."""
    frozen: bool = False
    """Whether the network does not learn now."""
    step: int = 0
    """Steps that have been taken."""

    def take(self, images: Tensor, labels: Tensor, targets: Tensor | None = None) -> Figures:
        """Do one optimizer step on this rank's share of a batch, and return its figures.

        With ``accumulation`` k the share is cut into k micro-batches whose gradients add up to
        those of the whole: losses are averaged, and a penalty whose centre depends on the batch
        gets that centre from a pass without gradients over the whole batch first.

        Args:
            images: what the network takes, on its device.
            labels: their classes, int64 ``(B,)``.
            targets: a teacher's embeddings of them.
        """
        count, device = self.accumulation, images.device
        model = self.network if self.model is None else self.model
        shared = model if isinstance(model, DistributedDataParallel) else None
        taught = [None] * count if targets is None else targets.chunk(count)
        micro = list(zip(images.chunk(count), labels.chunk(count), taught, strict=True))
        whole = None
        if count > 1 and any([term.couples_samples for term in self.terms]):
            whole = self._whole_batch([x for x, _, _ in micro])
        step = Step(self.step, self.step / max(self.total_steps, 1), labels, whole, targets)
        for term in self.terms:
            term.begin(step)
        self.optimizer.zero_grad(set_to_none=True)
        micro_figures: list[Figures] = []
        for position, (x, y, target) in enumerate(micro):
            last = position == count - 1
            # Ranks average the gradients of a step once.
            with contextlib.nullcontext() if last or shared is None else shared.no_sync():
                learning = torch.set_grad_enabled(not self.frozen)
                with record_function("forward"), self._autocast(device), learning:
                    embeddings = model(x)
                with record_function("head"):
                    part = MicroBatch(step, embeddings, y, target, position == 0, last)
                    outputs = [term.forward(part) for term in self.terms]
                    loss = functools.reduce(torch.add, [output.loss for output in outputs])
                with record_function("backward"):
                    self.scaler.scale(loss / count).backward()
            micro_figures.append(_figures(part.shared[1], outputs))

        figures = _average(micro_figures)
        with record_function("optimizer"):
            self.scaler.unscale_(self.optimizer)
            if self.clip_norm is not None:
                nn.utils.clip_grad_norm_(self.network.parameters(), self.clip_norm)
            self.scaler.step(self.optimizer)
            self.scaler.update()
            for term in self.terms:
                term.end()
        self.step += 1
        return figures

    @torch.no_grad()
    def _whole_batch(self, micro: list[Tensor]) -> Tensor:
        """Return the embeddings of all micro-batches, for losses that couple the samples.

        This pass leaves no trace in the network: dropout draws the same masks again in the pass
        with gradients, and the running statistics of the batch-norms are put back.
        """
        buffers = {name: value.clone() for name, value in self.network.named_buffers()}
        device = micro[0].device
        devices = [device] if device.type == "cuda" else []
        with torch.random.fork_rng(devices), self._autocast(device):
            embeddings = torch.cat([self.network(x) for x in micro])
        for name, value in self.network.named_buffers():
            value.copy_(buffers[name])
        return embeddings

    def _autocast(self, device: torch.device) -> contextlib.AbstractContextManager[Any]:
        dtype = AUTOCAST.get(self.precision)
        return torch.autocast(device.type, dtype) if dtype else contextlib.nullcontext()


def _figures(moments: NormMoments, outputs: list[LossOutput]) -> Figures:
    figures = {
        "norm_mean": moments.mean,
        "norm_variance": moments.variance,
        "norm_min": moments.smallest,
    }
    return functools.reduce(dict.__or__, [output.figures for output in outputs], figures)


def _average(micro_figures: list[Figures]) -> Figures:
    """Combine the figures of micro-batches of equal size."""
    if len(micro_figures) == 1:
        return micro_figures[0]
    stacked = {
        name: torch.stack([figures[name] for figures in micro_figures]) for name in micro_figures[0]
    }
    result = {name: values.mean() for name, values in stacked.items()}
    result["norm_min"] = stacked["norm_min"].min()
    # The spread inside the micro-batches and that between them.
    result["norm_variance"] += stacked["norm_mean"].var(correction=0)
    return result
