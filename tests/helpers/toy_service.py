"""A model that computes at once, and what tests of the service send and read."""

from __future__ import annotations

import base64
import threading
import time
from collections.abc import Callable
from typing import Any

import cv2
import numpy as np

from facerec.backbones import Preprocessing
from facerec.embedding import EmbeddingModel
from tests.helpers.calibrations import model_calibration, point

LFW = point(0.5)


class Patches(EmbeddingModel):
    """Averages patches of 28×28 and multiplies by a random matrix: fast, and unlike per image."""

    name, path, sha256 = "patches", None, "0" * 64
    runtime, device, precision = "numpy", "cpu", "fp64"
    embedding_size, batch_size, recipe = 32, 32, {}
    preprocessing = Preprocessing()

    def __init__(self) -> None:
        self.matrix = np.random.default_rng(0).normal(size=(48, 32))
        self.calibration = model_calibration(LFW)
        self.before: Callable[[], None] = lambda: None

    def _begin(self, pixels: np.ndarray) -> Callable[[], np.ndarray]:
        self.before()
        x = pixels.astype(np.float64).reshape(len(pixels), 4, 28, 4, 28, 3)
        return lambda: (x.mean(axis=(2, 4)).reshape(len(pixels), 48) / 128 - 1) @ self.matrix


class Gate:
    """Holds a model before its next batch."""

    def __init__(self, model: Patches) -> None:
        self.entered, self.open = threading.Event(), threading.Event()
        model.before = self._pass

    def _pass(self) -> None:
        self.entered.set()
        assert self.open.wait(20)


def connect(url: str) -> Any:
    import httpx

    # Without certificates to load, which would take longer than all else here.
    return httpx.Client(base_url=url, timeout=30, verify=False)


def faces(count: int, seed: int = 0, size: tuple[int, int] = (112, 112)) -> np.ndarray:
    """Return images with large shapes, so that JPEG changes them little."""
    coarse = np.random.default_rng(seed).integers(0, 256, (count, 8, 8, 3), dtype=np.uint8)
    return np.stack([cv2.resize(image, size[::-1]) for image in coarse])


def form(
    *images: bytes, field: str = "images", subject: str | bytes | None = None
) -> list[tuple[str, tuple[str | None, bytes]]]:
    fields: list[tuple[str, tuple[str | None, bytes]]]
    fields = [(field, ("someone.png", image)) for image in images]
    if subject is not None:
        text = subject if isinstance(subject, bytes) else subject.encode()
        fields.append(("subject", (None, text)))
    return fields


def as_json(fields: list[tuple[str, tuple[str | None, bytes]]]) -> dict[str, list[str]]:
    """Return what `form` made as JSON has it."""
    body: dict[str, list[str]] = {}
    for name, (_, content) in fields:
        image = name.startswith("image")
        text = base64.b64encode(content) if image else content
        body.setdefault(name, []).append(text.decode())
    return body


def counts(client: Any) -> dict[str, float]:
    """Return the metrics by name with labels."""
    lines = client.get("/metrics").text.splitlines()
    pairs = (line.rsplit(" ", 1) for line in lines if not line.startswith("#"))
    return {name: float(value) for name, value in pairs}


def requests(client: Any, path: str, status: int) -> float:
    """Return how many requests of a path had a status."""
    labels = f'{{endpoint="{path}",status="{status}"}}'
    return counts(client)[f"facerec_request_seconds_count{labels}"]


def wait_for(happened: Callable[[], bool]) -> None:
    end = time.monotonic() + 15
    while not happened():
        assert time.monotonic() < end
        time.sleep(0.005)
