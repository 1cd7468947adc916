"""Anti-aliased shapes at fractions of a texel, drawn in place."""

from __future__ import annotations

from collections.abc import Sequence

import cv2
import numpy as np

SHIFT = 4
"""OpenCV takes coordinates as integers with this many bits after the point."""

Shade = Sequence[float] | float
"""A colour, or the value of a one-channel canvas."""


def multiply(colour: Sequence[float] | np.ndarray, factors: Sequence[float]) -> tuple[int, ...]:
    """Return the colour times one factor a channel, as a colour that can be drawn with."""
    pairs = zip(colour, factors, strict=True)
    return tuple(int(min(max(value * factor, 0), 255)) for value, factor in pairs)


def points(columns: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """Return int32 points (..., 2) in OpenCV's fixed-point form."""
    result = np.empty((*columns.shape, 2), np.int32)
    result[..., 0] = np.rint(columns * (1 << SHIFT))
    result[..., 1] = np.rint(rows * (1 << SHIFT))
    return result


def fill_polygon(canvas: np.ndarray, columns: np.ndarray, rows: np.ndarray, shade: Shade) -> None:
    """Fill the polygon through the given places."""
    cv2.fillPoly(canvas, [points(columns, rows)], shade, cv2.LINE_AA, SHIFT)


def line(
    canvas: np.ndarray, columns: np.ndarray, rows: np.ndarray, shade: Shade, thickness: int
) -> None:
    """Draw a line through the given places; thickness in whole texels."""
    cv2.polylines(canvas, [points(columns, rows)], False, shade, thickness, cv2.LINE_AA, SHIFT)


def ellipse(
    canvas: np.ndarray,
    place: tuple[np.ndarray, np.ndarray],
    half_axes: tuple[float, float],
    shade: Shade,
    angle: float = 0.0,
) -> None:
    """Fill an ellipse around (column, row); half axes in texels, angle in degrees."""
    column, row = (round(float(value) * (1 << SHIFT)) for value in place)
    width, height = (max(1, round(value * (1 << SHIFT))) for value in half_axes)
    cv2.ellipse(
        canvas, (column, row), (width, height), angle, 0, 360, shade, -1, cv2.LINE_AA, SHIFT
    )
