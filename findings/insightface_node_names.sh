#!/usr/bin/env bash
# insightface 2.1 decides by the names of nodes how a recognition network is fed: if among its first
# eight nodes one has a name that begins with Sub and one with Mul, raw pixels go in, else
# (pixel - 127.5) / 127.5. Names mean nothing in ONNX: the same graph with its nodes renamed gives
# another embedding, and nothing is said.
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
import onnxruntime
from insightface.model_zoo.arcface_onnx import ArcFaceONNX
from onnx import TensorProto, helper, numpy_helper

generator = np.random.default_rng(0)
face = generator.integers(0, 256, (112, 112, 3)).astype(np.uint8)
weight = generator.normal(size=(8, 3)).astype(np.float32)


def network(first, second):
    """A network that scales its pixels itself, with names of the two nodes that do."""
    nodes = [
        helper.make_node("Sub", ["pixels", "mean"], ["centred"], name=first),
        helper.make_node("Mul", ["centred", "scale"], ["scaled"], name=second),
        helper.make_node("GlobalAveragePool", ["scaled"], ["pooled"], name="pool"),
        helper.make_node("Flatten", ["pooled"], ["flat"], name="flatten"),
        helper.make_node("Gemm", ["flat", "weight"], ["embedding"], name="gemm", transB=1),
    ]
    stored = {"mean": np.float32(127.5), "scale": np.float32(1 / 127.5), "weight": weight}
    graph = helper.make_graph(
        nodes,
        "network",
        [helper.make_tensor_value_info("pixels", TensorProto.FLOAT, [1, 3, 112, 112])],
        [helper.make_tensor_value_info("embedding", TensorProto.FLOAT, [1, 8])],
        [numpy_helper.from_array(np.asarray(value), name) for name, value in stored.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.checker.check_model(model, full_check=True)
    return model


print("insightface", insightface.__version__)
pixels = face[..., ::-1].transpose(2, 0, 1)[None].astype(np.float32)
found, direct = [], []
for names in (("Sub_0", "Mul_1"), ("/input/Sub", "/input/Mul")):
    onnx.save(network(*names), "network.onnx")
    session = onnxruntime.InferenceSession("network.onnx", providers=["CPUExecutionProvider"])
    direct.append(session.run(None, {"pixels": pixels})[0][0])
    found.append(ArcFaceONNX("network.onnx").get_feat(face)[0])
    alike = np.dot(found[-1], direct[-1]) / np.linalg.norm(found[-1]) / np.linalg.norm(direct[-1])
    print(names, "norm", f"{np.linalg.norm(found[-1]):.3f},", f"cosine to onnxruntime's answer {alike:.3f}")
same_graph = np.array_equal(*direct)
right = np.allclose(found[0], direct[0], atol=1e-4)
wrong = not np.allclose(found[1], direct[1], atol=0.1)
sys.exit(0 if same_graph and right and wrong else "the behaviour has changed")
PYTHON
