"""Training: a recipe and a data set become a run."""

from facerec.training.optimization import SGD, AdamW, Cosine, MultiStep, Polynomial
from facerec.training.recipe import Checkpoints, Head, Recipe, Validation

__all__ = [
    "SGD",
    "AdamW",
    "Checkpoints",
    "Cosine",
    "Head",
    "MultiStep",
    "Polynomial",
    "Recipe",
    "Validation",
]
