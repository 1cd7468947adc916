"""What goes into a bundle: the flags of its command."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from facerec.base.defaults import OPSET
from facerec.base.limits import Flags, NonNegative


@dataclass(frozen=True)
class BundleOptions(Flags):
    """What goes into a bundle besides the main file; also the flags of the command."""

    int8: Path | None = None
    """Write an int8 file too; this pack, record file or folder of aligned faces like those that it
    will see is the int8 calibration data."""
    int8_images: int = 512
    """Images of the int8 calibration data to take."""
    max_loss: NonNegative = 0.2
    """Percentage points of accuracy that int8 may lose on a bench; an int8 file that loses more is
    left out."""
    opset: int = OPSET
    """Version of the ONNX operator set."""
    triton: bool = False
    """Write a model repository for Triton Inference Server too."""
    license: str | None = None
    """Terms of use of the weights, in words."""


DEFAULT = BundleOptions()
