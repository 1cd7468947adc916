"""Margins of softmax heads: configuration dataclasses that know their target function ψ.

A margin head compares a face with class j by the cosine ``c_j = cos θ_j`` of embedding and class
centre. Logits are ``scale · c_j`` for other classes and ``scale · ψ(θ_y)`` for the face's own class
y, which makes its own class harder to reach. Two margins read the norm of the raw embedding
as well. Every margin here is stateless; what AdaFace remembers is kept by the classifier.

Half-precision cosines are lifted to float32, in which everything is computed. Angles come from
cosines clamped one float epsilon inside ±1, where the gradient of the arc cosine is still finite.
A margin that does nothing (0, or factor 1) leaves the cosines untouched, bit for bit.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import torch
from torch import Tensor

from facerec.base.errors import RecipeError
from facerec.base.limits import LARGEST, Angle, Checked, Limits, NonNegative, Positive, Share

Gradient = Literal["exact", "straight_through"]
"""``exact`` differentiates ψ; ``straight_through`` treats dψ/dcosθ as 1 (same forward values)."""


def _lift(cosine: Tensor) -> Tensor:
    return cosine.to(torch.promote_types(cosine.dtype, torch.float32))


def angles(cosine: Tensor) -> Tensor:
    """Return angles in radians, of cosines one float epsilon inside ±1 where they are not.

    The gradient of the arc cosine is infinite at ±1; inside it stays below 1100 in float32.
    """
    limit = 1 - torch.finfo(cosine.dtype).eps  # 1 − 1.2e-7 in float32: slopes stay below 1100
    return cosine.clamp(-limit, limit).acos()


def _fold(angle: Tensor) -> Tensor:
    """Continue cos(angle) beyond π, continuous and decreasing: (−1)^k cos φ − 2k, k = ⌊φ/π⌋."""
    turns = (angle.detach() / math.pi).floor()
    return (1 - 2 * (turns % 2)) * angle.cos() - 2 * turns


def _turned(
    cosine: Tensor,
    wrap: str,
    factor: float = 1.0,
    margin: Tensor | float = 0.0,
    gradient: Gradient = "exact",
) -> Tensor:
    """Return cos(factor·θ + margin), beyond π by a rule of `ArcFace`."""
    cosine = _lift(cosine)
    if factor == 1 and not isinstance(margin, Tensor) and margin == 0:
        return cosine
    angle = factor * angles(cosine) + margin
    if wrap == "clamp":
        angle = angle.clamp(max=math.pi)
    modified = _fold(angle) if wrap == "fold" else angle.cos()
    if wrap == "linear":
        sine = margin.sin() if isinstance(margin, Tensor) else math.sin(margin)
        modified = torch.where(angle > math.pi, cosine - margin * sine, modified)
    elif wrap == "easy":
        modified = torch.where(cosine > 0, modified, cosine)
    return _with_gradient(gradient, modified, cosine)


def _with_gradient(gradient: Gradient, modified: Tensor, cosine: Tensor) -> Tensor:
    if gradient == "exact":
        return modified
    # The difference is exactly 0, so the forward values are those of ``modified`` to the last bit.
    return modified.detach() + (cosine - cosine.detach())


_Factor = Annotated[float, Limits(1.0, LARGEST)]
"""On an angle; 1 is no margin."""


class _Margin(Checked):
    """What all margins share; the classifier needs nothing else."""

    scales_by_norm: ClassVar[bool] = False
    """Whether logits are also multiplied by the embedding's norm (the softmax of 2017)."""

    @property
    def loss_factor(self) -> float:
        """Factor on the cross-entropy."""
        return 1.0

    @property
    def changes_others(self) -> bool:
        """Whether ``other_cosine`` is anything but the identity."""
        return False

    def other_cosine(self, cosine: Tensor) -> Tensor:
        """Map cosines to classes other than the target, any shape; the identity for most heads."""
        return _lift(cosine)


@dataclass(frozen=True)
class _Scaled(_Margin):
    """What margins share whose logits are scaled cosines."""

    scale: Positive = 64.0
    """Factor s on all cosines."""


@dataclass(frozen=True)
class Softmax(_Scaled):
    """Plain normalised softmax without a margin."""

    def target_cosine(self, cosine: Tensor, step: Tensor | int = 0) -> Tensor:
        """Return the target cosines as they are, any shape."""
        return _lift(cosine)


