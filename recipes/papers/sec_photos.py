"""Door to `facerec/recipes/papers/sec_photos.py`."""

from facerec.recipes.papers.sec_photos import recipe as recipe
