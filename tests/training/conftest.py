from __future__ import annotations

from pathlib import Path

import pytest
from helpers.tiny_training import write_training_set


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Records of 7 people with 8 images each."""
    return write_training_set(tmp_path_factory.mktemp("records"))


@pytest.fixture(scope="session")
def many(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """More people than a batch has images, so that a draw leaves some out."""
    return write_training_set(tmp_path_factory.mktemp("many"), people=45, images=2)
