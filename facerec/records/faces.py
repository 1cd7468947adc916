"""Drawn faces: people with traits of their own, and aligned photos of them as cameras take them.

A head is a surface around its vertical axis: the point at the angle ``phi`` and the height ``y``
lies at ``(A R sin phi, y, B R cos phi)`` with a radius ``R(phi, y)`` near 1. Radius, colours and
hair are maps over (y, sin(phi / 2)), which gives the front of the face most of the room. Lengths
are millimetres from the point between the eyes: x to the viewer's right, y down, z towards the
viewer. Angles are degrees, colours RGB in [0, 255].
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import cv2
import numpy as np

SIZE = 112
TEMPLATE = np.array(
    [[38.2946, 51.6963], [73.5318, 51.5014], [56.0252, 71.7366], [41.5493, 92.3655],
     [70.7299, 92.2041]]
)  # fmt: skip
"""Where eyes, nose tip and mouth corners lie in an aligned image (ArcFace's five points)."""
YAWS = {"frontal": (0.0, 10.0), "everyday": (0.0, 25.0), "profile": (55.0, 75.0),
        "training": (0.0, 40.0)}  # fmt: skip
"""Kinds of photos, and how far the face is turned in them at least and at most."""

A, B = 74.0, 90.0
TOP, BOTTOM = -130.0, 110.0
WIDTH, HEIGHT = 256, 192
_DENSITY = HEIGHT / (BOTTOM - TOP)
_PHI = 2 * np.arcsin((np.arange(WIDTH, dtype=np.float32) + 0.5) / (WIDTH / 2) - 1)
_X, _DEGREES = A * np.sin(_PHI), np.degrees(_PHI)
_FRONT = np.clip(3 * np.cos(_PHI), 0, 1)
_Y = TOP + (np.arange(HEIGHT, dtype=np.float32)[:, None] + 0.5) / _DENSITY
_CURVE = np.linspace(-1, 1, 13)
_ARC = 1 - _CURVE**2

# Mean and spread over people.
_TRAITS = {
    "head_width": (0.95, 0.04), "jaw_width": (0.8, 0.06), "chin_y": (104, 4.5),
    "chin_width": (12, 3), "chin_forward": (6, 2.6), "cheekbones": (3.5, 2.4),
    "cheek_hollow": (0.6, 2.4), "eye_distance": (63, 3.2), "eye_width": (30, 2.2),
    "eye_open": (0.38, 0.05), "eye_tilt": (0.06, 0.066), "eye_depth": (6, 1.8),
    "brow_y": (-19.5, 2.4), "brow_thickness": (4, 1.3), "brow_arch": (3.5, 1.8),
    "brow_length": (36, 3), "nose_length": (38, 3.4), "nose_width": (14.5, 2.2),
    "nose_bridge": (6, 2), "nose_tip": (20, 3), "nose_hump": (0.3, 1.7), "mouth_y": (71.5, 2.8),
    "mouth_width": (52, 4.2), "upper_lip": (6, 1.6), "lower_lip": (8.5, 1.7), "ears": (11, 3.4),
    "hairline": (-61, 6.5), "parting": (0, 7), "base_age": (35, 8),
}  # fmt: skip
# Mean and spread over photos: of what a face embedding has to ignore.
_CIRCUMSTANCES = {
    "pitch": (0, 6), "right": (0, 0.9), "down": (0, 0.9), "zoom": (1, 0.02), "roll": (0, 2),
    "azimuth": (0, 38), "elevation": (30, 17), "light": (0.65, 0.17), "ambient": (0.5, 0.09),
    "warmth": (0.1, 0.4), "smile": (0.3, 0.3), "opened": (-0.2, 0.4), "raised": (0, 0.35),
    "gaze": (0, 1.6), "contrast": (0.975, 0.1), "brightness": (0.98, 0.09), "blur": (0.5, 0.17),
    "noise": (3, 1.1), "quality": (85, 6),
}  # fmt: skip
# Heights of the hairline at these angles, relative to the person's own at the first two, and the
# hair's thickness at the top and at the side.
_ANGLES = (0, 30, 45, 62, 80, 92, 110, 180)
_STYLES: tuple[tuple[float, ...], ...] = (
    (-90, -90, -90, -90, -90, -90, -90, -90, 0, 0),
    (0, 6, -40, -25, 16, -16, 20, 60, 3, 2),
    (0, 6, -42, -30, 16, -16, 26, 62, 10, 4),
    (-4, 3, -44, -32, 14, -16, 26, 62, 22, 3),
    (0, 8, -40, -22, -10, -18, 0, 40, 6, 4),
    (34, 36, -20, -6, 64, 66, 66, 66, 11, 11),
    (2, 12, -34, -10, 64, 66, 66, 66, 11, 14),
    (2, 12, -34, -6, 200, 200, 200, 200, 10, 13),
    (0, 6, -40, -20, 20, 26, 40, 50, 24, 18),
)
_SKINS = np.array([(246, 214, 194), (222, 172, 138), (163, 113, 82), (88, 58, 43)], float)
_HAIRS = np.array([(30, 26, 26), (72, 48, 33), (138, 98, 64), (205, 168, 112)], float)
_IRISES = np.array([(50, 32, 22), (92, 58, 34), (96, 118, 84), (92, 132, 172)], float)

Array = np.ndarray[Any, Any]
Circumstances = Mapping[str, float]


@dataclass(frozen=True, eq=False)
class Identity:
    """One drawn person: what stays the same from photo to photo."""

    seed: int
    """Source of what is strewn over the head: moles, strands."""
    traits: Mapping[str, float]
    skin: Array
    lips: Array
    hair: Array
    iris: Array
    style: int
    """Of the hair."""
    beard: float
    """How dense, 0 to 1."""
    glasses: bool


def draw_identity(generator: np.random.Generator) -> Identity:
    """Draw a person."""
    g = generator
    depth = g.beta(0.95, 1.15)
    light = g.beta(1, 1 + 4 * depth)  # the darker the skin, the rarer light hair and eyes
    skin = _between(_SKINS, depth) * g.normal(1, 0.03, 3)
    return Identity(
        seed=int(g.integers(2**31)),
        traits=_draw(_TRAITS, g),
        skin=skin,
        lips=skin * (0.84, 0.56, 0.57) + (18 - 14 * depth, 8 - g.uniform(0, 25), 10),
        hair=_between(_HAIRS, light) * g.normal(1, 0.08, 3),
        iris=_between(_IRISES, np.clip(light + g.normal(0, 0.2), 0, 1)),
        style=int(g.integers(len(_STYLES))),
        beard=float(g.uniform(0.3, 1)) if g.random() < 0.25 else 0.0,
        glasses=bool(g.random() < 0.16),
    )


def restyle(identity: Identity, generator: np.random.Generator) -> Identity:
    """Return the person with another haircut, as decades bring."""
    return replace(identity, style=int(generator.integers(1, len(_STYLES))))


def draw_circumstances(
    identity: Identity, kind: str, generator: np.random.Generator, age: float | None = None
) -> dict[str, float]:
    """Draw how one photo is taken.

    Args:
        identity: the person, for their age and glasses.
        kind: one of ``YAWS``.
        generator: the only source of randomness.
        age: years; none draws one close to the person's.
    """
    g = generator
    near = identity.traits["base_age"] + g.normal(0, 8 if kind == "training" else 3.5)
    return {
        **_draw(_CIRCUMSTANCES, g),
        "age": max(18.0, near) if age is None else age,
        "yaw": g.uniform(*YAWS[kind]) * g.choice((-1, 1)),
        "blink": float(g.random() < 0.04),
        # Who wears glasses takes them off now and then.
        "glasses": float(g.random() < (0.85 if identity.glasses else 0.03)),
    }


def encode(image: Array, quality: float) -> bytes:
    """Return an RGB image as JPEG."""
    options = [cv2.IMWRITE_JPEG_QUALITY, round(quality)]
    return bytes(cv2.imencode(".jpg", image[..., ::-1], options)[1])


def render(identity: Identity, how: Circumstances, generator: np.random.Generator) -> Array:
    """Return one photo.

    Args:
        identity: the person.
        how: the circumstances, JPEG quality excepted (see `encode`).
        generator: draws background, clothes and the camera's noise.

    Returns:
        uint8 image (112, 112, 3) in RGB, aligned to ``TEMPLATE``.
    """
    head = _head(identity)
    camera = cv2.invertAffineTransform(alignment(landmarks(identity, how), how))
    columns, rows, inside = _visible(head.radius, how, camera)
    # Planes (3, 112, 112) rather than pixels: numpy is several times faster on long inner loops.
    colour = _planes(_look_up(_painted(identity, head.skin, how), columns, rows))
    strands, beard, hair = _planes(_look_up(head.cover, columns, rows))
    shade = strands * _rgb(_greyed(identity, how))
    colour += (0.75 * shade - colour) * beard
    colour += (shade - colour) * hair
    # Normals and light are those of the head that is not turned.
    azimuth, elevation = np.radians((how["azimuth"] - how["yaw"], how["elevation"]))
    light = (np.sin(azimuth) * np.cos(elevation), -np.sin(elevation),
             np.cos(azimuth) * np.cos(elevation))  # fmt: skip
    lit = cv2.transform(_look_up(head.normals, columns, rows), np.array([light]))
    # Light goes some way into skin, so that the edge of a shadow is soft.
    key = np.maximum(lit + 0.25, 0) * np.float32(0.75 * how["light"])
    warm = _rgb((1 + 0.1 * how["warmth"], 1, 1 - 0.16 * how["warmth"]))
    colour *= key * warm + np.float32(how["ambient"])
    scene = _background(how, generator)
    scene += (colour - scene) * cv2.GaussianBlur(inside.astype(np.float32), (3, 3), 0.8)
    return _photographed(cv2.merge(list(scene)), how, generator)


def landmarks(identity: Identity, how: Circumstances) -> Array:
    """Return the five points of ``TEMPLATE`` as (5, 2) millimetres in the camera's plane."""
    t, eye = identity.traits, identity.traits["eye_distance"] / 2
    mouth = t["mouth_width"] / 2 + 5 * how["smile"]
    x = np.array((-eye, eye, 0, -mouth, mouth))
    y = np.array((0, 0, t["nose_length"], t["mouth_y"], t["mouth_y"]))
    columns, rows = (each.astype(np.float32) for each in _texel(x, y))
    radius = _look_up(_head(identity).radius, columns, rows)[:, 0]
    across, z = _turned(np.arcsin(x / A), radius, how["yaw"])
    pitch = math.radians(how["pitch"])
    return np.stack([across, y * math.cos(pitch) + z * math.sin(pitch)], axis=-1)


def alignment(points: Array, how: Circumstances) -> Array:
    """Return the similarity (2, 3) that takes the camera's millimetres to pixels.

    The least-squares similarity in the complex plane, followed by the errors of the alignment.
    """
    source, target = points @ (1, 1j), TEMPLATE @ (1, 1j)
    centred = source - source.mean()
    factor = np.vdot(centred, target) / np.vdot(centred, centred)
    factor = factor * how["zoom"] * np.exp(1j * math.radians(how["roll"]))
    offset = target.mean() + complex(how["right"], how["down"]) - factor * source.mean()
    return np.array(
        [[factor.real, -factor.imag, offset.real], [factor.imag, factor.real, offset.imag]]
    )


@dataclass(frozen=True)
class _Head:
    """Maps of one person, of ``(HEIGHT, WIDTH)``."""

    radius: Array
    normals: Array
    skin: Array
    """uint8 RGB, without what moves."""
    cover: Array
    """float32: brightness of strands; how much of the skin beard and hair cover, 0 to 1."""


@lru_cache(maxsize=8)
def _head(p: Identity) -> _Head:
    """Return the maps of a person, kept for the next photos."""
    t, noise = p.traits, np.random.default_rng(p.seed)
    eye, mouth = t["eye_distance"] / 2, t["mouth_y"]
    hills = (
        _hill(eye - 3, t["brow_y"] + 4, 14, 6, 2 + 0.35 * t["eye_depth"])
        + _hill(eye, 1, 13, 8.5, -t["eye_depth"])
        + _hill(eye, 1, 9, 6, 2.8)
        + _hill(47, 29, 14, 12, t["cheekbones"])
        + _hill(46, 64, 14, 16, -t["cheek_hollow"])
        + _hill(0, mouth - 2, 25, 15, 5.5)
        + _hill(0, mouth - 2.5, 15, 3.2, 0.4 * t["upper_lip"])
        + _hill(0, mouth + 5.5, 14, 3.8, 0.4 * t["lower_lip"])
        + _hill(0, mouth + 15, 16, 4.5, -3.8)
        + _hill(0, t["chin_y"] - 13, t["chin_width"], 8, t["chin_forward"])
        + _hill(0, 8, 5, 12, t["nose_bridge"])
        + _hill(0, 16, 5, 8, t["nose_hump"] + 4)
        + _hill(0, t["nose_length"] - 5, 6 + t["nose_width"] / 10, 7, t["nose_tip"])
        + _hill(t["nose_width"] - 3, t["nose_length"] + 2, 4, 5, 6)
        + t["ears"] * np.exp(-(((abs(_DEGREES) - 97) / 12) ** 4) - ((_Y - 16) / 27) ** 4)
    )
    narrow = t["head_width"] * (1 - _step(_Y, 8, 90) * (1 - t["jaw_width"]))
    skull = 1 + (narrow - 1) * abs(np.sin(_PHI))
    neck = 0.3 + 0.4 * t["jaw_width"] - 0.14 * np.cos(_PHI)
    jaw = t["chin_y"] - (t["chin_y"] - 58) * np.clip(1 - np.cos(_PHI), 0, 1) ** 0.7
    radius = neck + (_dome(0) * skull + hills / 82 - neck) * (1 - _step(_Y, jaw - 6, jaw + 12))

    *line, top, sides = _STYLES[p.style]
    line[:2] = line[0] + t["hairline"], line[1] + t["hairline"]
    ripple = np.interp(_DEGREES, np.linspace(-180, 180, 48), noise.normal(0, 1.5, 48))
    ripple += t["parting"] * np.sin(_PHI) * _FRONT
    hair = _step(np.interp(abs(_DEGREES), _ANGLES, line) + ripple - _Y, 0, 7)
    thick = (sides + (top - sides) * _step(-_Y, 5, 60)) / 82
    radius = radius + (np.maximum(_dome(99 * thick) * skull + thick, radius) - radius) * hair
    radius = cv2.GaussianBlur(radius.astype(np.float32), (0, 0), 0.8)

    x, z = A * radius * np.sin(_PHI), B * radius * np.cos(_PHI)
    (x_down, x_right), (z_down, z_right) = np.gradient(x), np.gradient(z)
    normals = np.stack(
        [-z_right / _DENSITY, z_right * x_down - x_right * z_down, x_right / _DENSITY], axis=-1
    )
    normals /= np.linalg.norm(normals, axis=-1, keepdims=True) + 1e-9

    grain = noise.standard_normal((HEIGHT, WIDTH), np.float32)
    hollow = np.clip(cv2.GaussianBlur(radius, (0, 0), 4) - radius, 0, 0.06)[..., None]
    red = (_hill(40, 36, 16, 14, 0.5) + _hill(0, t["nose_length"], 9, 7, 0.5))[..., None]
    skin = p.skin * (1 + 0.02 * grain[..., None] - hollow * (5, 7, 7) - red * (0.02, 0.2, 0.17))
    skin = cv2.convertScaleAbs(np.maximum(skin, 0))
    for _ in range(int(noise.integers(0, 5))):
        mole = noise.uniform(-50, 50), noise.uniform(-40, 90), noise.uniform(1, 2.4)
        _ellipse(skin, *mole, mole[2], p.skin * 0.45)
    for sign in (-1, 1):
        _ellipse(skin, sign * t["nose_width"] * 0.48, t["nose_length"] + 7, 3, 1.6, p.skin * 0.4)
    strands = cv2.GaussianBlur(grain, (0, 0), sigmaX=0.9, sigmaY=9)
    cheek = mouth + 6 - np.clip(abs(_DEGREES) - 20, 0, 62)
    lips = (_X / (t["mouth_width"] / 2)) ** 2 + ((_Y - mouth - 3) / 11) ** 2
    beard = np.maximum(_step(_Y, cheek - 3, cheek + 9), _hill(0, mouth - 12, 20, 5, 1))
    beard = beard * _step(lips, 0.8, 1.2) * (1 - _step(_Y, t["chin_y"] + 2, t["chin_y"] + 16))
    beard = p.beard * beard * (abs(_DEGREES) < 88) * np.clip(1 + 0.3 * grain, 0, 1)
    cover = np.stack([0.8 + 0.12 * strands / strands.std(), beard, hair], axis=-1)
    return _Head(radius, normals.astype(np.float32), skin, cover.astype(np.float32))


def _greyed(p: Identity, how: Circumstances) -> Array:
    """Return the colour of the hair at an age."""
    return p.hair + (180 - p.hair) * np.clip((how["age"] - 48) / 26, 0, 0.92)


def _painted(p: Identity, skin: Array, how: Circumstances) -> Array:
    """Return the skin with what moves and ages, under the hair; uint8 RGB."""
    t, skin = p.traits, skin.copy()
    old, smile = np.clip((how["age"] - 26) / 42, 0, 1.1), np.clip(how["smile"], 0, 1)
    wrinkle, frame = p.skin * (1 - 0.35 * old), (35, 30, 32)
    for height in (-32, -39, -46):
        _line(skin, _CURVE * 30, height + 2 * _CURVE**2, wrinkle)
    turn = np.linspace(0, np.pi, 13)
    for sign in (-1, 1):
        eye = sign * t["eye_distance"] / 2
        fold = t["nose_width"] + 3 + (t["mouth_width"] / 2 - t["nose_width"]) * turn / np.pi
        _line(skin, sign * fold, np.linspace(t["nose_length"], t["mouth_y"] + 2, 13), wrinkle)
        _line(skin, eye + _CURVE * 13, 9 + 4 * _ARC, wrinkle)
        # The almond of the eye falls towards the nose.
        opening = t["eye_width"] * t["eye_open"] * (1 - 0.15 * old - 0.18 * smile)
        opening *= 1 - 0.9 * how["blink"]
        across = eye + sign * _CURVE * t["eye_width"] / 2
        base = -t["eye_tilt"] * _CURVE * t["eye_width"] / 2
        upper, lower = base - 0.6 * opening * _ARC, base + 0.4 * opening * _ARC
        _fill(skin, across, upper - (3.5 + t["eye_depth"] / 4) * _ARC, upper, p.skin * 0.72)
        _fill(skin, across, upper, lower, (222, 216, 210))
        for radius, colour in ((5.6, p.iris), (2.3, (14, 12, 12))):
            high = min(radius, 0.55 * opening)
            _ellipse(skin, eye + how["gaze"], -0.1 * opening, radius, high, colour)
        _line(skin, across, upper, 0.4 * p.hair + 8)
        bow = t["brow_arch"] * np.exp(-(((_CURVE - 0.25) / 0.5) ** 2))
        brow = t["brow_y"] - 3.5 * how["raised"] - bow
        half = t["brow_thickness"] / 2 * np.clip(1.1 - _CURVE, 0.2, 1)
        across = eye + sign * _CURVE * t["brow_length"] / 2
        shade = np.minimum(_greyed(p, how) * 0.6, 112) + p.skin * 0.2
        _fill(skin, across, brow - half, brow + half, shade)
        if how["glasses"]:
            for rim in (-1, 1):
                _line(skin, eye + 23 * np.cos(turn), 3 + rim * 17 * np.sin(turn), frame)
            _line(skin, np.linspace(eye + sign * 22, sign * 72, 13), 0 * turn, frame)
    # Corners of the mouth go up and out in a smile, the lower lip goes down as it opens.
    across = _CURVE * (t["mouth_width"] / 2 + 5 * smile)
    seam = t["mouth_y"] + _ARC * (2 + 6 * smile) - 4.5 * smile
    low = seam + 11 * max(how["opened"], 0) * _ARC
    thin = 1 - 0.3 * old - 0.2 * smile
    _fill(skin, across, seam - t["upper_lip"] * thin * _ARC, seam, p.lips * 0.86)
    _fill(skin, across, low, low + t["lower_lip"] * thin * _ARC, p.lips)
    _fill(skin, across, seam, low, (58, 24, 24))
    _fill(skin, across, seam, np.minimum(seam + 4 * _ARC, low), (206, 197, 184))
    _line(skin, across, seam, p.lips * 0.5)
    return skin


def _visible(radius: Array, how: Circumstances, camera: Array) -> tuple[Array, Array, Array]:
    """Return the maps' column and row that each pixel shows, and whether it shows the head.

    A ray meets the surface where ``x = C R sin(phi + turn)``; R is that of the last guess.
    """
    yaw, pitch = math.radians(how["yaw"]), math.radians(how["pitch"])
    span = math.hypot(A * math.cos(yaw), B * math.sin(yaw))
    turn = math.atan2(B * math.sin(yaw), A * math.cos(yaw))
    depth: Array = np.ones((1, 1), np.float32)
    for size in (SIZE // 2, SIZE // 2, SIZE, SIZE):
        depth = cv2.resize(depth, (size, size))
        pixel = (np.arange(size, dtype=np.float32) + 0.5) * (SIZE / size) - 0.5
        across, down = (
            (row[0] * pixel + row[1] * pixel[:, None] + row[2]).astype(np.float32) for row in camera
        )
        sine = across / (np.maximum(depth, 1e-3) * span)
        phi = np.arcsin(np.clip(sine, -1, 1)) - turn
        z = _turned(phi, depth, how["yaw"])[1]
        rows = ((down - z * math.sin(pitch)) / math.cos(pitch) - TOP) * _DENSITY - 0.5
        half_turn = (phi + np.pi) % (2 * np.pi) / 2 - np.pi / 2
        columns = (np.sin(half_turn) + 1) * (WIDTH / 2) - 0.5
        depth = _look_up(radius, columns, rows)
    # Beyond the cheek's edge, the profile from forehead to chin.
    middle = np.full_like(rows, WIDTH / 2)
    ahead = across * math.copysign(1, yaw)
    profile = (ahead > 0) & (ahead < _look_up(radius, middle, rows) * (B * abs(math.sin(yaw))))
    outside = abs(sine) >= 1
    return np.where(outside, middle, columns), rows, ~outside | profile


def _turned(phi: Array, radius: Array, yaw: float) -> tuple[Array, Array]:
    """Return x and z of surface points for the camera."""
    sine, cosine = math.sin(math.radians(yaw)), math.cos(math.radians(yaw))
    x, z = A * radius * np.sin(phi), B * radius * np.cos(phi)
    return x * cosine + z * sine, z * cosine - x * sine


def _background(how: Circumstances, generator: np.random.Generator) -> Array:
    """Return something blurred, and shoulders in front of it, as planes."""
    g = generator
    coarse = g.uniform(40, 215) + g.normal(0, 14, 3) + g.normal(0, 1, (5, 5, 1)) * g.uniform(6, 34)
    scene = _planes(cv2.resize(coarse, (SIZE, SIZE), interpolation=cv2.INTER_CUBIC))
    cloth = _rgb(np.clip(g.uniform(20, 220) + g.normal(0, 26, 3), 8, 240))
    x = np.arange(SIZE, dtype=np.float32) - 56
    collar = g.uniform(98, 108) + 34 * np.exp(-((x / 17) ** 2)) + 0.4 * (abs(x) - 30)
    scene += (cloth - scene) * np.clip((np.arange(SIZE)[:, None] - collar) / 2, 0, 1)
    return scene * np.float32(0.4 + 0.6 * how["light"])


def _photographed(image: Array, how: Circumstances, generator: np.random.Generator) -> Array:
    # Half of the way to automatic exposure for the face, so that dark skin is not lost in noise.
    exposure = np.clip((118 / max(float(image[30:100, 30:82].mean()), 1)) ** 0.5, 0.8, 2)
    image = image * np.float32(how["brightness"] * exposure)
    over = np.maximum(image - 195, 0)  # a shoulder as film has it, instead of clipping at white
    image = np.minimum(image, 195) + over * (60 / (60 + over))
    mean = float(image.mean())
    image = mean + (image - mean) * np.float32(how["contrast"])
    image = cv2.GaussianBlur(image, (0, 0), how["blur"])
    top, left = generator.integers(0, SIZE, 2)
    grain = _noise()[top : top + SIZE, left : left + SIZE] * np.float32(how["noise"])
    return cv2.convertScaleAbs(np.maximum(image + grain, 0))


@lru_cache(maxsize=1)
def _noise() -> Array:
    """Return the noise of all cameras; each photo takes another window of it."""
    return np.random.default_rng(112).standard_normal((2 * SIZE, 2 * SIZE, 3), np.float32)


def _draw(spreads: Mapping[str, tuple[float, float]], g: np.random.Generator) -> dict[str, float]:
    """Draw each measure around its mean, no further than two spreads away."""
    off = np.clip(g.normal(size=len(spreads)), -2, 2).tolist()
    return {
        name: mean + spread * by
        for (name, (mean, spread)), by in zip(spreads.items(), off, strict=True)
    }


def _planes(image: Array) -> Array:
    return np.array(cv2.split(image), np.float32)


def _rgb(values: object) -> Array:
    return np.array(values, np.float32).reshape(3, 1, 1)


def _between(table: Array, position: float) -> Array:
    row = position * (len(table) - 1)
    return np.array([np.interp(row, np.arange(len(table)), channel) for channel in table.T])


def _step(value: Array, low: Array | float, high: Array | float) -> Array:
    t = np.clip((value - low) / (high - low), 0, 1)
    return np.asarray(t * t * (3 - 2 * t))


def _hill(x: float, y: float, width: float, height: float, size: float) -> Array:
    """Return a Gaussian hill at (x, y), and the same one at -x."""
    across = np.exp(-(((_X - x) / width) ** 2) / 2)
    if x:
        across = across + np.exp(-(((_X + x) / width) ** 2) / 2)
    return np.asarray(size * np.exp(-(((_Y - y) / height) ** 2) / 2) * (across * _FRONT))


def _dome(thickness: Array | float) -> Array:
    """Return how the skull closes towards its top, under hair of a thickness in millimetres."""
    closing = np.clip(-18 - _Y, 0, None) / (97 + thickness)
    return np.asarray(np.clip(1 - closing**2.4, 0, 1) ** (1 / 2.4))


def _look_up(image: Array, columns: Array, rows: Array) -> Array:
    return cv2.remap(image, columns, rows, cv2.INTER_LINEAR, None, cv2.BORDER_REPLICATE)


def _texel(x: Array, y: Array) -> tuple[Array, Array]:
    """Return columns and rows of frontal positions in the maps."""
    column = np.sin(np.arcsin(x / A) / 2) * (WIDTH / 2) + (WIDTH / 2 - 0.5)
    return column, (y - TOP) * _DENSITY - 0.5


def _fill(canvas: Array, x: Array, upper: Array, lower: Array, colour: Iterable[float]) -> None:
    """Fill the area between two curves over x."""
    around = _texel(np.concatenate([x, x[::-1]]), np.concatenate([upper, lower[::-1]]))
    points = np.rint(np.stack(around, axis=-1) * 16).astype(np.int32)  # 4 bits after the point
    cv2.fillPoly(canvas, [points], list(map(float, colour)), cv2.LINE_AA, 4)


def _line(canvas: Array, x: Array, y: Array, colour: Iterable[float]) -> None:
    _fill(canvas, x, y - 0.6, y + 0.6, colour)


def _ellipse(
    canvas: Array, x: float, y: float, width: float, height: float, colour: Iterable[float]
) -> None:
    _fill(canvas, x + width * _CURVE, y - height * _ARC**0.5, y + height * _ARC**0.5, colour)
