"""Training: a recipe and a data set become a run."""

from typing import TYPE_CHECKING

from facerec.base.lazy import lazy_names

if TYPE_CHECKING:
    from facerec.training.distillation import Distillation
    from facerec.training.finetuning import Finetune
    from facerec.training.network import DataParallel
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
    from facerec.training.recipe import Checkpoints, Head, Init, Recipe, Validation
else:
    __getattr__, __all__ = lazy_names(__name__)
