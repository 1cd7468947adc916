"""Triton's kernels compute what the torch form does, and compile for GPUs that are not there."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from helpers.triton_compiler import run_script

from facerec.heads import ArcFace, SphereFaceR
from facerec.heads import kernel_choice as choice
from facerec.heads.tiles import TileSettings
from tests.heads.triton_interpreted import CASES

FOLDER = Path(__file__).parent
REDUCED = TileSettings(reduced=True)

pytest.importorskip("triton", reason="triton is not installed (extra gpu)")


# --- equality, in the interpreter ---------------------------------------------------------------


@pytest.fixture(scope="module")
def interpreted() -> dict[str, dict[str, float]]:
    return run_script(FOLDER / "triton_interpreted.py", TRITON_INTERPRET="1")


@pytest.mark.integration
@pytest.mark.parametrize("name", CASES)
def test_loss_figures_and_gradients_equal_those_of_torch(
    interpreted: dict[str, dict[str, float]], name: str
) -> None:
    # Operands of bfloat16 are 2⁻⁹ off, in logits of up to 64.
    rounding = 2**-6 if CASES[name].reduced else 1e-5
    errors = interpreted[name]
    assert {"loss", "cosine_sum", "to_query", "to_weight"} <= errors.keys()
    assert errors == pytest.approx(dict.fromkeys(errors, 0), abs=rounding)


# --- machine code -------------------------------------------------------------------------------


@pytest.mark.integration
@pytest.mark.parametrize(
    ("capability", "operands", "instruction"),
    [
        ("90", "bf16", "wgmma"),
        pytest.param("90", "fp32", "wgmma", marks=pytest.mark.slow),
        ("80", "bf16", "mma"),
        pytest.param("80", "fp32", "mma", marks=pytest.mark.slow),
    ],
)
def test_kernels_compile_to_matrix_instructions_and_spill_nothing(
    tmp_path: Path, capability: str, operands: str, instruction: str
) -> None:
    """Two programs share a multiprocessor of an H100 if each takes half of it or less."""
    shapes = run_script(
        FOLDER / "triton_compiled.py", capability, operands, TRITON_CACHE_DIR=str(tmp_path)
    )
    products = {"forward", "slopes", "center_gradient", "query_gradient"}
    assert {name for name, _ in shapes[0]} == products | {"normalize_centers", "merge"}
    for number, kernels in enumerate(shapes):
        for name, used in kernels:  # compiled once, if shapes share its blocks
            assert used["spilled"] == 0, name
            assert used["shared"] <= 100 * 1024, name
            assert (used[instruction] > 0) == (name in products), name
            if (capability, operands) == ("90", "bf16") and number >= 2:
                assert used["registers"] * used["warps"] * 32 <= 65_536 / 2, name


@pytest.mark.integration
def test_a_launch_is_the_one_that_triton_would_make(monkeypatch: pytest.MonkeyPatch) -> None:
    """By addresses, types, and integers, on a card that is not there."""
    from triton.runtime import driver

    from tests.heads.triton_compiled import launched

    monkeypatch.setattr(driver, "_active", None)  # as it is again afterwards
    assert all(launched())


# --- the choice ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("torch_ms", "triton_ms", "chosen"),
    [(2.0, [3, 4, 5, 6], ("torch", 0)), (2.0, [3, 4, 1, 1.5], ("triton", 2))],
)
def test_the_fastest_form_is_chosen(
    monkeypatch: pytest.MonkeyPatch, torch_ms: float, triton_ms: list[float], chosen: Any
) -> None:
    def milliseconds(kernel: str, shape: int, *sizes: Any) -> float:
        assert sizes == (32, 8, 5000, True, torch.device("cpu"))
        return torch_ms if kernel == "torch" else triton_ms[shape]

    monkeypatch.setattr(choice, "obstacle", lambda *_: None)
    monkeypatch.setattr(choice, "milliseconds", milliseconds)
    weight = torch.zeros(5000, 8)
    assert choice.choose_kernel("auto", ArcFace(), weight, 32, REDUCED) == chosen
    assert choice.choose_kernel("triton", ArcFace(), weight, 32, REDUCED) == ("triton", 0)
    few = weight[:20]  # nothing is timed
    assert choice.choose_kernel("auto", ArcFace(), few, 32, REDUCED) == ("torch", 0)


CUDA = torch.device("cuda")


@pytest.mark.parametrize(
    ("margin", "device", "dtype", "reason"),
    [
        (ArcFace(), torch.device("cpu"), torch.float32, "cpu"),
        (ArcFace(), CUDA, torch.float64, "float64"),
        (SphereFaceR(version="v2"), CUDA, torch.float32, "SphereFaceR"),
        (SphereFaceR(version="v1"), torch.device("cuda", 1), torch.float32, None),
    ],
)
def test_obstacles(
    monkeypatch: pytest.MonkeyPatch,
    margin: Any,
    device: torch.device,
    dtype: torch.dtype,
    reason: str | None,
) -> None:
    older = {CUDA: (7, 5)}
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda d: older.get(d, (9, 0)))
    weight = SimpleNamespace(device=device, dtype=dtype)
    found = choice.obstacle(margin, cast(torch.Tensor, weight))
    assert found is None if reason is None else reason in str(found)
