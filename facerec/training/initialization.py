"""Training that starts from weights: what they are read from, what of them fits, what is new.

The weights go into the backbone before the first step, on every rank alike. A run that is resumed
has them in its checkpoint and never reads their file again.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn

from facerec.backbones import Preprocessing
from facerec.base.errors import ModelError
from facerec.base.files import sha256
from facerec.base.progress import Progress
from facerec.base.recipe import load_recipe
from facerec.embedding.bundle import is_bundle
from facerec.embedding.extraction import embed_images
from facerec.embedding.loading import load_model
from facerec.embedding.state_dict import COUNTER, own_names, own_note, read_state_dict
from facerec.embedding.torch_model import TorchModel
from facerec.heads.classifier import MarginClassifier
from facerec.records.dataset import FaceDataset
from facerec.training.distributed import Processes
from facerec.training.recipe import INIT, Recipe

_IMAGES_AT_ONCE = 1 << 14

_BESIDE = 0.17
"""How far sub-centres begin beside the mean of their class, of length 1."""


@dataclass(frozen=True)
class Start:
    """What a run started from, for its manifest and for people."""

    path: str
    sha256: str
    loaded: int
    """Tensors taken from the file."""
    left_out: tuple[str, ...]
    """Tensors in it that were not taken."""
    new: tuple[str, ...]
    """Tensors of the backbone that were drawn."""
    head: str
    """What became of the class centres, in words; empty without a margin, which has none."""

    def rows(self) -> list[tuple[str, str]]:
        """Return what people read: headings and texts."""
        counts = [f"{self.loaded} tensors loaded"]
        counts += [f"{len(self.left_out)} left out"] if self.left_out else []
        counts += [f"{len(self.new)} drawn anew"] if self.new else []
        rows = [("starts from", self.path), ("", ", ".join(counts))]
        return [*rows, ("class centres", self.head)] if self.head else rows


def resolved(recipe: Recipe, run: Path | None = None) -> Recipe:
    """Put the network of `Init.path` in the place of the backbone's name ``init``.

    With it comes how its pixels are prepared, unless the recipe says something of its own.

    Args:
        recipe: as the user gave it.
        run: the run that is continued, whose recipe knows the network; the file is not read then.

    Raises:
        RecipeError: the run's recipe cannot be read.
        ModelError: the file cannot be read or does not say its architecture.
    """
    path = recipe.init.path
    if recipe.backbone.name != INIT or path is None:
        return recipe
    if run is not None:
        stored = load_recipe(run / "recipe.json", type(recipe))
        backbone, preprocessing = stored.backbone, stored.preprocessing
    else:
        source = _read(path)
        if not isinstance(source, TorchModel) or source.config is None:
            raise ModelError(
                f"{path}: does not say which architecture its weights belong to; set "
                "backbone.name and the fields beside it, or turn it into a .safetensors by facerec "
                "import-weights"
            )
        backbone, preprocessing = source.config, source.preprocessing
    if recipe.preprocessing != Preprocessing():
        preprocessing = recipe.preprocessing
    return replace(recipe, backbone=backbone, preprocessing=preprocessing)


def _read(path: Path) -> TorchModel | dict[str, Tensor]:
    """Return a model that facerec wrote, or the tensors of anybody else's file.

    Raises:
        ModelError: missing, damaged, or an ONNX graph.
    """
    if path.suffix == ".onnx" or (path.is_dir() and is_bundle(path)):
        raise ModelError(
            f"{path}: an ONNX graph computes but does not train; start from the .safetensors or "
            ".pth that it was exported from, or turn it into one by facerec import-weights"
        )
    if not path.is_dir() and own_note(path) is None:
        return read_state_dict(path)
    model = load_model(path)
    assert isinstance(model, TorchModel)
    return model


def start_from_weights(recipe: Recipe, backbone: nn.Module, processes: Processes) -> Start:
    """Load `Init.path` into the backbone, on all ranks; the main process reads the file.

    Args:
        recipe: `resolved`, with a path in its section ``init``.
        backbone: the bare module, on its device.
        processes: this rank among its peers, which all call this together.

    Raises:
        FacerecError: the file is missing, damaged, holds NaN, belongs to another architecture, or
            was trained on otherwise prepared pixels; the same sentence on every rank.
    """
    start: Start = processes.on_main(_load, recipe, backbone)
    if processes.world_size > 1:
        for tensor in backbone.state_dict().values():
            dist.broadcast(tensor, src=0)
    return start


def _load(recipe: Recipe, backbone: nn.Module) -> Start:
    path = recipe.init.path
    assert path is not None
    source, known = _read(path), None
    if isinstance(source, TorchModel):
        path, known = source.path or path, source.preprocessing
        source = dict(source.backbone.state_dict())
    if known not in (None, recipe.preprocessing):
        raise ModelError(
            f"{path}: was trained on pixels prepared as {known}, the recipe prepares them as "
            f"{recipe.preprocessing}; set preprocessing as the weights know it"
        )
    own = dict(backbone.state_dict())
    tensors, outside = own_names(path, source, own)
    for name, tensor in tensors.items():
        if not bool(torch.isfinite(tensor).all()):
            raise ModelError(f"{path}: tensor {name!r} holds NaN or infinity; take other weights")
    chosen = {n: t for n, t in tensors.items() if n in own and own[n].shape == t.shape}
    if not any(tensor.is_floating_point() for tensor in chosen.values()):
        raise ModelError(
            f"{path}: none of its {len(tensors)} tensors fits the recipe's backbone by name "
            "and shape; the weights belong to another architecture"
        )
    if recipe.init.strict:
        # Of a file of others a module that the network does not have, such as a head, is left out.
        known_parts = {name.partition(".")[0] for name in (own if known is None else tensors)}
        chosen = {n: t for n, t in tensors.items() if n.partition(".")[0] in known_parts}
    counters = {name: tensor for name, tensor in own.items() if name.endswith(COUNTER)}
    try:
        backbone.load_state_dict({**counters, **chosen}, strict=recipe.init.strict)
    except RuntimeError as error:
        raise ModelError(
            f"{path}: the weights are not those of the recipe's backbone "
            f"({' '.join(str(error).split()[:40])}), but of another architecture; set "
            "--backbone.name init to train the file's network, or --init.no-strict to take what "
            "fits"
        ) from error
    norm = getattr(backbone, "embedding_norm", None)
    fixed = recipe.backbone.embedding_bn == "frozen_gamma"
    if fixed and norm is not None and not bool((norm.weight == 1).all()):
        raise ModelError(
            f"{path}: its last batch norm has a γ other than 1, which embedding_bn frozen_gamma "
            "fixes; set --backbone.embedding-bn affine"
        )
    return Start(
        path=str(path.resolve()),
        sha256=sha256(path),
        loaded=len(chosen),
        left_out=(*outside, *(name for name in tensors if name not in chosen)),
        new=tuple(name for name in own if name not in chosen and not name.endswith(COUNTER)),
        head="drawn from the seed" if recipe.margin is not None else "",
    )


@torch.no_grad()
def set_class_means(
    head: MarginClassifier,
    model: TorchModel,
    dataset: FaceDataset,
    progress: Progress | None = None,
) -> int:
    """Point this rank's class centres along the means of their classes' unit embeddings.

    Every rank embeds the images of its own classes, one class after another, so that the work is
    shared, no rank holds more than its share, and the result is the same on any number of ranks. A
    centre keeps the length that it was drawn with; one whose class has no usable image, or whose
    embeddings cancel, stays as it was drawn.

    Args:
        head: holds the centres.
        model: the starting network.
        dataset: the training images; those of class −1 are left out.
        progress: called with the images done, of this rank's.

    Returns:
        The number of images that count on this rank.

    Raises:
        FacerecError: an image is damaged, if the data set does not skip those.
    """
    labels = dataset.load_labels(progress) - head.class_offset
    own = np.flatnonzero((labels >= 0) & (labels < head.num_local))
    own = own[np.argsort(labels[own], kind="stable")]
    sums = torch.zeros(head.num_local, head.embedding_size, dtype=torch.float64)
    counted = 0
    for start in range(0, len(own), _IMAGES_AT_ONCE):
        indices = own[start : start + _IMAGES_AT_ONCE]
        found = embed_images(
            model,
            dataset.subset(indices),
            flip=False,
            batch_size=model.batch_size,
            on_error=dataset.on_error,
        )
        vectors = torch.from_numpy(found.vectors).double()
        usable = vectors.isfinite().all(dim=1)
        rows = torch.from_numpy(labels[indices])[usable]
        sums.index_add_(0, rows, nn.functional.normalize(vectors[usable]))
        counted += len(rows)
        if progress is not None:
            progress("class means", start + len(indices), len(own))
    lengths = sums.norm(dim=1, keepdim=True)
    means = (sums / lengths.clamp(min=1e-6)).to(head.weight)
    drawn = head.weight.detach().clone()
    known = (lengths > 1e-6).to(head.weight.device)
    number = head.centers_per_class
    if number > 1:
        means, known = (tensor.repeat_interleave(number, dim=0) for tensor in (means, known))
        # Centres that are alike would stay so; all but the first begin some 10° beside the mean.
        beside = means + _BESIDE * nn.functional.normalize(drawn)
        first = torch.arange(len(means), device=means.device) % number == 0
        means = torch.where(first[:, None], means, nn.functional.normalize(beside))
    head.weight.copy_(torch.where(known, means * drawn.norm(dim=1, keepdim=True), drawn))
    return counted
