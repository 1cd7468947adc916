"""Door to `facerec/recipes/papers/reality_check.py`."""

from facerec.recipes.papers.reality_check import recipe as recipe
