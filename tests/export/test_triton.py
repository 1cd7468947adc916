from __future__ import annotations

from helpers.toy_onnx import parsed, tiles
from onnx import TensorProto

from facerec.export.triton import model_id, triton_config


def test_the_text_is_a_model_configuration() -> None:
    """As protobuf's text format of Triton's model_config.proto, whose parser takes it."""
    assert triton_config("my-run", parsed(tiles())).splitlines() == [
        'name: "my-run"',
        'backend: "onnxruntime"',
        "max_batch_size: 64",
        'input [ { name: "data" data_type: TYPE_FP32 dims: [3, 112, 112] } ]',
        'output [ { name: "embedding" data_type: TYPE_FP32 dims: [8] } ]',
        "dynamic_batching { }",
        "instance_group [ { count: 1 kind: KIND_AUTO } ]",
        "optimization { execution_accelerators { gpu_execution_accelerator [ "
        '{ name: "cuda" parameters { key: "use_tf32" value: "0" } } ] } }',
    ]


def test_types_layout_and_names_come_from_the_file() -> None:
    model = tiles(dtype=TensorProto.UINT8, layout="NHWC")
    model.graph.input[0].name = model.graph.node[0].input[0] = 'im"age\n'
    line = triton_config("m", parsed(model)).splitlines()[3]
    assert line == r'input [ { name: "im\"age\n" data_type: TYPE_UINT8 dims: [112, 112, 3] } ]'


def test_a_name_keeps_what_triton_takes() -> None:
    assert model_id("my run/ü") == "my-run" and model_id("脸") == "facerec-model"
