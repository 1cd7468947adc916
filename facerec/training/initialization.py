"""Training that starts from weights: what they are read from, what of them fits, what is new.

The weights go into the backbone before the first step, on every rank alike. A run that is resumed
has them in its checkpoint and never reads their file again.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn

from facerec.backbones import Backbone, Preprocessing, create_backbone
from facerec.embedding.bundle import is_bundle
from facerec.embedding.model import MODEL_FILE, load_model
from facerec.embedding.state_dict import COUNTER, own_names, own_note, read_state_dict
from facerec.embedding.torch_model import TorchModel
from facerec.errors import CheckpointError, FacerecError, ModelError, RecipeError
from facerec.files import sha256
from facerec.heads.classifier import MarginClassifier
from facerec.limits import Checked
from facerec.progress import Progress
from facerec.recipe import from_dict
from facerec.records.dataset import FaceDataset
from facerec.threads import batches_ahead
from facerec.training.distributed import Processes

if TYPE_CHECKING:  # its section `init` is of this module
    from facerec.training.recipe import Recipe

INIT = "init"
"""As ``backbone.name``: the network that `Init.path` holds."""

_BESIDE = 0.17
"""How far sub-centres begin beside the mean of their class, of length 1."""


@dataclass(frozen=True)
class Init(Checked):
    """What training starts from: by default a seed, else weights that were trained before."""

    path: Path | None = None
    """A run's folder, one of its checkpoints, a .safetensors that facerec wrote, or weights of
    others (.pth, .ckpt, …). With backbone.name "init" the network is the one in there, and its
    pixels are prepared as it knows them where preprocessing is left as it is. None draws all
    weights from the seed."""
    strict: bool = True
    """Every tensor has to fit. False takes those that fit by name and shape, and draws the rest."""
    layers: tuple[str, ...] = ()
    """Without strict: take only tensors whose names begin so, such as conv1 layer1; these have
    to fit. () takes all that fit."""
    head: Literal["fresh", "class_means"] = "fresh"
    """Class centres: drawn as always, or pointed along the mean of the unit embeddings that the
    starting network gives of each class's training images, not augmented."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.layers and self.strict:
            raise RecipeError("init.layers leaves tensors out; set init.strict to False with it")
        if self.path is None and (not self.strict or self.head != "fresh"):
            raise RecipeError(
                "init says how to start from weights, but not from which; set init.path too"
            )


@dataclass(frozen=True)
class Start:
    """What a run started from, for its manifest and for people."""

    path: str
    sha256: str
    """Of the file; of a checkpoint's ``state.json``, which holds check sums of all others."""
    weights: str
    """Which weights of it: ``model``, or of a checkpoint ``backbone`` or ``ema``."""
    loaded: int
    """Tensors taken from it."""
    left_out: tuple[str, ...]
    """Tensors in it that were not taken."""
    new: tuple[str, ...]
    """Tensors of the backbone that were drawn."""
    head: str
    """What became of the class centres, in words; empty without a margin, which has none."""

    def rows(self) -> list[tuple[str, str]]:
        """Return what people read: headings and texts."""
        of = " of its moving average" if self.weights == "ema" else ""
        counts = [f"{self.loaded} tensors{of} loaded"]
        counts += [f"{len(self.left_out)} left out"] if self.left_out else []
        counts += [f"{len(self.new)} drawn anew"] if self.new else []
        rows = [("starts from", self.path), ("", ", ".join(counts))]
        return [*rows, ("class centres", self.head)] if self.head else rows


# ---------------------------------------------------------------- what is in a file


@dataclass(frozen=True)
class _Source:
    """Weights as they were found."""

    path: Path
    """The file, or the folder of a checkpoint."""
    tensors: dict[str, Tensor]
    weights: str = "model"
    backbone: Backbone | None = None
    """The network that they belong to; a .pth does not say."""
    preprocessing: Preprocessing | None = None


