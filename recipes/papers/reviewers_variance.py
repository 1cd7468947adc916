"""Door to `facerec/recipes/papers/reviewers_variance.py`."""

from facerec.recipes.papers.reviewers_variance import recipe as recipe
