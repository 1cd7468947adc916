"""Door to `facerec/recipes/studies/sec_fairness_finetuned.py`."""

from facerec.recipes.studies.sec_fairness_finetuned import recipe as recipe
