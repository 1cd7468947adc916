"""Heads: embedding and label to loss."""

from typing import TYPE_CHECKING

from facerec.base.lazy import lazy_names

if TYPE_CHECKING:
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
    )
    from facerec.heads.output import LossOutput
else:
    __getattr__, __all__ = lazy_names(__name__)
