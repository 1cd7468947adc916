"""Claims end with their process, and nobody claims twice."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from facerec.comparison.storage import Worker


def test_a_claim_is_exclusive_until_its_worker_ends(tmp_path: Path) -> None:
    first, second = Worker(tmp_path), Worker(tmp_path)
    result = tmp_path / "finals" / "a" / "seed-0.npz"
    assert first.is_alive(second.name) and second.is_alive(first.name)
    assert first.claim(result) and not second.claim(result)
    assert first.claim(result)  # its own
    first.close()
    assert not second.is_alive(first.name)
    assert second.claim(result)
    result.write_bytes(b"done")
    second.release(result)
    third = Worker(tmp_path)
    assert not third.claim(result)
    assert not list(result.parent.glob("*.worker"))


@pytest.mark.integration
def test_a_killed_process_gives_up_its_claims(tmp_path: Path) -> None:
    code = """
import sys, time
from pathlib import Path
from facerec.comparison.storage import Worker
worker = Worker(Path(sys.argv[1]))
assert worker.claim(Path(sys.argv[1]) / "x")
print(worker.name, flush=True)
time.sleep(600)
"""
    with subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path)], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        name = process.stdout.readline().strip()
        worker = Worker(tmp_path)
        assert worker.is_alive(name) and not worker.claim(tmp_path / "x")
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
    assert not worker.is_alive(name) and worker.claim(tmp_path / "x")
