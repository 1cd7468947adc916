"""Heads: embedding and label to loss."""

from facerec.heads.classifier import ClassifierOutput, MarginClassifier
from facerec.heads.margin_softmax import InterclassFilter
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
    RegularizerOutput,
    RingLoss,
    combination_warnings,
    create_regularizer,
    global_moments,
)

__all__ = [
    "SEC",
    "AdaFace",
    "ArcFace",
    "ClassifierOutput",
    "CombinedMargin",
    "CosFace",
    "FixedNorm",
    "InterclassFilter",
    "L2Norm",
    "MagFace",
    "Margin",
    "MarginClassifier",
    "NormMoments",
    "NormPenalty",
    "NormRegularizer",
    "OwnMargin",
    "RegularizerOutput",
    "RingLoss",
    "Softmax",
    "SphereFace",
    "SphereFace2017",
    "SphereFaceR",
    "combination_warnings",
    "create_regularizer",
    "global_moments",
]
