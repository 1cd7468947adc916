"""Door to `facerec/recipes/studies/embedding_bn.py`."""

from facerec.recipes.studies.embedding_bn import recipe as recipe
