"""Rewrites against the graph as it was, in onnxruntime."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from helpers.examples import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

from facerec.export.rewrites import split_batch_norms, split_prelus

SIZE = (9, 7)


def build(
    nodes: list[Any],
    stored: dict[str, np.ndarray],
    channels: int,
    outputs: tuple[str, ...] = ("y",),
) -> Any:
    graph = helper.make_graph(
        nodes,
        "test",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", channels, *SIZE])],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, [None] * 4) for name in outputs],
        [numpy_helper.from_array(values.astype(np.float32), n) for n, values in stored.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def compute(model: Any, x: np.ndarray) -> list[np.ndarray]:
    onnx.checker.check_model(model, full_check=True)
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    session = ort.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    return session.run(None, {"x": x})


def kinds(model: Any) -> list[str]:
    return sorted({node.op_type for node in model.graph.node})


def assert_same(model: Any, before: Any, x: np.ndarray) -> None:
    for wanted, found in zip(compute(before, x), compute(model, x), strict=True):
        np.testing.assert_allclose(found, wanted, atol=2e-5 * max(1, np.abs(wanted).max()))


def copy(model: Any) -> Any:
    return onnx.ModelProto.FromString(model.SerializeToString())


def norm_values(channels: int, generator: np.random.Generator) -> dict[str, np.ndarray]:
    return {
        "gamma": generator.normal(size=channels),
        "beta": generator.normal(size=channels),
        "mean": generator.normal(size=channels),
        "variance": generator.uniform(0.1, 2, channels),
    }


NORM = ["gamma", "beta", "mean", "variance"]


@settings(max_examples=examples(20), deadline=None)
@given(seed=st.integers(0, 1000), groups=st.sampled_from([1, 2, 4]), padding=st.integers(0, 2))
def test_convolutions_take_their_batch_norms(seed: int, groups: int, padding: int) -> None:
    generator = np.random.default_rng(seed)
    stored = norm_values(4, generator)
    stored["gamma"][0] = 0.0
    stored["weight"] = generator.normal(size=(8, 4 // groups, 3, 3))
    nodes = [
        helper.make_node("BatchNormalization", ["x", *NORM], ["n"], epsilon=0.01),
        helper.make_node("Conv", ["n", "weight"], ["y"], group=groups, pads=4 * [padding]),
        helper.make_node("Conv", ["n", "weight"], ["z"], group=groups, strides=[2, 1]),
    ]
    model = build(nodes, stored, 4, ("y", "z"))
    before = copy(model)
    split_batch_norms(model)
    assert kinds(model) == ["Conv"]
    assert_same(model, before, generator.normal(size=(3, 4, *SIZE)).astype(np.float32))


def norm_variants() -> dict[str, tuple[list[Any], tuple[str, ...]]]:
    norm = helper.make_node("BatchNormalization", ["x", *NORM], ["n"])
    convolution = helper.make_node("Conv", ["n", "weight"], ["y"], pads=[1, 1, 1, 1])
    return {
        "also an output": ([norm, convolution], ("y", "n")),
        "two readers": ([norm, convolution, helper.make_node("Relu", ["n"], ["z"])], ("y", "z")),
        "no convolution": ([norm, helper.make_node("Relu", ["n"], ["y"])], ("y",)),
    }


@pytest.mark.parametrize("case", list(norm_variants()))
def test_batch_norms_that_stay(case: str) -> None:
    nodes, outputs = norm_variants()[case]
    generator = np.random.default_rng(0)
    stored = norm_values(3, generator)
    if case != "no convolution":
        stored["weight"] = generator.normal(size=(3, 3, 3, 3))
    model = build(nodes, stored, 3, outputs)
    before = copy(model)
    split_batch_norms(model)
    assert list(model.graph.node) == list(before.graph.node)
    assert_same(model, before, generator.normal(size=(2, 3, *SIZE)).astype(np.float32))


@settings(max_examples=examples(40), deadline=None)
@given(
    seed=st.integers(0, 1000),
    slopes=st.lists(st.floats(-3, 3, width=32), min_size=4, max_size=4),
    shared=st.booleans(),
    groups=st.sampled_from([1, 2, 4]),
)
def test_any_prelu_before_convolutions(
    seed: int, slopes: list[float], shared: bool, groups: int
) -> None:
    generator = np.random.default_rng(seed)
    slope = np.array(slopes[:1] if shared else slopes).reshape(-1, 1, 1)
    stored = {
        "slope": slope,
        "first": generator.normal(size=(8, 4 // groups, 3, 3)),
        "second": generator.normal(size=(4, 4, 1, 1)),
    }
    nodes = [
        helper.make_node("PRelu", ["x", "slope"], ["p"]),
        helper.make_node("Conv", ["p", "first"], ["y"], pads=[1, 1, 1, 1], group=groups),
        helper.make_node("Conv", ["p", "second"], ["z"], strides=[2, 2]),
    ]
    model = build(nodes, stored, 4, ("y", "z"))
    before = copy(model)
    split_prelus(model)
    assert kinds(model) == ["Add", "Conv", "LeakyRelu", "Mul"]
    assert_same(model, before, generator.normal(size=(2, 4, *SIZE)).astype(np.float32))


def test_a_prelu_that_a_sum_reads_stays() -> None:
    stored = {"slope": np.full((3, 1, 1), 0.25), "weight": np.ones((2, 3, 1, 1))}
    nodes = [
        helper.make_node("PRelu", ["x", "slope"], ["p"]),
        helper.make_node("Conv", ["p", "weight"], ["y"]),
        helper.make_node("Add", ["p", "p"], ["z"]),
    ]
    model = build(nodes, stored, 3, ("y", "z"))
    before = copy(model)
    split_prelus(model)
    assert list(model.graph.node) == list(before.graph.node)


def test_an_exported_model_loses_all_before_convolutions(
    tiny_onnx: bytes, faces: np.ndarray
) -> None:
    model = onnx.load_from_string(tiny_onnx)
    assert {"BatchNormalization", "PRelu"} <= set(kinds(model))
    split_batch_norms(model)
    split_prelus(model)
    # A batch norm before the linear layer stays.
    wanted = "Add BatchNormalization Conv Gemm LeakyRelu Mul Reshape"
    assert kinds(model) == wanted.split()
    batch = (faces[:4].astype(np.float32).transpose(0, 3, 1, 2) - 127.5) / 127.5
    found, before = (
        ort.InferenceSession(content, providers=["CPUExecutionProvider"]).run(None, {"data": batch})
        for content in (model.SerializeToString(), tiny_onnx)
    )
    np.testing.assert_allclose(found[0], before[0], atol=2e-5 * np.abs(before[0]).max())
