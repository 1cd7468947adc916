"""Drawn faces: people with traits of their own, and aligned photos of them as cameras take them.

A head is a surface around its vertical axis: the point at the angle ``phi`` and the height ``y``
lies at ``(74 R sin phi, y, 90 R cos phi)`` with a radius ``R(phi, y)`` near 1. Radius and colours
are maps over (y, sin(phi / 2)), which gives the front of the face most of the room. Lengths are
millimetres from the point between the eyes: x to the viewer's right, y down, z towards the viewer.
Angles are degrees, colours RGB in [0, 255].
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import cv2
import numpy as np

from facerec.records.decode import TEMPLATE

SIZE = 112
YAWS = {"frontal": (0.0, 10.0), "everyday": (0.0, 25.0), "profile": (55.0, 75.0),
        "training": (0.0, 40.0)}  # fmt: skip
"""Kinds of photos, and how far the face is turned in them at least and at most."""

Array = np.ndarray[Any, Any]

TOP, HEIGHT, WIDTH, DENSITY = -130.0, 200, 256, 0.82
_PHI = 2 * np.arcsin((np.arange(WIDTH, dtype=np.float32) + 0.5) / (WIDTH / 2) - 1)
_X, _DEGREES = 74 * np.sin(_PHI), np.degrees(abs(_PHI))
_Y = TOP + (np.arange(HEIGHT, dtype=np.float32)[:, None] + 0.5) / DENSITY
_CURVE = np.linspace(-1, 1, 13)
_ARC = 1 - _CURVE**2
_ROUND = _ARC**0.5

# Mean and spread over people.
_TRAITS = {
    "head_width": (0.95, 0.04), "jaw_width": (0.8, 0.06), "chin_y": (104, 4.5),
    "chin_width": (12, 3), "chin_forward": (6, 2.6), "cheekbones": (3.5, 2.4),
    "cheek_hollow": (0.6, 2.4), "eye_distance": (63, 3.2), "eye_width": (30, 2.2),
    "eye_open": (11.4, 1.7), "eye_tilt": (0.9, 1), "eye_depth": (6, 1.8), "brow_y": (-19.5, 2.4),
    "brow_thickness": (4, 1.3), "brow_arch": (3.5, 1.8), "brow_length": (36, 3),
    "nose_length": (38, 3.4), "nose_width": (14.5, 2.2), "nose_bridge": (9, 2),
    "nose_tip": (20, 3), "mouth_y": (71.5, 2.8), "mouth_width": (52, 4.2), "upper_lip": (6, 1.6),
    "lower_lip": (8.5, 1.7), "ears": (11, 3.4), "hairline": (-56, 9), "temples": (-32, 8),
    "hair_depth": (10, 4), "age": (35, 8),
}  # fmt: skip
# Mean and spread over photos: of what a face embedding has to ignore.
_CIRCUMSTANCES = {
    "pitch": (0, 6), "right": (0, 0.9), "down": (0, 0.9), "zoom": (1, 0.02), "roll": (0, 2),
    "azimuth": (0, 38), "elevation": (30, 17), "light": (0.65, 0.17), "ambient": (0.5, 0.09),
    "smile": (0.3, 0.3), "opened": (-2, 4), "contrast": (0.975, 0.1), "brightness": (0.98, 0.09),
    "blur": (0.4, 0.15), "noise": (3, 1.1), "quality": (85, 6),
}  # fmt: skip
# Lightest and darkest.
_SKINS = np.array((250, 208, 176)), np.array((92, 54, 34))
_HAIRS = np.array((205, 168, 112)), np.array((30, 24, 22))
_IRISES = np.array((92, 132, 172)), np.array((50, 32, 22))
_SIDES = (TOP, -14.0, -10.0, 24.0, 66.0, 150.0)
"""How far down hair goes at the sides and behind."""


def draw_circumstances(kind: str, age: float, generator: np.random.Generator) -> dict[str, float]:
    """Draw how one photo of a kind in ``YAWS`` is taken, of somebody of an age in years."""
    yaw = generator.uniform(*YAWS[kind]) * generator.choice((-1, 1))
    return {**_draw(_CIRCUMSTANCES, generator), "yaw": yaw, "age": age}


def encode(image: Array, quality: float) -> bytes:
    """Return an RGB image as JPEG."""
    options = [cv2.IMWRITE_JPEG_QUALITY, round(quality)]
    return bytes(cv2.imencode(".jpg", image[..., ::-1], options)[1])


class DrawnFace:
    """One drawn person: what stays the same from photo to photo.

    Attributes:
        traits: measures of the head and its features, and the ``age`` in most photos, in years.
    """

    def __init__(self, generator: np.random.Generator) -> None:
        g = generator
        self.traits = t = _draw(_TRAITS, g)
        depth = g.beta(0.95, 1.15)
        dark = g.beta(1 + 4 * depth, 1)  # the darker the skin, the rarer light hair and eyes
        self._skin = _mix(*_SKINS, depth) * g.normal(1, 0.03, 3)
        self._lips = self._skin * (0.84, 0.56, 0.57) + (18 - 14 * depth, 8 - g.uniform(0, 25), 10)
        self._hair = _mix(*_HAIRS, dark) * g.normal(1, 0.08, 3)
        self._iris = _mix(*_IRISES, np.clip(dark + g.normal(0, 0.2), 0, 1))

        grain = g.standard_normal((HEIGHT, WIDTH), np.float32)
        strands: Array = cv2.GaussianBlur(grain, (0, 0), sigmaX=0.9, sigmaY=9)
        strands /= strands.std()
        self._strands = 0.8 + 0.12 * strands[..., None]
        side, front = float(g.choice(_SIDES)), t["hairline"]
        line = np.interp(_DEGREES, (0, 30, 50, 72), (front, front + 6, t["temples"], side))
        hair = _step((line if side > TOP else TOP) + 1.5 * strands[0] - _Y, 0, 7)
        beard = _step(_Y + np.clip(_DEGREES - 20, 0, 62) - t["mouth_y"], 4, 16) * (_DEGREES < 88)
        beard *= g.uniform(0.3, 1) * (g.random() < 0.25) * np.clip(1 + 0.3 * grain, 0, 1)
        self._cover = np.maximum(hair, beard)[..., None].astype(np.float32)

        radius = cv2.GaussianBlur(self._radius(hair).astype(np.float32), (0, 0), 1.2)
        x, z = 74 * radius * np.sin(_PHI), 90 * radius * np.cos(_PHI)
        self._points = np.stack([x, np.broadcast_to(_Y, x.shape), z], axis=-1)
        normals = np.cross(np.gradient(self._points, axis=1), np.gradient(self._points, axis=0))
        self._normals = normals / (np.linalg.norm(normals, axis=-1, keepdims=True) + 1e-9)
        hollow = np.clip(cv2.GaussianBlur(radius, (0, 0), 4) - radius, 0, 0.06)[..., None]
        skin = self._skin * (1 + 0.02 * grain[..., None] - hollow * (5, 7, 7))
        self._bare = cv2.convertScaleAbs(np.maximum(skin, 0))
        eye, mouth = t["eye_distance"] / 2, t["mouth_width"] / 2
        height = np.array((0, 0, t["nose_length"], t["mouth_y"], t["mouth_y"]))
        marks = _texel(np.array((-eye, eye, 0, -mouth, mouth)), height).astype(np.float32)
        columns, rows = cv2.split(marks[None])
        self._marks = cv2.remap(self._points, columns, rows, cv2.INTER_LINEAR)[0]

    def photo(self, how: Mapping[str, float], generator: np.random.Generator) -> Array:
        """Return one photo.

        Args:
            how: the circumstances, JPEG quality excepted (see `encode`).
            generator: draws background, clothes and the camera's noise.

        Returns:
            uint8 image (112, 112, 3) in RGB, aligned to ``TEMPLATE``.
        """
        turn = cv2.Rodrigues(np.radians((how["pitch"], how["yaw"], 0.0)))[0]
        points = cv2.transform(self._points, self._camera(turn, how)).reshape(-1, 3)
        normals = cv2.transform(self._normals, turn).reshape(-1, 3)
        inside = (abs(points[:, 0] - 55.5) < 56) & (abs(points[:, 1] - 55.5) < 56)
        seen = np.flatnonzero(inside & (normals[:, 2] > 0))
        hair = _mix(self._hair, 180, np.clip((how["age"] - 48) / 26, 0, 0.92)).astype(np.float32)
        points, normals, skin, strands, cover = (
            each.reshape(HEIGHT * WIDTH, -1).take(seen, axis=0)
            for each in (points, normals, self._painted(how, hair), self._strands, self._cover)
        )
        side, up = np.radians((how["azimuth"], how["elevation"]))
        light = np.array((np.sin(side) * np.cos(up), -np.sin(up), np.cos(side) * np.cos(up)))
        # Light goes some way into skin, so that the edge of a shadow is soft.
        lit = np.maximum(normals @ light.astype(np.float32) + 0.25, 0)
        lit = 0.75 * how["light"] * lit[:, None] + how["ambient"]
        colour = _mix(skin, strands * hair, cover) * lit

        # What is in front of the rest is added up in its pixel.
        columns, rows, depth = points.T
        pixels = (np.rint(rows) * SIZE + np.rint(columns)).astype(int)
        nearest = np.full(SIZE**2, -np.inf, np.float32)
        np.maximum.at(nearest, pixels, depth)
        front = np.flatnonzero(depth > nearest[pixels] - 6)
        pixels, planes = pixels[front], (*colour.take(front, axis=0).T, np.ones(len(front)))
        head: Array = np.stack([np.bincount(pixels, each, SIZE**2) for each in planes], axis=-1)
        head = cv2.GaussianBlur(head.reshape(SIZE, SIZE, 4).astype(np.float32), (3, 3), 0.6)
        count, scene = head[..., 3:], _background(how, generator)
        scene = _mix(scene, head[..., :3] / (count + 1e-6), np.minimum(3 * count, 1))
        return _exposed(scene, how, generator)

    def _camera(self, turn: Array, how: Mapping[str, float]) -> Array:
        """Return the matrix (3, 4) from a point to its column, row and depth in the photo.

        Of the similarities, the one that brings eyes, nose tip and mouth corners closest to the
        template, followed by the errors of an alignment.
        """
        source, target = (self._marks @ turn.T)[:, :2] @ (1, 1j), TEMPLATE @ (1, 1j)
        centred = source - source.mean()
        factor = np.vdot(centred, target) / np.vdot(centred, centred)
        factor = factor * how["zoom"] * np.exp(1j * np.radians(how["roll"]))
        offset = target.mean() + complex(how["right"], how["down"]) - factor * source.mean()
        x, y, z = turn
        across, down = factor.real * x - factor.imag * y, factor.imag * x + factor.real * y
        return np.array([[*across, offset.real], [*down, offset.imag], [*z, 0]])

    def _radius(self, hair: Array) -> Array:
        """Return the radius of the head under a cover of hair."""
        t, eye, mouth = self.traits, self.traits["eye_distance"] / 2, self.traits["mouth_y"]
        hills = (
            (eye - 3, t["brow_y"] + 4, 14, 6, 2 + 0.35 * t["eye_depth"]),
            (eye, 1, 13, 8.5, -t["eye_depth"]),
            (eye, 1, 9, 6, 2.8),
            (47, 29, 14, 12, t["cheekbones"]),
            (46, 64, 14, 16, -t["cheek_hollow"]),
            (0, mouth - 2, 25, 15, 5.5),
            (0, mouth + 1, 15, 6, 0.25 * (t["upper_lip"] + t["lower_lip"])),
            (0, mouth + 15, 16, 4.5, -3.8),
            (0, t["chin_y"] - 13, t["chin_width"], 8, t["chin_forward"]),
            (0, 10, 5, 12, t["nose_bridge"]),
            (0, t["nose_length"] - 5, 6 + t["nose_width"] / 10, 7, t["nose_tip"]),
            (t["nose_width"] - 3, t["nose_length"] + 2, 4, 5, 6),
        )
        relief = sum(_hill(*hill) for hill in hills) * np.clip(3 * np.cos(_PHI), 0, 1)
        relief += t["ears"] * np.exp(-(((_DEGREES - 97) / 12) ** 4) - ((_Y - 16) / 27) ** 4)
        thick = hair * t["hair_depth"]
        closing = np.clip(-18 - _Y, 0, None) / (97 + thick)
        dome = np.clip(1 - closing**2.4, 0, 1) ** (1 / 2.4)
        wide = _mix(
            1, t["head_width"] * _mix(1, t["jaw_width"], _step(_Y, 8, 90)), np.sin(_PHI) ** 2
        )
        jaw = t["chin_y"] - (t["chin_y"] - 58) * np.clip(1 - np.cos(_PHI), 0, 1) ** 0.7
        above_jaw = np.maximum(1 - _step(_Y, jaw - 6, jaw + 12), hair)
        return _mix(0.62 - 0.14 * np.cos(_PHI), dome * (wide + thick / 82) + relief / 82, above_jaw)

    def _painted(self, how: Mapping[str, float], hair: Array) -> Array:
        """Return the skin with the features that move and age, and with brows like the hair."""
        t, canvas = self.traits, self._bare.copy()
        old, smile = np.clip((how["age"] - 26) / 42, 0, 1.1), np.clip(how["smile"], 0, 1)
        wrinkle = self._skin * (1 - 0.35 * old)
        eye, eye_half, nose = t["eye_distance"] / 2, t["eye_width"] / 2, t["nose_width"]
        slit = t["eye_open"] * (0.5 - 0.08 * old - 0.09 * smile)
        ball = -t["eye_tilt"] * _CURVE - 0.2 * slit * _ARC
        lid, crease = ball - slit * _ARC, (1.8 + t["eye_depth"] / 8) * _ARC
        brow = t["brow_y"] - t["brow_arch"] * np.exp(-(((_CURVE - 0.25) / 0.5) ** 2))
        thick = t["brow_thickness"] / 2 * np.clip(1.1 - _CURVE, 0.2, 1)
        fold = _mix(t["nose_length"], t["mouth_y"] + 2, (_CURVE + 1) / 2)
        # Corners of the mouth go up and out in a smile, the lower lip goes down as it opens.
        mouth, gap = t["mouth_width"] / 2 + 5 * smile, max(how["opened"], 0) / 2 * _ARC
        seam = t["mouth_y"] + _ARC * (2 + 6 * smile) - 4.5 * smile + gap
        full = (0.5 - 0.15 * old - 0.1 * smile) * _ARC
        upper, lower = t["upper_lip"] * full, t["lower_lip"] * full
        # Middle and half of the width, middle and half of the height, colour.
        shapes: list[tuple[float, float, Any, Any, Array]] = [
            *((0, 30, y + 2 * _CURVE**2, 0.6, wrinkle) for y in (-32, -39, -46)),
            (eye, 13, 9 + 4 * _ARC, 0.6, wrinkle),
            ((mouth + nose) / 2, (mouth - nose) / 2, fold, 1, wrinkle),
            (0.48 * nose, 3, t["nose_length"] + 7, 1.6 * _ROUND, 0.4 * self._skin),
            (eye, eye_half, lid - crease, crease, 0.72 * self._skin),
            (eye, eye_half, ball, slit * _ARC, np.array((222, 216, 210))),
            (eye, 5.6, -0.2 * slit, min(5.6, 1.1 * slit) * _ROUND, self._iris),
            (eye, 2.3, -0.2 * slit, 2.3 * _ROUND, np.full(3, 13)),
            (eye, eye_half, lid, 0.6, 0.4 * self._hair + 8),
            (eye, t["brow_length"] / 2, brow, thick, 0.5 * hair + 0.2 * self._skin),
            (0, mouth, seam - gap - upper, upper, 0.86 * self._lips),
            (0, mouth, seam + gap + lower, lower, self._lips),
            (0, mouth, seam, gap + 0.6, np.array((80, 34, 34))),
        ]
        for x, half, y, height, colour in shapes:
            across = np.concatenate([x + half * _CURVE, x - half * _CURVE])
            around = np.concatenate([y - height + 0 * _CURVE, (y + height + 0 * _CURVE)[::-1]])
            for sign in (-1, 1):
                points = np.rint(_texel(sign * across, around) * 16)  # 4 bits after the point
                cv2.fillPoly(canvas, [points.astype(np.int32)], colour.tolist(), cv2.LINE_AA, 4)
        return canvas


def _background(how: Mapping[str, float], generator: np.random.Generator) -> Array:
    """Return something blurred, and shoulders in front of it."""
    g = generator
    coarse = g.uniform(40, 215) + g.normal(0, 14, 3) + g.normal(0, 1, (5, 5, 1)) * g.uniform(6, 34)
    scene: Array = cv2.resize(
        coarse.astype(np.float32), (SIZE, SIZE), interpolation=cv2.INTER_CUBIC
    )
    cloth = np.clip(g.uniform(20, 220) + g.normal(0, 26, 3), 8, 240)
    x = np.arange(SIZE) - 56.0
    collar = g.uniform(98, 108) + 34 * np.exp(-((x / 17) ** 2)) + 0.4 * (abs(x) - 30)
    scene += (cloth - scene) * np.clip((np.arange(SIZE)[:, None] - collar) / 2, 0, 1)[..., None]
    return np.asarray(scene * np.float32(0.4 + 0.6 * how["light"]))


def _exposed(image: Array, how: Mapping[str, float], generator: np.random.Generator) -> Array:
    """Return a scene as a camera takes it."""
    # Half of the way to automatic exposure for the face, so that dark skin is not lost in noise.
    exposure = np.clip((118 / max(float(image[30:100, 30:82].mean()), 1)) ** 0.5, 0.8, 2)
    image = image * np.float32(how["brightness"] * exposure)
    over = np.maximum(image - 195, 0)  # a shoulder as film has it, instead of clipping at white
    image = np.minimum(image, 195) + over * (60 / (60 + over))
    image = image.mean() + (image - image.mean()) * how["contrast"]
    image = cv2.GaussianBlur(image, (0, 0), how["blur"])
    grain = generator.standard_normal(image.shape, np.float32) * how["noise"]
    return cv2.convertScaleAbs(np.maximum(image + grain, 0))


def _draw(spreads: Mapping[str, tuple[float, float]], g: np.random.Generator) -> dict[str, float]:
    """Draw each measure around its mean, no further than two spreads away."""
    mean, spread = np.array(list(spreads.values())).T
    drawn = mean + spread * np.clip(g.normal(size=len(spreads)), -2, 2)
    return dict(zip(spreads, drawn.tolist(), strict=True))


def _mix(one: Any, other: Any, share: Any) -> Array:
    """Return what lies between the two, with a share of the other."""
    return np.asarray(one + (other - one) * share)


def _step(value: Array, low: Array | float, high: Array | float) -> Array:
    t = np.clip((value - low) / (high - low), 0, 1)
    return np.asarray(t * t * (3 - 2 * t))


def _hill(x: float, y: float, width: float, height: float, size: float) -> Array:
    """Return a Gaussian hill at (x, y), and the same one at -x."""
    across = np.exp(-(((abs(_X) - x) / width) ** 2) / 2)
    return np.asarray(size * np.exp(-(((_Y - y) / height) ** 2) / 2) * across)


def _texel(x: Array, y: Array) -> Array:
    """Return the column and the row in the maps of each frontal position, (n, 2)."""
    columns = np.sin(np.arcsin(x / 74) / 2) * (WIDTH / 2) + (WIDTH / 2 - 0.5)
    return np.stack([columns, (y - TOP) * DENSITY - 0.5], axis=-1)
