"""Networks whose batch, outputs or neighbors are not what their interface promises."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from helpers.toy_files import faces

onnx = pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

from helpers.toy_onnx import expected, followed, parsed, same, tiles  # noqa: E402
from onnx import TensorProto, helper  # noqa: E402

from facerec.backbones import Preprocessing  # noqa: E402
from facerec.base.errors import ModelError  # noqa: E402
from facerec.embedding import OnnxModel  # noqa: E402

RGB = Preprocessing()
node = helper.make_node


def shaped(*shape: int, **options: Any) -> Any:
    """Return the network with its output reshaped."""
    reshape = node("Reshape", ["embedding", "s"], ["y"])
    return followed(tiles(**options), [reshape], {"s": np.array(shape)})


def quantized(**options: Any) -> Any:
    """Return the network with a product in int8, whose scale is that of the whole batch."""
    scaled = np.random.default_rng(1).integers(0, 255, (147, 8), np.uint8)
    zero = np.array(128, np.uint8)
    nodes = [
        node("DynamicQuantizeLinear", ["flat"], ["q", "scale", "point"]),
        node("MatMulInteger", ["q", "w8", "point", "zero"], ["whole"]),
        node("Cast", ["whole"], ["product"], to=TensorProto.FLOAT),
        node("Mul", ["product", "scale"], ["y"]),
    ]
    return followed(tiles(**options), nodes, {"w8": scaled, "zero": zero})


def centered(**options: Any) -> Any:
    """Return the network with the mean of the batch taken away, as a batch norm in training."""
    nodes = [
        node("ReduceMean", ["pooled"], ["mean"], axes=[0, 2, 3]),
        node("Sub", ["pooled", "mean"], ["rest"]),
        node("Flatten", ["rest"], ["row"]),
        node("Gemm", ["row", "weight"], ["y"], transB=1),
    ]
    return followed(tiles(**options), nodes)


def split(first: str, second: str, *, unit: bool) -> Any:
    """Return the network with its embedding, of unit length or raw, and the norm, as AdaFace's."""
    length = node("ReduceL2", ["embedding"], ["norm"], axes=[1])
    rows = node("Div", ["embedding", "norm"], ["features"])
    flat = node("Reshape", ["norm", "s"], ["flat_norm"])
    names = [("embedding" if name == "features" and not unit else name) for name in (first, second)]
    return followed(tiles(), [length, rows, flat], {"s": np.array([-1])}, names)


engines = pytest.mark.parametrize("engine", ["onnxruntime", "openvino"])


# --- the batch --------------------------------------------------------------------------------


@engines
@pytest.mark.parametrize("shape", [(1, 8), (1, -1), (8, -1)])
def test_a_batch_baked_into_the_graph(engine: Any, shape: tuple[int, int]) -> None:
    """A Reshape that holds for one picture alone fails for two, or makes one row of both."""
    pytest.importorskip(engine)
    if shape == (8, -1):  # two pictures as columns, turned
        column = node("Reshape", ["embedding", "s"], ["column"])
        turned = node("Transpose", ["column"], ["y"], perm=[1, 0])
        file = parsed(followed(tiles(), [column, turned], {"s": np.array(shape)}))
    else:
        file = parsed(shaped(*shape))
    model = OnnxModel(file, engine=engine, batch_size=4)
    same(model.embed(faces(5)), expected(faces(5), RGB))
    assert model.batch_size == 1 and len(model.notes) == 1 and "one by one" in model.notes[0]


@engines
@pytest.mark.parametrize("network", [quantized, centered])
def test_an_embedding_does_not_depend_on_its_neighbors(engine: Any, network: Any) -> None:
    pytest.importorskip(engine)
    images = faces(6)
    images[::2] = 120 + images[::2] // 16
    file = parsed(network())
    alone = OnnxModel(file, engine=engine, batch_size=1)
    assert alone.notes == ()
    model = OnnxModel(file, engine=engine, batch_size=8)
    np.testing.assert_array_equal(model.embed(images), alone.embed(images))
    assert model.batch_size == 1 and "depends on the others" in model.notes[0]


@pytest.mark.parametrize("network", [quantized, centered])
def test_a_fixed_batch_keeps_its_size_and_says_it(network: Any) -> None:
    model = OnnxModel(parsed(network(batch=4)))
    assert model.batch_size == 4 and "batch of 4 is fixed" in model.notes[0]
    assert model.embed(faces(6)).shape == (6, 8)
    np.testing.assert_array_equal(model.embed(faces(6)), model.embed(faces(6)))
    np.testing.assert_array_equal(model.embed(faces(6))[4:], model.embed(faces(6)[4:]))
    assert OnnxModel(parsed(network(batch=1))).notes == ()


