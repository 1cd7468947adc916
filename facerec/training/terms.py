"""The losses whose sum a run learns, as terms that a learner goes through one by one.

To add one, write its class here or in the file of a recipe, and give its name a weight in
`Recipe.terms`.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor, nn

from facerec.base.errors import DatasetError, RecipeError
from facerec.heads.classifier import MarginClassifier
from facerec.heads.collectives import all_gather, gather_together
from facerec.heads.distillation_loss import DistillationLoss
from facerec.heads.norm_regularizer import (
    NormMoments,
    NormPenalty,
    NormRegularizer,
    combination_warnings,
    describe_norms,
    embedding_norms,
)
from facerec.heads.output import LossOutput
from facerec.records.dataset import FaceDataset
from facerec.training.distillation import TeacherTargets
from facerec.training.recipe import Recipe
from facerec.training.row_update import RowUpdate


@dataclass(frozen=True)
class Step:
    """What terms are told of an optimizer step before its first micro-batch."""

    number: int
    """Number of the step, counted from 0."""
    progress: float
    """Share of the run that is done."""
    labels: Tensor
    """Labels of this rank's images, ``(k·B,)``."""
    embeddings: Tensor | None
    """Raw embeddings of this rank, ``(k·B, D)``, without gradient; None with a single micro-batch,
    and where no term couples the samples."""
    targets: Tensor | None
    """The teacher's raw embeddings, ``(k·B, T)``."""

    @functools.cached_property
    def mean_norm(self) -> Tensor | None:
        """Mean norm of the embeddings of all ranks, one small collective; None without them."""
        if self.embeddings is None:
            return None
        return all_gather(embedding_norms(self.embeddings)).mean()


@dataclass(frozen=True)
class MicroBatch:
    """A rank's share of a step that goes through the network together."""

    step: Step
    embeddings: Tensor
    """Raw embeddings, ``(B, D)``."""
    labels: Tensor
    targets: Tensor | None
    first: bool
    """Whether it is the first of the step's micro-batches."""
    last: bool
    """Whether it is the last of them."""

    @functools.cached_property
    def shared(self) -> tuple[Tensor, NormMoments]:
        """Labels, ``(W·B,)``, and norms of the micro-batch of all ranks; one small collective."""
        norms = embedding_norms(self.embeddings.detach())
        labels, norms = gather_together([self.labels, norms])
        return labels, describe_norms(norms)


TERMS: dict[str, type[Term]] = {}
"""All terms by name, in the order in which their losses are added."""


class Term:
    """One of the losses; a class of its own is found by its name.

    Attributes:
        name: first part of the names of its tensors in a checkpoint.
        module: parameters and buffers; parameters' gradients are complete on every rank.
    """

    name: ClassVar[str]
    module: nn.Module

    def __init_subclass__(cls) -> None:
        TERMS[cls.name] = cls

    def __init__(self, weight: float) -> None:
        self.module, self.weight = nn.Identity(), weight

    @classmethod
    def of(
        cls, recipe: Recipe, dataset: FaceDataset, targets: TeacherTargets | None
    ) -> Term | None:
        """Make the term that a recipe asks for, or None where it asks for none.

        By default that is what has a weight in `Recipe.terms`.

        Args:
            recipe: the whole configuration.
            dataset: the training images.
            targets: the teacher's embeddings, if there is a teacher.
        """
        weight = dict(recipe.terms).get(cls.name)
        return cls(weight) if weight else None

    @property
    def couples_samples(self) -> bool:
        """Whether a sample's loss depends on the others, so that micro-batches need the whole."""
        return bool(getattr(self.module, "couples_samples", False))

    @property
    def plain(self) -> list[nn.Parameter]:
        """Parameters that get neither weight decay nor momentum, and change in a forward pass."""
        return []

    def warnings(self, recipe: Recipe) -> Iterable[str]:
        """Yield a sentence for everything of the recipe that looks odd."""
        return ()

    def begin(self, step: Step) -> None:
        """Prepare for the micro-batches of a step; all ranks call this together."""

    def forward(self, batch: MicroBatch) -> LossOutput:
        """Return the loss of a micro-batch, averaged over all ranks'; may be a collective."""
        raise NotImplementedError

    def end(self) -> None:
        """Take note that the optimizer has taken the step."""


