"""Model files, and the models read from them: uint8 images in, raw embeddings out.

One ``.safetensors`` file is enough to verify, export or audit: beside the weights it holds the
architecture, the preprocessing and the recipe as JSON. Nothing here normalises an embedding.
"""

from __future__ import annotations

import contextlib
import json
import math
import pickle
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, cast

import numpy as np
import numpy.typing as npt
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor, nn

from facerec.backbones import Backbone, Preprocessing, create_backbone, normalize
from facerec.devices import choose_device
from facerec.errors import ImageError, MissingExtraError, ModelError, RecipeError
from facerec.files import atomic_path, sha256
from facerec.recipe import from_dict, to_dict

MODEL_FILE = "model.safetensors"
FORMAT = 1

Layout = dict[str, tuple[str, tuple[int, ...]]]
"""The types and shapes of a state dict, by tensor name."""


class EmbeddingModel(ABC):
    """Something that turns aligned faces into raw embeddings.

    Attributes:
        name: short name for tables: the run's folder, or the file without its suffix.
        path: the file that the weights came from, or None for a module in memory.
        sha256: SHA-256 of that file, or None.
        embedding_size: dimensions D of an embedding.
        image_size: height and width of the images, in pixels.
        preprocessing: what happens to the pixels before the network.
        batch_size: images that go through the network at once.
        recipe: the recipe of the run that trained it; empty if unknown.
    """

    name: str
    path: Path | None
    sha256: str | None
    embedding_size: int
    image_size: tuple[int, int] = (112, 112)
    preprocessing: Preprocessing
    batch_size: int
    recipe: dict[str, Any]

    def embed(self, images: npt.NDArray[np.uint8]) -> npt.NDArray[np.float32]:
        """Embed images in batches of ``batch_size``.

        Args:
            images: uint8 RGB, ``(N, 112, 112, 3)``.

        Returns:
            Raw embeddings, float32 ``(N, D)``.

        Raises:
            ImageError: images of another shape or type.
        """
        if (
            images.dtype != np.uint8
            or images.ndim != 4
            or images.shape[1:] != (*self.image_size, 3)
        ):
            height, width = self.image_size
            raise ImageError(
                f"{self.name} takes aligned uint8 RGB images of shape (N, {height}, {width}, 3), "
                f"found {images.dtype} of shape {images.shape}"
            )
        vectors = np.empty((len(images), self.embedding_size), np.float32)
        with self._ready():
            for start in range(0, len(images), self.batch_size):
                part = slice(start, start + self.batch_size)
                # from_numpy takes no negative strides, which is what a mirrored view has.
                pixels = torch.from_numpy(np.ascontiguousarray(images[part]))
                vectors[part] = self._forward(pixels)
        return vectors

    @abstractmethod
    def describe(self) -> dict[str, Any]:
        """Return what a report must say about this model, as JSON types."""

    @abstractmethod
    def _forward(self, pixels: Tensor) -> npt.NDArray[np.float32]:
        """Embed one batch, uint8 ``(B, H, W, 3)``."""

    def _ready(self) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext()

    def _description(self, runtime: str, device: str, precision: str) -> dict[str, Any]:
        return {
            "name": self.name,
            "path": None if self.path is None else str(self.path),
            "sha256": self.sha256,
            "runtime": runtime,
            "device": device,
            "precision": precision,
            "embedding_size": self.embedding_size,
            "preprocessing": to_dict(self.preprocessing),
        }


