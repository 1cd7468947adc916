"""Model files, and the models read from them: uint8 images in, raw embeddings out.

One ``.safetensors`` file is enough to verify, export or audit: beside the weights it holds the
architecture, the preprocessing and the recipe as JSON. Nothing here normalises an embedding.
"""

from __future__ import annotations

import contextlib
import copy
import itertools
import json
import math
import re
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, cast

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from facerec.backbones import (
    Backbone,
    Preprocessing,
    create_backbone,
    is_backbone,
    list_backbones,
    normalize,
    registered_by,
)
from facerec.devices import HostCopy, choose_device, true_float32
from facerec.embedding.bundle import is_bundle, read_bundle
from facerec.embedding.engines import EngineName, Images, Precision, open_engine
from facerec.embedding.onnx_file import (
    GuessedPreprocessing,
    OnnxFile,
    guess_by_name,
    guess_preprocessing,
    printable,
    read_onnx,
)
from facerec.embedding.state_dict import (
    COUNTER,
    check_readable,
    own_names,
    read_state_dict,
)
from facerec.errors import ImageError, ModelError, RecipeError, message_line
from facerec.files import atomic_path, parse_json, sha256
from facerec.recipe import from_dict, to_dict

MODEL_FILE = "model.safetensors"
FORMAT = 1

Finish = Callable[[], npt.NDArray[np.float32]]
"""Waits for embeddings and returns them."""

UNSCALED = Preprocessing("rgb", 0.0, 1.0)
"""For a graph that normalises by itself."""

WEIGHTS = (".safetensors", ".pth", ".pt", ".ckpt", ".tar", ".bin")
"""Suffixes of state dicts."""

_HEAD = re.compile(
    "head|fc|classif|kernel|margin|loss|criterion|softmax|arc|cosface|metric|product|logit|proto"
)
"""Found in names of what stands behind the embedding in training: class centres, losses."""

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
        evidence: why the preprocessing is what it is, in sentences, the decisive one first.
        assumed: parts of the preprocessing of which nothing tells: ``channels``, ``mean``, ``std``.
        warnings: what people must hear before they use it, in sentences.
        batch_size: images that go through the network at once.
        recipe: the recipe of the run that trained it; empty if unknown.
        note: what facerec wrote into the file at export (`OnnxFile.note`); None without it.
    """

    name: str
    path: Path | None
    sha256: str | None
    embedding_size: int
    image_size: tuple[int, int] = (112, 112)
    preprocessing: Preprocessing
    evidence: tuple[str, ...] = ()
    assumed: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    batch_size: int
    recipe: dict[str, Any]
    note: dict[str, Any] | None = None

    def embed(self, images: npt.NDArray[np.uint8]) -> npt.NDArray[np.float32]:
        """Embed images in batches of ``batch_size``.

        Args:
            images: uint8 RGB, ``(N, 112, 112, 3)``.

        Returns:
            Raw embeddings, float32 ``(N, D)``.

        Raises:
            ImageError: images of another shape or type.
        """
        return self.embed_later(images)()

    def embed_later(self, images: npt.NDArray[np.uint8]) -> Finish:
        """Begin to embed images; a GPU works on while the caller does other things.

        Args:
            images: as for `embed`.

        Returns:
            What waits for the raw embeddings, and returns them as `embed` does.

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
        waiting: deque[tuple[slice, Finish]] = deque()

        def finish() -> None:
            rows, begun = waiting.popleft()
            vectors[rows] = begun()

        with self._ready():
            for start in range(0, len(images), self.batch_size):
                rows = slice(start, start + self.batch_size)
                # from_numpy takes no negative strides, which is what a mirrored view has.
                pixels = torch.from_numpy(np.ascontiguousarray(images[rows]))
                waiting.append((rows, self._begin(pixels)))
                if len(waiting) > 2:  # what a GPU has before it, and the memory of that, is bounded
                    finish()

        def result() -> npt.NDArray[np.float32]:
            while waiting:
                finish()
            return vectors

        return result

    def with_preprocessing(self, preprocessing: Preprocessing) -> EmbeddingModel:
        """Return the same model for pixels that are prepared otherwise."""
        other = copy.copy(self)
        other.preprocessing = preprocessing
        other.evidence, other.assumed = ("it was given by the caller",), ()
        return other

    @abstractmethod
    def describe(self) -> dict[str, Any]:
        """Return what a report must say about this model, as JSON types."""

    @abstractmethod
    def _forward(self, pixels: Tensor) -> npt.NDArray[np.float32]:
        """Embed one batch, uint8 ``(B, H, W, 3)``."""

    def _begin(self, pixels: Tensor) -> Finish:
        """Embed one batch where nobody has to wait for that; elsewhere at once."""
        vectors = self._forward(pixels)
        return lambda: vectors

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
            "preprocessing_evidence": list(self.evidence),
            "preprocessing_assumed": list(self.assumed),
            **({"warnings": list(self.warnings)} if self.warnings else {}),
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
            inside a caller's autocast, and nothing in TF32; embeddings are float32 in any case.
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
        precision: Precision = "fp32",
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
        self.evidence = () if path is None else ("its metadata entry 'facerec' says so",)
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
            with (
                torch.no_grad(),
                true_float32(),
                torch.autocast(self.device.type, torch.bfloat16, enabled=bf16),
            ):
                yield
        finally:
            for module, training in modes:
                module.training = training

    def _forward(self, pixels: Tensor) -> npt.NDArray[np.float32]:
        return self._begin(pixels)()

    def _begin(self, pixels: Tensor) -> Finish:
        if self.device.type == "cuda":
            pixels = pixels.pin_memory().to(self.device, non_blocking=True)
        x = normalize(pixels.to(self.device), self.preprocessing)
        copy = HostCopy(self.backbone(x).float())
        return lambda: copy.read().numpy()


