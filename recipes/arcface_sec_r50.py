"""Door to `facerec/recipes/arcface_sec_r50.py`."""

from facerec.recipes.arcface_sec_r50 import recipe as recipe
