"""Door to `facerec/recipes/papers/reality_check_others.py`."""

from facerec.recipes.papers.reality_check_others import recipe as recipe