def resolved(recipe: Recipe, run: Path | None = None) -> Recipe:
    """Put the network of `Init.path` in the place of the backbone's name ``init``.

    With it comes how its pixels are prepared, unless the recipe says something of its own.

    Args:
        recipe: as the user gave it.
        run: the run that is continued, whose recipe knows the network; the file is not read then.

    Raises:
        RecipeError: the name without a path, or beside other fields of the backbone, which the file
            decides.
        ModelError: the file cannot be read or does not say its architecture.
        CheckpointError: the run's recipe cannot be read.
    """
    if recipe.backbone.name != INIT:
        return recipe
    if recipe.backbone != Backbone(INIT):
        raise RecipeError(
            'backbone.name "init" takes the whole section from init.path; leave out its other '
            "fields, or write down all of them with the network's name"
        )
    if run is not None:
        backbone, preprocessing, _ = _stored_sections(run)
        return _with_network(recipe, backbone, preprocessing)
    if recipe.init.path is None:
        raise RecipeError('backbone.name is "init", so init.path has to name weights; set it')
    source = _read(recipe.init.path)
    if source.backbone is None:
        raise ModelError(
            f"{recipe.init.path}: does not say which architecture its weights belong to; set "
            "backbone.name and the fields beside it, or turn it into a .safetensors by facerec "
            "import-weights"
        )
    return _with_network(recipe, source.backbone, source.preprocessing)


def _with_network(
    recipe: Recipe, backbone: Backbone, preprocessing: Preprocessing | None
) -> Recipe:
    if preprocessing is None or recipe.preprocessing != Preprocessing():
        preprocessing = recipe.preprocessing
    return replace(recipe, backbone=backbone, preprocessing=preprocessing)


def _read(path: Path) -> _Source:
    """Read weights with what their file says of them.

    Raises:
        ModelError: missing, damaged, foreign, with numbers that are not finite, or an ONNX graph.
        CheckpointError: a checkpoint that is damaged or whose run's recipe is.
    """
    from facerec.training import checkpoint  # its libraries take half a second

    if not path.exists():
        raise ModelError(
            f"{path}: no such weights; init.path is a run's folder, one of its checkpoints, a "
            ".safetensors that facerec wrote, or a .pth of others"
        )
    if path.suffix == ".onnx" or (path.is_dir() and is_bundle(path)):
        raise ModelError(
            f"{path}: an ONNX graph computes but does not train; start from the .safetensors or "
            ".pth that it was exported from, or turn it into one by facerec import-weights"
        )
    if path.is_dir() and not (path / MODEL_FILE).is_file():
        folder = path if _is_checkpoint(path) else checkpoint.latest(path / "checkpoints")
        if folder is None:
            raise ModelError(
                f"{path}: this folder holds neither a {MODEL_FILE} nor a whole checkpoint; give a "
                "run's folder or one of its checkpoints as init.path"
            )
        return _read_checkpoint(folder.resolve())
    if not path.is_dir() and own_note(path) is None:
        return _Source(path, read_state_dict(path))
    model = load_model(path)
    assert isinstance(model, TorchModel) and model.path is not None
    tensors = dict(model.backbone.state_dict())
    return _Source(model.path, tensors, "model", model.config, model.preprocessing)


def _is_checkpoint(path: Path) -> bool:
    from facerec.training import checkpoint  # its libraries take half a second

    return (path / checkpoint.STATE_FILE).is_file()


def _read_checkpoint(folder: Path) -> _Source:
    """Read the backbone of a checkpoint, and its moving average where the run keeps one."""
    from facerec.training import checkpoint  # its libraries take half a second

    backbone, preprocessing, averaged = _stored_sections(folder.parent.parent)
    weights = "ema" if averaged else "backbone"
    tensors = create_backbone(backbone).state_dict()
    named = {f"{weights}.{name}": tensor for name, tensor in tensors.items()}
    checkpoint.load(folder, named, {}, Processes(0, 1, torch.device("cpu")))
    _check_finite(folder, tensors)
    return _Source(folder, tensors, weights, backbone, preprocessing)


