"""Door to `facerec/recipes/cfp_small.py`."""

from facerec.recipes.cfp_small import recipe as recipe
