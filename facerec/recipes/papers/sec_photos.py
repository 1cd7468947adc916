"""Deep Metric Learning with Spherical Embedding on photos: whole networks with ImageNet weights.

    facerec compare recipes/papers/sec_photos.py --data FOLDER

As `reality_check_photos.py`; the arms are those of `sec.py`.
"""

from facerec.recipes._arms import on_photos
from facerec.recipes.papers.sec import recipe as on_features

recipe = on_photos(on_features)