class TorchModel(EmbeddingModel):
    """A backbone in this process, from a file or live from a trainer.

    While it embeds, the module is in eval mode and without gradients; afterwards every part of it
    is back in the mode that it had.

    Args:
        backbone: maps normalised images to raw embeddings and knows its ``embedding_size``.
        preprocessing: what the backbone was trained with.
        device: where to compute; None leaves the module where it is.
        batch_size: images that go through the network at once.
        precision: ``bf16`` runs the convolutions under autocast, ``fp32`` runs nothing so, not even
            inside a caller's autocast; embeddings are float32 in any case.
        config: the recipe's section on the backbone, for `describe`.
        name: short name for tables.
        path: the file that the weights came from.
        recipe: the recipe of the run.

    Raises:
        DeviceError: the device is not there.
    """

    def __init__(
        self,
        backbone: nn.Module,
        preprocessing: Preprocessing,
        device: str | torch.device | None = None,
        *,
        batch_size: int = 64,
        precision: Literal["fp32", "bf16"] = "fp32",
        config: Backbone | None = None,
        name: str = "backbone",
        path: Path | None = None,
        recipe: dict[str, Any] | None = None,
    ) -> None:
        self.device = (
            next(backbone.parameters()).device if device is None else choose_device(device)
        )
        self.backbone = backbone.to(self.device)
        self.embedding_size = cast(int, backbone.embedding_size)
        self.preprocessing = preprocessing
        self.batch_size = batch_size
        self.precision = precision
        self.config = config
        self.name = name
        self.path = path
        self.sha256 = None if path is None else sha256(path)
        self.recipe = recipe or {}

    def describe(self) -> dict[str, Any]:
        """Return what a report must say about this model, as JSON types."""
        return {
            **self._description(f"torch {torch.__version__}", str(self.device), self.precision),
            "backbone": None if self.config is None else to_dict(self.config),
            "embedding_bn": None if self.config is None else self.config.embedding_bn,
        }

    @contextlib.contextmanager
    def _ready(self) -> Iterator[None]:
        modes = [(module, module.training) for module in self.backbone.modules()]
        self.backbone.eval()
        bf16 = self.precision == "bf16"
        try:
            with torch.no_grad(), torch.autocast(self.device.type, torch.bfloat16, enabled=bf16):
                yield
        finally:
            for module, training in modes:
                module.training = training

    def _forward(self, pixels: Tensor) -> npt.NDArray[np.float32]:
        x = normalize(pixels.to(self.device), self.preprocessing)
        return self.backbone(x).float().cpu().numpy()


class OnnxModel(EmbeddingModel):
    """An ``.onnx`` file in onnxruntime: one float32 image input, one embedding output.

    Input name, layout (NCHW or NHWC) and image size are read from the file. A file with a fixed
    batch gets batches of just that size, the last one padded.

    Args:
        path: the file.
        preprocessing: what the network expects; the file does not say.
        device: ``cpu`` or ``cuda``.
        batch_size: images that go through the network at once, where the file leaves it open.

    Raises:
        MissingExtraError: onnxruntime is not installed.
        ModelError: the file is damaged, is no embedding model, or the device is not there.
    """

    def __init__(
        self,
        path: Path,
        preprocessing: Preprocessing,
        *,
        device: str | torch.device = "cpu",
        batch_size: int = 64,
    ) -> None:
        self.name = path.stem
        self.path = path
        self.sha256 = sha256(path)
        self.preprocessing = preprocessing
        self.recipe = {}
        self._session = _onnx_session(path, str(device))
        self.device = str(device)

        inputs, outputs = self._session.get_inputs(), self._session.get_outputs()
        if len(inputs) != 1 or len(outputs) != 1:
            raise ModelError(
                f"{path}: an embedding model has one input and one output, found inputs "
                f"{[i.name for i in inputs]} and outputs {[o.name for o in outputs]}"
            )
        shape = inputs[0].shape
        self._channels_last = len(shape) == 4 and shape[3] == 3 and shape[1] != 3
        size = shape[1:3] if self._channels_last else shape[2:4]
        if inputs[0].type != "tensor(float)" or len(shape) != 4 or 3 not in (shape[1], shape[3]):
            raise ModelError(
                f"{path}: the input must be float32 images (N, 3, H, W) or (N, H, W, 3), found "
                f"{inputs[0].type} of shape {shape}"
            )
        height, width = (side if isinstance(side, int) else 112 for side in size)
        self.image_size = (height, width)
        self._input = inputs[0].name
        self._fixed_batch = isinstance(shape[0], int)
        self.batch_size = shape[0] if self._fixed_batch else batch_size
        # The stated output shape may be symbolic or wrong; one black image tells the truth.
        black = torch.zeros(1, height, width, 3, dtype=torch.uint8)
        self.embedding_size = self._forward(black).shape[1]

    def describe(self) -> dict[str, Any]:
        """Return what a report must say about this model, as JSON types."""
        import onnxruntime

        runtime = f"onnxruntime {onnxruntime.__version__}"
        return {
            **self._description(runtime, self.device, "as stored in the file"),
            "backbone": None,
            "embedding_bn": None,
        }

    def _forward(self, pixels: Tensor) -> npt.NDArray[np.float32]:
        count = len(pixels)
        if self._fixed_batch and count < self.batch_size:
            padding = pixels.new_zeros(self.batch_size - count, *pixels.shape[1:])
            pixels = torch.cat([pixels, padding])
        x = normalize(pixels, self.preprocessing)
        x = x.permute(0, 2, 3, 1) if self._channels_last else x
        try:
            (output,) = self._session.run(None, {self._input: np.ascontiguousarray(x.numpy())})
        except Exception as error:  # onnxruntime's classes share no base but this
            raise ModelError(f"{self.path}: onnxruntime failed ({_first_line(error)})") from error
        if output.ndim < 2 or len(output) != len(pixels) or math.prod(output.shape[2:]) != 1:
            raise ModelError(
                f"{self.path}: {len(pixels)} images gave an output of shape {output.shape}, not "
                f"({len(pixels)}, D); this is no embedding model"
            )
        return output.reshape(len(pixels), -1)[:count].astype(np.float32, copy=False)


