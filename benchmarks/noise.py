"""Images of noise, and a data set without any, for what does not depend on pixels."""

from __future__ import annotations

import torch

from facerec.records import FaceDataset, ImageSource
from facerec.records.dataset import Batch


class _NoImages(ImageSource):
    """What a learner asks of images before the first batch."""

    def __init__(self, num_classes: int) -> None:
        self.num_classes = num_classes

    def __len__(self) -> int:
        return 1 << 24

    def sample(self, i: int) -> tuple[bytes, int]:
        raise NotImplementedError

    where = encoded = read_labels = sample  # type: ignore[assignment]


def empty_set(num_classes: int) -> FaceDataset:
    """Return a data set of so many classes whose images cannot be read."""
    return FaceDataset(_NoImages(num_classes))


def random_batches(
    count: int, size: int, classes: int, device: torch.device | None = None, pixels: int = 112
) -> list[Batch]:
    """Return batches of random images and labels on a device."""
    generator = torch.Generator().manual_seed(0)
    shape = (size, pixels, pixels, 3)
    return [
        Batch(
            torch.randint(256, shape, dtype=torch.uint8, generator=generator).to(device),
            torch.randint(classes, (size,), generator=generator).to(device),
            torch.arange(size),
            [],
        )
        for _ in range(count)
    ]
