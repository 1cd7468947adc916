"""Where to compute: one rule for training, verification and everything else."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from facerec.base.errors import DeviceError, message_line


def choose_device(name: str | torch.device, local_rank: int = 0) -> torch.device:
    """Resolve ``auto`` to CUDA, then MPS, then CPU; check that a named device works.

    Args:
        name: ``auto``, ``cpu``, ``cuda``, ``cuda:1``, ``mps`` or a device.
        local_rank: the GPU that a bare ``cuda`` means.

    Raises:
        DeviceError: the device asked for is not there; nothing falls back in silence.
    """
    if name == "auto":
        mps = torch.backends.mps.is_available()
        name = "cuda" if torch.cuda.is_available() else "mps" if mps else "cpu"
    try:
        device = torch.device(name)
        if device.type == "cuda" and device.index is None:
            device = torch.device("cuda", local_rank)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError, ImportError, NotImplementedError) as error:
        # Of a device that was left out of the build torch goes on to list all others.
        cause = message_line(error).split(". ")[0]
        raise DeviceError(
            f"device {str(name)!r} cannot be used here ({cause}); choose another, for example cpu"
        ) from error
    return device


def has_fast_bf16(device: torch.device) -> bool:
    """Tell whether a device computes in bfloat16 by itself; others emulate it, far more slowly."""
    if device.type == "cuda":
        return torch.cuda.is_bf16_supported(including_emulation=False)
    if device.type == "cpu":
        if not hasattr(torch.cpu, "get_capabilities"):  # torch 2.10, which asks for x86 alone
            return torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()
        able = torch.cpu.get_capabilities()
        # The last one is ARM's.
        return any(able.get(name, False) for name in ("avx512_bf16", "amx_bf16", "bf16"))
    return False


def set_numerics(device: torch.device, deterministic: bool = False, tf32: bool = False) -> None:
    """Fix what cuDNN and cuBLAS may choose by themselves, for the rest of the process.

    Float32 is float32 unless asked otherwise: TF32, which keeps ten bits of the mantissa and is
    cuDNN's default, is off. Nothing is changed for other devices than CUDA.

    Args:
        device: where to compute.
        deterministic: take only algorithms that give the same bits every time, in place of the
            fastest ones, which cuDNN finds by trial.
        tf32: round what goes into float32 products and convolutions to TF32.
    """
    if device.type != "cuda":
        return
    torch.backends.cudnn.allow_tf32 = tf32
    torch.backends.cuda.matmul.allow_tf32 = tf32
    torch.backends.cudnn.benchmark = not deterministic
    torch.backends.cudnn.deterministic = deterministic


class HostCopy:
    """A copy of a tensor for the host, which nobody waits for until it is read.

    From a GPU it goes to page-locked memory, and an event behind it tells its end; whoever reads it
    later waits for the work up to there, not for what was queued since.

    Args:
        tensor: on any device; on a CPU it is kept as it is, not copied.

    Attributes:
        here: whether reading waits for nothing.
    """

    def __init__(self, tensor: Tensor) -> None:
        self.here = not tensor.is_cuda
        # From a GPU it takes page-locked memory by itself.
        self._host = tensor.detach().to("cpu", non_blocking=tensor.is_cuda)
        self._copied = None if self.here else torch.cuda.current_stream().record_event()

    def read(self) -> Tensor:
        """Return the tensor on the host, waiting for it if need be."""
        if self._copied is not None:
            self._copied.synchronize()
        return self._host


@contextmanager
def true_float32() -> Iterator[None]:
    """Compute float32 in float32 while the block runs, on every device.

    By default torch rounds what goes into a convolution to 10 bits (TF32) on GPUs since Ampere,
    and a caller may have allowed the same, or bfloat16, for everything.
    """
    backends: Any = torch.backends
    cuda, cudnn, onednn = backends.cuda, backends.cudnn, backends.mkldnn
    operations = (cuda.matmul, cudnn.conv, cudnn.rnn, onednn.matmul, onednn.conv, onednn.rnn)
    precisions = [operation.fp32_precision for operation in operations]
    try:
        older = torch.get_float32_matmul_precision(), cudnn.allow_tf32
    except RuntimeError:  # the caller uses the newer interface, to which this one has no answer
        older = None
    torch.set_float32_matmul_precision("highest")
    cudnn.allow_tf32 = False
    for operation in operations:
        operation.fp32_precision = "ieee"
    try:
        yield
    finally:
        if older is not None:
            torch.set_float32_matmul_precision(older[0])
            cudnn.allow_tf32 = older[1]
        for operation, precision in zip(operations, precisions, strict=True):
            operation.fp32_precision = precision


@contextmanager
def exact_products() -> Iterator[int]:
    """Make matrix products single-threaded and truly float32; give the threads that torch had.

    One thread a product keeps the sums in one order, and threads on tiles of their own need not
    wait for each other.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with true_float32():
            yield threads
    finally:
        torch.set_num_threads(threads)
