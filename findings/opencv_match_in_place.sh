#!/usr/bin/env bash
# OpenCV 5.0's FaceRecognizerSF.match() writes into the two features that it compares: whoever
# compares first and keeps features afterwards keeps them scaled to length 1, so that the norm of the
# embedding is gone. The documentation calls both arguments inputs.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install --quiet numpy==2.4.6 onnx==1.23.2 opencv-python-headless==5.0.0.93
cd "$folder"
"$folder/venv/bin/python" - 2>/dev/null <<'PYTHON'
import sys

import cv2
import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

weight = np.random.default_rng(0).normal(size=(128, 3)).astype(np.float32)
nodes = [
    helper.make_node("GlobalAveragePool", ["data"], ["pooled"]),
    helper.make_node("Flatten", ["pooled"], ["flat"]),
    helper.make_node("Gemm", ["flat", "weight"], ["fc1"], transB=1),
]
graph = helper.make_graph(
    nodes,
    "network",
    [helper.make_tensor_value_info("data", TensorProto.FLOAT, [1, 3, 112, 112])],
    [helper.make_tensor_value_info("fc1", TensorProto.FLOAT, [1, 128])],
    [numpy_helper.from_array(weight, "weight")],
)
model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
onnx.checker.check_model(model, full_check=True)
onnx.save(model, "network.onnx")
recognizer = cv2.FaceRecognizerSF.create("network.onnx", "")
print("OpenCV", cv2.__version__)
features = [
    recognizer.feature(np.full((112, 112, 3), colour, np.uint8))
    for colour in ((10, 200, 30), (220, 20, 90))
]
before = [float(np.linalg.norm(feature)) for feature in features]
cosine = recognizer.match(*features, cv2.FaceRecognizerSF_FR_COSINE)
after = [float(np.linalg.norm(feature)) for feature in features]
print("lengths before match():", np.round(before, 1), "after:", np.round(after, 4), f"cosine {cosine:.4f}")
sys.exit(0 if min(before) > 1000 and np.allclose(after, 1) else "the behaviour has changed")
PYTHON
