"""What goes into a bundle: the flags of its command."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from facerec.defaults import OPSET
from facerec.limits import Flags, NonNegative


@dataclass(frozen=True)
class BundleOptions(Flags):
    """What goes into a bundle besides the main file; also the flags of the command."""

    int8: Path | None = None
    """A pack, record file or folder of aligned faces like those of the deployment: write an int8
    file too, calibrated on them."""
    int8_images: int = 512
    """How many of them."""
    max_loss: NonNegative = 0.2
    """An int8 file that loses more accuracy on a bench, in points of percent, is left out."""
    opset: int = OPSET
    """ONNX operator set."""
    triton: bool = False
    """Write a model repository for Triton Inference Server too."""
    thresholds: Path | None = None
    """A report of facerec verify on this model, whose thresholds go into the bundle."""
    license: str | None = None
    """The terms of the weights, in words."""


DEFAULT = BundleOptions()