def _stored_sections(run: Path) -> tuple[Backbone, Preprocessing, bool]:
    """Return what a run's recipe says of its network, and whether it averages weights."""
    path = run / "recipe.json"
    try:
        stored = json.loads(path.read_text(encoding="utf-8"))
        return (
            from_dict(Backbone, stored["backbone"], str(path)),
            from_dict(Preprocessing, stored["preprocessing"], str(path)),
            stored.get("ema") is not None,
        )
    except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise CheckpointError(
            f"{path}: cannot be read ({type(error).__name__}: {error}), so nobody knows to which "
            "network the checkpoints of this run belong; take another one"
        ) from error


def _check_finite(path: Path, tensors: dict[str, Tensor]) -> None:
    for name, tensor in tensors.items():
        if not bool(torch.isfinite(tensor).all()):
            raise ModelError(f"{path}: tensor {name!r} holds NaN or infinity; take other weights")


# ---------------------------------------------------------------- into the backbone


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
    start: Start = processes.on_main(lambda: _load(recipe, backbone))
    if processes.world_size > 1:
        for tensor in backbone.state_dict().values():
            dist.broadcast(tensor, src=0)
    return start


def _load(recipe: Recipe, backbone: nn.Module) -> Start:
    from facerec.training import checkpoint  # its libraries take half a second

    init = recipe.init
    assert init.path is not None
    source = _read(init.path)
    if source.preprocessing not in (None, recipe.preprocessing):
        raise ModelError(
            f"{source.path}: was trained on pixels prepared as {source.preprocessing}, the recipe "
            f"prepares them as {recipe.preprocessing}; set preprocessing as the weights know it"
        )
    own = dict(backbone.state_dict())
    inside, outside = own_names(source.path, source.tensors, own)
    source = replace(source, tensors=inside)
    _check_finite(source.path, inside)
    chosen = _chosen(init, source, own)
    if recipe.backbone.embedding_bn == "frozen_gamma":
        _check_fixed_scale(backbone, source, chosen)
    backbone.load_state_dict(chosen, strict=False)
    location = source.path / checkpoint.STATE_FILE if source.path.is_dir() else source.path
    return Start(
        path=str(source.path.resolve()),
        sha256=sha256(location),
        weights=source.weights,
        loaded=len(chosen),
        left_out=(*outside, *(name for name in inside if name not in chosen)),
        new=tuple(name for name in own if name not in chosen and not name.endswith(COUNTER)),
        head="drawn from the seed" if recipe.margin is not None else "",
    )


