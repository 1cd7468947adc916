"""Door to `facerec/recipes/studies/sec_fairness.py`."""

from facerec.recipes.studies.sec_fairness import recipe as recipe
