"""The service around a model that computes at once, over real HTTP."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from facerec.embedding.recognizer import FaceRecognizer
from tests.helpers.toy_service import Patches, connect

EXAMPLES = Path(__file__).parents[2] / "examples"
EXTRA = ("httpx", "fastapi", "uvicorn", "prometheus_client", "python_multipart")


@pytest.fixture(scope="session", autouse=True)
def load() -> Iterator[Any]:
    """The module of ``examples/`` that loads a service."""
    for extra in EXTRA:
        pytest.importorskip(extra)
    sys.path.insert(0, str(EXAMPLES))
    import load_service

    yield load_service
    sys.path.remove(str(EXAMPLES))


@pytest.fixture
def model() -> Patches:
    return Patches()


@pytest.fixture
def serve(load: Any, model: Patches) -> Any:
    """Give a function that serves the model while a block runs, and gives a client."""

    @contextlib.contextmanager
    def served(gallery: Any = None, access: Any = None, **options: Any) -> Iterator[Any]:
        from facerec.service.app import Service
        from facerec.service.limits import ANYBODY, Bounds

        choice = {name: options.pop(name) for name in ("threshold", "fpr") if name in options}
        recognizer = FaceRecognizer(model, flip=False)
        recognizer.detector = None
        service = Service(recognizer, Bounds(**options), gallery, **choice)
        with load.running(service, access or ANYBODY) as url, connect(url) as client:
            client.service = service
            yield client

    return served


@pytest.fixture
def client(serve: Any) -> Iterator[Any]:
    small = {"max_images": 4, "max_body_bytes": 200_000, "max_pixels": 90_000, "timeout_s": 10}
    with serve(**small) as client:
        yield client
