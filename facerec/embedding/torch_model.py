"""Networks in torch: weights in files, facerec's own and others', and the models made of them.

One ``.safetensors`` file is enough to verify, export or audit: beside the weights it holds the
architecture, the preprocessing and the recipe as JSON.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from facerec.backbones import (
    Backbone,
    Preprocessing,
    create_backbone,
    normalize,
)
from facerec.base.devices import HostCopy, choose_device, true_float32
from facerec.base.errors import ModelError, RecipeError, message_line
from facerec.base.files import atomic_path, parse_json, sha256
from facerec.base.recipe import from_dict, to_dict
from facerec.embedding.bundle import MODEL_FILE
from facerec.embedding.engines import Precision
from facerec.embedding.model import EmbeddingModel, Finish
from facerec.embedding.onnx_preprocessing import stated_preprocessing
from facerec.embedding.state_dict import COUNTER, own_names, own_note, read_state_dict

FORMAT = 1


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
        self.recipe = {}

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
    ``backbone``, ``preprocessing``, ``recipe`` and, where given, ``extra``.

    Args:
        path: the file to write.
        backbone: the bare module, without a DDP or compile wrapper.
        config: the section that the module was created from.
        preprocessing: what it was trained with.
        recipe: the resolved recipe as JSON types.
        extra: anything else worth keeping, as JSON types.

    Raises:
        FacerecError: the file cannot be written.
    """
    from safetensors.torch import save  # here, because computing needs no file

    note = {
        "format": FORMAT,
        "backbone": to_dict(config),
        "preprocessing": to_dict(preprocessing),
        "recipe": recipe,
        **({} if extra is None else {"extra": extra}),
    }
    tensors = {name: t.detach().cpu().contiguous() for name, t in backbone.state_dict().items()}
    metadata = {"facerec": json.dumps(note, sort_keys=True)}
    with atomic_path(path) as temporary:
        temporary.write_bytes(save(tensors, metadata))


def load_weights(path: Path, *, pixels: Mapping[str, Any], **options: Any) -> TorchModel:
    """Load a ``.safetensors`` that `save_model` wrote.

    Args:
        path: the file.
        pixels: what the caller says of the preprocessing, see `PixelGuess.asked`.
        options: ``device``, ``batch_size`` and ``precision`` of `TorchModel`.

    Raises:
        ModelError: damaged, of others, or another architecture's weights.
        DeviceError: the device is not there.
    """
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        tensors = load_file(path)
        if (text := own_note(path)) is None:
            raise ModelError(
                f"{path}: weights of others, which do not say their network; make a model file of "
                "them by facerec import-weights"
            )
        note = parse_json(text)
        if note["format"] != FORMAT:
            raise ValueError(f"format {note['format']!r}, this facerec reads format {FORMAT}")
        config = from_dict(Backbone, note["backbone"], str(path))
        guess = stated_preprocessing(note["preprocessing"], str(path))
        recipe = note["recipe"]
        with torch.device("meta"):
            backbone = create_backbone(config)
    except (SafetensorError, OSError, RecipeError, ValueError, KeyError, TypeError) as error:
        raise ModelError(
            f"{path}: not a whole .safetensors file of facerec, or of a backbone that is not here "
            f"({message_line(error)}); name the file of its backbone in FACEREC_BACKBONES, or copy "
            "or save it again"
        ) from error
    fill(path, backbone, tensors, assign=True)
    if any(buffer.is_meta for buffer in backbone.buffers()):
        # What is computed when the network is made, as positions may be, is in no file.
        backbone = create_backbone(config, seed=0)
        fill(path, backbone, tensors)
    model = TorchModel(
        backbone.to(memory_format=torch.channels_last),  # type: ignore[call-overload]
        Preprocessing(),
        config=config,
        name=path.resolve().parent.name if path.name == MODEL_FILE else path.stem,
        **options,
    )
    model.path, model.sha256, model.recipe = path, sha256(path), recipe
    model.prepare(guess.asked(path, pixels))
    return model


def load_state_dict_file(backbone: nn.Module, path: str | Path) -> tuple[str, ...]:
    """Load weights of others into a backbone, strictly and without running code.

    What stands outside of the network or beside its layers, as a head does, is left out.

    Args:
        backbone: from `create_backbone`, of the architecture and options that the file belongs to.
        path: see `read_state_dict`.

    Returns:
        The tensors that were left out.

    Raises:
        ModelError: no state dict; another architecture; values that are not finite; a γ other than
            1 for a backbone with ``embedding_bn="frozen_gamma"``.
    """
    path, expected = Path(path), backbone.state_dict()
    inside, outside = own_names(path, read_state_dict(path), expected)
    own = {name.partition(".")[0] for name in expected}
    tensors = {name: t for name, t in inside.items() if name.partition(".")[0] in own}
    counters = {name: t for name, t in expected.items() if name.endswith(COUNTER)}
    fill(path, backbone, {**counters, **tensors})
    norm = backbone.embedding_norm
    if (
        isinstance(norm, nn.BatchNorm1d)
        and not norm.weight.requires_grad
        and not bool((norm.weight == 1).all())
    ):
        raise ModelError(
            f"{path}: the last batch norm has a γ other than 1 (from {norm.weight.min():.4g} to "
            f'{norm.weight.max():.4g}); create the backbone with embedding_bn="affine"'
        )
    return (*outside, *(name for name in inside if name not in tensors))


def fill(
    path: Path, backbone: nn.Module, tensors: Mapping[str, Tensor], assign: bool = False
) -> None:
    """Give a network its weights: all that it has, no others, and only numbers."""
    for name, tensor in tensors.items():
        if not bool(torch.isfinite(tensor).all()):
            raise ModelError(f"{path}: tensor {name!r} holds NaN or infinity; take an older model")
    try:
        backbone.load_state_dict(tensors, assign=assign)
    except RuntimeError as error:
        problem = " ".join(str(error).split()[6:])[:200]
        raise ModelError(
            f"{path}: its weights are not those of this {type(backbone).__name__} ({problem} …); "
            "they belong to another architecture"
        ) from error
