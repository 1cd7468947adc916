"""Fair comparisons: arms × folds × trials → one table, with paired intervals."""

from facerec.comparison.features import FeatureData
from facerec.comparison.image_sets import ImageData
from facerec.comparison.losses import MarginHead, OwnLoss, setting
from facerec.comparison.protocol import Arm, Batch, Comparison, Protocol, Range
from facerec.comparison.transforms import CropTransform, FaceTransform
from facerec.comparison.trunks import Trunk

__all__ = [
    "Arm",
    "Batch",
    "Comparison",
    "CropTransform",
    "FaceTransform",
    "FeatureData",
    "ImageData",
    "MarginHead",
    "OwnLoss",
    "Protocol",
    "Range",
    "Trunk",
    "setting",
]