@pytest.mark.parametrize("batch", ["n", 4])
def test_sound_networks_have_no_notes(batch: Any) -> None:
    """What is zero or not finite, alone as in a batch, is no matter of the neighbors."""
    for last in ("Identity", "Softmax", "Log"):  # of negative numbers
        model = OnnxModel(parsed(followed(tiles(batch=batch), [node(last, ["embedding"], ["y"])])))
        assert model.notes == () and model.batch_size == (64 if batch == "n" else 4)
    nothing = [node("Mul", ["embedding", "none"], ["m"]), node("Tanh", ["m"], ["y"])]
    zero = followed(tiles(batch=batch), nothing, {"none": np.zeros(1, np.float32)})
    assert OnnxModel(parsed(zero)).notes == ()


def test_a_batch_norm_in_training_mode_is_refused() -> None:
    one, zero = np.ones(3, np.float32), np.zeros(3, np.float32)
    stored = {"scale": one, "shift": zero, "mean": zero, "variance": one}
    for mode in (0, 1):
        outputs = ["normed", "new_mean", "new_variance"][: 1 + 2 * mode]
        nodes = [
            node("BatchNormalization", ["pooled", *stored], outputs, training_mode=mode),
            node("Flatten", ["normed"], ["y"]),
        ]
        network = followed(tiles(), nodes, stored)
        if mode:
            with pytest.raises(ModelError, match="BatchNormalization is in training mode"):
                parsed(network)
        else:
            assert OnnxModel(parsed(network)).embedding_size == 147


def test_a_network_of_pairs_is_no_embedding_model() -> None:
    with pytest.raises(ModelError, match=r"^x.onnx: onnxruntime .* failed"):
        OnnxModel(parsed(shaped(2, 8)))


# --- the outputs ------------------------------------------------------------------------------


@engines
@pytest.mark.parametrize("shape", [(-1, 1, 8), (-1, 8, 1, 1), (-1, 1, 1, 8)])
def test_axes_of_one_do_not_matter(engine: Any, shape: tuple[int, ...]) -> None:
    pytest.importorskip(engine)
    model = OnnxModel(parsed(shaped(*shape)), engine=engine)
    same(model.embed(faces(3)), expected(faces(3), RGB))
    assert model.batch_size == 64 and model.notes == ()


@engines
@pytest.mark.parametrize("unit", [True, False])
@pytest.mark.parametrize("norm", ["norm", "flat_norm"])
@pytest.mark.parametrize("swapped", [True, False])
def test_an_embedding_and_its_norm(engine: Any, unit: bool, norm: str, swapped: bool) -> None:
    """Unit rows times their norm are raw; raw rows stay what they are."""
    pytest.importorskip(engine)
    names = (norm, "features") if swapped else ("features", norm)
    model = OnnxModel(parsed(split(*names, unit=unit)), engine=engine)
    assert model.embedding_size == 8
    same(model.embed(faces(3)), expected(faces(3), RGB))
    same(model.embed(faces(1)), expected(faces(1), RGB))


def test_a_second_output_leaves_raw_rows_alone() -> None:
    """A quality, for example, is no factor of what is not of unit length."""
    nodes = [
        node("ReduceL2", ["embedding"], ["norm"], axes=[1]),
        node("Sigmoid", ["norm"], ["quality"]),
    ]
    file = parsed(followed(tiles(), nodes, None, ["quality", "embedding"]))
    same(OnnxModel(file).embed(faces(3)), expected(faces(3), RGB))


LENGTH = node("ReduceL2", ["embedding"], ["n"], axes=[1])


@pytest.mark.parametrize(
    ("nodes", "outputs", "sentence"),
    [
        ([node("Neg", ["embedding"], ["y"])], ["embedding", "y"], r"\(1, 8\) and \(1, 8\)"),
        ([LENGTH, node("Neg", ["n"], ["y"])], ["embedding", "y"], "of 0 or more"),
        ([node("ReduceL2", ["embedding"], ["y"], axes=[1], keepdims=0)], ["y"], r"shape \(1,\)"),
        ([LENGTH], ["n"], r"shape \(1, 1\)"),
        ([node("ReduceL2", ["embedding"], ["y"], keepdims=0)], ["y"], r"shape \(\)"),
        ([node("Concat", ["embedding"] * 2, ["y"], axis=0)], ["y"], r"shape \(2, 8\)"),
        ([node("Identity", ["pooled"], ["y"])], ["y"], r"shape \(1, 3, 7, 7\)"),
    ],
)
def test_other_outputs_are_refused(nodes: Any, outputs: Any, sentence: str) -> None:
    with pytest.raises(ModelError, match=rf"^x.onnx: .*{sentence}"):
        OnnxModel(parsed(followed(tiles(), nodes, None, outputs)))
