"""Door to `facerec/recipes/studies/contrastive.py`."""

from facerec.recipes.studies.contrastive import recipe as recipe
