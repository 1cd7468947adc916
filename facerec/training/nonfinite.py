"""Steps that are not finite: found without waiting for the device, or undone without a trace."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor, nn

from facerec.devices import HostCopy
from facerec.training.distributed import Processes

LIMIT = 10
"""Skipped steps in a row after which training ends: the next batches will not mend it."""


class LateFigures:
    """Scalars on their way from the device to the host, see `HostCopy`.

    Args:
        values: tensors of one element, on one device.
    """

    def __init__(self, *values: Tensor) -> None:
        self._copy = HostCopy(torch.stack([value.detach().float() for value in values]))

    @property
    def here(self) -> bool:
        """Whether reading them waits for nothing."""
        return self._copy.here

    def read(self) -> list[float]:
        """Return the values, waiting for their step if need be."""
        return [float(value) for value in self._copy.read().tolist()]


class NonfiniteGuard:
    """Finds steps whose loss or gradient is not finite and undoes what their forward pass did.

    Args:
        optimizer: whose gradients must be finite.
        changing: tensors that a forward pass changes (running statistics, moving averages).
        processes: this rank among its peers, which all take the same decision.
        scaled: True leaves gradients to a gradient scaler, which skips the steps of too large a
            scale and mends it; only the loss counts then.

    Attributes:
        count: steps skipped so far.
        in_a_row: how many of them have just followed one another.
    """

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        changing: Iterable[Tensor],
        processes: Processes,
        scaled: bool = False,
    ) -> None:
        self.optimizer, self.processes, self.scaled = optimizer, processes, scaled
        self.count = self.in_a_row = 0
        self._changing = [tensor.detach() for tensor in changing]
        self._kept = [tensor.clone() for tensor in self._changing]

    def remember(self) -> None:
        """Keep what the forward pass is about to change."""
        torch._foreach_copy_(self._kept, self._changing)

    def undoes(self, losses: Sequence[Tensor]) -> bool:
        """Tell whether the step is not finite on any rank; its forward pass is then undone.

        All ranks call this together, between backward pass and optimizer step; it waits for the
        device.

        Args:
            losses: scalars, of this rank's micro-batches.
        """
        finite = torch.stack(list(losses)).isfinite().all()
        if not self.scaled:
            finite = finite & self._largest_gradient().isfinite()
        if not self.processes.any(not bool(finite)):
            self.in_a_row = 0
            return False
        torch._foreach_copy_(self._changing, self._kept)
        self.count += 1
        self.in_a_row += 1
        return True

    def _largest_gradient(self) -> Tensor:
        every = [p.grad for group in self.optimizer.param_groups for p in group["params"]]
        gradients = [g._values() if g.is_sparse else g for g in every if g is not None]
        # The largest of a rank without classes would be that of nothing.
        return nn.utils.get_total_norm([g for g in gradients if g.numel()], norm_type=float("inf"))
