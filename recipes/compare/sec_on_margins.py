"""Door to `facerec/recipes/compare/sec_on_margins.py`."""

from facerec.recipes.compare.sec_on_margins import recipe as recipe
