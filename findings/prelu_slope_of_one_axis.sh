#!/usr/bin/env bash
# A PRelu whose slope has one axis of length C: by the ONNX standard's rule of broadcasting that axis
# meets the last one of the input, its width. onnxruntime 1.31.1 does so; OpenVINO 2026.4.1 and OpenCV
# 5.0.0 take the axis as the channels. So the same file computes other numbers in a layer that has as
# many channels as columns, with no word; where the lengths differ, onnxruntime fails when it runs,
# though onnx.checker lets the file pass.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install --quiet numpy==2.4.6 onnx==1.23.2 onnxruntime==1.31.1 \
    openvino==2026.4.1 opencv-python-headless==5.0.0.93
cd "$folder"
"$folder/venv/bin/python" - 2>/dev/null <<'PYTHON'
import sys

import cv2
import numpy as np
import onnx
import onnx.reference
import onnxruntime
import openvino
from onnx import TensorProto, helper, numpy_helper

channels = 8
slope = np.arange(1, channels + 1, dtype=np.float32)


def by_opencv(path, x):
    network = cv2.dnn.readNetFromONNX(path)
    network.setInput(x)
    return network.forward()


tools = {
    "the standard's reference": lambda path, x: onnx.reference.ReferenceEvaluator(path).run(None, {"x": x})[0],
    "onnxruntime": lambda path, x: onnxruntime.InferenceSession(path).run(None, {"x": x})[0],
    "OpenVINO": lambda path, x: openvino.Core().compile_model(path, "CPU")(x)[0],
    "OpenCV": by_opencv,
}
print("onnxruntime", onnxruntime.__version__, "OpenVINO", openvino.__version__.split("-")[0], "OpenCV", cv2.__version__)
found = {}
for width in (8, 4):
    sides = [1, channels, width, width]
    graph = helper.make_graph(
        [helper.make_node("PRelu", ["x", "slope"], ["y"])],
        "prelu",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, sides)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, sides)],
        [numpy_helper.from_array(slope, "slope")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 9)], ir_version=4)
    onnx.checker.check_model(model, full_check=True)
    onnx.save(model, "prelu.onnx")
    for name, tool in tools.items():
        try:
            y = tool("prelu.onnx", -np.ones(sides, np.float32))
            along = "channels" if np.array_equal(y[0, :, 0, 0], -slope) else "width"
        except Exception:
            along = "refused"
        found[name, width] = along
        print(f"{channels} channels, {width} columns: {name}: {along}")
expected = {"the standard's reference": "width", "onnxruntime": "width", "OpenVINO": "channels", "OpenCV": "channels"}
as_known = all(found[name, 8] == along for name, along in expected.items())
as_known &= found["onnxruntime", 4] == "refused" and found["OpenVINO", 4] == "channels"
sys.exit(0 if as_known else "the behaviour has changed")
PYTHON
