"""Door to `facerec/recipes/insightface/wf42m_vit_b.py`."""

from facerec.recipes.insightface.wf42m_vit_b import recipe as recipe
