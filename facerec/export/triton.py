"""A model repository for Triton Inference Server: one model, one version, dynamic batching."""

from __future__ import annotations

import json
import re

from facerec.embedding.onnx_file import OnnxFile, TensorInfo

MAX_BATCH = 64

_TYPES = {"float32": "TYPE_FP32", "uint8": "TYPE_UINT8"}


def model_id(name: str) -> str:
    """Turn a name into one that Triton takes: letters, digits, ``._-``, 128 at most.

    A name without any letter or digit of ASCII becomes ``facerec-model``.
    """
    plain = re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip("._-")
    return plain[:128] or "facerec-model"


def triton_config(name: str, file: OnnxFile) -> str:
    """Return ``config.pbtxt`` for a file, from its own names, types and shapes.

    The fields are those of ``protobuf/model_config.proto`` in ``triton-inference-server/common``.
    Triton adds the batch itself where ``max_batch_size`` is above 0, so dims leave it out.

    The name is also that of its folder; Triton puts `MAX_BATCH` images into one batch at most.
    """
    lines = [
        f"name: {json.dumps(name)}",
        'backend: "onnxruntime"',
        f"max_batch_size: {MAX_BATCH}",
        *(f"input [ {{ {_tensor(tensor)} }} ]" for tensor in file.inputs),
        *(f"output [ {{ {_tensor(tensor)} }} ]" for tensor in file.outputs),
        "dynamic_batching { }",
        "instance_group [ { count: 1 kind: KIND_AUTO } ]",
        # On a GPU; by default onnxruntime would round float32 to 10 bits (TF32) there.
        "optimization { execution_accelerators { gpu_execution_accelerator [ "
        '{ name: "cuda" parameters { key: "use_tf32" value: "0" } } ] } }',
    ]
    return "\n".join(lines) + "\n"


def _tensor(tensor: TensorInfo) -> str:
    # JSON's escapes are among those of protobuf's text format.
    name, kind = json.dumps(tensor.name), _TYPES[tensor.dtype]
    return f"name: {name} data_type: {kind} dims: {list(tensor.shape[1:])}"
