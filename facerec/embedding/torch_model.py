"""Networks in torch: files of weights, one's own and others', and the models read from them.

One ``.safetensors`` file is enough to verify, export or audit: beside the weights it holds the
architecture, the preprocessing and the recipe as JSON.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import re
from collections.abc import Collection, Iterator, Mapping
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
from facerec.embedding.engines import Precision
from facerec.embedding.model import MODEL_FILE, EmbeddingModel, Finish
from facerec.embedding.onnx_preprocessing import PixelGuess, guess_by_name, stated_preprocessing
from facerec.embedding.state_dict import (
    COUNTER,
    check_readable,
    own_names,
    read_state_dict,
)
from facerec.errors import ModelError, RecipeError, message_line
from facerec.files import atomic_path, parse_json, sha256
from facerec.recipe import from_dict, to_dict

FORMAT = 1

_HEAD = re.compile(
    "head|fc|classif|kernel|margin|loss|criterion|softmax|arc|cosface|metric|product|logit|proto"
)
"""Found in names of what stands behind the embedding in training: class centres, losses."""

Layout = dict[str, tuple[str, tuple[int, ...]]]
"""The types and shapes of a state dict, by tensor name."""


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
        self.device: torch.device = (
            next(backbone.parameters()).device if device is None else choose_device(device)
        )
        self.runtime = f"torch {torch.__version__}"
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

    def _forward(self, pixels: npt.NDArray[np.uint8]) -> npt.NDArray[np.float32]:
        return self._begin(pixels)()

    def _begin(self, pixels: npt.NDArray[np.uint8]) -> Finish:
        images = torch.from_numpy(pixels)
        if self.device.type == "cuda":
            images = images.pin_memory().to(self.device, non_blocking=True)
        x = normalize(images.to(self.device), self.preprocessing)
        copy = HostCopy(self.backbone(x).float())
        return lambda: copy.read().numpy()


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


def load_weights(
    path: Path,
    pixels: Mapping[str, Any],
    *,
    device: str | torch.device,
    batch_size: int,
    precision: Precision,
) -> TorchModel:
    """Load a file of weights, see `facerec.embedding.load_model`.

    Args:
        path: the file.
        pixels: what the caller says of the preprocessing: ``channels``, ``mean``, ``std``.
        device: where to compute.
        batch_size: images that go through the network at once.
        precision: see `TorchModel`.

    Raises:
        ModelError: damaged, foreign, or another architecture's weights.
        DeviceError: the device is not there.
    """
    left_out: tuple[str, ...] = ()
    if (stated := _read_safetensors(path)) is not None:
        backbone, config, guess, recipe = stated
    else:
        backbone, config, left_out = _recognize(path)
        guess, recipe = guess_by_name(path), {}
        guess = replace(
            guess, evidence=(*guess.evidence, f"its tensors are those of {_architecture(config)}")
        )
    guess = guess.asked(path, pixels)
    mine = TorchModel(
        backbone.to(memory_format=torch.channels_last),  # type: ignore[call-overload]
        guess.preprocessing,
        device=device,
        batch_size=batch_size,
        precision=precision,
        config=config,
        name=path.resolve().parent.name if path.name == MODEL_FILE else path.stem,
        path=path,
        recipe=recipe,
    )
    mine._prepare(guess)
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
    few = ", ".join(name for name in sorted(names)[:5])
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


def _read_safetensors(
    path: Path,
) -> tuple[nn.Module, Backbone, PixelGuess, dict[str, Any]] | None:
    """Read a file that facerec wrote; None for a file of others."""
    from safetensors import SafetensorError, safe_open

    check_readable(path)
    if path.suffix != ".safetensors":
        return None
    try:
        with safe_open(path, framework="pt", device="cpu") as file:
            text = (file.metadata() or {}).get("facerec")
            if text is None:
                return None
            note = parse_json(text)
            if note["format"] != FORMAT:
                raise ModelError(
                    f"{path}: written in format {note['format']!r}, this facerec reads format "
                    f"{FORMAT}; use the facerec that wrote it, or a newer one"
                )
            config = from_dict(Backbone, note["backbone"], str(path))
            pixels = stated_preprocessing(note["preprocessing"], str(path))
            if note.get("registered_by") is not None and not is_backbone(config.name):
                raise ModelError(
                    f"{path}: its backbone {config.name!r} is not part of facerec; "
                    f"import the file that registers it, {str(note['registered_by'])!r} "
                    "when the model was saved, or name that file in the environment variable "
                    "FACEREC_BACKBONES"
                )
            recipe = note["recipe"]
            tensors = {name: file.get_tensor(name) for name in list(file.keys())}
        _compare(str(path), _architecture(config), _expected(config), _layout(tensors))
    except (SafetensorError, OSError, RecipeError, ValueError, KeyError, TypeError) as error:
        raise ModelError(
            f"{path}: not a whole .safetensors file of facerec ({message_line(error)}); copy or "
            "save it again"
        ) from error
    return _filled(path, config, tensors), config, pixels, recipe


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
    for name in (*expected, *actual):
        wanted, found = expected.get(name), actual.get(name)
        if wanted != found:
            problem = "is missing" if found is None else "is not part of it"
            if wanted and found:
                problem = f"must be {wanted[0]} {wanted[1]}, found {found[0]} {found[1]}"
            raise ModelError(
                f"{where}: tensor {name!r} of {architecture} {problem}; the weights belong to "
                "another architecture"
            )


def _check_finite(path: Path, tensors: dict[str, Tensor]) -> None:
    for name, tensor in tensors.items():
        if not bool(torch.isfinite(tensor).all()):
            raise ModelError(f"{path}: tensor {name!r} holds NaN or infinity; take an older model")
