"""Door to `facerec/recipes/studies/sec_fairness_finetuned_sphereface.py`."""

from facerec.recipes.studies.sec_fairness_finetuned_sphereface import recipe as recipe
