"""Door to `facerec/recipes/papers/reviewers_last_layer.py`."""

from facerec.recipes.papers.reviewers_last_layer import recipe as recipe
