"""Fixtures for all tests."""

from __future__ import annotations

import multiprocessing
import os
import sys
from pathlib import Path

import pytest
import torch

# Before all libraries, which it keeps from reporting to their makers.
import facerec  # noqa: F401

sys.path.append(str(Path(__file__).parent / "network" / "guard"))

from network_guard import forbid

REPOSITORY = Path(__file__).resolve().parent.parent

# No test reaches outside this machine.
forbid(None)

# Processes that tests start are forked from one that has imported these: importing is what takes
# time. It starts with the first of them.
multiprocessing.set_forkserver_preload(
    ["facerec.commands.train", "torch._dynamo", "torch.distributed.launcher.api"]
)


@pytest.fixture(scope="session", autouse=True)
def _few_threads() -> None:
    # Tests run side by side; one thread each keeps them from fighting over the cores.
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """Real faces and conformance files, which live beside the repository and never inside it."""
    folder = Path(os.environ.get("FACEREC_TEST_DATA", REPOSITORY.parent / "shared" / "data"))
    if not folder.is_dir():
        pytest.skip(f"research data not found at {folder} (set FACEREC_TEST_DATA)")
    return folder
