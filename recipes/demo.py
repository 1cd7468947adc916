"""Door to `facerec/recipes/demo.py`."""

from facerec.recipes.demo import recipe as recipe
