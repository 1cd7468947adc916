"""What files of others want of their pixels: stated, read from the graph, or assumed."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from helpers.examples import examples
from hypothesis import given, settings
from hypothesis import strategies as st

onnx = pytest.importorskip("onnx")

from helpers.toy_onnx import noted, parsed, tiles  # noqa: E402
from onnx import helper  # noqa: E402

from facerec.backbones import Preprocessing  # noqa: E402
from facerec.base.errors import RecipeError  # noqa: E402
from facerec.embedding.onnx_preprocessing import UNSCALED, guess_preprocessing, leading_scaling  # noqa: E402


@pytest.mark.parametrize(
    ("entry", "sentence"),
    [
        (None, "x.onnx"),
        ({"channels": "gbr", "mean": 0.0, "std": 1.0}, "one of 'rgb', 'bgr'"),
        ({"channels": "rgb", "mean": 0.0, "std": 0.0}, "std must be at least"),
    ],
)
def test_a_damaged_preprocessing(entry: Any, sentence: str) -> None:
    file = parsed(tiles(metadata=noted(preprocessing=entry)))
    with pytest.raises(RecipeError, match=sentence):
        guess_preprocessing(file)


# --- guessing ---------------------------------------------------------------------------------


def test_our_own_note_decides() -> None:
    stated = {"channels": "bgr", "mean": 0.0, "std": 255.0}
    leading = [("Sub", 127.5), ("Mul", 1 / 128)]
    file = parsed(tiles(metadata=noted(preprocessing=stated), leading=leading))
    guess = guess_preprocessing(file)
    assert guess.preprocessing == Preprocessing("bgr", 0.0, 255.0) and len(guess.fixed) == 3
    assert guess.evidence[0] == "its metadata entry 'facerec' says so"


PIXELS = "fits pixels 0…255"
UNIT = "fits pixels scaled to 0…1"
IMAGENET = np.array([0.485, 0.456, 0.406]).reshape(3, 1, 1)


@pytest.mark.parametrize(
    ("leading", "found", "evidence"),
    [
        ([("Sub", 127.5), ("Mul", 0.0078125)], UNSCALED, "Sub 127.5 → Mul 0.0078125, which"),
        ([("Sub", [[[127.5]] * 3]), ("Div", 128.0)], UNSCALED, "Sub 127.5, 127.5, 127.5 → Div 128"),
        ([("Mul", 1 / 127.5), ("Add", -1.0)], UNSCALED, PIXELS),
        ([("Div", 255.0), ("Sub", 0.5), ("Div", 0.5)], UNSCALED, PIXELS),
        ([("Sub", np.reshape([93.6, 104.8, 129.2], (3, 1, 1)))], UNSCALED, PIXELS),
        ([("SubReversed", 127.5), ("Mul", -1 / 127.5)], UNSCALED, "127.5 − x"),
        ([("Sub", 0.5), ("Div", 0.5)], Preprocessing("rgb", 0.0, 255.0), UNIT),
        ([("Sub", IMAGENET), ("Div", 0.225)], Preprocessing("rgb", 0.0, 255.0), UNIT),
        ([("MulReversed", 2.0), ("Sub", 1.0)], Preprocessing("rgb", 0.0, 255.0), UNIT),
        ([("Mul", 0.0)], Preprocessing(), "an assumption"),
        ([("Div", 0.0)], Preprocessing(), "an assumption"),
        ([("DivReversed", 255.0)], Preprocessing(), "an assumption"),
        ([], Preprocessing(), "an assumption"),
    ],
)
def test_a_normalisation_in_the_graph_is_found(leading: Any, found: Any, evidence: str) -> None:
    for layout in ("NCHW", "NHWC"):
        if layout == "NHWC" and any(np.size(value) > 1 for _, value in leading):
            leading = [(kind, np.reshape(value, -1)[:3]) for kind, value in leading]
        guess = guess_preprocessing(parsed(tiles(leading=leading, layout=layout)))
        assert guess.preprocessing == found and not guess.fixed
        assert layout == "NHWC" or evidence in guess.evidence[0]
        assumed = "channel order is an assumption" in guess.evidence[-1]
        assert assumed or guess.preprocessing == Preprocessing()


COLOURS = Preprocessing("rgb", (123.675, 116.28, 103.53), (58.395, 57.12, 57.375))
UNDONE = np.reshape([0.229, 0.224, 0.225], (3, 1, 1)), np.reshape([0.485, 0.456, 0.406], (3, 1, 1))


@pytest.mark.parametrize(
    ("leading", "found"),
    [
        ([("Mul", UNDONE[0]), ("Add", UNDONE[1])], COLOURS),
        ([("Mul", 255 * UNDONE[0]), ("Add", 255 * UNDONE[1])], COLOURS),
        # What follows is the network's own affair.
        ([("Mul", UNDONE[0]), ("Add", UNDONE[1]), ("Sub", 0.5), ("Div", 0.5)], COLOURS),
        ([("Mul", 0.5), ("Add", 0.5)], Preprocessing("rgb", (127.5,) * 3, (127.5,) * 3)),
    ],
)
def test_a_normalisation_that_is_taken_back_is_what_the_input_has(leading: Any, found: Any) -> None:
    file = parsed(tiles(leading=leading))
    guess, scaling = guess_preprocessing(file), leading_scaling(file)
    assert scaling is not None and scaling.undone == guess.preprocessing
    for ours, theirs in zip(guess.preprocessing.per_channel(), found.per_channel(), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-4)
    assert not guess.fixed and guess.assumed == ("channels",)
    # With that, pixels arrive behind the first two steps as they were, or from 0 to 1.
    grey = np.linspace(0, 255, 7)[:, None]
    mean, std = guess.preprocessing.per_channel()
    back = (grey - mean) / std * np.ravel(leading[0][1]) + np.ravel(leading[1][1])
    wanted = back.max() * np.tile(grey, (1, 3))[:, : back.shape[1]] / 255
    np.testing.assert_allclose(back, wanted, atol=1e-3 * back.max())


KINDS = st.sampled_from(["Sub", "SubReversed", "Add", "AddReversed", "Mul", "Div"])
CONSTANTS = st.lists(st.floats(0.25, 200), min_size=3, max_size=3) | st.floats(0.25, 200)


@given(st.lists(st.tuples(KINDS, CONSTANTS), min_size=1, max_size=4))
@settings(max_examples=examples(60), deadline=None)
def test_the_scaling_is_what_the_nodes_compute(steps: list[tuple[str, Any]]) -> None:
    leading = [(kind, np.float32(value).reshape(-1, 1, 1)) for kind, value in steps]
    scaling = leading_scaling(parsed(tiles(leading=leading)))
    if scaling is None:  # nothing changes
        return
    assert len(scaling.steps.split(" → ")) == len(steps)
    pixels = np.linspace(0, 255, 7)
    computed = np.broadcast_to(pixels, (3, 7))
    for kind, value in leading:
        constant = value.reshape(-1, 1).astype(np.float64)
        computed = {
            "Sub": computed - constant,
            "SubReversed": constant - computed,
            "Add": computed + constant,
            "AddReversed": constant + computed,
            "Mul": computed * constant,
            "Div": computed / constant,
        }[kind]
    mean, std = (np.reshape(part, (-1, 1)) for part in (scaling.mean, scaling.std))
    found = np.broadcast_to((pixels - mean) / std, (3, 7))
    np.testing.assert_allclose(found, computed, atol=1e-9 * np.abs(computed).max())


def test_constants_may_come_by_detours() -> None:
    """TorchScript's exporter writes Constant nodes and copies of initialisers."""
    model = tiles(leading=[("Sub", 127.5), ("Mul", 0.0078125)])
    tensor = next(t for t in model.graph.initializer if t.name == "c0")
    model.graph.initializer.remove(tensor)
    model.graph.node.insert(0, helper.make_node("Constant", [], ["c0"], value=tensor))
    model.graph.node.insert(1, helper.make_node("Identity", ["c1"], ["copy"]))
    next(node for node in model.graph.node if node.op_type == "Mul").input[1] = "copy"
    plain = parsed(tiles(leading=[("Sub", 127.5), ("Mul", 0.0078125)]))
    assert leading_scaling(parsed(model)) == leading_scaling(plain) is not None
