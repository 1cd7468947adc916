#!/usr/bin/env bash
# insightface 2.1 takes the kind of a network from the size of its input: a recognition network for
# 96 x 96 pixels is loaded as one of attributes (age and sex), one for 192 x 192 as landmarks, and for one
# for 112 x 96, the size of SphereFace and CosFace, or for any size (symbolic height and width)
# get_model() returns None, without an error.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install --quiet numpy==2.4.6 onnx==1.23.2 onnxruntime==1.31.1 \
    opencv-python==5.0.0.93 insightface==2.1
cd "$folder"
"$folder/venv/bin/python" - <<'PYTHON'
import sys

import insightface
import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

weight = np.random.default_rng(0).normal(size=(128, 3)).astype(np.float32)
nodes = [
    helper.make_node("GlobalAveragePool", ["pixels"], ["pooled"]),
    helper.make_node("Flatten", ["pooled"], ["flat"]),
    helper.make_node("Gemm", ["flat", "weight"], ["embedding"], transB=1),
]
sizes = [(112, 112), (128, 128), (96, 96), (192, 192), (112, 96), ("height", "width")]
found = []
print("insightface", insightface.__version__)
for size in sizes:
    graph = helper.make_graph(
        nodes,
        "network",
        [helper.make_tensor_value_info("pixels", TensorProto.FLOAT, ["N", 3, *size])],
        [helper.make_tensor_value_info("embedding", TensorProto.FLOAT, ["N", 128])],
        [numpy_helper.from_array(weight, "weight")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.checker.check_model(model, full_check=True)
    onnx.save(model, "network.onnx")
    loaded = insightface.model_zoo.get_model("network.onnx", providers=["CPUExecutionProvider"])
    found.append(type(loaded).__name__)
    print(size, "is loaded as", found[-1], getattr(loaded, "taskname", ""))
expected = ["ArcFaceONNX", "ArcFaceONNX", "Attribute", "Landmark", "NoneType", "NoneType"]
sys.exit(0 if found == expected else "the behaviour has changed")
PYTHON