def save_model(
    path: str | Path,
    backbone: nn.Module,
    config: Backbone,
    preprocessing: Preprocessing,
    recipe: dict[str, Any],
    extra: dict[str, Any] | None = None,
) -> None:
    """Write the backbone's weights and all that is needed to use them, whole or not at all.

    The header of the ``.safetensors`` file gets one entry, ``facerec``: JSON with ``format``,
    ``backbone``, ``preprocessing``, ``recipe`` and, where given, ``extra``.

    Args:
        path: the file to write.
        backbone: the bare module, without a DDP or compile wrapper.
        config: the section that the module was created from.
        preprocessing: what it was trained with.
        recipe: the resolved recipe as JSON types.
        extra: anything else worth keeping, as JSON types.

    Raises:
        ModelError: the module does not fit ``config``, or the file cannot be written.
    """
    path = Path(path)
    tensors = {name: t.detach().cpu().contiguous() for name, t in backbone.state_dict().items()}
    _compare(f"{path} not written", _architecture(config), _expected(config), _layout(tensors))
    note = {
        "format": FORMAT,
        "backbone": to_dict(config),
        "preprocessing": to_dict(preprocessing),
        "recipe": recipe,
        **({} if extra is None else {"extra": extra}),
    }
    metadata = {"facerec": json.dumps(note, sort_keys=True)}
    with atomic_path(path, ModelError) as temporary:
        temporary.write_bytes(save(tensors, metadata))


def load_model(
    path: str | Path,
    *,
    device: str | torch.device = "cpu",
    batch_size: int = 64,
    precision: Literal["fp32", "bf16"] = "fp32",
    channels: Literal["rgb", "bgr"] | None = None,
    mean: float | None = None,
    std: float | None = None,
) -> EmbeddingModel:
    """Load a model from a run folder, a ``.safetensors`` or an ``.onnx`` file.

    Args:
        path: a run (its ``model.safetensors`` is taken) or a file.
        device: where to compute; ``auto`` takes the CPU for an ``.onnx`` file.
        batch_size: images that go through the network at once.
        precision: ``bf16`` runs the convolutions under autocast; ``.safetensors`` only.
        channels: channel order that an ``.onnx`` file wants; default rgb, as InsightFace's do.
        mean: subtracted from every pixel value, for ``.onnx``; default 127.5.
        std: divides the result, for ``.onnx``; default 127.5.

    Raises:
        ModelError: missing, damaged, foreign, or weights of another architecture.
        DeviceError: the device is not there.
        MissingExtraError: an ``.onnx`` file without onnxruntime.
    """
    path = Path(path)
    if path.is_dir():
        if not (path / MODEL_FILE).is_file():
            raise ModelError(
                f"{path}: this folder holds no {MODEL_FILE}; give a run that has finished, a "
                ".safetensors or an .onnx file"
            )
        path = path / MODEL_FILE
    if not path.is_file():
        raise ModelError(
            f"{path}: no such model; give a run folder, a .safetensors or an .onnx file"
        )
    given = {"channels": channels, "mean": mean, "std": std}
    asked = {name: value for name, value in given.items() if value is not None}
    if path.suffix == ".onnx":
        if precision != "fp32":
            raise ModelError(
                f"{path}: an .onnx file fixes its own precision; leave out {precision}"
            )
        try:
            preprocessing = replace(Preprocessing(), **cast(dict[str, Any], asked))
        except ValueError as error:
            raise ModelError(f"{path}: {error}") from error
        onnx_device = "cpu" if device == "auto" else device
        return OnnxModel(path, preprocessing, device=onnx_device, batch_size=batch_size)
    if path.suffix != ".safetensors":
        raise ModelError(
            f"{path}: a model is a run folder, a .safetensors or an .onnx file, not "
            f"{path.suffix or 'a file without suffix'}"
        )
    backbone, config, preprocessing, recipe = _read_safetensors(path)
    for name, value in asked.items():
        if getattr(preprocessing, name) != value:
            raise ModelError(
                f"{path}: the model was trained with {name} {getattr(preprocessing, name)}, so "
                f"{name} {value} would be wrong; leave it out"
            )
    return TorchModel(
        backbone.to(memory_format=torch.channels_last),  # type: ignore[call-overload]
        preprocessing,
        device=device,
        batch_size=batch_size,
        precision=precision,
        config=config,
        name=path.resolve().parent.name if path.name == MODEL_FILE else path.stem,
        path=path,
        recipe=recipe,
    )


