"""The unrolled surface of a head, and anti-aliased shapes that are drawn on it in place.

The head is a star-shaped surface around its vertical axis. With ``A`` and ``B`` the half axes of
the average skull, a surface point at the angle ``phi`` and the height ``y`` lies at
``(A R sin phi, y, B R cos phi)``, where ``R(phi, y)`` is near 1. Columns of all maps run in
``sin(phi / 2)``, which gives the front of the face more room than the back of the head.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import cv2
import numpy as np

SHIFT = 4
"""OpenCV takes coordinates as integers with this many bits after the point."""

A, B = 74.0, 90.0
TOP, BOTTOM = -130.0, 107.0
WIDTH, HEIGHT = 320, 256
TEXELS = HEIGHT / (BOTTOM - TOP)
"""Texels per millimetre, along y and (at the front) along x."""

Shade = Sequence[float] | float
"""A colour, or the value of a one-channel canvas."""
Pixels = tuple[np.ndarray, np.ndarray]
"""Columns and rows."""


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


def texel(x: np.ndarray | float, y: np.ndarray | float) -> Pixels:
    """Return (column, row) in the textures of the frontal position (x, y) in mm, |x| < A."""
    sine = np.asarray(x) / A
    half_sine = sine / np.sqrt(2 + 2 * np.sqrt(1 - sine * sine))
    return half_sine * (WIDTH / 2) + (WIDTH / 2 - 0.5), (np.asarray(y) - TOP) * TEXELS - 0.5


def band(
    canvas: np.ndarray,
    to_pixels: Callable[[np.ndarray, np.ndarray], Pixels],
    x: np.ndarray,
    first: np.ndarray,
    second: np.ndarray,
    shade: Shade,
) -> None:
    """Fill the area between two curves over ``x``; ``to_pixels`` takes mm to the canvas."""
    around = np.concatenate([first, second[::-1]])
    fill_polygon(canvas, *to_pixels(np.concatenate([x, x[::-1]]), around), shade)


def fill_polygon(canvas: np.ndarray, columns: np.ndarray, rows: np.ndarray, shade: Shade) -> None:
    """Fill the polygon through the given points."""
    cv2.fillPoly(canvas, [points(columns, rows)], shade, cv2.LINE_AA, SHIFT)


def line(
    canvas: np.ndarray, columns: np.ndarray, rows: np.ndarray, shade: Shade, thickness: int
) -> None:
    """Draw a line through the given points; thickness in whole texels."""
    cv2.polylines(canvas, [points(columns, rows)], False, shade, thickness, cv2.LINE_AA, SHIFT)


def ellipse(
    canvas: np.ndarray, at: Pixels, width: float, height: float, shade: Shade, angle: float = 0.0
) -> None:
    """Fill an ellipse around (column, row); half axes in millimetres, angle in degrees."""
    column, row = (round(float(value) * (1 << SHIFT)) for value in at)
    axes = [max(1, round(value * TEXELS * (1 << SHIFT))) for value in (width, height)]
    cv2.ellipse(canvas, (column, row), axes, angle, 0, 360, shade, -1, cv2.LINE_AA, SHIFT)
