"""Door to `facerec/recipes/distil_small.py`."""

from facerec.recipes.distil_small import recipe as recipe
