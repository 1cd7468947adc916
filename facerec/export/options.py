"""What goes into a bundle: the flags of its command."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from facerec.defaults import OPSET, CalibrationMethod


@dataclass(frozen=True)
class BundleOptions:
    """What goes into a bundle besides the main file; also the flags of the command."""

    variant: tuple[str, ...] = ()
    """Further files: uint8 (normalises itself), norm (second output), fp16, int8,
    fixed-batch:8."""
    opset: int = OPSET
    """ONNX operator set."""
    triton: bool = False
    """Write a model repository for Triton Inference Server too."""
    insightface_server: bool = False
    """Write the folder of InsightFace's server too; it lacks a detector and the licence that only
    InsightFace can sign."""
    calibration: Path | None = None
    """A pack, record file or folder of aligned faces that int8 is calibrated on."""
    calibration_images: int = 512
    """How many of them."""
    calibration_method: CalibrationMethod = "percentile"
    """How int8 chooses its ranges."""
    max_loss: float = 0.2
    """A variant that loses more accuracy on a bench, in points of percent, is left out."""
    thresholds: Path | None = None
    """A report of facerec verify on this model, whose thresholds go into the bundle."""
    license: str | None = None
    """The terms of the weights, in words."""


DEFAULT = BundleOptions()