@dataclass(frozen=True)
class CosFace(_Scaled):
    """CosFace: an additive margin on the cosine, ψ = cos θ − m (Wang et al., CVPR 2018).

    Examples:
        >>> CosFace(margin=0.4).target_cosine(torch.tensor([1.0, 0.5]))
        tensor([0.6000, 0.1000])
    """

    # 0.40 in insightface's arcface_torch and opensphere's MS1M configurations; 0.35 in the paper
    # and in most class defaults.
    margin: Annotated[float, Limits(0.0, 2.0, below=True)] = 0.4
    """Margin m taken from the target cosine (published settings: 0.35 and 0.40)."""

    def target_cosine(self, cosine: Tensor, step: Tensor | int = 0) -> Tensor:
        """Return cos θ − m of target cosines, any shape."""
        return _lift(cosine) - self.margin


@dataclass(frozen=True)
class ArcFace(_Scaled):
    """ArcFace: an additive margin on the angle, ψ = cos(θ + m) (Deng et al., CVPR 2019).

    Examples:
        >>> right_angle = torch.tensor([0.0])
        >>> ArcFace(margin=math.pi / 6).target_cosine(right_angle)  # cos(90° + 30°)
        tensor([-0.5000])
    """

    margin: Angle = 0.5
    """Margin m added to the target angle, in radians."""

    wrap: Literal["fold", "linear", "clamp", "none", "easy"] = "fold"
    """What happens where θ + m passes π: fold continues the cosine downwards without a jump; linear
    is cos θ − m·sin m (insightface before December 2022); clamp stops at −1; none is cos(θ + m),
    which rises again and helps the worst samples (insightface now); easy drops the margin wherever
    cos θ <= 0 (MagFace's option)."""

    gradient: Gradient = "exact"
    """Gradient of the margin: exact, or straight_through, which passes it as if ψ were cos θ
    (insightface and opensphere)."""

    def target_cosine(self, cosine: Tensor, step: Tensor | int = 0) -> Tensor:
        """Return ψ of target cosines, any shape."""
        return _turned(cosine, self.wrap, margin=self.margin, gradient=self.gradient)


@dataclass(frozen=True)
class CombinedMargin(_Scaled):
    """All three margins at once: ψ = cos(m1·θ + m2) − m3 (ArcFace paper, equation 4).

    The defaults (1, 0.3, 0.2) are the combination that insightface's MXNet code shipped.
    """

    m1: Positive = 1.0
    """Factor on the target angle (SphereFace's kind of margin)."""

    m2: NonNegative = 0.3
    """Angle added to the target angle, in radians (ArcFace's kind)."""

    m3: NonNegative = 0.2
    """Number taken from the target cosine (CosFace's kind)."""

    wrap: Literal["fold", "clamp", "none"] = "fold"
    """What happens where m1·θ + m2 passes π; see ArcFace."""

    gradient: Gradient = "exact"
    """Gradient of the margin: exact, or straight_through, which passes it as if ψ were cos θ."""

    def target_cosine(self, cosine: Tensor, step: Tensor | int = 0) -> Tensor:
        """Return ψ of target cosines, any shape."""
        return _turned(cosine, self.wrap, self.m1, self.m2, self.gradient) - self.m3


@dataclass(frozen=True)
class SphereFace(_Scaled):
    """SphereFace with any real factor on the angle: ψ = (−1)^k cos(mθ) − 2k, k = ⌊mθ/π⌋.

    The form and the defaults are those of opensphere's SphereFace and its MS1M configurations.
    """

    margin: _Factor = 1.7
    """Factor m on the target angle; 1 is no margin."""

    gradient: Gradient = "exact"
    """Gradient of the margin: exact, or straight_through, which passes it as if ψ were cos θ."""

    def target_cosine(self, cosine: Tensor, step: Tensor | int = 0) -> Tensor:
        """Return ψ of target cosines, any shape."""
        return _turned(cosine, "fold", self.margin, gradient=self.gradient)


@dataclass(frozen=True)
class SphereFace2017(_Margin):
    """SphereFace as first published, annealed from plain softmax (Liu et al., CVPR 2017).

    ψ = (λ cos θ + (−1)^k cos(mθ) − 2k) / (1 + λ), k = ⌊mθ/π⌋, where at optimiser step t
    λ = max(lambda_min, base · (1 + gamma·t)^−power). Class centres are normalised but embeddings
    are not: all logits are multiplied by ‖f‖ and by nothing else. Constants: sphereface's
    sphereface_model.prototxt.
    """

    scale: ClassVar[float] = 1.0
    scales_by_norm: ClassVar[bool] = True

    margin: _Factor = 4.0
    """Factor m on the target angle."""

    base: NonNegative = 1000.0
    """λ at step 0; a large λ is nearly plain softmax."""

    gamma: NonNegative = 0.12
    """How fast λ falls."""

    power: NonNegative = 1.0
    """Exponent of the fall of λ."""

    lambda_min: NonNegative = 5.0
    """Where λ stops falling (at step 1,659 with the other defaults)."""

    def annealing(self, step: Tensor | int) -> Tensor:
        """Return λ at an optimiser step, a float64 scalar on the CPU for an int."""
        # MPS has no float64, so a tensor keeps to float32.
        t = step.float() if isinstance(step, Tensor) else torch.tensor(step, dtype=torch.float64)
        return (self.base * (1 + self.gamma * t) ** -self.power).clamp(min=self.lambda_min)

    def target_cosine(self, cosine: Tensor, step: Tensor | int = 0) -> Tensor:
        """Return ψ of target cosines, any shape, at an optimiser step counted from 0."""
        cosine = _lift(cosine)
        if self.margin == 1:
            return cosine
        weight = self.annealing(step).to(cosine)
        return (weight * cosine + _turned(cosine, "fold", self.margin)) / (1 + weight)


