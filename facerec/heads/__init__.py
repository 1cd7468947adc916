"""Heads: embedding and label to loss."""

from facerec.heads.classifier import MarginClassifier
from facerec.heads.margins import (
    AdaFace,
    ArcFace,
    CombinedMargin,
    CosFace,
    MagFace,
    Margin,
    OwnMargin,
    Softmax,
    SphereFace,
    SphereFace2017,
    SphereFaceR,
)
from facerec.heads.norm_regularizer import (
    SEC,
    FixedNorm,
    L2Norm,
    NormMoments,
    NormPenalty,
    NormRegularizer,
    RingLoss,
    combination_warnings,
    create_regularizer,
    global_moments,
)
from facerec.heads.output import LossOutput

__all__ = [
    "SEC",
    "AdaFace",
    "ArcFace",
    "CombinedMargin",
    "CosFace",
    "FixedNorm",
    "L2Norm",
    "LossOutput",
    "MagFace",
    "Margin",
    "MarginClassifier",
    "NormMoments",
    "NormPenalty",
    "NormRegularizer",
    "OwnMargin",
    "RingLoss",
    "Softmax",
    "SphereFace",
    "SphereFace2017",
    "SphereFaceR",
    "combination_warnings",
    "create_regularizer",
    "global_moments",
]
