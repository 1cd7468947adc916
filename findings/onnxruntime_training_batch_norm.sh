#!/usr/bin/env bash
# onnxruntime 1.31.1 answers the same input otherwise on every call where a batch norm is in
# training mode: with its default optimisation it normalises by running statistics, which it moves
# on with each call, in place of the batch's own, which the ONNX standard asks for (operator
# BatchNormalization since opset 14). Without optimisation it does what the standard says.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install --quiet numpy==2.4.6 onnx==1.23.2 onnxruntime==1.31.1
"$folder/venv/bin/python" - <<'PYTHON'
import sys

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper

weights = {"scale": 1, "bias": 0, "mean": 0, "variance": 1}
node = helper.make_node(
    "BatchNormalization",
    ["x", *weights],
    ["y", "new_mean", "new_variance"],
    training_mode=1,
    momentum=0.9,
)
sides = ["N", 2, 4, 4]
graph = helper.make_graph(
    [node],
    "training",
    [helper.make_tensor_value_info("x", TensorProto.FLOAT, sides)],
    [helper.make_tensor_value_info("y", TensorProto.FLOAT, sides)],
    [
        numpy_helper.from_array(np.full(2, value, np.float32), name)
        for name, value in weights.items()
    ],
)
model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 15)], ir_version=8)
onnx.checker.check_model(model, full_check=True)
x = np.random.default_rng(0).normal(3, 2, (4, 2, 4, 4)).astype(np.float32)
print("onnxruntime", onnxruntime.__version__)
levels = onnxruntime.GraphOptimizationLevel
found = {}
for name, level in {"none": levels.ORT_DISABLE_ALL, "default": levels.ORT_ENABLE_ALL}.items():
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = level
    options.log_severity_level = 3
    content = model.SerializeToString()
    session = onnxruntime.InferenceSession(content, options, ["CPUExecutionProvider"])
    found[name] = [float(session.run(["y"], {"x": x})[0].mean()) for _ in range(4)]
    print(f"optimisation {name}: mean of the output, four calls:", np.round(found[name], 3))
steady = np.ptp(found["none"]) == 0 and abs(found["none"][0]) < 1e-5
drifts = min(np.diff(found["default"])) > 0.1
sys.exit(0 if steady and drifts else "the behaviour has changed")
PYTHON
