"""Door to `facerec/recipes/cosface_r50.py`."""

from facerec.recipes.cosface_r50 import recipe as recipe
