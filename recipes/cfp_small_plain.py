"""Door to `facerec/recipes/cfp_small_plain.py`."""

from facerec.recipes.cfp_small_plain import recipe as recipe
