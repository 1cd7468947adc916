"""Backbones: aligned face images → raw embeddings, by name from a registry."""

from typing import TYPE_CHECKING

from facerec.base.lazy import lazy_names

if TYPE_CHECKING:
    from facerec.backbones.iresnet import IResNet
    from facerec.backbones.mobilefacenet import MobileFaceNet
    from facerec.backbones.normalization import normalize
    from facerec.backbones.preprocessing import Preprocessing
    from facerec.backbones.recompute import recompute_activations
    from facerec.backbones.registry import (
        Backbone,
        create_backbone,
        is_backbone,
        list_backbones,
        register_backbone,
    )
    from facerec.backbones.timm_adapter import TimmBackbone
    from facerec.backbones.vit import VisionTransformer
else:
    __getattr__, __all__ = lazy_names(__name__)
