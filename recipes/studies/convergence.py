"""Door to `facerec/recipes/studies/convergence.py`."""

from facerec.recipes.studies.convergence import recipe as recipe
