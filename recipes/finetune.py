"""Door to `facerec/recipes/finetune.py`."""

from facerec.recipes.finetune import recipe as recipe
