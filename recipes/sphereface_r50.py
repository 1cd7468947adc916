"""Door to `facerec/recipes/sphereface_r50.py`."""

from facerec.recipes.sphereface_r50 import recipe as recipe
