"""Door to `facerec/recipes/papers/reviewers_optimizers.py`."""

from facerec.recipes.papers.reviewers_optimizers import recipe as recipe
