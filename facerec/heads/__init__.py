"""Heads: embedding and label to loss."""

from facerec.heads.classifier import ClassifierOutput, MarginClassifier
from facerec.heads.margins import (
    ArcFace,
    CombinedMargin,
    CosFace,
    Margin,
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
    "ArcFace",
    "ClassifierOutput",
    "CombinedMargin",
    "CosFace",
    "FixedNorm",
    "L2Norm",
    "Margin",
    "MarginClassifier",
    "NormMoments",
    "NormPenalty",
    "NormRegularizer",
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
