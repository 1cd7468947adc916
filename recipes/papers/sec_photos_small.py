"""Door to `facerec/recipes/papers/sec_photos_small.py`."""

from facerec.recipes.papers.sec_photos_small import recipe as recipe
