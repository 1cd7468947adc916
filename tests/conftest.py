"""Fixtures for all tests."""

from __future__ import annotations

import fcntl
import multiprocessing
import os
import shutil
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import helpers.examples  # noqa: F401  (its profiles)
import pytest
import torch
from helpers.gloo_pool import GlooPool
from hypothesis import settings

# Before all libraries, which it keeps from reporting to their makers.
import facerec  # noqa: F401

sys.path.append(str(Path(__file__).parent / "network" / "guard"))

from network_guard import forbid

Once = Callable[[str, Callable[[Path], None]], Path]

REPOSITORY = Path(__file__).resolve().parent.parent

# No test reaches outside this machine.
forbid(None)

# `--hypothesis-profile full` draws more.
settings.load_profile("quick")

# Processes that tests start are forked from one that has imported these: importing is what takes
# time. It starts with the first of them.
multiprocessing.set_forkserver_preload(
    ["cv2", "facerec.commands.train", "pytest", "torch._dynamo", "torch.distributed.launcher.api"]
)


def pytest_runtest_setup() -> None:
    """Draw the same weights whichever tests ran before."""
    torch.manual_seed(0)


@pytest.fixture(scope="session", autouse=True)
def _few_threads() -> None:
    # Tests run side by side; one thread each keeps them from fighting over the cores.
    torch.set_num_threads(1)


@pytest.fixture
def ctrl_c() -> Iterator[None]:
    """Let SIGINT be what it is in a terminal; shells have what runs in the background ignore it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture(scope="module")
def pool(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GlooPool]:
    """Three processes joined by gloo."""
    pool = GlooPool(3, tmp_path_factory.mktemp("gloo"))
    yield pool
    pool.close()


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """Real faces and conformance files, which live beside the repository and never inside it."""
    folder = Path(os.environ.get("FACEREC_TEST_DATA", REPOSITORY.parent / "shared" / "data"))
    if not folder.is_dir():
        pytest.skip(f"research data not found at {folder} (set FACEREC_TEST_DATA)")
    return folder


@pytest.fixture(scope="session")
def once(tmp_path_factory: pytest.TempPathFactory) -> Once:
    """Make a folder in the first worker that asks for it, for all of them to read."""
    base = tmp_path_factory.getbasetemp()
    shared = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base

    def make(name: str, build: Callable[[Path], None]) -> Path:
        folder, half = shared / name, shared / f"{name}.half"
        with (shared / f"{name}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not folder.exists():
                shutil.rmtree(half, ignore_errors=True)
                half.mkdir()
                build(half)
                half.rename(folder)
        return folder

    return make


@pytest.fixture(scope="session")
def main_job(once: Once) -> Path:
    """A folder in which the commands have worked: faces, a run, its figures, audit and bundle.

    It is shared: copy what a test changes.
    """
    from helpers.every_command import main_job

    return once("main_job", main_job)
