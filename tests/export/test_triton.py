from __future__ import annotations

from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, text_format
from helpers.flat_onnx import flat_onnx
from onnx import TensorProto

from facerec.export.triton import triton_config

FIELDS = {
    "Tensor": [("name", "STRING"), ("data_type", "DataType"), ("dims", "INT64*")],
    "Batching": [("preferred_batch_size", "INT32*"), ("max_queue_delay_microseconds", "UINT64")],
    "Group": [("kind", "Kind"), ("count", "INT32")],
    "Parameter": [("key", "STRING"), ("value", "STRING")],
    "Accelerator": [("name", "STRING"), ("parameters", "Parameter*")],
    "Accelerators": [
        ("gpu_execution_accelerator", "Accelerator*"),
        ("cpu_execution_accelerator", "Accelerator*"),
    ],
    "Optimization": [("execution_accelerators", "Accelerators")],
    "ModelConfig": [
        ("name", "STRING"),
        ("backend", "STRING"),
        ("max_batch_size", "INT32"),
        ("input", "Tensor*"),
        ("output", "Tensor*"),
        ("dynamic_batching", "Batching"),
        ("instance_group", "Group*"),
        ("optimization", "Optimization"),
    ],
}
"""The part of Triton's model_config.proto that is used, under its own field names."""

ENUMS = {
    "DataType": ["TYPE_INVALID", "TYPE_UINT8", "TYPE_FP16", "TYPE_FP32"],
    "Kind": ["KIND_AUTO", "KIND_GPU", "KIND_CPU"],
}


def model_config() -> Any:
    """Build the message class of Triton's configuration."""
    file = descriptor_pb2.FileDescriptorProto(name="config.proto", package="t", syntax="proto3")
    for name, values in ENUMS.items():
        enum = file.enum_type.add(name=name)
        for number, value in enumerate(values):
            enum.value.add(name=value, number=number)
    kinds = descriptor_pb2.FieldDescriptorProto
    for name, fields in FIELDS.items():
        message = file.message_type.add(name=name)
        for number, (field, kind) in enumerate(fields, start=1):
            label = kinds.LABEL_REPEATED if kind.endswith("*") else kinds.LABEL_OPTIONAL
            kind = kind.removesuffix("*")
            entry = message.field.add(name=field, number=number, label=label)
            if kind in FIELDS or kind in ENUMS:
                entry.type = kinds.TYPE_MESSAGE if kind in FIELDS else kinds.TYPE_ENUM
                entry.type_name = f".t.{kind}"
            else:
                entry.type = getattr(kinds, f"TYPE_{kind}")
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("t.ModelConfig"))


CONFIG = model_config()


def parsed(text: str) -> Any:
    return text_format.Parse(text, CONFIG())


def test_the_text_says_what_the_file_is() -> None:
    config = parsed(triton_config("my-run", flat_onnx(dimension=24)))
    assert config.name == "my-run"
    assert config.backend == "onnxruntime"
    assert config.max_batch_size == 64
    (image,), (embedding,) = config.input, config.output
    assert (image.name, list(image.dims)) == ("data", [3, 112, 112])
    assert (embedding.name, list(embedding.dims)) == ("embedding", [24])
    types = config.DESCRIPTOR.file.enum_types_by_name["DataType"].values_by_number
    assert types[image.data_type].name == types[embedding.data_type].name == "TYPE_FP32"
    assert config.HasField("dynamic_batching")
    assert [(group.count, group.kind) for group in config.instance_group] == [(1, 0)]
    # Float32 is not rounded on GPUs.
    (cuda,) = config.optimization.execution_accelerators.gpu_execution_accelerator
    assert cuda.name == "cuda"
    assert [(entry.key, entry.value) for entry in cuda.parameters] == [("use_tf32", "0")]


def test_types_layout_and_names_come_from_the_file() -> None:
    name = 'im"age\\ß\n'
    file = flat_onnx(dtype=TensorProto.UINT8, channels_last=True, name=name)
    config = parsed(triton_config("m", file, max_batch=8))
    assert config.input[0].name == name
    assert list(config.input[0].dims) == [112, 112, 3]
    assert config.max_batch_size == 8
    types = config.DESCRIPTOR.file.enum_types_by_name["DataType"].values_by_number
    assert types[config.input[0].data_type].name == "TYPE_UINT8"
