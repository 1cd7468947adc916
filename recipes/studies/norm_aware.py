"""Door to `facerec/recipes/studies/norm_aware.py`."""

from facerec.recipes.studies.norm_aware import recipe as recipe
