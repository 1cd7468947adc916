"""Door to `facerec/recipes/papers/reality_check_photos.py`."""

from facerec.recipes.papers.reality_check_photos import recipe as recipe
