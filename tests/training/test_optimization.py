"""Schedules step by step, and which parameters decay."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from facerec.training import SGD, Adam, AdamW, Cosine, MultiStep, Optimizer, Polynomial, RMSprop
from facerec.training.optimization import parameter_groups


def factors(
    schedule: Polynomial | Cosine | MultiStep, total: int = 20, per_epoch: int = 5
) -> list[float]:
    return [schedule.factor(step, total, per_epoch) for step in range(total)]


def test_polynomial_is_insightfaces_line() -> None:
    assert factors(Polynomial()) == pytest.approx([1 - t / 20 for t in range(20)])
    assert factors(Polynomial(power=2))[10] == pytest.approx(0.25)


def test_warmup_scales_the_first_step_and_meets_the_decay() -> None:
    values = factors(Polynomial(warmup_epochs=1))
    assert values[:6] == pytest.approx([1 / 6, 2 / 6, 3 / 6, 4 / 6, 5 / 6, 1.0])
    assert values[5:] == pytest.approx([1 - t / 15 for t in range(15)])
    assert all(0 < value <= 1 for value in values)


def test_cosine_and_multistep() -> None:
    values = factors(Cosine(minimum=0.1))
    assert values == pytest.approx(
        [0.1 + 0.9 * (1 + math.cos(math.pi * t / 20)) / 2 for t in range(20)]
    )
    steps = factors(MultiStep(milestones=(1, 3), gamma=0.1))
    assert steps == pytest.approx([1.0] * 5 + [0.1] * 10 + [0.01] * 5)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3)
        self.bn = nn.BatchNorm2d(4)
        self.frozen = nn.Parameter(torch.ones(3), requires_grad=False)


@pytest.mark.parametrize(
    "optimizer", [SGD(decay="all"), SGD(decay="weights"), AdamW(), Adam(), RMSprop(momentum=0.9)]
)
def test_groups_hold_every_trainable_parameter_once(optimizer: Optimizer) -> None:
    net, head, radius = Net(), nn.Linear(4, 2, bias=False), nn.Parameter(torch.tensor(1.0))
    groups = parameter_groups([net, head], optimizer, plain=[radius])
    owned = [p for group in groups for p in group["params"]]
    wanted = [net.conv.weight, net.conv.bias, net.bn.weight, net.bn.bias, head.weight, radius]
    assert sorted(map(id, owned)) == sorted(map(id, wanted))
    undecayed = {id(p) for g in groups if g.get("weight_decay") == 0.0 for p in g["params"]}
    small = {id(p) for p in (net.conv.bias, net.bn.weight, net.bn.bias)}
    assert undecayed == {id(radius)} | (small if optimizer.decay == "weights" else set())
    created = optimizer.create(groups)
    assert {g["weight_decay"] for g in created.param_groups} == {0.0, optimizer.weight_decay}


def test_a_learned_radius_has_no_momentum() -> None:
    radius = nn.Parameter(torch.tensor(1.0))
    optimizer = SGD(lr=0.1).create(parameter_groups([], SGD(), plain=[radius]))
    for _ in range(3):
        radius.grad = torch.tensor(1.0)
        optimizer.step()
    assert radius.item() == pytest.approx(1.0 - 3 * 0.1)
