"""Small pictures that differ, and folders of files."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import cv2
import numpy as np


def picture(seed: int, height: int = 112, width: int = 112, suffix: str = ".jpg") -> bytes:
    coarse = np.random.default_rng(seed).integers(0, 256, (7, 7, 3), dtype=np.uint8)
    image = cv2.resize(coarse, (width, height), interpolation=cv2.INTER_CUBIC)
    return cv2.imencode(suffix, image)[1].tobytes()


def write_files(root: Path, files: Mapping[str, bytes]) -> Path:
    for name, data in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(data)
    return root
