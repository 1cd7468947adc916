"""Door to `facerec/recipes/studies/last_layer.py`."""

from facerec.recipes.studies.last_layer import recipe as recipe
