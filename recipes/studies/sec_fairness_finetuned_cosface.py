"""Door to `facerec/recipes/studies/sec_fairness_finetuned_cosface.py`."""

from facerec.recipes.studies.sec_fairness_finetuned_cosface import recipe as recipe
