"""Door to `facerec/recipes/studies/optimizers.py`."""

from facerec.recipes.studies.optimizers import recipe as recipe
