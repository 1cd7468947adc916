"""What a comparison is: one protocol for all arms, the arms, and what may differ between them.

Two arms are comparable if their protocols agree in every field but those declared as the subject of
the study; any other difference is an error. What is searched lies in the arms: hyperparameters of
the loss, the weight of the norm penalty, learning rates.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, TypeVar

from facerec.base.defaults import ClusterMetric
from facerec.base.errors import RecipeError
from facerec.base.limits import MOST, Checked, Count, Limits, NonNegative, ProperShare, Seed
from facerec.base.recipe import differences, is_within, to_dict
from facerec.comparison.features import FeatureData
from facerec.comparison.image_sets import ImageData
from facerec.comparison.losses import Loss, MetricLoss
from facerec.comparison.own_losses import as_loss
from facerec.comparison.ranges import Range
from facerec.comparison.splits import Numbering
from facerec.comparison.transforms import CropTransform, FaceTransform
from facerec.comparison.trunks import FEATURES, Trunk
from facerec.heads import NormPenalty
from facerec.records.synthetic import SyntheticSet
from facerec.training import Optimizer, RMSprop

METRICS = {
    "map_at_r": "MAP@R",
    "r_precision": "R-Precision",
    "precision_at_1": "P@1",
}

CLUSTER_METRICS = {"nmi": "NMI", "f1": "F1"}
"""Metrics of a k-means on all queries, so that no single query has one."""

RECALLS = (1, 2, 4, 8)
"""The K of Recall@K that are reported unless others are asked for."""

FIGURES: tuple[str, ...] = (*METRICS, *(f"recall@{k}" for k in RECALLS))
"""Names of the figures of retrieval unless others are asked for, in the order of tables."""


def figure_title(name: str) -> str:
    """Return how the figure of a name is written: ``map_at_r`` is MAP@R, ``recall@8`` Recall@8."""
    return {**METRICS, **CLUSTER_METRICS}.get(name) or name.replace("recall", "Recall")


UNTRAINED = "untrained"
"""Name of the baseline that is not trained at all."""

WEIGHT = "regularizer.weight"
"""The field of a penalty's weight, of which 0 leaves the loss alone."""

T = TypeVar("T")


_TwoOrMore = Annotated[int, Limits(2, MOST)]


@dataclass(frozen=True)
class ClassBatch(Checked):
    """Images of a training step: ``classes`` × ``per_class``."""

    classes: _TwoOrMore = 8
    """Classes in a batch, C."""
    per_class: Count = 4
    """Images of each, M."""


@dataclass(frozen=True)
class Protocol(Checked):
    """Everything that is equal for all arms, unless it is declared."""

    trunk: Trunk = field(default_factory=Trunk)
    transform: FaceTransform | CropTransform | None = field(default_factory=FaceTransform)
    """What happens to an image before the trunk, which takes the size that it gives; None for
    features, which stay as they are."""
    optimizer: Optimizer = field(default_factory=RMSprop)
    batch: ClassBatch = field(default_factory=ClassBatch)
    steps_per_epoch: Count = 100
    """Optimizer steps between two validations."""
    epochs: Count = 40
    """Upper limit of epochs."""
    patience: Count = 9
    """Epochs without a better validation score after which training ends."""
    folds: _TwoOrMore = 4
    """Class-disjoint parts of the first half of the classes; each validates once."""
    numbering: Numbering = "kfold"
    """Which classes make a fold: scikit-learn's KFold without shuffling, or as in the Reality
    Check."""


PENALTY_RANGE = Range(WEIGHT, 0.0, 10.0, "log_with_zero")
LOSS_LR_RANGE = Range("loss_lr", 1e-6, 1.0, "log")
"""The Reality Check's range for the learning rate of a loss's own weights."""


