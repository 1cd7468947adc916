"""A GPU that is not there: fake CUDA tensors, with autograd, on a build of torch for the CPU.

`FakeTensorMode` gives tensors that have a shape, a type, an order in memory and a device, but no
numbers; every operation on them is looked at and none is done. For whole steps of training on a
build without CUDA some things are missing, which `pretend_cuda` adds while it lasts:

* a guard of the CUDA device, without which C++ refuses to index such tensors and to record
  operations for autograd. torch has one that does nothing, for builds with CUDA on a machine
  without a GPU; `_install_guard` makes it stand in here too. It stays for good, and has to come
  before the first backward pass of a process, so all of this happens in a process of its own, see
  `in_another_process`;
* streams, in the engine of autograd: while it runs, C++ hears that the tensors are on ``meta``;
* for Python: streams, events and generators, which only note what is asked of them, page-locked
  memory, and the number 1 for whoever reads from a tensor on the host.
"""

from __future__ import annotations

import contextlib
import copy
import ctypes
import multiprocessing
import os
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_map_only

from facerec.backbones import recompute
from facerec.training import ema

CUDA = torch.device("cuda", 0)
META = torch.device("meta")

aten = torch.ops.aten

_CUDA_PLACE = 1  # c10::DeviceType::CUDA

_pools: dict[int, ProcessPoolExecutor] = {}


def in_another_process(function: Callable[..., Any], *arguments: Any) -> Any:
    """Call a function in a process that lasts as long as this one and runs nothing else.

    A build for CUDA asks the driver whether a device has a context before it goes backward.
    """
    if torch.version.cuda is not None and not torch.cuda.is_available():
        pytest.skip("this torch is built for CUDA and finds no device; the CPU's build needs none")
    pool = _pools.get(os.getpid())
    if pool is None:
        context = multiprocessing.get_context("forkserver")
        pool = _pools[os.getpid()] = ProcessPoolExecutor(1, context)
    return pool.submit(function, *arguments).result(timeout=240)


@contextlib.contextmanager
def pretend_cuda() -> Iterator[None]:
    """Make all tensors fake, and ``cuda:0`` a device that they can be on.

    Modules can be copied by `facerec.training.ema`, and computed again in backward by
    `facerec.backbones.recompute`.
    """
    _install_guard()
    devices, mode = _Devices(), FakeTensorMode()
    replaced: list[tuple[Any, str, Any]] = [
        (torch.autograd, "_engine_run_backward", devices.run_engine),
        (FakeTensor, "is_cuda", property(lambda self: self.device.type == "cuda")),
        (FakeTensor, "record_stream", _record_stream),
        (FakeTensor, "tolist", lambda self: [self[i].item() for i in range(len(self))]),
        (FakeTensor, "numpy", _numpy),
        (torch, "from_numpy", lambda a: torch.zeros(a.shape, dtype=getattr(torch, a.dtype.name))),
        (nn.Module, "to", _to),
        (torch, "Generator", lambda device="cpu": torch._C.Generator("cpu")),
        (torch.cuda, "Stream", Stream),
        (torch.cuda, "Event", Event),
        (torch.cuda, "stream", _stream),
        (torch.cuda, "current_stream", lambda device=None: Stream.current),
        (torch.cuda.amp.common, "amp_definitely_not_available", lambda: False),
        (torch.cuda, "is_bf16_supported", lambda *_, **__: True),
        (torch.cuda, "is_current_stream_capturing", lambda: False),
        (torch.cuda, "get_device_capability", lambda *_: (9, 0)),
        (torch.cuda, "get_rng_state", lambda *_: torch.zeros(16, dtype=torch.uint8)),
        (torch.cuda, "set_rng_state", lambda *_: None),
        (torch.cuda, "_lazy_init", lambda: None),
        (ema, "copy", SimpleNamespace(deepcopy=lambda m: copy.deepcopy(m, {id(mode): mode}))),
        (recompute, "_uncounted", devices.told_the_truth(recompute._uncounted)),
    ]
    with contextlib.ExitStack() as stack:
        for owner, name, value in replaced:
            stack.enter_context(mock.patch.object(owner, name, value, create=True))
        stack.enter_context(mode)
        stack.enter_context(devices)
        yield


def is_channels_last(tensor: Tensor) -> bool:
    """Tell whether images lie in memory pixel by pixel, all channels of one after another."""
    return tensor.is_contiguous(memory_format=torch.channels_last)


# ---------------------------------------------------------------- streams


class Stream:
    """Counts what is put into it, and knows what of others it has waited for."""

    current: Stream

    def __init__(self, device: Any = None) -> None:
        self.count = 0
        self.seen: dict[Stream, int] = {}

    def wait_stream(self, other: Stream) -> None:
        self.seen[other] = other.count

    def has_seen(self, work: tuple[Stream, int]) -> bool:
        """Tell whether a piece of work, as ``put`` returns it, ends before what comes next."""
        return work[0] is self or self.seen.get(work[0], 0) >= work[1]

    def put(self) -> tuple[Stream, int]:
        """Take a piece of work."""
        self.count += 1
        return self, self.count


Stream.current = Stream()


@contextlib.contextmanager
def _stream(stream: Stream) -> Iterator[None]:
    before, Stream.current = Stream.current, stream
    try:
        yield
    finally:
        Stream.current = before


