"""What the comparisons share: arms with penalties on the norms, and a protocol for drawn faces."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from facerec.comparison import Arm, Batch, FaceTransform, Protocol, Trunk
from facerec.heads import SEC
from facerec.records import Augmentation
from facerec.records.synthetic import SyntheticSet
from facerec.training import Adam

faces = SyntheticSet(subjects=160, images_per_subject=12, pairs_per_fold=4)

small = Protocol(
    trunk=Trunk(name="small_cnn", embedding_size=64, image_size=28),
    transform=FaceTransform(size=28, shrink=4, augmentation=Augmentation(flip=0.5)),
    optimizer=Adam(lr=1e-3),
    batch=Batch(classes=8, per_class=4),
    steps_per_epoch=20,
    epochs=8,
    patience=3,
)
"""Three convolutions on faces of 28 pixels: seconds a training."""


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


def sec_at(*weights: float) -> list[tuple[str, SEC]]:
    """Return SEC at fixed weights, as penalties of `with_penalties`."""
    return [(f"SEC{weight:g}", SEC(weight=weight)) for weight in weights]
