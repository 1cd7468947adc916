"""Fair comparisons: arms × folds × trials → one table, with paired intervals."""

from typing import TYPE_CHECKING

from facerec.base.lazy import lazy_names

if TYPE_CHECKING:
    from facerec.comparison.features import FeatureData
    from facerec.comparison.image_sets import ImageData
    from facerec.comparison.losses import MarginHead, MetricLoss, searched
    from facerec.comparison.own_losses import own_loss
    from facerec.comparison.protocol import Arm, ClassBatch, Comparison, Protocol, Range
    from facerec.comparison.transforms import CropTransform, FaceTransform
    from facerec.comparison.trunks import Trunk
else:
    __getattr__, __all__ = lazy_names(__name__)
