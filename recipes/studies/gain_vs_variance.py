"""Door to `facerec/recipes/studies/gain_vs_variance.py`."""

from facerec.recipes.studies.gain_vs_variance import recipe as recipe
