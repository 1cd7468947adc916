"""Training: a recipe and a data set become a run."""

from facerec.training.optimization import (
    SGD,
    Adam,
    AdamW,
    Cosine,
    MultiStep,
    Optimizer,
    Polynomial,
    RMSprop,
)
from facerec.training.recipe import Checkpoints, Head, Recipe, Validation

__all__ = [
    "SGD",
    "Adam",
    "AdamW",
    "Checkpoints",
    "Cosine",
    "Head",
    "MultiStep",
    "Optimizer",
    "Polynomial",
    "RMSprop",
    "Recipe",
    "Validation",
]
