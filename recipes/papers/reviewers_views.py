"""Door to `facerec/recipes/papers/reviewers_views.py`."""

from facerec.recipes.papers.reviewers_views import recipe as recipe