class OnnxModel(EmbeddingModel):
    """An ``.onnx`` file in an engine: one input of images, one output of embeddings.

    Input name, type, layout (NCHW or NHWC) and image size are read from the file. A file with a
    fixed batch gets batches of just that size, the last one padded. Asked for CUDA, it computes
    there or not at all.

    Args:
        file: the file, read and checked.
        channels: channel order that the network wants; by default what the file states, else rgb.
        mean: subtracted from every pixel value; by default what the file states or is guessed.
        std: divides the result; the same.
        device: ``cpu``, ``cuda`` or ``cuda:1``; ``auto`` is the CPU.
        batch_size: images that go through the network at once, where the file leaves it open.
        engine: what computes.
        precision: ``bf16`` for OpenVINO.
        name: short name for tables; by default the file's.

    Raises:
        MissingExtraError: the engine is not installed.
        ModelError: no embedding model, a preprocessing that the file contradicts, or the device is
            not there.
    """

    def __init__(
        self,
        file: OnnxFile,
        *,
        channels: Literal["rgb", "bgr"] | None = None,
        mean: float | None = None,
        std: float | None = None,
        device: str | torch.device = "cpu",
        batch_size: int = 64,
        engine: EngineName = "onnxruntime",
        precision: Precision = "fp32",
        name: str | None = None,
    ) -> None:
        self.path = file.path
        self.name = name or ("model" if file.path is None else file.path.stem)
        self.sha256 = file.sha256
        self.note = file.note
        self.recipe = (self.note or {}).get("recipe", {})
        self._where = file.where
        self._input = file.image_input()
        file.embedding_output()
        guess = guess_preprocessing(file)
        asked = _asked(channels, mean, std)
        self.preprocessing = _choose_preprocessing(file, guess, asked)
        self.warnings = tuple(_contradictions(file, guess, self.preprocessing))
        self.evidence = (*_given(asked), *guess.evidence)
        self.assumed = tuple(setting for setting in guess.assumed if setting not in asked)
        self._engine = open_engine(file, engine, str(device), precision)
        self.device = self._engine.device
        self.image_size = (self._input.height, self._input.width)
        self.batch_size = self._input.batch or batch_size
        # The stated output shape may be symbolic or wrong; one black image tells the truth.
        black = torch.zeros(1, *self.image_size, 3, dtype=torch.uint8)
        self.embedding_size = self._forward(black).shape[1]

    def describe(self) -> dict[str, Any]:
        """Return what a report must say about this model, as JSON types."""
        return {
            **self._description(self._engine.name, self.device, self._engine.precision),
            "backbone": None,
            "embedding_bn": None,
        }

    def _forward(self, pixels: Tensor) -> npt.NDArray[np.float32]:
        count = len(pixels)
        if self._input.batch is not None and count < self.batch_size:
            padding = pixels.new_zeros(self.batch_size - count, *pixels.shape[1:])
            pixels = torch.cat([pixels, padding])
        output = self._engine.run(self._batch(pixels))
        if output.ndim < 2 or len(output) != len(pixels) or math.prod(output.shape[2:]) != 1:
            raise ModelError(
                f"{self._where}: {len(pixels)} images gave an output of shape {output.shape}, not "
                f"({len(pixels)}, D); this is no embedding model"
            )
        return output.reshape(len(pixels), -1)[:count]

    def _batch(self, pixels: Tensor) -> Images:
        """Return uint8 ``(B, H, W, 3)`` as the file wants it."""
        if self._input.dtype == "uint8":
            x = pixels.flip(3) if self.preprocessing.channels == "bgr" else pixels
            x = x.permute(0, 3, 1, 2)
        else:
            x = normalize(pixels, self.preprocessing)
        x = x.permute(0, 2, 3, 1) if self._input.layout == "NHWC" else x
        return np.ascontiguousarray(x.numpy())