class MarginTerm(Term):
    """The margin softmax over the global batch, whose class centres the ranks share.

    Attributes:
        update: takes the gradients of the centres, once there is an optimizer.
    """

    name = "head"
    module: MarginClassifier

    def __init__(self, module: MarginClassifier) -> None:
        self.module = module
        self.update: RowUpdate | None = None

    @classmethod
    def of(
        cls, recipe: Recipe, dataset: FaceDataset, targets: TeacherTargets | None
    ) -> MarginTerm | None:
        """Draw this rank's class centres.

        Raises:
            DatasetError: there is one subject, of which a softmax learns nothing.
        """
        if recipe.margin is None:
            return None
        if dataset.num_classes == 1:
            raise DatasetError(
                f"{recipe.data.path}: all {len(dataset):,} images are of one subject, and a "
                "margin learns to tell subjects apart; give images of two or more, each in a "
                "folder or under a label of its own"
            )
        module = MarginClassifier(
            dataset.num_classes,
            recipe.backbone.embedding_size,
            recipe.margin,
            seed=recipe.seed,
            center_init=recipe.head.center_init,
            precision=recipe.head.precision,
            sample_rate=recipe.head.sample_rate,
            unlabelled=dataset.has_unlabelled,
            centers_per_class=recipe.head.centers_per_class,
        )
        return cls(module)

    def begin(self, step: Step) -> None:
        """Draw the classes that take part."""
        self.module.draw(step.labels, step.number)

    def forward(self, batch: MicroBatch) -> LossOutput:
        """Return the cross-entropy with the cosines and norms that it is made of."""
        update = self.update and self.update.gradients(batch.last)
        output = self.module(batch.embeddings, batch.labels, update, batch.shared[0])
        return LossOutput(output.loss, {"loss": output.loss.detach(), **output.figures})

    def end(self) -> None:
        """Count the step for margins that anneal or average."""
        self.module.advance()


def margin_of(terms: Iterable[Term]) -> MarginTerm | None:
    """Return the margin among some terms, if it is there."""
    return next((term for term in terms if isinstance(term, MarginTerm)), None)


class NormTerm(Term):
    """The penalty on the norms of the embeddings."""

    name = "regularizer"
    module: NormRegularizer

    def __init__(self, penalty: NormPenalty, scale: float = 1.0) -> None:
        self.module = NormRegularizer(penalty, scale=scale)

    @classmethod
    def of(
        cls, recipe: Recipe, dataset: FaceDataset, targets: TeacherTargets | None
    ) -> NormTerm | None:
        """Make the penalty, scaled as the margin's logits are."""
        scale = 1.0 if recipe.margin is None else recipe.margin.scale
        return None if recipe.regularizer is None else cls(recipe.regularizer, scale)

    @property
    def plain(self) -> list[nn.Parameter]:
        """The radius of Ring loss, where that is the penalty."""
        return list(self.module.parameters())

    def warnings(self, recipe: Recipe) -> list[str]:
        """Say where penalty, margin and last batch norm do not go together."""
        return combination_warnings(recipe.regularizer, recipe.margin, recipe.backbone.embedding_bn)

    def forward(self, batch: MicroBatch) -> LossOutput:
        """Return the penalty with its centre."""
        output: LossOutput = self.module(
            batch.embeddings,
            moments=batch.shared[1],
            mean_norm=batch.step.mean_norm,
            progress=batch.step.progress,
            update=batch.first,
        )
        return output


class DistillationTerm(Term):
    """The distance to a teacher's embeddings."""

    name = "distiller"
    module: DistillationLoss

    def __init__(self, recipe: Recipe, targets: TeacherTargets) -> None:
        assert recipe.distillation is not None
        self.module = DistillationLoss(
            recipe.distillation.loss,
            recipe.distillation.weight,
            recipe.backbone.embedding_size,
            targets.size,
            target_scale=targets.scale,
            seed=recipe.seed,
        )
        self.targets, self.alone = targets, recipe.margin is None

    @classmethod
    def of(
        cls, recipe: Recipe, dataset: FaceDataset, targets: TeacherTargets | None
    ) -> DistillationTerm | None:
        """Make the distance, with its linear map where the sizes differ."""
        return None if targets is None else cls(recipe, targets)

    def warnings(self, recipe: Recipe) -> list[str]:
        """Say what is not known of the teacher."""
        assumed = self.targets.note.get("assumed")
        if not assumed or recipe.distillation is None:
            return []
        return [
            f"{recipe.distillation.teacher} does not say which {', '.join(assumed)} its pixels "
            "need, so usual values are taken; give them as distillation.preprocessing if you know "
            "better"
        ]

    def forward(self, batch: MicroBatch) -> LossOutput:
        """Return the weighted distance; alone, it is the loss that a run shows."""
        step = batch.step
        assert batch.targets is not None and step.targets is not None
        whole = None if step.embeddings is None else (step.embeddings, step.targets)
        output = self.module(batch.embeddings, batch.targets, whole)
        shown = {"loss": output.figures["distillation"]} if self.alone else {}
        return LossOutput(output.loss, output.figures | shown)


def create_terms(
    recipe: Recipe, dataset: FaceDataset, targets: TeacherTargets | None
) -> list[Term]:
    """Make the terms of a recipe, on the CPU.

    Raises:
        DatasetError: nothing can be learned of these images.
        RecipeError: a weight for a term that there is not.
    """
    for name, _ in recipe.terms:
        if name not in TERMS:
            raise RecipeError(f"terms: there is no term {name!r}; known are {', '.join(TERMS)}")
    terms = (kind.of(recipe, dataset, targets) for kind in TERMS.values())
    return [term for term in terms if term is not None]
