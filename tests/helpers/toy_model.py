"""Models whose embeddings a test writes down as a formula."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from facerec.backbones import Preprocessing
from facerec.embedding import EmbeddingModel

Formula = Callable[[np.ndarray], np.ndarray]
"""uint8 RGB ``(N, H, W, 3)`` → embeddings ``(N, D)``."""


class ToyModel(EmbeddingModel):
    """Embeds by a formula."""

    name, sha256 = "toy", "a" * 64
    runtime, device, precision = "numpy", "cpu", "fp64"
    batch_size, recipe = 32, {}
    preprocessing = Preprocessing()

    def __init__(self, formula: Formula, side: int = 112) -> None:
        self.formula, self.image_size = formula, (side, side)
        self.embedding_size = formula(np.zeros((1, side, side, 3), np.uint8)).shape[1]

    def _begin(self, pixels: np.ndarray) -> Callable[[], np.ndarray]:
        return lambda: self.formula(pixels).astype(np.float32)


def tile_means(pixels: np.ndarray, tiles: int = 7) -> np.ndarray:
    """Return the means of square tiles, from −1 to 1, ``(N, 3 · tiles²)``."""
    count, side = len(pixels), pixels.shape[1] // tiles
    x = pixels[:, : side * tiles, : side * tiles].reshape(count, tiles, side, tiles, side, 3)
    return x.mean(axis=(2, 4)).reshape(count, -1) / 127.5 - 1
