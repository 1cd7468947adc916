"""What the comparisons share: arms with penalties on the norms."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from facerec.comparison import Arm, Protocol, Range
from facerec.comparison.losses import Loss
from facerec.heads import SEC


def arms(*search: Range, **losses: Loss) -> list[Arm]:
    """Return an arm of each loss, by its name, of which the same is searched."""
    return [Arm(name, loss, search=search) for name, loss in losses.items()]


def with_penalties(bases: Iterable[Arm], *penalties: tuple[Any, ...]) -> tuple[Arm, ...]:
    """Return each arm, and behind it the same with each penalty.

    Args:
        bases: arms without a penalty.
        penalties: each a name, the penalty, and what is searched besides the arm's own settings.
    """
    found = []
    for base in bases:
        found.append(base)
        for name, penalty, *searched in penalties:
            found.append(
                replace(
                    base,
                    name=f"{base.name}+{name}",
                    regularizer=penalty,
                    against=base.name,
                    search=(*base.ranges, *searched),
                )
            )
    return tuple(found)


def with_layer(base: Arm, name: str, protocol: Protocol, **layer: Any) -> Arm:
    """Return an arm under another name and with another end of the protocol's trunk."""
    trunk = replace(protocol.trunk, **layer)
    return replace(base, name=name, protocol=replace(protocol, trunk=trunk))


def sec_at(*weights: float) -> list[tuple[str, SEC]]:
    """Return SEC at fixed weights, as penalties of `with_penalties`."""
    return [(f"SEC{weight:g}", SEC(weight=weight)) for weight in weights]
