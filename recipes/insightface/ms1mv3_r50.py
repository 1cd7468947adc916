"""Door to `facerec/recipes/insightface/ms1mv3_r50.py`."""

from facerec.recipes.insightface.ms1mv3_r50 import recipe as recipe
