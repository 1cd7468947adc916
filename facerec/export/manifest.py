"""What insightface reads beside a model: the package's manifest V2, the server's manifest V1.

The rules are those of insightface 2.1: ``python-package/insightface/model_zoo/package_manifest.py``
and ``server/backend/insightface_server/models/manifest.py``.
"""

from __future__ import annotations

import re
from typing import Any

import facerec
from facerec.backbones import Preprocessing
from facerec.embedding.bundle import ONNX_FILE
from facerec.embedding.onnx_file import OnnxFile
from facerec.errors import ExportError

MANIFEST_FILE = "manifest.json"
SERVER_FOLDER = "insightface-server"
DETECTOR_FILE = "detector.onnx"

LICENSE_FILE = "MODEL.LICENSE"
"""The name that both manifests must give. No such file is written: insightface takes only one that
its makers signed."""

PREPROCESSING_VERSION = "insightface-arcface-1"
"""insightface's name for faces aligned by its five-point template and fed as RGB."""

SERVER_REMARK = f"""\
The folder of models for InsightFace's server (manifest version 1).

It cannot be used as it is. The stock server starts only with

- {LICENSE_FILE}, a licence for this model_id signed by InsightFace, which nobody but InsightFace
  can issue, and
- {DETECTOR_FILE}, a face detector of the SCRFD family, which facerec does not have.

Copy this folder out of the bundle before you add them: the bundle's SHA256SUMS lists every file.
"""


def model_id(name: str) -> str:
    """Turn a name into one that insightface and Triton take: letters, digits, ``._-``, 128 at most.

    A name without any letter or digit of ASCII becomes ``facerec-model``.
    """
    plain = re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip("._-")
    return plain[:128] or "facerec-model"


def package_manifest(
    name: str, file: OnnxFile, preprocessing: Preprocessing | None
) -> dict[str, Any]:
    """Return ``manifest.json`` of version 2, which insightface's ``get_model`` reads.

    insightface does not compare the sizes with the file, so they are taken from it.

    Args:
        name: shown to people.
        file: the model, which lies beside the manifest as ``model.onnx``.
        preprocessing: what its input must have been through; None if the graph does all of it.

    Raises:
        ExportError: insightface cannot feed such a model.
    """
    side, dimension = _sizes(file)
    return {
        "manifest_version": 2,
        "model_id": model_id(name),
        "display_name": name,
        "license": LICENSE_FILE,
        "tasks": {
            "recognition": {
                "file": ONNX_FILE,
                "sha256": file.sha256,
                "preprocessing": _rgb_scaling(file, preprocessing),
                "preprocessing_version": PREPROCESSING_VERSION,
                "input_size": [side, side],
                "embedding_dimension": dimension,
            }
        },
    }


def server_manifest(
    name: str, file: OnnxFile, preprocessing: Preprocessing | None
) -> dict[str, Any]:
    """Return ``manifest.json`` of version 1, which InsightFace's server reads.

    It names a detector that facerec does not have; `SERVER_REMARK` says so to people. Arguments are
    those of `package_manifest`.

    Raises:
        ExportError: the server cannot feed such a model.
    """
    _rgb_scaling(file, preprocessing)
    check_server_scaling(name, preprocessing)
    side, dimension = _sizes(file)
    return {
        "manifest_version": 1,
        "model_id": model_id(name),
        # The server compares embeddings of equal versions only.
        "model_version": f"facerec-{facerec.__version__}-{file.sha256[:12]}",
        "display_name": name,
        "files": {"detector": DETECTOR_FILE, "recognizer": ONNX_FILE},
        "recognition": {
            "input_size": [side, side],
            "embedding_dimension": dimension,
            "preprocessing": PREPROCESSING_VERSION,
        },
        "license": LICENSE_FILE,
    }


def check_server_scaling(name: str, preprocessing: Preprocessing | None) -> None:
    """Refuse pixels that InsightFace's server cannot make; arguments as of `server_manifest`.

    Raises:
        ExportError: the model wants others.
    """
    if preprocessing is None or (preprocessing.mean, preprocessing.std) != (127.5, 127.5):
        wanted = "its pixels as they are" if preprocessing is None else str(preprocessing)
        raise ExportError(
            f"{name}: InsightFace's server always scales by mean 127.5 and std 127.5, the model "
            f"wants {wanted}; leave out --insightface-server"
        )


def _sizes(file: OnnxFile) -> tuple[int, int]:
    """Return the side of the image and the dimensions of the embedding."""
    image, dimension = file.image_input(), file.embedding_output().shape[-1]
    if image.layout != "NCHW" or image.height != image.width or not isinstance(dimension, int):
        raise ExportError(
            f"insightface takes square NCHW images and an embedding of stated size, found "
            f"{image.layout} {image.height}×{image.width} and {dimension} dimensions"
        )
    return image.height, dimension


def _rgb_scaling(file: OnnxFile, preprocessing: Preprocessing | None) -> str | dict[str, float]:
    if preprocessing is None:
        return "embedded"
    if preprocessing.channels != "rgb" or file.image_input().dtype != "float32":
        raise ExportError(
            f"insightface feeds float32 RGB images where it scales, found a model for "
            f"{file.image_input().dtype} {preprocessing.channels.upper()}"
        )
    return {"mean": preprocessing.mean, "std": preprocessing.std}