@dataclass(frozen=True)
class Arm(Checked):
    """One contestant: a loss, perhaps with a penalty on the embeddings' norms."""

    name: str
    """Short and unique; names files too."""
    loss: Loss
    """What is given instead is turned into one: the name of a loss, a class, function or object of
    pytorch-metric-learning or of one's own, or FILE.py:NAME (`own_losses.own_loss`)."""
    regularizer: NormPenalty | None = None
    loss_lr: NonNegative = 1e-2
    """Learning rate of the loss's own parameters, if it has some."""
    against: str | None = None
    """Name of the arm that this one is compared with, which stands before it."""
    search: tuple[Range, ...] | None = None
    """What is searched; None takes the published ranges of the loss, ``loss_lr`` if the loss has
    parameters, and the penalty's weight."""
    protocol: Protocol | None = None
    """Where it differs from the common one, in declared fields; None is the common one."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "loss", as_loss(self.loss))
        super().__post_init__()
        for each in self.ranges:  # what is not there fails in the recipe's own line
            float(_get(self, each.field))

    @property
    def ranges(self) -> tuple[Range, ...]:
        """The parameters that are searched, with their bounds."""
        if self.search is not None:
            return self.search
        ranges = [replace(r, field=f"loss.{name}") for name, r in self.loss.search.items()]
        if self.loss.entry.learns:
            ranges.append(LOSS_LR_RANGE)
        if self.regularizer is not None:
            ranges.append(PENALTY_RANGE)
        return tuple(ranges)

    @property
    def defaults(self) -> dict[str, float]:
        """The arm's own values of what is searched."""
        return {r.field: float(_get(self, r.field)) for r in self.ranges}

    def at(self, setting: Mapping[str, float]) -> Arm:
        """Return the arm with a value of each searched field, by its name, written into it.

        Raises:
            RecipeError: a value that its dataclass refuses.
        """
        arm = self
        for name, value in setting.items():
            arm = _set(arm, name, value)
        return arm


def shared_ranges(arm: Arm, other: Arm) -> tuple[Range, ...]:
    """Return what both arms search, within the same bounds."""
    return tuple(each for each in arm.ranges if each in other.ranges)