@dataclass(frozen=True)
class SphereFaceR(_Scaled):
    """SphereFace-R with hard feature normalisation (Liu et al., TPAMI 2022).

    Version v1 makes the target harder, ψ = cos(min(mθ, π)); v2 leaves the target and makes the
    other classes harder, cos(θ_j / m). The loss is (loss_weight / scale) · cross-entropy. The
    defaults are opensphere's VGGFace2 configuration; its class defaults are scale 30, margin 1.5.
    """

    scale: Positive = 60.0
    """Factor s on all cosines."""

    margin: _Factor = 1.4
    """Factor m on the target angle (v1), divisor of the other angles (v2); 1 is no margin."""

    version: Literal["v1", "v2"] = "v2"
    """What the margin changes: v1 the target's angle, v2 the angles to all other classes."""

    loss_weight: Positive = 50.0
    """Factor on the cross-entropy, as loss_weight / scale; mind it beside a norm penalty."""

    gradient: Gradient = "exact"
    """Gradient of the margin: exact, or straight_through, which passes it as if the cosines were
    unchanged (opensphere)."""

    @property
    def loss_factor(self) -> float:
        """Factor on the cross-entropy."""
        return self.loss_weight / self.scale

    @property
    def changes_others(self) -> bool:
        """Whether ``other_cosine`` is anything but the identity."""
        return self.version == "v2" and self.margin != 1

    def target_cosine(self, cosine: Tensor, step: Tensor | int = 0) -> Tensor:
        """Return ψ of target cosines, any shape."""
        factor = self.margin if self.version == "v1" else 1.0
        return _turned(cosine, "clamp", factor, gradient=self.gradient)

    def other_cosine(self, cosine: Tensor) -> Tensor:
        """Return cos(θ_j / m) for v2, the cosines as they are for v1; any shape."""
        cosine = _lift(cosine)
        if not self.changes_others:
            return cosine
        return _with_gradient(self.gradient, (angles(cosine) / self.margin).cos(), cosine)


@dataclass(frozen=True)
class NormMargin(_Scaled):
    """A margin whose target also depends on the norms of the raw embeddings."""

    def norm_penalty(self, norms: Tensor) -> Tensor | None:
        """Return what is added to each sample's loss, if anything; the shape of ``norms``."""
        return None


@dataclass(frozen=True)
class AdaFace(NormMargin):
    """AdaFace: hard samples count if their norm says they are good (Kim et al., CVPR 2022).

    ψ = cos(θ − m·q) − (m + m·q), the angle kept in [0, π]. The quality q = h·(n − mean)/(std +
    0.001), kept in [−1, 1], compares the embedding's norm with moving averages over training
    batches, and carries no gradient. Formula, constants and averages follow AdaFace's head.py, but
    cosines are not cut off at ±0.999.
    """

    smallest_norm: ClassVar[float] = 0.001
    largest_norm: ClassVar[float] = 100.0
    start: ClassVar[tuple[float, float]] = (20.0, 100.0)
    """Mean and standard deviation before the first batch."""

    margin: Angle = 0.4
    """Margin m, on the angle and on the cosine."""

    h: NonNegative = 0.333
    """Quality of a norm one standard deviation above the mean."""

    t_alpha: Share = 0.01
    """Weight of the new batch in the averages: 0.01 is what AdaFace's command line sets; 1.0, as in
    its class, compares with the batch alone."""

    def clip(self, norms: Tensor) -> Tensor:
        """Return norms as quality and averages see them, without gradient."""
        return norms.detach().clamp(self.smallest_norm, self.largest_norm)

    def quality(self, norms: Tensor, average: Tensor | None = None) -> Tensor:
        """Return q of raw embeddings' norms, any shape, without gradient.

        Args:
            norms: of the raw embeddings.
            average: mean and standard deviation to compare with, ``(2,)``; by default their start.
        """
        mean, std = self.start if average is None else average.to(norms)
        return (self.h * (self.clip(norms) - mean) / (std + 1e-3)).clamp(-1, 1)

    def target_cosine(
        self, cosine: Tensor, step: Tensor | int, norms: Tensor, average: Tensor | None = None
    ) -> Tensor:
        """Return ψ of target cosines; ``norms`` have their shape, ``average`` is as for quality."""
        cosine = _lift(cosine)
        if self.margin == 0:
            return cosine
        quality = self.quality(norms, average)
        angle = (angles(cosine) - self.margin * quality).clamp(0, math.pi)
        return angle.cos() - self.margin * (1 + quality)