def load_state_dict_file(backbone: nn.Module, path: str | Path) -> None:
    """Load a ``.pth`` state dict, such as InsightFace publishes, strictly and without running code.

    Args:
        backbone: from `create_backbone`, of the architecture and options that the file belongs to.
        path: a file that ``torch.save`` wrote.

    Raises:
        ModelError: no state dict; another architecture; values that are not finite; a γ other than
            1 for a backbone with ``embedding_bn="frozen_gamma"``.
    """
    path = Path(path)
    if not path.is_file():
        raise ModelError(f"{path}: no such file")
    try:
        tensors = torch.load(path, map_location="cpu", weights_only=True)
    except (pickle.UnpicklingError, RuntimeError, EOFError, ValueError, KeyError) as error:
        raise ModelError(
            f"{path}: not a state dict that loads without running code ({_first_line(error)})"
        ) from error
    if not isinstance(tensors, dict) or not all(isinstance(t, Tensor) for t in tensors.values()):
        names = ", ".join(map(str, tensors))[:80] if isinstance(tensors, dict) else "no names"
        raise ModelError(
            f"{path}: a state dict maps names to tensors, found a {type(tensors).__name__} "
            f"({names}); save the backbone's state_dict() alone"
        )
    expected = _layout(backbone.state_dict())
    _compare(str(path), f"this {type(backbone).__name__}", expected, _layout(tensors))
    _check_finite(path, tensors)
    norm = backbone.embedding_norm
    if isinstance(norm, nn.BatchNorm1d) and not norm.weight.requires_grad:
        gamma = next(tensors[n] for n, p in backbone.named_parameters() if p is norm.weight)
        if not bool((gamma == 1).all()):
            raise ModelError(
                f"{path}: the last batch norm has a γ other than 1 (from {gamma.min():.4g} to "
                f'{gamma.max():.4g}); create the backbone with embedding_bn="affine"'
            )
    backbone.load_state_dict(tensors)


def newest_run(runs: str | Path = "runs") -> Path:
    """Return the run folder whose ``model.safetensors`` was written last.

    Raises:
        ModelError: no run in ``runs`` has one.
    """
    runs = Path(runs)
    files = [file for file in runs.glob(f"*/{MODEL_FILE}") if file.is_file()]
    if not files:
        raise ModelError(
            f"{runs}: no run here holds a {MODEL_FILE}; train one (facerec train) or name a model"
        )
    return max(files, key=lambda file: (file.stat().st_mtime_ns, file.parent.name)).parent


def _read_safetensors(path: Path) -> tuple[nn.Module, Backbone, Preprocessing, dict[str, Any]]:
    try:
        with safe_open(path, framework="pt", device="cpu") as file:
            note = (file.metadata() or {}).get("facerec")
            config, preprocessing, recipe = _parse_note(path, note)
            # Names, types and shapes are compared before any weights are read.
            names = list(file.keys())
            found = {}
            for name in names:
                header = file.get_slice(name)
                kind = {"F32": "float32", "I64": "int64"}.get(
                    header.get_dtype(), header.get_dtype()
                )
                found[name] = (kind, tuple(header.get_shape()))
            _compare(str(path), _architecture(config), _expected(config), found)
            tensors = {name: file.get_tensor(name) for name in names}
    except (SafetensorError, OSError) as error:
        raise ModelError(f"{path}: not a whole .safetensors file ({_first_line(error)})") from error
    except RecipeError as error:
        raise ModelError(f"{path}: {error}") from error
    _check_finite(path, tensors)
    with torch.device("meta"):
        backbone = create_backbone(config)
    backbone.load_state_dict(tensors, assign=True)
    return backbone, config, preprocessing, recipe


