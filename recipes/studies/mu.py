"""Door to `facerec/recipes/studies/mu.py`."""

from facerec.recipes.studies.mu import recipe as recipe
