"""A comparison of seconds: 16 classes of 8×8 patterns and a network of a few layers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import cv2
import numpy as np

from facerec.comparison import (
    Arm,
    ClassBatch,
    Comparison,
    FaceTransform,
    ImageData,
    MarginHead,
    Protocol,
    Range,
    Trunk,
)
from facerec.heads import SEC, CosFace
from facerec.training import Adam

CLASSES, IMAGES, SIDE = 16, 6, 8


def write_images(root: Path) -> Path:
    """Write a folder of class/image.png; images of a class are its pattern with noise."""
    for label in range(CLASSES):
        pattern = np.random.default_rng(label).integers(0, 256, (SIDE, SIDE, 3))
        for i in range(IMAGES):
            noise = np.random.default_rng([label, i]).normal(0, 60, pattern.shape)
            image = np.clip(pattern + noise, 0, 255).astype(np.uint8)
            path = root / f"class{label:02d}" / f"{i}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            cv2.imwrite(str(path), image)
    return root


def protocol(**changes: Any) -> Protocol:
    settings: dict[str, Any] = {
        "trunk": Trunk(name="small_cnn", embedding_size=8, width=0.5),
        "transform": FaceTransform(size=SIDE),
        "optimizer": Adam(lr=3e-3),
        "batch": ClassBatch(4, 2),
        "steps_per_epoch": 4,
        "epochs": 3,
        "patience": 2,
    }
    return Protocol(**{**settings, **changes})


MARGIN = Range("loss.margin.margin", 0.0, 0.6)
WEIGHT = Range("regularizer.weight", 0.0, 10.0, "log_with_zero")
HEAD = MarginHead(CosFace(scale=16.0, margin=0.2))
BASE = Arm("CosFace", HEAD, search=(MARGIN,))
WITH_SEC = Arm("CosFace+SEC", HEAD, SEC(weight=0.1), against="CosFace", search=(MARGIN, WEIGHT))


def comparison(data: Path, **changes: Any) -> Comparison:
    settings: dict[str, Any] = {
        "name": "tiny",
        "question": "Does SEC help?",
        "data": ImageData(data),
        "protocol": protocol(),
        "arms": (BASE, WITH_SEC),
        "trials": 3,
        "repetitions": 2,
    }
    return Comparison(**{**settings, **changes})
