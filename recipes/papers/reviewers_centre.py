"""Door to `facerec/recipes/papers/reviewers_centre.py`."""

from facerec.recipes.papers.reviewers_centre import recipe as recipe