@dataclass(frozen=True)
class MagFace(NormMargin):
    """MagFace: the larger the norm, the larger the margin (Meng et al., CVPR 2021).

    ψ = cos(θ + m(a)), where a is the norm kept in [l_a, u_a] and m(a) grows linearly between the
    two from l_margin to u_margin; each sample's loss gets lambda_g·(a/u_a² + 1/a) on top. Norms
    carry a gradient through both, so that they become a measure of quality. Formula and constants:
    MagFace's models/magface.py and run/run.sh.
    """

    l_a: Positive = 10.0
    """Norm below which margin and penalty stay as they are."""

    u_a: Positive = 110.0
    """Norm above which margin and penalty stay as they are."""

    l_margin: Angle = 0.45
    """Margin at the norm l_a, in radians."""

    u_margin: Angle = 0.8
    """Margin at the norm u_a, in radians."""

    lambda_g: NonNegative = 35.0
    """Weight of the penalty, which falls with the norm: 35 as MagFace's run script sets it, where
    its argument default is 20."""

    wrap: Literal["easy", "linear"] = "easy"
    """What happens to large angles: easy drops the margin wherever cos θ <= 0 (MagFace's own
    choice); linear is cos θ − m·sin m where θ + m passes π."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not (self.l_a < self.u_a and self.l_margin <= self.u_margin):
            raise RecipeError(
                f"{self}: l_a must lie below u_a, and u_margin not below l_margin; change it in "
                "the recipe or on the command line"
            )

    def norm_penalty(self, norms: Tensor) -> Tensor:
        """Return lambda_g·(a/u_a² + 1/a) of raw embeddings' norms, any shape."""
        a = norms.clamp(self.l_a, self.u_a)
        return self.lambda_g * (a / self.u_a**2 + 1 / a)

    def angle(self, norms: Tensor) -> Tensor:
        """Return the margin m(a) in radians of raw embeddings' norms, any shape."""
        slope = (self.u_margin - self.l_margin) / (self.u_a - self.l_a)
        return self.l_margin + slope * (norms.clamp(self.l_a, self.u_a) - self.l_a)

    def target_cosine(
        self, cosine: Tensor, step: Tensor | int, norms: Tensor, average: Tensor | None = None
    ) -> Tensor:
        """Return ψ of target cosines; ``norms`` have their shape."""
        cosine = _lift(cosine)
        if self.u_margin == 0:
            return cosine
        return _turned(cosine, self.wrap, margin=self.angle(norms))


@dataclass(frozen=True)
class OwnMargin(_Scaled, ABC):
    """Base of margins of your own, which need no change of facerec.

    Derive a frozen dataclass from it, in the recipe or in a file that it imports, and give it ψ as
    ``target_cosine``; every other attribute of a margin may be given as well. Its fields are set on
    the command line and kept in ``recipe.json`` like all others.

    Examples:
        >>> @dataclass(frozen=True)
        ... class Shrunk(OwnMargin):
        ...     factor: float = 0.5
        ...     def target_cosine(self, cosine, step=0):
        ...         return self.factor * cosine.float()
        >>> Shrunk(scale=16.0).target_cosine(torch.tensor([0.5]))
        tensor([0.2500])
    """

    admits_subclasses: ClassVar[bool] = True
    """Whether a recipe may hold what derives from this; see `facerec.base.recipe.check`."""

    @abstractmethod
    def target_cosine(self, cosine: Tensor, step: Tensor | int = 0) -> Tensor:
        """Return ψ of target cosines, any shape, in float32, with a gradient.

        Args:
            cosine: of faces and the centres of their own classes.
            step: optimizer steps done, for margins that change over a run.
        """


Margin = (
    Softmax
    | CosFace
    | ArcFace
    | CombinedMargin
    | SphereFace
    | SphereFace2017
    | SphereFaceR
    | AdaFace
    | MagFace
    | OwnMargin
)
"""Any margin of this module; give one to a classifier."""
