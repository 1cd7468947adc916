"""Door to `facerec/recipes/arcface_sec_mbf.py`."""

from facerec.recipes.arcface_sec_mbf import recipe as recipe
