"""Losses to compare, behind one ``loss(embeddings, labels)``.

A recipe has `MetricLoss`, the name and settings of a row of `loss_table.TABLE`, or `MarginHead`, a
margin softmax of ``facerec.heads``. Every module made here

* takes raw embeddings of any float type and computes in float32, whatever autocast says;
* has a gradient, if only of zeros, even where a batch holds nothing to learn from;
* owns its parameters, drawn from a seed without touching the global generators;
* sees directions only, except where its row says that norms matter.

A norm penalty is not part of a loss: the caller adds it, the same for all.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor, nn

from facerec.base.errors import RecipeError
from facerec.base.limits import Checked
from facerec.base.recipe import check
from facerec.comparison.loss_table import TABLE, Entry, Formula, Setting, Shape, Value, searched
from facerec.comparison.ranges import Range
from facerec.heads import classifier, margins

__all__ = ["HEADS", "Loss", "LossModule", "MarginHead", "MetricLoss", "searched"]


class _Row:
    """What a loss of a recipe has from its row of the table."""

    @property
    def entry(self) -> Entry:
        """The row of the table that this loss is made by."""
        return TABLE[self.kind]

    @property
    def kind(self) -> str:
        """What makes two losses the same but for their settings."""
        return getattr(self, "name", type(self).__name__)

    @property
    def search(self) -> dict[str, Range]:
        """Numbers to search, by setting, which is the dotted name of a field."""
        return {key: each.search for key, each in self.entry.settings.items() if each.search}

    @property
    def published(self) -> dict[str, float]:
        """The Reality Check's optimum on CUB200, by setting; empty where there is none."""
        settings = self.entry.settings.items()
        return {name: each.best for name, each in settings if each.best is not None}

    @property
    def views(self) -> int:
        """How many augmented views of each image a batch must hold."""
        return int(getattr(self, "settings", {}).get("views", 1))


@dataclass(frozen=True, init=False)
class MetricLoss(_Row):
    """A loss of the table by its name, such as ``MetricLoss("Triplet", margin=0.1)``."""

    name: str
    settings: dict[str, int | float | str] = field(default_factory=dict)
    """All settings by name; those that are not given are at their defaults."""

    def __init__(
        self, name: str, settings: Mapping[str, Value] | None = None, **given: Value
    ) -> None:
        """Fill in what is not given.

        Raises:
            RecipeError: there is no such loss or setting, or a value is not allowed.
        """
        check(Literal[tuple(TABLE)], name, "MetricLoss", "name")
        own, values = TABLE[name].settings, {**(settings or {}), **given}
        for key in values:
            check(Literal[tuple(own)], key, name, "a setting")
        filled = {
            k: _checked(name, k, values.get(k, each.default), each) for k, each in own.items()
        }
        vars(self).update(name=name, settings=filled)  # as it is frozen

    @property
    def cosine_factor(self) -> float:
        """Factor on cosines in the exponents of a softmax; 1 for a loss that has none."""
        name = self.entry.factor
        value = float(self.settings.get(name, 1.0))
        if name == "temperature":
            return 1 / value
        return 1 / (1 / (2 * value)) if name == "softmax_scale" else value

    def build(self, shape: Shape) -> Formula:
        """Make the loss without the guarantees that `LossModule` adds."""
        return self.entry.make(shape, **self.settings)


def _checked(loss: str, name: str, value: Any, known: Setting) -> Any:
    """Return a value as the setting takes it."""
    if known.choices:
        return check(Literal[known.choices], value, loss, name)
    value = check(type(known.default), value, loss, name)
    scale = "linear" if known.search is None else known.search.scale
    least = 0 if scale == "log" or isinstance(value, int) else -math.inf
    if not least < value < math.inf:
        raise RecipeError(f"{loss}: {name} must be finite and above {least}, found {value}")
    return value


