"""A Metric Learning Reality Check on photos: whole networks with ImageNet weights.

    facerec compare recipes/papers/reality_check_photos.py --data FOLDER

The folder is Cars196, of which the official training half is enough. The weights are a file that
you name in `facerec/recipes/_arms.py`; days on a GPU.
"""

from facerec.recipes._arms import on_photos
from facerec.recipes.papers.reality_check import recipe as on_features

recipe = on_photos(on_features)
