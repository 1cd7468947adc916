"""Door to `facerec/recipes/studies/eta.py`."""

from facerec.recipes.studies.eta import recipe as recipe
