"""Door to `facerec/recipes/papers/sec.py`."""

from facerec.recipes.papers.sec import recipe as recipe
