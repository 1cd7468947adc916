"""What makes the host wait for the device, found without a GPU."""

from __future__ import annotations

from collections import Counter
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten

from helpers.pretend_cuda import Event, Stream, is_channels_last

aten = torch.ops.aten

_COPIES = (aten._to_copy, aten.copy_, aten._foreach_copy_, aten.copy)
_INDEXING = (aten.index, aten.index_put, aten.index_put_, aten._index_put_impl_)
# Results of a size, or numbers, that only the device knows. Other such operations have a tag.
_READING = (aten._local_scalar_dense, aten._coalesce, aten.bincount, aten.repeat_interleave)
_TAGS = (torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape)


class HostWaitError(AssertionError):
    """The host would wait until the device has done all that was asked, or read too early."""


class Watch(TorchDispatchMode):
    """Looks at every operation on the tensors of `pretend_cuda`, and stops at those that wait.

    It also stops at tensors that are used before the copy that fills them has ended: on the host
    without having waited for an event behind it, on the device in a stream that did not wait, or
    that the memory's owner does not know of.

    Attributes:
        products: how often there was a product of which kind, with the types of what goes in.
        disordered: convolutions of which something that goes in is not channels-last.
        collectives: the devices of the tensors that were handed to each collective, by its name.
    """

    def __init__(self) -> None:
        super().__init__()
        self.products: Counter[tuple[str, ...]] = Counter()
        self.disordered: list[str] = []
        self.collectives: dict[str, set[str]] = {}

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        options, packet = kwargs or {}, func.overloadpacket
        if packet is torch.ops.prim.device:
            return func(*args)
        tensors = [x for x in tree_flatten((args, options))[0] if isinstance(x, Tensor)]
        self._refuse_waits(func, packet, args, options, tensors)
        self._refuse_early_use(func, packet, tensors)
        self._note(func, packet, tensors)
        result = func(*args, **options)
        if packet in (aten._to_copy, aten.copy_) and _crosses(result, tensors[-1]):
            result.copied = Stream.current.put()
        return result

    def _refuse_waits(
        self, func: Any, packet: Any, args: Any, options: dict[str, Any], tensors: list[Tensor]
    ) -> None:
        if not any(map(_on_gpu, tensors)) and not _is_gpu(options.get("device")):
            return
        if packet is aten._to_copy:
            source, target = tensors[0], options.get("device") or tensors[0].device
            # A copy to the host that does not block gets page-locked memory by itself.
            locked = not _is_gpu(target) or _is_pinned(source)
            if _is_gpu(target) != _on_gpu(source) and not (options.get("non_blocking") and locked):
                raise HostWaitError(f"{func} between the host's memory and the device waits")
        elif packet in _COPIES:
            half = len(tensors) // 2
            for target, source in zip(tensors[:half], tensors[half:], strict=True):
                locked = _is_pinned(source) or _is_pinned(target)
                if _crosses(target, source) and not (True in args[2:] and locked):
                    raise HostWaitError(f"{func} between the host's memory and the device waits")
        elif packet in _INDEXING:
            for index in tensors[1:]:
                if index.dtype in (torch.bool, torch.uint8) and index.ndim:
                    raise HostWaitError(f"{func} with a mask waits for its count")
                if index.ndim and not _on_gpu(index):
                    raise HostWaitError(f"{func} copies an index from the host")
        elif packet in _READING or any(tag in func.tags for tag in _TAGS):
            raise HostWaitError(f"{func} waits for a number from the device")

    def _refuse_early_use(self, func: Any, packet: Any, tensors: list[Tensor]) -> None:
        for tensor in tensors:
            work = getattr(tensor, "copied", None)
            if work is None:
                continue
            if not _on_gpu(tensor) and Event.waited.get(work[0], 0) < work[1]:
                raise HostWaitError(f"{func} on the host reads what is still being copied")
            if _on_gpu(tensor) and not Stream.current.has_seen(work):
                raise HostWaitError(f"{func} uses what another stream is still copying")
            if _on_gpu(tensor) and Stream.current not in (work[0], getattr(tensor, "recorded", 0)):
                raise HostWaitError(f"{func} uses memory that its own stream may give away")

    def _note(self, func: Any, packet: Any, tensors: list[Tensor]) -> None:
        name = packet.__name__
        if func.namespace == "c10d":
            self.collectives.setdefault(name, set()).update(t.device.type for t in tensors)
        elif packet in (aten.convolution, aten.convolution_backward):
            self.products[(name, *_types(tensors))] += 1
            for tensor in tensors:
                if tensor.ndim == 4 and not is_channels_last(tensor):
                    self.disordered.append(f"{name} {tuple(tensor.shape)} {tensor.stride()}")
        elif packet in (aten.mm, aten.addmm, aten.bmm, aten.addmm_, aten.baddbmm):
            self.products[(name, *_types(tensors))] += 1


def _types(tensors: list[Tensor]) -> list[str]:
    return [str(tensor.dtype).removeprefix("torch.") for tensor in tensors]


def _is_gpu(device: Any) -> bool:
    return device is not None and torch.device(device).type == "cuda"


def _on_gpu(tensor: Tensor) -> bool:
    return tensor.device.type == "cuda"


def _crosses(target: Tensor, source: Tensor) -> bool:
    """Tell whether a copy goes to or from the device; a single number goes with the launch."""
    if _on_gpu(target) and source.ndim == 0 and not _on_gpu(source):
        return False
    return _on_gpu(target) != _on_gpu(source)


def _is_pinned(tensor: Tensor) -> bool:
    return getattr(tensor, "pinned", False)