class Event:
    """What a stream held when it was recorded.

    Attributes:
        waited: what the host has waited for, of each stream.
        idle: how often it did so with no copy behind that in the stream, as at an end.
    """

    waited: dict[Stream, int]
    idle: int

    def __init__(self, **_: Any) -> None:
        self.work: tuple[Stream, int] | None = None

    def record(self) -> None:
        self.work = (Stream.current, Stream.current.count)

    def synchronize(self) -> None:
        assert self.work is not None
        stream, count = self.work
        Event.waited[stream] = max(Event.waited.get(stream, 0), count)
        Event.idle += stream.count == count


Event.waited, Event.idle = {}, 0


def _numpy(tensor: Tensor) -> Any:
    return np.ones(tensor.clone().shape, str(tensor.dtype).removeprefix("torch."))


def _record_stream(tensor: Tensor, stream: Stream) -> None:
    tensor.recorded = stream  # type: ignore[attr-defined]


# ---------------------------------------------------------------- devices


class _Devices(TorchDispatchMode):
    """Tells C++ where a tensor is: on ``meta`` where the engine of autograd asks, else the truth.

    Where C++ makes a tensor that is to be like one of those, it asks for ``meta``, too.
    """

    def __init__(self) -> None:
        super().__init__()
        self._engine = torch.autograd._engine_run_backward  # type: ignore[attr-defined]
        self._evasive = [False]

    def run_engine(self, *args: Any, **options: Any) -> Any:
        with self._answers(evasive=True):
            return self._engine(*args, **options)

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        options, packet = kwargs or {}, func.overloadpacket
        if packet is torch.ops.prim.device:
            return META if self._evasive[-1] else args[0].fake_device
        if packet is aten._local_scalar_dense and args[0].device.type == "cpu":
            return 1.0 if args[0].is_floating_point() else 1
        if packet is aten.is_pinned:
            return getattr(args[0], "pinned", False)
        if packet is aten._pin_memory:
            return _pinned(aten.clone(args[0]))
        if packet is aten._fused_sgd_:
            return None  # in place, and has no form for tensors without numbers
        if options.get("device") == META:
            like = [x for x in tree_flatten((args, options))[0] if isinstance(x, Tensor)]
            options = {**options, "device": like[0].device if like else CUDA}
        with self._answers(evasive=False):
            result = func(*args, **options)
            if _keeps_order(packet, args):
                # As on a GPU; where that is not there, torch takes another order for granted.
                result = tree_map_only(Tensor, _channels_last, result)
        return _pinned(result) if options.get("pin_memory") else result

    def told_the_truth(self, context: Callable[..., Any]) -> Callable[..., Any]:
        """Make a context in which Python, called by the engine, computes as in forward."""

        @contextlib.contextmanager
        def both(*args: Any) -> Iterator[None]:
            with context(*args), self._answers(evasive=False):
                yield

        return both

    @contextlib.contextmanager
    def _answers(self, *, evasive: bool) -> Iterator[None]:
        self._evasive.append(evasive)
        try:
            yield
        finally:
            self._evasive.pop()


def _keeps_order(packet: Any, args: Any) -> bool:
    if packet in (aten.convolution, aten.convolution_backward):
        return all(map(is_channels_last, args[:2]))
    if packet in (aten.native_batch_norm_backward, aten.cudnn_batch_norm_backward):
        return args[1].ndim == 4 and is_channels_last(args[1])
    return False


def _channels_last(tensor: Tensor) -> Tensor:
    return tensor.contiguous(memory_format=torch.channels_last) if tensor.ndim == 4 else tensor


def _pinned(tensor: Tensor) -> Tensor:
    tensor.pinned = True  # type: ignore[attr-defined]
    return tensor


def _to(module: nn.Module, *args: Any, **options: Any) -> nn.Module:
    """Do what ``nn.Module.to`` does; that one wants to swap tensors, which fake ones refuse."""
    device, dtype, _, memory_format = torch._C._nn._parse_to(*args, **options)
    for part in module.modules():
        for tensors in (part._parameters, part._buffers):
            for name, tensor in tensors.items():
                if tensor is None:
                    continue
                kind = dtype if tensor.is_floating_point() else None
                form = memory_format if tensor.ndim == 4 else None
                moved = tensor.detach().to(
                    device=device, dtype=kind, memory_format=form or torch.preserve_format
                )
                if isinstance(tensor, nn.Parameter):
                    moved = nn.Parameter(moved, tensor.requires_grad)
                tensors[name] = moved
    return module


def _install_guard() -> None:
    """Let torch's guard that does nothing stand for the CUDA device, where there is none.

    torch replaces a guard that counts no devices by that one (``_ensureCUDADeviceGuardSet``). A
    build without CUDA has no guard at all, so it gets one whose every method returns 0 first.
    """
    if torch.version.cuda is not None:
        return
    name = "libc10.dylib" if sys.platform == "darwin" else "libc10.so"
    library = ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / name))
    guards = (ctypes.c_void_p * (_CUDA_PLACE + 1)).in_dll(
        library, "_ZN3c104impl26device_guard_impl_registryE"
    )
    if guards[_CUDA_PLACE]:
        return
    zero = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p)(lambda self: 0)
    methods = (ctypes.c_void_p * 64)(*[ctypes.cast(zero, ctypes.c_void_p).value] * 64)
    counts_nothing = (ctypes.c_void_p * 1)(ctypes.addressof(methods))
    guards[_CUDA_PLACE] = ctypes.addressof(counts_nothing)
    torch._C._ensureCUDADeviceGuardSet()
    assert guards[_CUDA_PLACE] != ctypes.addressof(counts_nothing)