@dataclass(frozen=True)
class Comparison(Checked):
    """Arms under one protocol, and how much is spent on each."""

    name: str
    question: str
    """What the comparison is to answer, in one sentence."""
    arms: tuple[Arm, ...]
    data: ImageData | SyntheticSet | FeatureData = field(default_factory=SyntheticSet)
    """Images of classes; generated faces where it is a `SyntheticSet`, and with `FeatureData` the
    features of a frozen network instead (`on_features` turns a comparison into that)."""
    protocol: Protocol = field(default_factory=Protocol)
    declared: tuple[str, ...] = ()
    """Fields of the protocol that are the subject of the study, in which arms may differ."""
    trials: Count = 50
    """Settings tried for each arm."""
    repetitions: Count = 10
    """Fresh seeds that the best setting of each arm is trained with; the same for all arms."""
    paired: bool = False
    """Whether an arm whose loss is that of the arm it is compared with tries the very settings of
    that one, trial by trial: only what it has besides, such as the penalty's weight, is proposed.
    Then trials pair, and a weight of 0 need not be part of the search."""
    metrics: tuple[ClusterMetric, ...] = ()
    """What is reported besides retrieval, at the price of a k-means a model of every final run."""
    recalls: tuple[Count, ...] = RECALLS
    """The K of Recall@K; those not among 1, 2, 4 and 8 have a column of the first
    table."""
    confidence: ProperShare = 0.95
    """Confidence of all intervals."""
    seed: Seed = 0
    """Source of all seeds."""

    def __post_init__(self) -> None:
        super().__post_init__()
        names = [arm.name for arm in self.arms]
        reserved = UNTRAINED in names or any("/" in name for name in names)  # they name files
        if not names or reserved or len(set(names)) < len(names):
            raise RecipeError(
                "a comparison needs arms of different names, without / and none of them "
                f"{UNTRAINED!r}, that of a baseline; found {', '.join(names) or 'none'}"
            )
        for place, arm in enumerate(self.arms):
            if arm.against not in (None, *names[:place]):
                raise RecipeError(
                    f"arm {arm.name!r} is compared with {arm.against!r}, which must be an arm "
                    f"before it; found {', '.join(names)}"
                )

    @property
    def figures(self) -> tuple[str, ...]:
        """Names of all figures that are reported, in the order of tables."""
        recalls = (f"recall@{k}" for k in self.recalls)
        return tuple(dict.fromkeys([*METRICS, *recalls, *self.metrics]))

    def protocol_of(self, arm: Arm) -> Protocol:
        """Return the protocol that an arm is run under."""
        return arm.protocol or self.protocol

    def arm(self, name: str) -> Arm:
        """Return the arm of a name."""
        return next(arm for arm in self.arms if arm.name == name)

    def with_protocols(self, change: Callable[[Protocol], Protocol]) -> Comparison:
        """Return the comparison with the common protocol and those of arms changed alike."""
        arms = (
            replace(arm, protocol=change(arm.protocol)) if arm.protocol else arm
            for arm in self.arms
        )
        return replace(self, protocol=change(self.protocol), arms=tuple(arms))

    def paired_with(self, arm: Arm) -> Arm | None:
        """Return the arm whose settings this one tries too; None if it searches for itself."""
        other = self.arm(arm.against) if self.paired and arm.against is not None else None
        same = other is not None and other.loss == arm.loss and bool(shared_ranges(arm, other))
        return other if same else None

    def begun_by(self, arm: Arm) -> Arm | None:
        """Return the arm whose trials come before those of this one, which begin with theirs.

        That is one of the same loss that it is compared with; None if the arm searches for itself.
        """
        paired = self.paired_with(arm)
        if paired is not None or arm.against is None:
            return paired
        other = self.arm(arm.against)
        contained = other.loss.kind == arm.loss.kind and WEIGHT in arm.defaults
        return other if contained else None

    def check(self) -> None:
        """Refuse what would make the comparison unfair or impossible.

        Raises:
            RecipeError: arms differ in a field that is not declared, or take other data than there
                are.
        """
        common, data = to_dict(self.protocol), self.data
        features = isinstance(data, FeatureData)
        given = 1 + bool(data.second_views) if isinstance(data, FeatureData) else MOST
        for arm in self.arms:
            if arm.loss.views > given:
                raise RecipeError(
                    f"arm {arm.name}: its loss needs two views of every image, but there is one; "
                    "give features of the second ones with --second-views FILE"
                )
            protocol = self.protocol_of(arm)
            if {protocol.trunk.name == FEATURES, protocol.transform is None} != {features}:
                raise RecipeError(
                    f"arm {arm.name}: the trunk {FEATURES} with transform=None is for features, "
                    "and other trunks with a transform are for images; give the features of a "
                    f"frozen network with --features, or another trunk than {protocol.trunk.name}"
                )
            different = differences(common, to_dict(protocol))
            undeclared = [name for name in different if not is_within(name, self.declared)]
            if undeclared:
                raise RecipeError(
                    f"arm {arm.name}: differs from the common protocol in "
                    f"{', '.join(undeclared)}; make it equal, or declare the field as the subject "
                    f"of the study with declared={undeclared!r}"
                )


def of_losses(comparison: Comparison, losses: Sequence[str]) -> Comparison:
    """Return the comparison with other losses for arms, each compared with the first.

    Args:
        comparison: its common protocol, trials and seeds stay.
        losses: names of facerec's, or ``FILE.py:NAME``.
    """
    names = [loss.rpartition(":")[2] for loss in losses]
    arms = [Arm(name, as_loss(loss)) for name, loss in zip(names, losses, strict=True)]
    others = tuple(replace(arm, against=names[0]) for arm in arms[1:])
    question = f"Which loss differs from {names[0]}?" if others else f"How good is {names[0]}?"
    name = "-".join(names)[:60]
    return replace(comparison, name=name, question=question, arms=(arms[0], *others))


def on_features(comparison: Comparison, data: FeatureData) -> Comparison:
    """Return the comparison with features in the place of images, all else equal.

    In every protocol the trunk becomes the identity, followed by the same last layers, and there is
    no transform.
    """

    def changed(protocol: Protocol) -> Protocol:
        trunk = replace(protocol.trunk, name=FEATURES, weights=None)
        return replace(protocol, trunk=trunk, transform=None)

    return replace(comparison.with_protocols(changed), data=data)


def _get(root: Any, name: str) -> Any:
    for key in name.split("."):
        root = root.settings[key] if isinstance(root, MetricLoss) else getattr(root, key)
    return root


def _set(root: T, name: str, value: Any) -> T:
    first, _, rest = name.partition(".")
    if rest:
        value = _set(getattr(root, first), rest, value)
    return replace(root, **{first: value})  # type: ignore[type-var]
