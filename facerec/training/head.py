"""The head as a recipe asks for it, and what may be odd about it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch

from facerec.errors import DatasetError, RecipeError
from facerec.heads.class_sampling import sample_size
from facerec.heads.classifier import MarginClassifier
from facerec.heads.no_head import NoHead
from facerec.records.dataset import FaceDataset
from facerec.training.recipe import Recipe


def create_head(recipe: Recipe, dataset: FaceDataset) -> MarginClassifier:
    """Make this rank's class centres; none without a margin.

    Raises:
        DatasetError: there is one identity, of which a softmax learns nothing.
    """
    if recipe.margin is None:
        return NoHead(recipe.backbone.embedding_size)
    if dataset.num_classes == 1:
        raise DatasetError(
            f"{recipe.data.path}: all {len(dataset):,} images are of one identity, and a margin "
            "learns to tell identities apart; give images of two or more, each in a folder or "
            "under a label of its own"
        )
    return MarginClassifier(
        dataset.num_classes,
        recipe.backbone.embedding_size,
        recipe.margin,
        seed=recipe.seed,
        center_init=recipe.head.center_init,
        precision=recipe.head.precision,
        interclass_filter=recipe.head.interclass_filter,
        sample_rate=recipe.head.sample_rate_at(0),
        unlabelled=dataset.has_unlabelled,
        centers_per_class=recipe.head.centers_per_class,
    )


@contextlib.contextmanager
def explain_full_memory(recipe: Recipe, dataset: FaceDataset) -> Iterator[None]:
    """Word what torch raises when backbone and class centres find no room."""
    try:
        yield
    except RuntimeError as error:
        # A CPU's allocator has no error of its own.
        if not isinstance(error, torch.OutOfMemoryError) and "can't allocate" not in str(error):
            raise
        centers = dataset.num_classes * recipe.head.centers_per_class
        centers *= recipe.backbone.embedding_size * 4
        raise RecipeError(
            f"{recipe.data.path}: the centres of its {dataset.num_classes:,} classes "
            f"({centers / 1e9:,.1f} GB) and a backbone of width {recipe.backbone.width:g} do not "
            "fit into memory; facerec plan computes what a step needs"
        ) from error


def rate_warnings(recipe: Recipe, num_local: int) -> Iterator[str]:
    """Say which sample rates of the head do nothing."""
    (_, before), *later = recipe.head.rates
    for epoch, rate in later:
        pair = f"the pair {epoch:g} {rate:g} of head.sample_rates"
        if epoch >= recipe.epochs:
            epochs = f"{recipe.epochs} epoch{'s' * (recipe.epochs > 1)}"
            yield f"{pair} never holds, since the run has {epochs}"
        elif rate == before:
            yield f"{pair} changes nothing, since that rate holds already"
        before = rate
    for rate in sorted({rate for _, rate in recipe.head.rates} - {1.0}):
        visited = sample_size(rate, num_local, recipe.batch_size)
        if visited > max(int(rate * num_local), 1):
            yield (
                f"at sample rate {rate:g} a process visits {visited:,} of its {num_local:,} "
                f"classes all the same, since a batch of {recipe.batch_size:,} may need so many"
            )
