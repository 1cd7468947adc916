"""Rows with a gradient change as in a matrix of their own; the others stay."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from facerec.training import SGD, Adam, AdamW, Optimizer, RMSprop
from facerec.training import row_update as module
from facerec.training.row_update import RowUpdate, no_rows

OPTIMIZERS: list[Optimizer] = [
    SGD(lr=0.1),
    SGD(lr=0.1, momentum=0.0),
    SGD(lr=0.1, nesterov=True, weight_decay=0.0),
    AdamW(lr=0.01),
    Adam(lr=0.01, weight_decay=0.1),
    RMSprop(lr=0.01, momentum=0.9),
]


def sparse(rows: torch.Tensor, values: torch.Tensor, count: int) -> torch.Tensor:
    return torch.sparse_coo_tensor(
        rows[None], values, (count, values.shape[1]), check_invariants=False
    )


def with_rows(
    config: Optimizer, start: torch.Tensor, distinct: bool = True
) -> tuple[nn.Parameter, torch.optim.Optimizer]:
    weight = nn.Parameter(start.clone())
    optimizer = config.create([{"params": [nn.Parameter(torch.ones(2))]}, {"params": [weight]}])
    RowUpdate(optimizer, weight, distinct=distinct)
    return weight, optimizer


@pytest.mark.parametrize("config", OPTIMIZERS, ids=str)
def test_all_rows_are_a_dense_step(config: Optimizer) -> None:
    generator = torch.Generator().manual_seed(0)
    start = torch.randn(40, 3, generator=generator)
    weight, optimizer = with_rows(config, start)
    dense = nn.Parameter(start.clone())
    reference = config.create([{"params": [dense]}])
    for number in range(4):
        gradient = torch.randn(40, 3, generator=generator)
        weight.grad, dense.grad = sparse(torch.arange(40), gradient, 40), gradient.clone()
        for group in (*optimizer.param_groups, *reference.param_groups):
            group["lr"] = 0.1 / (number + 1)  # as a schedule does
        optimizer.step()
        reference.step()
        assert torch.equal(weight, dense)
    assert optimizer.state[weight].keys() == reference.state[dense].keys()
    for name, value in reference.state[dense].items():
        assert torch.equal(optimizer.state[weight][name], value), name


@pytest.mark.parametrize("config", OPTIMIZERS, ids=str)
@pytest.mark.parametrize("chunk", [1, 24, 2**20])
def test_some_rows_are_a_matrix_of_their_own(
    config: Optimizer, chunk: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(module._CHUNK_BYTES, "cpu", chunk)
    generator = torch.Generator().manual_seed(0)
    start = torch.randn(30, 3, generator=generator)
    weight, optimizer = with_rows(config, start)
    expected, state = start.clone(), {}
    for _ in range(5):
        rows = torch.randperm(30, generator=generator)[:11].sort().values
        values = torch.randn(11, 3, generator=generator)
        weight.grad = sparse(rows, values, 30)
        optimizer.step()
        assert weight.grad is None
        own = nn.Parameter(expected[rows])
        plain = config.create([{"params": [own]}])
        own.grad = values.clone()
        if state:
            whole = {n: v for n, v in state.items() if v.ndim == 2}
            plain.state[own] = {
                **{n: v.clone() for n, v in state.items() if v.ndim == 0},
                **{n: v[rows] for n, v in whole.items()},
            }
        plain.step()
        expected[rows] = own.detach()
        for name, value in plain.state[own].items():
            if value.ndim == 2:
                state.setdefault(name, torch.zeros(30, 3))[rows] = value
            else:
                state[name] = value
        # Close, not equal: a vector's remainder is rounded in another way than its body.
        torch.testing.assert_close(weight.detach(), expected, rtol=1e-5, atol=1e-6)
        for name, value in state.items():
            torch.testing.assert_close(optimizer.state[weight][name], value, msg=name)


def test_a_row_named_twice_has_the_sum_of_its_gradients() -> None:
    start = torch.zeros(5, 2)
    weight, optimizer = with_rows(SGD(lr=1.0, weight_decay=0.0), start, distinct=False)
    weight.grad = sparse(torch.tensor([3, 1, 3]), torch.tensor([[1.0, 2], [3, 4], [5, 6]]), 5)
    optimizer.step()
    expected = torch.zeros(5, 2)
    expected[1], expected[3] = torch.tensor([-3.0, -4]), torch.tensor([-6.0, -8])
    assert torch.equal(weight.detach(), expected)


def test_a_gradient_without_rows_makes_the_state_and_changes_nothing() -> None:
    start = torch.randn(6, 2)
    weight, optimizer = with_rows(AdamW(), start)
    weight.grad = no_rows(weight)
    optimizer.step()
    assert torch.equal(weight.detach(), start)
    assert optimizer.state[weight]["exp_avg"].shape == (6, 2)
    assert not optimizer.state[weight]["exp_avg"].any()


def test_a_step_that_a_scaler_calls_off_changes_nothing() -> None:
    start = torch.randn(6, 2)
    weight, optimizer = with_rows(SGD(), start)
    weight.grad = sparse(torch.arange(2), torch.full((2, 2), float("inf")), 6)
    optimizer.found_inf = torch.ones(())  # type: ignore[attr-defined]
    optimizer.grad_scale = None  # type: ignore[attr-defined]
    optimizer.step()
    assert torch.equal(weight.detach(), start)
    assert not optimizer.state[weight]["momentum_buffer"].any()
