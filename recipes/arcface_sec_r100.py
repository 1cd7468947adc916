"""Door to `facerec/recipes/arcface_sec_r100.py`."""

from facerec.recipes.arcface_sec_r100 import recipe as recipe
