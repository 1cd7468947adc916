"""Backbones: aligned face images → raw embeddings, by name from a registry."""

from facerec.backbones.iresnet import IResNet
from facerec.backbones.mobilefacenet import MobileFaceNet
from facerec.backbones.preprocessing import Preprocessing, normalize
from facerec.backbones.recompute import recompute_activations
from facerec.backbones.registry import (
    Backbone,
    create_backbone,
    is_backbone,
    list_backbones,
    register_backbone,
    registered_by,
)
from facerec.backbones.timm_adapter import TimmBackbone
from facerec.backbones.vit import VisionTransformer

__all__ = [
    "Backbone",
    "IResNet",
    "MobileFaceNet",
    "Preprocessing",
    "TimmBackbone",
    "VisionTransformer",
    "create_backbone",
    "is_backbone",
    "list_backbones",
    "normalize",
    "recompute_activations",
    "register_backbone",
    "registered_by",
]