def _chosen(init: Init, source: _Source, own: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return the tensors to load: all, those of some layers, or without either those that fit."""
    tensors = source.tensors
    chosen = {
        name: tensor
        for name, tensor in tensors.items()
        if name in own and own[name].shape == tensor.shape and own[name].dtype == tensor.dtype
        if not init.layers or within(name, init.layers)
    }
    for layer in init.layers:
        require_layer(layer, tensors, f"{source.path} has", "init.layers")
    # In a file of others a module that the network does not have, such as a head, is left out.
    known = {name.partition(".")[0] for name in (own if source.backbone is None else tensors)}
    for name in (*own, *(name for name in tensors if name.partition(".")[0] in known)):
        asked = init.strict or within(name, init.layers)
        if asked and name not in chosen and not name.endswith(COUNTER):
            stored, wanted = (
                f"{tuple(held[name].shape)}" if name in held else "nothing"
                for held in (tensors, own)
            )
            raise ModelError(
                f"{source.path}: tensor {name!r} does not fit, as in another architecture: the "
                f"recipe's backbone has {wanted} there, the file {stored}; set --backbone.name "
                "init to train the file's network, or --init.no-strict to take what fits"
            )
    if not any(tensor.is_floating_point() for tensor in chosen.values()):
        raise ModelError(
            f"{source.path}: none of its {len(tensors)} tensors fits the recipe's backbone by name "
            "and shape; the weights belong to another architecture"
        )
    return chosen


def _check_fixed_scale(backbone: nn.Module, source: _Source, chosen: dict[str, Tensor]) -> None:
    """Refuse a learned γ for a last batch norm whose γ is fixed at 1."""
    norm = getattr(backbone, "embedding_norm", None)
    if not isinstance(norm, nn.BatchNorm1d):
        return
    name = next(name for name, p in backbone.named_parameters() if p is norm.weight)
    if name in chosen and not bool((chosen[name] == 1).all()):
        raise ModelError(
            f"{source.path}: its last batch norm has a γ other than 1 ({name}), which "
            "embedding_bn frozen_gamma fixes; set --backbone.embedding-bn affine"
        )


def within(name: str, layers: Iterable[str]) -> bool:
    """Tell whether a tensor or module is one of ``layers`` or lies inside one."""
    return any(name == layer or name.startswith(f"{layer}.") for layer in layers)


def require_layer(layer: str, names: Iterable[str], owner: str, field: str) -> None:
    """Refuse a layer in which no tensor lies.

    Raises:
        RecipeError: names the nearest that is there.
    """
    known = list(names)
    if any(within(name, [layer]) for name in known):
        return
    layers = {".".join(n.split(".")[: layer.count(".") + 1]) for n in known}
    close = difflib.get_close_matches(layer, layers, n=1)
    hint = f"did you mean {close[0]!r}?" if close else f"it has {', '.join(sorted(layers)[:8])}"
    raise RecipeError(f"{field}: {owner} no layer called {layer!r}; {hint}")


# ---------------------------------------------------------------- class centres


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
        model: the starting network; its batch size is always filled, so that an embedding depends
            on its image alone.
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

    def decoded(index: int) -> np.ndarray | None:
        try:
            return dataset[index][0]
        except FacerecError:
            if dataset.on_error == "skip":
                return None
            raise

    for start, images in batches_ahead(decoded, own, model.batch_size):
        # Black images fill gaps and the last batch.
        pixels = np.zeros((model.batch_size, *dataset.image_size, 3), np.uint8)
        usable = np.zeros(model.batch_size, bool)
        for position, future in enumerate(images):
            if (image := future.result()) is not None:
                pixels[position], usable[position] = image, True
        vectors = torch.from_numpy(model.embed(pixels)[usable]).double()
        finite = vectors.isfinite().all(dim=1)
        indices = own[start : start + len(images)][usable[: len(images)]]
        rows = torch.from_numpy(labels[indices])[finite]
        sums.index_add_(0, rows, nn.functional.normalize(vectors[finite]))
        counted += len(rows)
        if progress is not None:
            progress("class means", start + len(images), len(own))
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


def initialize(
    recipe: Recipe,
    backbone: nn.Module,
    head: MarginClassifier | None,
    dataset: FaceDataset,
    processes: Processes,
    *,
    bf16: bool = False,
    progress: Progress | None = None,
) -> Start:
    """Do all that the recipe's section ``init`` asks for, on all ranks together.

    Args:
        recipe: `resolved`, with a path in its section ``init``.
        backbone: the bare module, on its device.
        head: the classes of this rank, if there is a margin.
        dataset: the training images.
        processes: this rank among its peers.
        bf16: embed for class means under autocast, as training will.
        progress: of the class means.

    Raises:
        FacerecError: see `start_from_weights` and `set_class_means`.
    """
    start = start_from_weights(recipe, backbone, processes)
    if head is None or recipe.init.head == "fresh":
        return start
    model = TorchModel(backbone, recipe.preprocessing, precision="bf16" if bf16 else "fp32")
    counts: list[Any] = processes.gather_objects(set_class_means(head, model, dataset, progress))
    return replace(start, head=f"along the class means of {sum(counts):,} images")
