"""Generated pictures and a toy model for the tests of verification."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import cv2
import numpy as np

from facerec.records.packs import write_pack
from facerec.verification.bench import Pairs, contiguous_folds
from helpers.toy_model import ToyModel, tile_means


def jpeg(generator: np.random.Generator, person: np.ndarray, noise: float = 0.2) -> bytes:
    """Draw one picture of a person, who is an 8×8×3 pattern."""
    pattern = np.clip(person + noise * generator.normal(size=person.shape), 0, 1)
    pixels = cv2.resize((255 * pattern).astype(np.uint8), (112, 112))
    return cv2.imencode(".jpg", pixels)[1].tobytes()


def make_pack(path: Path, folds: int = 10, per_fold: int = 4, seed: int = 0) -> Path:
    """Write a pack in LFW's order: in each fold same pairs, then different ones."""
    generator = np.random.default_rng(seed)
    images, issame = [], []
    for _ in range(folds):
        for same in [True] * per_fold + [False] * per_fold:
            first, second = generator.random((2, 8, 8, 3))
            images += [jpeg(generator, first), jpeg(generator, first if same else second)]
            issame.append(same)
    write_pack(path, images, issame)
    return path


def toy_pairs(issame: np.ndarray, subjects: np.ndarray | None = None) -> Pairs:
    """Pair i is the items 2i and 2i + 1, in ten folds; persons are unknown unless given."""
    first = 2 * np.arange(len(issame))
    return Pairs(first, first + 1, issame, subjects, contiguous_folds(len(issame)))


class PixelModel(ToyModel):
    """Embeds a picture as its centred 7×7 thumbnail."""

    name = "pixels"

    def __init__(self) -> None:
        super().__init__(lambda images: 127.5 * tile_means(images))

    def describe(self) -> dict[str, Any]:
        return {"name": self.name}