def _parse_note(path: Path, text: str | None) -> tuple[Backbone, Preprocessing, dict[str, Any]]:
    if text is None:
        raise ModelError(
            f"{path}: the file does not say which architecture its weights belong to (no entry "
            "'facerec' in its metadata); give a file that facerec wrote, or an .onnx file"
        )
    try:
        note = json.loads(text)
        version = note["format"]
        if version != FORMAT:
            raise ModelError(
                f"{path}: written in format {version!r}, this facerec reads format {FORMAT}; "
                "use the facerec that wrote it, or a newer one"
            )
        config = from_dict(Backbone, note["backbone"], str(path))
        preprocessing = from_dict(Preprocessing, note["preprocessing"], str(path))
        recipe = note["recipe"]
    except RecipeError as error:
        raise ModelError(str(error)) from error
    except (ValueError, KeyError, TypeError) as error:
        raise ModelError(f"{path}: its entry 'facerec' is damaged ({error!r})") from error
    return config, preprocessing, recipe


def _architecture(config: Backbone) -> str:
    return (
        f"{config.name} (embedding_size {config.embedding_size}, width {config.width:g}, "
        f"embedding_bn {config.embedding_bn})"
    )


def _expected(config: Backbone) -> Layout:
    with torch.device("meta"):
        return _layout(create_backbone(config).state_dict())


def _layout(tensors: dict[str, Tensor]) -> Layout:
    return {n: (str(t.dtype).removeprefix("torch."), tuple(t.shape)) for n, t in tensors.items()}


def _compare(where: str, architecture: str, expected: Layout, found: Layout) -> None:
    """Name the first tensor in which ``found`` is not what the architecture has."""
    for name, wanted in expected.items():
        if name not in found:
            raise ModelError(
                f"{where}: tensor {name!r} of {architecture} is missing; the weights belong to "
                "another architecture"
            )
        if found[name] != wanted:
            raise ModelError(
                f"{where}: tensor {name!r} of {architecture} must be {_words(wanted)}, found "
                f"{_words(found[name])}; the weights belong to another architecture"
            )
    for name in found:
        if name not in expected:
            raise ModelError(
                f"{where}: tensor {name!r} is not part of {architecture}; the weights belong to "
                "another architecture"
            )


def _words(entry: tuple[str, tuple[int, ...]]) -> str:
    return f"{entry[0]} {entry[1]}"


def _check_finite(path: Path, tensors: dict[str, Tensor]) -> None:
    for name, tensor in tensors.items():
        if not bool(torch.isfinite(tensor).all()):
            raise ModelError(f"{path}: tensor {name!r} holds NaN or infinity; take an older model")


def _onnx_session(path: Path, device: str) -> Any:
    try:
        import onnxruntime
    except ImportError as error:
        raise MissingExtraError(
            f"{path}: reading .onnx needs onnxruntime; run: pip install 'facerec[onnx]'"
        ) from error
    kind = device.split(":")[0]
    providers = {"cpu": "CPUExecutionProvider", "cuda": "CUDAExecutionProvider"}
    if kind not in providers:
        raise ModelError(f"{path}: an .onnx file runs on cpu or cuda, not on {device!r}")
    _check_provider(path, providers[kind], onnxruntime.get_available_providers())
    # cuda:1 and the like; onnxruntime takes options as text.
    index = {"device_id": device.split(":")[1]} if ":" in device else {}
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    options.log_severity_level = 3
    try:
        session = onnxruntime.InferenceSession(
            str(path), options, providers=[(providers[kind], index)]
        )
    except Exception as error:  # onnxruntime's classes share no base but this
        raise ModelError(f"{path}: onnxruntime cannot load it ({_first_line(error)})") from error
    # A provider can be there and still not start, for want of its libraries.
    _check_provider(path, providers[kind], session.get_providers())
    return session


def _check_provider(path: Path, wanted: str, offered: list[str]) -> None:
    """Asked for a provider that it lacks, onnxruntime would only warn and compute on the CPU."""
    if wanted not in offered:
        raise ModelError(
            f"{path}: onnxruntime offers no {wanted} here, only {', '.join(offered)}; install "
            "onnxruntime-gpu in place of onnxruntime, or use device cpu"
        )


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