def _asked(channels: str | None, mean: float | None, std: float | None) -> dict[str, Any]:
    given = {"channels": channels, "mean": mean, "std": std}
    return {name: value for name, value in given.items() if value is not None}


def _given(asked: Mapping[str, Any]) -> Iterator[str]:
    return (f"{setting} was given by the user" for setting in asked)


def _replaced(where: object, known: Preprocessing, asked: dict[str, Any]) -> Preprocessing:
    try:
        return replace(known, **asked)
    except RecipeError as error:
        raise ModelError(f"{where}: {error}") from error


def _choose_preprocessing(
    file: OnnxFile, guess: GuessedPreprocessing, asked: dict[str, Any]
) -> Preprocessing:
    """Return what to do with the pixels: what was asked for where the file leaves it open."""
    inside = guess.preprocessing is None
    preprocessing = guess.preprocessing or UNSCALED
    fixed = ("channels", "mean", "std") if guess.stated else ()
    if file.image_input().dtype == "uint8":
        fixed = (*fixed, "mean", "std")
    for name in fixed:
        if asked.get(name, getattr(preprocessing, name)) != getattr(preprocessing, name):
            raise ModelError(
                f"{file.where}: the file wants {name} {getattr(preprocessing, name)}"
                f"{', since it normalises by itself' if inside else ''}, so {name} {asked[name]} "
                "would be wrong; leave it out"
            )
    if inside and not guess.stated and {"mean", "std"} & asked.keys():
        # Whoever scales outside does not believe the guess that the graph does it.
        preprocessing = Preprocessing()
    return _replaced(file.where, preprocessing, asked)


def _contradictions(
    file: OnnxFile, guess: GuessedPreprocessing, chosen: Preprocessing
) -> Iterator[str]:
    """Yield a warning where pixels are scaled otherwise than the start of the graph speaks for."""
    known = guess.preprocessing or UNSCALED
    scaling = file.scaling
    if guess.stated or scaling is None or scaling.trivial:
        return
    if (chosen.mean, chosen.std) != (known.mean, known.std):
        yield (
            f"mean {chosen.mean:g} and std {chosen.std:g} contradict the graph, which begins with "
            f"{' → '.join(scaling.nodes)}, so pixels are scaled twice; leave out --mean and --std "
            "unless you know that it wants this"
        )


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
    ``backbone``, ``preprocessing``, ``recipe`` and, where given, ``extra``; for a backbone that is
    not facerec's own also ``registered_by``, the name of the file that it needs.

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
    from safetensors.torch import save  # here, because computing needs no file

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
    if (file := registered_by(config.name)) is not None:
        note["registered_by"] = file
    metadata = {"facerec": json.dumps(note, sort_keys=True)}
    with atomic_path(path, ModelError) as temporary:
        temporary.write_bytes(save(tensors, metadata))


