"""What may differ between arms, what is searched, and in which order arms run."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from helpers.tiny_comparison import BASE, HEAD, MARGIN, WEIGHT, WITH_SEC, comparison, protocol
from hypothesis import given
from hypothesis import strategies as st

from facerec.base.errors import RecipeError
from facerec.base.recipe import from_dict, to_dict
from facerec.comparison.protocol import Comparison, Range
from facerec.heads import SEC, CosFace
from facerec.training import Adam


def test_a_difference_must_be_declared() -> None:
    faster = replace(protocol(), optimizer=Adam(lr=1e-2), epochs=5)
    arms = (BASE, replace(WITH_SEC, protocol=faster))
    with pytest.raises(
        RecipeError, match=r"arm CosFace\+SEC: differs .* in optimizer\.lr, epochs; make it equal"
    ):
        comparison(Path("x"), arms=arms).check()
    with pytest.raises(RecipeError, match="in epochs; make it equal"):
        comparison(Path("x"), arms=arms, declared=("optimizer",)).check()
    comparison(Path("x"), arms=arms, declared=("optimizer", "epochs")).check()
    comparison(Path("x"), arms=arms, declared=("optimizer.lr", "epochs")).check()


UNTRAINED = replace(BASE, name="untrained")


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: comparison(Path("x"), arms=()), "found none"),
        (lambda: comparison(Path("x"), arms=(BASE, BASE)), "found CosFace, CosFace"),
        (lambda: comparison(Path("x"), arms=(WITH_SEC, BASE)), r"'CosFace', which must be an arm"),
        (lambda: comparison(Path("x"), arms=(replace(BASE, name="a/b"),)), "without /"),
        (lambda: comparison(Path("x"), arms=(UNTRAINED,)), "that of a"),
        (lambda: comparison(Path("x"), protocol=protocol(transform=None)).check(), "for features"),
        (lambda: Range("x", 1, 1), "x: low must lie below high"),
        (lambda: Range("x", 0, 2, "log"), "found 0 to 2, log"),
        (lambda: Range("x", 1, 2, "log_with_zero"), "be 0 for log_with_zero"),
    ],
)
def test_values_out_of_range(make: Any, words: str) -> None:
    with pytest.raises(RecipeError, match=words):
        make()


@given(st.floats(0, 1), st.floats(1e-3, 100))
def test_a_log_scale_with_zero(position: float, high: float) -> None:
    limits = Range("x", 0.0, high, "log_with_zero")
    value = limits.value(position)
    assert 0 <= value <= high * (1 + 1e-12)
    assert limits.position(value) == pytest.approx(position, abs=1e-9)
    assert limits.value(0.0) == 0.0 and limits.value(1.0) == pytest.approx(high)


def test_settings_are_written_into_an_arm() -> None:
    arm = replace(WITH_SEC, search=(MARGIN, WEIGHT))
    found = arm.at({"loss.margin.margin": 0.4, "regularizer.weight": 0.0})
    assert found.loss == replace(HEAD, margin=CosFace(scale=16.0, margin=0.4))
    assert found.regularizer == SEC(weight=0.0)
    assert arm.defaults == {"loss.margin.margin": 0.2, "regularizer.weight": 0.1}
    with pytest.raises(RecipeError, match="margin must be at least 0 and below 2"):
        arm.at({"loss.margin.margin": 5.0})


@pytest.mark.parametrize("name", ["loss.margn", "loss.margin.name", "regularizer.weight", "x"])
def test_what_is_searched_is_a_number_of_the_arm(name: str) -> None:
    with pytest.raises((AttributeError, TypeError), match=name.rpartition(".")[2]):
        replace(BASE, search=(Range(name, 0, 1),))


def test_a_comparison_goes_through_json() -> None:
    plan = comparison(Path("x"), arms=(BASE, WITH_SEC))
    again = from_dict(Comparison, json.loads(json.dumps(to_dict(plan))), "x.json")
    assert again == plan