_SCALE, _MARGIN = Range("", 10.0, 300.0, "log"), Range("", 0.0, 1.0)
_FACTOR = Range("", 1.0, 4.0)
_HEAD_SEARCH: Mapping[type, Mapping[str, Range]] = {
    margins.Softmax: {"scale": _SCALE},
    margins.CosFace: {"scale": _SCALE, "margin": _MARGIN},
    margins.ArcFace: {"scale": _SCALE, "margin": _MARGIN},
    margins.CombinedMargin: {
        "scale": _SCALE,
        "m1": Range("", 0.5, 2),
        "m2": _MARGIN,
        "m3": _MARGIN,
    },
    margins.SphereFace: {"scale": _SCALE, "margin": _FACTOR},
    margins.SphereFace2017: {"margin": Range("", 1.0, 5.0)},
    margins.SphereFaceR: {"scale": _SCALE, "margin": _FACTOR},
    margins.AdaFace: {"scale": _SCALE, "margin": _MARGIN, "h": _MARGIN},
    margins.MagFace: {
        "scale": _SCALE,
        "l_margin": Range("", 0.0, 0.5),
        "u_margin": Range("", 0.5, 1.0),
        "lambda_g": Range("", 1.0, 100.0, "log"),
    },
}
"""Numbers of each margin to search, by field."""

HEADS = {kind.__name__: kind for kind in _HEAD_SEARCH}
"""The margins by their names."""

_SAME_LOSS = {margins.CosFace: "PmlCosFace", margins.ArcFace: "PmlArcFace"}
"""The row whose optimum the Reality Check published."""


@dataclass(frozen=True)
class MarginHead(Checked, _Row):
    """facerec's own margin softmax with any of its margins, on one process.

    Norms matter for SphereFace2017, AdaFace and MagFace only.
    """

    margin: margins.Margin = field(default_factory=margins.ArcFace)
    """Which margin, with its scale (facerec's defaults are those of face recognition)."""

    center_init: classifier.CenterInit = "unit"
    """How the class centres start."""

    @property
    def entry(self) -> Entry:
        """The row that the table would have for this margin."""
        same = _SAME_LOSS.get(type(self.margin))
        optimum = MetricLoss(same).published if same else {}
        if same == "PmlArcFace":  # here in radians
            optimum["margin"] = math.radians(optimum["margin"])
        settings = {
            f"margin.{name}": Setting(0.0, each, optimum.get(name))
            for name, each in _HEAD_SEARCH.get(type(self.margin), {}).items()
        }
        rate = TABLE[same].best_lr if same else None
        return Entry(self.build, settings, learns=True, best_lr=rate)

    @property
    def cosine_factor(self) -> float:
        """Factor on cosines in the exponents of the softmax."""
        return self.margin.scale

    def build(self, shape: Shape) -> Formula:
        """Make the module."""
        classes, size, seed = shape
        kind = self.center_init
        return _Head(
            classifier.MarginClassifier(classes, size, self.margin, seed=seed, center_init=kind)
        )


Loss = MetricLoss | MarginHead
"""Any loss of a recipe."""


class _Head(nn.Module):
    """facerec's margin softmax, which counts its steps itself."""

    def __init__(self, head: classifier.MarginClassifier) -> None:
        super().__init__()
        self.head = head

    def forward(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        loss = self.head(embeddings, labels).loss
        if self.training:
            self.head.advance()
        return loss


class LossModule(nn.Module):
    """A loss with its own parameters, which are float32.

    Args:
        config: which loss.
        num_classes: C, the classes of the training fold.
        embedding_size: D.
        seed: a number >= 0 that fixes the loss's own parameters and the draws of its miner.

    Raises:
        MissingExtraError: the loss needs pytorch-metric-learning.
    """

    def __init__(self, config: Loss, num_classes: int, embedding_size: int, seed: int) -> None:
        super().__init__()
        self.config, self.shape = config, Shape(num_classes, embedding_size, seed)
        self.formula = config.build(self.shape)

    def forward(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        """Return the loss of a batch, a float32 scalar.

        It is float64 where the parameters are, or for a loss without any the embeddings.

        Args:
            embeddings: raw embeddings, ``(N, D)``, any float type.
            labels: their classes, ``(N,)``, int64 in [0, C).
        """
        dtype = next(self.parameters(), embeddings).dtype
        raw = embeddings.to(torch.promote_types(dtype, torch.float32))
        with torch.autocast(embeddings.device.type, enabled=False):
            return self.formula(raw, labels)