def load_model(
    path: str | Path,
    *,
    device: str | torch.device = "cpu",
    batch_size: int = 64,
    precision: Precision = "fp32",
    channels: Literal["rgb", "bgr"] | None = None,
    mean: float | None = None,
    std: float | None = None,
    engine: EngineName = "onnxruntime",
    variant: str | None = None,
) -> EmbeddingModel:
    """Load a model from a run folder, a bundle, an ``.onnx`` file or a file of weights.

    The network of others' weights (``.safetensors``, ``.pth``, …) is recognised by the names and
    shapes of its tensors; their preprocessing is an assumption, as for others' ``.onnx``.

    Args:
        path: a run (its ``model.safetensors`` is taken), a bundle (all checksums are compared) or a
            file.
        device: where to compute; ``auto`` takes the CPU for an ``.onnx`` file.
        batch_size: images that go through the network at once.
        precision: ``bf16`` runs the convolutions of a ``.safetensors`` file under autocast, and an
            ``.onnx`` file so in OpenVINO alone.
        channels: channel order that a file of others wants; by default what it states, else rgb.
        mean: subtracted from every pixel value; by default what the file states or
            `guess_preprocessing` finds.
        std: divides the result; the same.
        engine: what computes an ``.onnx`` file.
        variant: one of the bundle's variants, for example ``int8``.

    Raises:
        ModelError: missing, damaged, foreign, another architecture's weights, or no batch size.
        DeviceError: the device is not there.
        MissingExtraError: an ``.onnx`` file without its engine.
    """
    path = Path(path)
    bundle = read_bundle(path) if path.is_dir() and is_bundle(path) else None
    if variant is not None and bundle is None:
        raise ModelError(f"{path}: only a bundle has variants; leave out {variant!r}")
    if batch_size < 1:
        # No batch would be computed, and the embeddings would be what the memory held.
        raise ModelError(f"{path}: batch_size must be 1 or more, found {batch_size}")
    name = None
    if bundle is not None:
        # The folder alone may be called "." or "bundle/".
        name = path.resolve().name + ("" if variant is None else f" ({variant})")
        path = bundle.onnx(variant)
    elif path.is_dir():
        path = path / MODEL_FILE
        if not path.is_file():
            raise ModelError(
                f"{path.parent}: this folder holds no {MODEL_FILE}; give a run that has finished, "
                "a bundle, a .safetensors, .pth or .onnx file"
            )
    if not path.is_file():
        raise ModelError(
            f"{path}: no such model; give a run folder, a bundle, or a .safetensors, .pth or .onnx "
            "file"
        )
    if path.suffix == ".onnx":
        file = read_onnx(path)
        if bundle is not None and file.beside:
            raise ModelError(
                f"{path}: a bundle's files hold their weights inside, found some of them in "
                f"{printable(', '.join(file.beside))}; export the bundle again"
            )
        if (
            bundle is not None
            and file.sha256 != bundle.sums[path.relative_to(bundle.path).as_posix()]
        ):
            raise ModelError(f"{path}: the file changed while it was read; load it again")
        model = OnnxModel(
            file,
            channels=channels,
            mean=mean,
            std=std,
            device=device,
            batch_size=batch_size,
            engine=engine,
            precision=precision,
            name=name,
        )
        if bundle is not None:
            model.evidence += (f"part of the bundle {bundle.path}, whose checksums are right",)
        return model
    if path.suffix not in WEIGHTS:
        raise ModelError(
            f"{path}: a model is a run folder, a bundle, an .onnx file or weights "
            f"({', '.join(WEIGHTS)}), not {path.suffix or 'a file without suffix'}"
        )
    if engine != "onnxruntime":
        raise ModelError(
            f"{path}: engine {engine} computes .onnx files; export the model (facerec export-onnx) "
            "or leave out the engine"
        )
    asked = _asked(channels, mean, std)
    if (stated := _read_safetensors(path)) is not None:
        backbone, config, preprocessing, recipe = stated
        for setting, value in asked.items():
            if getattr(preprocessing, setting) != value:
                raise ModelError(
                    f"{path}: the model was trained with {setting} "
                    f"{getattr(preprocessing, setting)}, so {setting} {value} would be wrong; "
                    "leave it out"
                )
    else:
        backbone, config, left_out = _recognize(path)
        guess, recipe = guess_by_name(path), {}
        preprocessing = _replaced(path, guess.preprocessing or UNSCALED, asked)
    mine = TorchModel(
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
    if stated is None:
        mine.evidence = (
            *_given(asked),
            *guess.evidence,
            f"its tensors are those of {_architecture(config)}",
        )
        mine.assumed = tuple(setting for setting in guess.assumed if setting not in asked)
        mine.warnings = left_out_words(left_out)
    return mine


def _recognize(path: Path) -> tuple[nn.Module, Backbone, tuple[str, ...]]:
    """Find the network of weights that do not say it; return it, and the tensors left out."""
    tensors = read_state_dict(path)
    bns: tuple[Literal["affine", "none"], ...] = ("affine", "none")
    names = [name for name in list_backbones() if registered_by(name) is None]
    for name, bn in itertools.product(names, bns):
        usual = _expected(Backbone(name, embedding_bn=bn))
        inside, _ = own_names(path, tensors, usual)
        if any(tensor not in inside for tensor in usual if not tensor.endswith(COUNTER)):
            continue
        # What comes last has the embedding's size, and the widest layer before it tells the width.
        *layers, last = (tensor for tensor, (_, shape) in usual.items() if shape)
        before = [n for n in layers if len(usual[n][1]) == 1 and _top(n) != _top(last)]
        widest = max(before, key=lambda n: usual[n][1])
        try:
            width = inside[widest].shape[0] / usual[widest][1][0]
            config = Backbone(name, inside[last].shape[0], width, bn)
            fitting, left_out = _fitted(str(path), name, _expected(config), tensors)
        except (ModelError, RecipeError, IndexError):
            continue
        return _filled(path, config, fitting), config, left_out
    raise ModelError(
        f"{path}: its tensors ({_few(tensors)}) are, without a common prefix, not those of "
        f"{' or '.join(names)}; the weights belong to another architecture"
    )


def load_state_dict_file(backbone: nn.Module, path: str | Path) -> tuple[str, ...]:
    """Load weights of others into a backbone, strictly and without running code.

    Args:
        backbone: from `create_backbone`, of the architecture and options that the file belongs to.
        path: see `read_state_dict`.

    Returns:
        The tensors that were left out, as those of a head.

    Raises:
        ModelError: no state dict; another architecture; values that are not finite; a γ other than
            1 for a backbone with ``embedding_bn="frozen_gamma"``.
    """
    path = Path(path)
    expected = _layout(backbone.state_dict())
    words = f"this {type(backbone).__name__}"
    tensors, left_out = _fitted(str(path), words, expected, read_state_dict(path))
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
    return left_out


def left_out_words(names: tuple[str, ...]) -> tuple[str, ...]:
    """Return a sentence on the tensors that are no part of the network; none without such."""
    return (f"left out, as no part of the network: {_few(names)}",) if names else ()


def _top(name: str) -> str:
    return name.split(".")[0]


def _few(names: Collection[str]) -> str:
    few = ", ".join(printable(name) for name in sorted(names)[:5])
    return few + (f" and {len(names) - 5} more" if len(names) > 5 else "")


def _fitted(
    where: str, architecture: str, expected: Layout, tensors: Mapping[str, Tensor]
) -> tuple[dict[str, Tensor], tuple[str, ...]]:
    """Return the tensors of a network, all and no others, and the names of what is left out.

    That is what stands outside of it, and a head beside its layers.
    """
    inside, outside = own_names(where, tensors, expected)
    own = {_top(name) for name in expected}
    heads = [n for n in inside if _top(n) not in own and _HEAD.search(_top(n))]
    for name in heads:
        del inside[name]
    for name in expected:
        if name.endswith(COUNTER):
            inside[name] = inside.get(name, torch.zeros(())).to(torch.int64)
    _compare(where, architecture, expected, _layout(inside))
    return inside, (*outside, *heads)


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


def _read_safetensors(
    path: Path,
) -> tuple[nn.Module, Backbone, Preprocessing, dict[str, Any]] | None:
    """Read a file that facerec wrote; None for a file of others."""
    from safetensors import SafetensorError, safe_open

    check_readable(path)
    if path.suffix != ".safetensors":
        return None
    try:
        with safe_open(path, framework="pt", device="cpu") as file:
            note = (file.metadata() or {}).get("facerec")
            if note is None:
                return None
            config, preprocessing, recipe = _parse_note(path, note)
            # Names, types and shapes are compared before any weights are read.
            names = list(file.keys())
            layout = {}
            for name in names:
                header = file.get_slice(name)
                kind = {"F32": "float32", "I64": "int64"}.get(
                    header.get_dtype(), header.get_dtype()
                )
                layout[name] = (kind, tuple(header.get_shape()))
            _compare(str(path), _architecture(config), _expected(config), layout)
            tensors = {name: file.get_tensor(name) for name in names}
    except (SafetensorError, OSError) as error:
        raise ModelError(
            f"{path}: not a whole .safetensors file ({message_line(error)}); copy or save it again"
        ) from error
    except RecipeError as error:
        raise ModelError(f"{path}: {error}") from error
    return _filled(path, config, tensors), config, preprocessing, recipe


def _filled(path: Path, config: Backbone, tensors: dict[str, Tensor]) -> nn.Module:
    """Return a network with weights that have its names and shapes."""
    _check_finite(path, tensors)
    with torch.device("meta"):
        backbone = create_backbone(config)
    backbone.load_state_dict(tensors, assign=True)
    if any(buffer.is_meta for buffer in backbone.buffers()):
        # What is computed when the network is made, as positions may be, is in no file.
        backbone = create_backbone(config, seed=0)
        backbone.load_state_dict(tensors)
    return backbone


def _parse_note(path: Path, text: str) -> tuple[Backbone, Preprocessing, dict[str, Any]]:
    try:
        note = parse_json(text)
        version = note["format"]
        if version != FORMAT:
            raise ModelError(
                f"{path}: written in format {version!r}, this facerec reads format {FORMAT}; "
                "use the facerec that wrote it, or a newer one"
            )
        config = from_dict(Backbone, note["backbone"], str(path))
        preprocessing = from_dict(Preprocessing, note["preprocessing"], str(path))
        recipe = note["recipe"]
        own = note.get("registered_by")
        if own is not None and not is_backbone(config.name):
            raise ModelError(
                f"{path}: its backbone {printable(config.name)!r} is not part of facerec; import "
                f"the file that registers it, {printable(str(own))!r} when the model was saved, or "
                "name that file in the environment variable FACEREC_BACKBONES"
            )
    except RecipeError as error:
        raise ModelError(str(error)) from error
    except (ValueError, KeyError, TypeError) as error:
        raise ModelError(
            f"{path}: its entry 'facerec' is damaged ({error!r}); copy or save the file again"
        ) from error
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


def _compare(where: str, architecture: str, expected: Layout, actual: Layout) -> None:
    """Name the first tensor in which ``actual`` is not what the architecture has."""
    for name, wanted in expected.items():
        if name not in actual:
            raise ModelError(
                f"{where}: tensor {name!r} of {architecture} is missing; the weights belong to "
                "another architecture"
            )
        if actual[name] != wanted:
            raise ModelError(
                f"{where}: tensor {name!r} of {architecture} must be {_words(wanted)}, found "
                f"{_words(actual[name])}; the weights belong to another architecture"
            )
    for name in actual:
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
