"""Loading of models: from a run, a bundle, a file or the Hub to what embeds as calibrated."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from facerec.backbones.preprocessing import PerChannel
from facerec.base.errors import ModelError
from facerec.embedding.bundle import MODEL_FILE, bundle_file, is_bundle
from facerec.embedding.calibration import find_calibration
from facerec.embedding.engines import EngineName, Precision
from facerec.embedding.hub import fetch_model, is_hub_name, parse_hub_name
from facerec.embedding.model import EmbeddingModel, OnnxModel
from facerec.embedding.onnx_file import read_onnx

if TYPE_CHECKING:
    import torch


def load_model(
    path: str | Path,
    *,
    device: str | torch.device = "cpu",
    batch_size: int = 64,
    precision: Precision = "fp32",
    channels: Literal["rgb", "bgr"] | None = None,
    mean: PerChannel | None = None,
    std: PerChannel | None = None,
    shift: tuple[int, int] | None = None,
    engine: EngineName = "onnxruntime",
    variant: str | None = None,
    calibrated: bool = True,
) -> EmbeddingModel:
    """Load a model from a run folder, a bundle, an ``.onnx`` or ``.safetensors`` file, or the Hub.

    Weights of others (``.pth``, …) become a ``.safetensors`` by ``facerec import-weights``.

    Args:
        path: a run (its ``model.safetensors`` is taken), a bundle (all checksums are compared), a
            file, or ``hf://OWNER/NAME@REVISION``, a bundle or ``model.safetensors`` on the Hub.
        device: where to compute; ``auto`` takes the CPU for an ``.onnx`` file.
        batch_size: images that go through the network at once.
        precision: ``bf16`` runs the convolutions of a ``.safetensors`` file under autocast, and an
            ``.onnx`` file so in OpenVINO alone.
        channels: channel order that a file of others wants; by default what its calibration or
            the file itself states, else rgb.
        mean: subtracted from every pixel value, a number or one a channel; by default what the
            calibration or the file states, or `guess_preprocessing` finds.
        std: divides the result; the same.
        shift: pixels by which crops are moved right and down, so that faces lie where the network
            expects them; by default those of its calibration.
        engine: what computes an ``.onnx`` file, see `open_engine`.
        variant: one of the bundle's variants, for example ``int8``.
        calibrated: take over the calibration in the file or beside it.

    Raises:
        ModelError: missing, damaged, foreign, another architecture's weights, or a preprocessing
            that its calibration contradicts.
        DeviceError: the device is not there.
        MissingExtraError: an ``.onnx`` file without its engine, or the Hub without its library.
    """
    path, hub = fetch_model(path) if is_hub_name(path) else (path, None)
    path, given = Path(path), hub or str(path)
    suffix = "" if variant is None else f" ({variant})"
    pixels: dict[str, Any] = {"channels": channels, "mean": mean, "std": std}
    how: dict[str, Any] = {"device": device, "batch_size": batch_size, "precision": precision}
    bundled = is_bundle(path)
    if variant is not None and not bundled:
        raise ModelError(f"{given}: only a bundle has variants; leave out {variant!r}")
    if bundled:
        path = bundle_file(path, variant)
    elif path.is_dir():
        path = path / MODEL_FILE
    if not path.is_file() or path.suffix not in (".onnx", ".safetensors"):
        raise ModelError(
            f"{given}: no such model; give a run folder with a {MODEL_FILE}, a bundle, an .onnx or "
            "a .safetensors file; weights of others become one by facerec import-weights"
        )
    file = read_onnx(path) if path.suffix == ".onnx" else None
    if file is None and engine == "openvino":
        raise ModelError(f"{path}: engine {engine} computes .onnx files; leave it out")
    known, unused = find_calibration(path, file) if calibrated else (None, "")
    how["pixels"] = pixels if known is None else known.pixels(pixels)
    model: EmbeddingModel
    if file is not None:
        model = OnnxModel(file, engine=engine, **how)
    else:
        from facerec.embedding.torch_model import load_weights  # an .onnx file needs no torch

        model = load_weights(path, **how)
    if bundled:
        # The folder alone may be called "." or "bundle/".
        model.name = Path(given).resolve().name + suffix
        model.evidence += (f"part of the bundle {given}, whose checksums are right",)
    model.calibration, model.notes = known, (*model.notes, *([unused] if unused else ()))
    if known is not None and known.sha256 is not None:  # beside the file, and not in it
        model.evidence = (f"its calibration {known.where} says so",)
    _place(model, shift)
    if hub is not None:
        model.hub, model.name = hub, Path(parse_hub_name(hub)[0]).name + suffix
    return model


def _place(model: EmbeddingModel, shift: tuple[int, int] | None) -> None:
    """Set by how much a model's pictures are moved, as asked for or as in its calibration.

    Raises:
        ModelError: nothing would be left of a picture.
    """
    known = model.calibration
    if shift is None and known is not None:
        shift = known.shift
        if known.align is None:
            # Crops of its set are moved; a face that is cut out of a photo must lie as they did.
            model.cut = -shift[0], -shift[1]
    model.shift = shift or (0, 0)
    height, width = model.image_size
    if abs(model.shift[0]) >= width or abs(model.shift[1]) >= height:
        raise ModelError(
            f"{model.path}: shift {model.shift[0]} {model.shift[1]} moves everything out of a "
            f"picture of {width}×{height} pixels; give fewer pixels"
        )


def newest_run() -> Path:
    """Return the folder in ``runs`` whose ``model.safetensors`` was written last.

    Raises:
        ModelError: no run there has one.
    """
    files = [file for file in Path("runs").glob(f"*/{MODEL_FILE}") if file.is_file()]
    if not files:
        raise ModelError(
            f"runs: no run here holds a {MODEL_FILE}; train one (facerec train) or name a model"
        )
    return max(files, key=lambda file: (file.stat().st_mtime_ns, file.parent.name)).parent
