"""Door to `facerec/recipes/papers/reality_check_sec.py`."""

from facerec.recipes.papers.reality_check_sec import recipe as recipe
