"""What a training step moves through memory beside its convolutions, counted without a card."""

from __future__ import annotations

import contextlib
import types
from collections import Counter
from collections.abc import Iterator
from typing import Any
from unittest import mock

import torch
from measures_tile import no_card
from rows import Row

from facerec.backbones import Preprocessing, create_backbone
from facerec.training.network import FromPixels

_READS = {"moments": 1, "activate": 1, "parameter_sums": 2, "propagate": 2}
"""Activations that a kernel of Triton reads at least."""


class _Done(Exception):
    """All is compiled, and nothing of it is to run."""


def _passed(name: str, images: int, kernels: bool, compiled: bool) -> None:
    """Go forward and backward in training, in bfloat16."""
    backbone: Any = create_backbone(name, seed=0).to(memory_format=torch.channels_last).train()  # type: ignore[call-overload]
    backbone.kernels = "triton" if kernels else "torch"
    network: Any = FromPixels(backbone, Preprocessing())
    pixels = torch.zeros(images, 112, 112, 3, dtype=torch.uint8)
    with torch.autocast("cpu", torch.bfloat16):
        embeddings = (torch.compile(network) if compiled else network)(pixels)
    embeddings.sum().backward()


def _by_kernels(name: str, images: int) -> float:
    """Return the bytes that facerec's kernels read and write."""
    from facerec.backbones import triton_batch_norm

    total = 0

    class Counting:
        def __getattr__(self, kernel: str) -> Any:
            def launch(_: Any, x: torch.Tensor, *rest: Any, **constants: Any) -> None:
                nonlocal total
                more = sum(constants.get(c, False) for c in ("RESIDUAL", "BESIDE"))
                writes = kernel in ("activate", "propagate")
                total += x.nbytes * (_READS.get(kernel, 0) + more + writes)

            return launch

    with mock.patch.object(triton_batch_norm, "kernels", Counting()):
        _passed(name, images, kernels=True, compiled=False)
    return total


def _by_inductor(name: str, images: int) -> float:
    """Return the bytes that the kernels of torch.compile read and write beside convolutions."""
    import triton
    from torch._inductor import config
    from torch._inductor.graph import GraphLowering
    from torch._inductor.scheduler import ExternKernelSchedulerNode, NopKernelSchedulerNode

    total = 0
    library = (ExternKernelSchedulerNode, NopKernelSchedulerNode)

    def schedule(graph: Any, *_: Any) -> Any:
        nonlocal total
        nodes = [n for n in graph.scheduler.nodes if not isinstance(n, library)]
        total += sum(node.get_read_write_buffers_sizes() for node in nodes)

        def call(*_: Any) -> list[torch.Tensor]:
            if graph.is_backward:
                raise _Done
            return [
                torch.empty_strided(
                    tuple(map(int, out.get_size())),
                    tuple(map(int, out.get_stride())),
                    dtype=out.get_dtype(),
                )
                for out in graph.graph_outputs
            ]

        return types.SimpleNamespace(call=call, __file__="", key="", runner=None)

    torch._dynamo.reset()
    triton.runtime.driver.set_active(no_card(Counter()))
    with (
        config.patch(force_disable_caches=True, cpu_backend="triton"),
        mock.patch.object(GraphLowering, "_compile_to_module_lines", schedule),
        contextlib.suppress(_Done),
    ):
        _passed(name, images, kernels=False, compiled=True)
    return total


def step_traffic() -> Iterator[Row]:
    """Count what batch norms, PReLU and additions move in a step in bf16, by image.

    Both are counted of what would be launched on an H100: the tensors that each kernel reads and
    writes. What does not depend on the batch, as casts of weights, is not in it. Nothing runs.
    """
    for name in ("iresnet18", "iresnet50", "iresnet100"):
        found = [
            (count(name, 4) - count(name, 2)) / 2 / 1e6 for count in (_by_inductor, _by_kernels)
        ]
        what = f"{name}: bytes beside convolutions"
        yield Row(f"{what}, torch.compile", found[0], "MB")
        yield Row(f"{what}, kernels of Triton", found[1], "MB")
        yield Row(f"{what}, kernels over torch.compile", found[1] / found[0], "×", 1.0)
