"""The tests for a GPU find their mistakes on the CPU, and are skipped where there is no GPU."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parent / "cuda"


def outcome(*arguments: str, **environment: str) -> tuple[int, str]:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    done = subprocess.run(
        [*command, f"--confcutdir={FOLDER}", str(FOLDER), *arguments],
        capture_output=True,
        text=True,
        cwd=FOLDER.parents[1],
        # Two threads beside another test that has a core made it several times as long.
        env={**os.environ, "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1", **environment},
    )
    return done.returncode, done.stdout


@pytest.mark.integration
def test_the_bodies_hold_when_the_cpu_is_compared_with_itself() -> None:
    # One backbone of a family, and one form of each step: the others have the same parts.
    chosen = "(not test_a_backbone or iresnet18 or mobilefacenet_half or vit_t) and not graphs"
    chosen += " and not average and not recomputed and not bf16-1.0 and not fp32-0.5"
    code, told = outcome("-k", chosen, FACEREC_CUDA_TESTS_ON="cpu")
    assert code == 0, told
    assert " failed" not in told and " passed" in told


@pytest.mark.integration
def test_without_a_gpu_they_are_skipped_with_the_reason() -> None:
    code, told = outcome(FACEREC_CUDA_TESTS_ON="cuda")
    assert code == 0 and " passed" not in told and "no CUDA device here" in told
