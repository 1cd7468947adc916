"""From a subject's parameters to a head: radius, normals and textures over an unrolled surface.

Where things lie in the maps, `facerec.records.faces.drawing` says.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import cv2
import numpy as np

from facerec.records.faces.drawing import (
    BOTTOM,
    HEIGHT,
    SHIFT,
    TEXELS,
    TOP,
    WIDTH,
    A,
    B,
    band,
    ellipse,
    line,
    multiply,
    points,
    texel,
)
from facerec.records.faces.parameters import Identity

LEVEL = 6.0
"""Steps of the hair level's 8-bit texture per millimetre; 128 is the hairline."""
_MEAN_RADIUS = 82.0


@dataclass(frozen=True)
class Head:
    """Maps of one subject; ``h, w`` are half of ``HEIGHT, WIDTH``."""

    radius: np.ndarray
    """float32 (h, w): R."""
    normals: np.ndarray
    """float32 (h, w, 3): unit outward normals."""
    skin: np.ndarray
    """uint8 (HEIGHT, WIDTH, 4): RGB with folds and shadows of crevices, and wrinkles of age."""
    cover: np.ndarray
    """uint8 (HEIGHT, WIDTH, 4): hair level, strand brightness, beard, brows."""
    landmarks: np.ndarray
    """float64 (5, 3): eyes, nose tip, mouth corners, viewer's left first."""

    def surface(self, x: float, y: float) -> np.ndarray:
        """Return the 3-D surface point behind the frontal position (x, y)."""
        phi = float(np.arcsin(np.clip(x / A, -1, 1)))
        column = (np.sin(phi / 2) + 1) * WIDTH / 4 - 0.5
        row = (y - TOP) * TEXELS / 2 - 0.5
        radius = float(_sample(self.radius, column, row))
        return np.array([A * radius * np.sin(phi), y, B * radius * np.cos(phi)])


@lru_cache(maxsize=8)
def build_head(identity: Identity) -> Head:
    """Build the maps of a subject (some milliseconds, kept for the next photos)."""
    grid = _Grid(WIDTH // 2, HEIGHT // 2)
    hair = _hair(identity, grid)
    radius, bare = _radius(identity, grid, hair)
    # A shallow smoothing keeps the steps of hairline and jaw from ringing in the normals.
    radius = cv2.GaussianBlur(radius, (0, 0), 0.7)
    head = Head(
        radius=radius,
        normals=_normals(radius, grid),
        skin=_skin(identity, grid, np.minimum(_crevices(radius), _crevices(bare))),
        cover=_cover(identity, grid, hair[0]),
        landmarks=np.zeros((5, 3)),
    )
    head.landmarks[:] = [
        head.surface(x, y)
        for x, y in (
            (-identity.eye_distance / 2, 0.0),
            (identity.eye_distance / 2, 0.0),
            (0.0, identity.nose_length),
            (-identity.mouth_width / 2, identity.mouth_y),
            (identity.mouth_width / 2, identity.mouth_y),
        )
    ]
    return head


class _Grid:
    """Coordinates of a map's rows and columns."""

    def __init__(self, width: int, height: int) -> None:
        u = (np.arange(width, dtype=np.float32) + 0.5) / (width / 2) - 1
        self.phi = 2 * np.arcsin(u)
        self.degrees = np.degrees(self.phi)
        self.x = A * np.sin(self.phi)
        self.y = TOP + (np.arange(height, dtype=np.float32) + 0.5) * ((BOTTOM - TOP) / height)
        self.front = np.clip(np.cos(self.phi) * 3, 0, 1)
        self.shape = (height, width)

    def bump(self, x: float, y: float, width: float, height: float, size: float) -> np.ndarray:
        """Return a Gaussian hill of ``size`` at the frontal position (x, y)."""
        across = np.exp(-(((self.x - x) / width) ** 2) / 2) * self.front
        down = np.exp(-(((self.y - y) / height) ** 2) / 2)
        return size * np.outer(down, across)

    def pair(self, x: float, y: float, width: float, height: float, size: float) -> np.ndarray:
        """Return the same hill at x and at -x."""
        left = np.exp(-(((self.x + x) / width) ** 2) / 2)
        right = np.exp(-(((self.x - x) / width) ** 2) / 2)
        down = np.exp(-(((self.y - y) / height) ** 2) / 2)
        return size * np.outer(down, (left + right) * self.front)


def _step(value: np.ndarray, low: float, high: float) -> np.ndarray:
    t = np.clip((value - low) / (high - low), 0, 1)
    return t * t * (3 - 2 * t)


_Hair = tuple[np.ndarray, np.ndarray, np.ndarray]


def _radius(p: Identity, g: _Grid, hair: _Hair) -> tuple[np.ndarray, np.ndarray]:
    """Return R with the hair's volume, and R of the bare head."""
    y = g.y[:, None]
    side = np.abs(np.sin(g.phi))[None, :]
    front = np.cos(g.phi)[None, :]

    # Skull: a dome above the brows, an egg that narrows towards the jaw below the cheekbones.
    dome = np.clip(1 - (np.clip(-18 - y, 0, None) / 97) ** 2.4, 0, 1) ** (1 / 2.4)
    narrowing = _step(y, 8, 84) * (1 - p.jaw_width)
    width = p.head_width * (1 - narrowing) + (1 - dome) * 0.02
    face = dome * (1 + (width - 1) * side**1.2)
    # The face is flatter than an ellipse between the eyes' outer corners.
    face = face - 0.03 * _step(front, 0.5, 1.0) * np.exp(-(((y - 20) / 60) ** 2))

    hills = (
        g.pair(p.eye_distance / 2 - 3, p.brow_y + 4, 14, 6, 2.2 + 0.35 * p.eye_depth)
        + g.pair(p.eye_distance / 2, 1, 13, 8.5, -p.eye_depth - 2.0)
        + g.pair(p.eye_distance / 2 - 14, 1, 6, 8, -2.5)
        + g.pair(p.eye_distance / 2, 1, 9, 6, 2.8)
        + g.pair(47, 29, 14, 12, p.cheekbones)
        + g.pair(27, 40, 13, 14, 2.2)
        + g.pair(46, 64, 14, 16, -p.cheek_hollow)
        + g.bump(0, p.mouth_y - 2, 25, 15, 5.5)
        + g.bump(0, p.mouth_y - 11, 3, 6, -1.3)
        + g.bump(0, p.mouth_y - 2.5, 15, 3.2, 0.8 + 0.32 * p.upper_lip)
        + g.bump(0, p.mouth_y + 5.5, 14, 3.8, 0.8 + 0.34 * p.lower_lip)
        + g.bump(0, p.mouth_y + 0.8, 20, 1.6, -2.2)
        + g.bump(0, p.mouth_y + 15, 16, 4.5, -3.8)
        + g.bump(0, p.chin_y - 13, p.chin_width, 8, p.chin_forward + 3.0)
        + g.bump(0, -46, 34, 20, 3.0)
        + _nose(p, g)
        + _ears(p, g)
    )
    face = face + hills / _MEAN_RADIUS

    # Under the jaw line the neck takes over.
    angle_y = 57.0 + 9.0 * (p.jaw_square - 1)
    turn = np.clip(1 - np.cos(g.phi), 0, 1)[None, :]
    flat = np.clip(turn - (p.chin_width / 170) ** 1.6, 0, None)
    jaw = p.chin_y - (p.chin_y - angle_y) * flat ** (0.6 + 0.18 * (p.jaw_square - 1))
    jaw = np.where(front < 0, angle_y, jaw)
    girth = 0.22 + 0.5 * p.jaw_width
    neck = girth - 0.14 * front + 0.07 * _step(y, 85, 125)
    neck = np.where(front < 0, girth - 0.25 * front, neck)
    under = 1 / (1 + np.exp(np.clip((y - jaw + 3) / 2.6, -30, 30)))
    bare = neck + (face - neck) * under

    _, thickness, solid = hair
    # The shell of the hair replaces the surface, so that it also hides ears and neck.
    shell = np.clip(1 - (np.clip(-18 - y, 0, None) / (99 + thickness)) ** 2.3, 0, 1) ** (1 / 2.3)
    shell = shell * (1 + (p.head_width - 1) * side**1.5) + thickness / _MEAN_RADIUS
    if p.hair_style in ("long", "bob"):
        shell = shell + 0.04 * _step(y, 20, 90) * (side - 0.2)
    radius = bare + np.where(shell > bare - 0.02, solid, 0) * (shell - bare)
    return radius.astype(np.float32), bare.astype(np.float32)


def _nose(p: Identity, g: _Grid) -> np.ndarray:
    x, y = g.x[None, :], g.y[:, None]
    along = np.clip((y + 6) / (p.nose_length + 6), 0, 1)
    height = p.nose_bridge + (p.nose_tip - 3 - p.nose_bridge) * along**1.35
    height = height + p.nose_hump * np.exp(-(((along - 0.45) / 0.2) ** 2))
    # The underside rises from the tip towards the wings.
    below = y + 0.028 * x**2
    height = height * _step(y, -17, 2) * (1 - _step(below, p.nose_length + 1, p.nose_length + 11))
    width = 5.0 + (p.nose_tip_width - 4.2) * along
    ridge = 0.62 * height * np.exp(-((x / width) ** 2) / 2) * g.front[None, :]
    base = 0.38 * height * np.exp(-((x / (width * 1.9)) ** 2) / 2) * g.front[None, :]
    tip = g.bump(0, p.nose_length, p.nose_tip_width * 0.9, 5.0, 4.5)
    wings = g.pair(p.nose_width - 2.5, p.nose_length + 2.5, 4.2, 5.0, 5.6)
    return ridge + base + tip + wings


def _ears(p: Identity, g: _Grid) -> np.ndarray:
    around = np.abs(g.degrees)[None, :] - 97
    down = (g.y[:, None] - 16) / 27
    outline = np.sqrt((around / 12) ** 2 + down**2)
    rim = np.exp(-(((outline - 0.72) / 0.3) ** 2))
    bowl = np.exp(-(outline**2) * 2)
    return p.ears * np.clip(1.25 * rim + 0.55 * bowl, 0, 1.3) * (outline < 1.7)


# Frontal hairline over the angle: degrees and millimetres relative to the subject's hairline, then
# absolute heights at the temples, the sideburns, above and behind the ears, and the nape.
_ANGLES = (0, 22, 42, 58, 70, 79, 86, 92, 106, 114, 130, 180)


def _hair(p: Identity, g: _Grid) -> _Hair:
    """Return what the hair does over the surface.

    Returns:
        The level (mm inside the hairline, negative on skin), the thickness in mm, and how far
        the surface follows the hair's shell, 0 to 1.
    """
    style, top = p.hair_style, -p.hairline
    noise = np.random.default_rng(p.seed).normal(0, 1, 48)
    burn = 18.0 if style in ("short", "quiff", "side_part", "buzz", "curly", "afro") else -4.0
    temple = top + 12 + 4 * noise[0]
    line = [top, top + 1.5, temple, -38, -20, burn, burn - 4, -16, -14, 30, 58, 64]
    long_from: float | None = None
    if style == "bald":
        line = [-200] * 7 + [-40, -30, 20, 58, 64] if p.recession > 9 else [-200] * 12
    elif style == "bangs":
        line[:4] = [-27 + noise[1] * 2, -26, -22, -14]
        long_from = 66
    elif style in ("bob", "long"):
        long_from = 64 + 4 * noise[2]
        line[1:4] = [top - 1 + 3, top + 12, -30]
    elif style == "tied":
        line[5:8] = [-8, -18, -20]
    elif style in ("curly", "afro") and p.beard == "none" and noise[3] > 0:
        long_from = 72

    line_y = np.interp(np.abs(g.degrees), _ANGLES, line)
    if long_from is not None:
        end = 200.0 if style in ("long", "curly") else 66.0 + 6 * noise[4]
        if style == "afro":
            end = 40.0
        line_y = line_y + (end - line_y) * _step(np.abs(g.degrees), long_from, long_from + 9)
    if style in ("side_part", "quiff") or (style in ("long", "bob") and abs(p.hair_part) > 0.6):
        # A parting lifts the hairline on one side and lets hair fall over the other temple.
        sweep = np.clip(g.degrees * np.sign(p.hair_part) / 40, -1, 1)
        front = np.exp(-((g.degrees / 50) ** 4))
        line_y = line_y - front * sweep * (11 if style != "quiff" else 4) * abs(p.hair_part)
    ripple = np.interp(g.degrees, np.linspace(-180, 180, 48), noise)
    line_y = line_y + ripple * (2.6 if style in ("curly", "afro", "bangs") else 1.2)
    level = cv2.GaussianBlur(line_y - g.y[:, None], (0, 0), sigmaX=1.0, sigmaY=0.01)
    top_mm, side_mm = {
        "bald": (1, 1),
        "buzz": (2.5, 1.5),
        "short": (9, 3.5),
        "quiff": (20, 3),
        "side_part": (13, 5),
        "tied": (5, 3),
        "bangs": (10, 9),
        "bob": (10, 13),
        "long": (9, 13),
        "curly": (18, 17),
        "afro": (34, 32),
    }[style]
    up = _step(-g.y, 5, 60)[:, None]
    thickness = (side_mm + (top_mm - side_mm) * up) * p.hair_volume
    if style in ("side_part", "quiff"):
        lean = 1 - 0.35 * np.sign(p.hair_part) * np.sin(g.phi)[None, :]
        thickness = thickness * lean
    if style in ("curly", "afro"):
        lumps = np.random.default_rng(p.seed + 1).normal(0, 1, (20, 24)).astype(np.float32)
        thickness = thickness * (
            1 + 0.13 * cv2.resize(lumps, g.shape[::-1], interpolation=cv2.INTER_CUBIC)
        )
    solid = _step(level, 0.0, 4.0 + 0.7 * float(thickness.max()))
    if long_from is not None:
        # The curtain's wall lies inside its own hair, so that no skin shows on the wall.
        curtain = _step(np.abs(g.degrees), long_from + 9, long_from + 17) * _step(level, 0, 8)
        low = _step(g.y, -45, 0)[:, None]
        solid = solid + low * (np.minimum(solid, curtain) - solid)
    return level, np.broadcast_to(thickness, g.shape), solid


def _normals(radius: np.ndarray, g: _Grid) -> np.ndarray:
    smooth = cv2.GaussianBlur(radius, (0, 0), 0.8)
    sine, cosine = np.sin(g.phi), np.cos(g.phi)
    x, z = A * smooth * sine, B * smooth * cosine
    step_y = g.y[1] - g.y[0]
    xu, zu = np.gradient(x, axis=1), np.gradient(z, axis=1)
    xv, zv = np.gradient(x, axis=0), np.gradient(z, axis=0)
    # The cross product of d/du and d/dv, with dy/du = 0, points outwards.
    normals = np.stack([-step_y * zu, zu * xv - xu * zv, step_y * xu], axis=-1)
    normals /= np.linalg.norm(normals, axis=-1, keepdims=True) + 1e-9
    return normals.astype(np.float32)


def _crevices(radius: np.ndarray) -> np.ndarray:
    """Return the share of ambient light that reaches each point, lower in hollows."""
    depth = radius * _MEAN_RADIUS
    near = np.clip(cv2.GaussianBlur(depth, (0, 0), 2.5) - depth, 0, 5)
    far = np.clip(cv2.GaussianBlur(depth, (0, 0), 9) - depth, 0, 10)
    return 1 - 0.055 * near - 0.020 * far


def _skin(p: Identity, g: _Grid, light: np.ndarray) -> np.ndarray:
    noise = np.random.default_rng(p.seed + 2)
    base = np.array(p.skin)
    eye = p.eye_distance / 2
    ears = (np.abs(np.abs(g.degrees) - 97) < 14)[None, :] * np.exp(-((g.y / 60) ** 2))[:, None]
    red = (
        g.pair(40, 36, 16, 14, 0.55 * p.blush)
        + g.bump(0, p.nose_length, 9, 7, 0.35 + 0.3 * p.blush)
        + g.bump(0, p.chin_y - 12, 12, 8, 0.2)
        + 0.5 * ears
    )
    hollow = g.pair(eye, 5, 14, 7, 0.5) + g.pair(eye - 12, 0, 7, 9, 0.5)
    hollow = hollow + g.pair(eye, -7, 14, 5, 0.25)
    # Warm shadows: light that enters the skin comes out red.
    planes = [
        base[channel]
        * (1 - 0.22 * blush * red)
        * (1 - 0.26 * purple * hollow)
        * (1 - warm * (1 - light))
        for channel, (blush, purple, warm) in enumerate(
            ((0.10, 0.75, 0.82), (0.9, 1.0, 1.03), (0.8, 0.85, 1.10))
        )
    ]
    tone = _double(cv2.merge(planes))
    canvas = cv2.convertScaleAbs(cv2.multiply(tone, _crop(_mottle(), noise)))
    _marks(p, canvas, noise)
    dark = multiply(base, (0.46, 0.33, 0.30))
    for sign in (-1, 1):
        nostril = texel(sign * (p.nose_width * 0.48 + 0.5), p.nose_length + 6.6)
        ellipse(canvas, nostril, 1.6 + 0.11 * p.nose_width, 1.5, dark, -14.0 * sign)
    canvas = cv2.GaussianBlur(canvas, (3, 3), 0.55)
    return cv2.merge([*cv2.split(canvas), _wrinkles(p)])


def _double(image: np.ndarray) -> np.ndarray:
    size = (WIDTH, HEIGHT)
    return cv2.resize(image.astype(np.float32), size, interpolation=cv2.INTER_LINEAR)


@lru_cache(maxsize=1)
def _white() -> np.ndarray:
    """Noise that all subjects share; each takes another window of it."""
    return np.random.default_rng(9).standard_normal((HEIGHT + 128, WIDTH + 128), dtype=np.float32)


@lru_cache(maxsize=1)
def _mottle() -> np.ndarray:
    blotches = 0.016 * 9 * cv2.GaussianBlur(_white()[::-1], (0, 0), 3)
    mottle = (1 + blotches + 0.012 * _white()).astype(np.float32)
    return cv2.merge([mottle, mottle, mottle])


@lru_cache(maxsize=3)
def _hair_noise(kind: str) -> np.ndarray:
    raw = _white()
    if kind == "curls":
        return cv2.GaussianBlur(raw, (0, 0), 2.2) * 6 + cv2.GaussianBlur(raw, (0, 0), 5) * 9
    if kind == "strands":
        thin = cv2.GaussianBlur(raw, (0, 0), sigmaX=0.9, sigmaY=14) * 5
        return thin + cv2.GaussianBlur(raw, (0, 0), sigmaX=3.0, sigmaY=20) * 9
    return cv2.GaussianBlur(raw, (0, 0), sigmaX=1.2, sigmaY=6) * 6


def _crop(field: np.ndarray, noise: np.random.Generator) -> np.ndarray:
    top, left = noise.integers(0, 128, 2)
    return np.ascontiguousarray(field[top : top + HEIGHT, left : left + WIDTH])


def _marks(p: Identity, canvas: np.ndarray, noise: np.random.Generator) -> None:
    base = np.array(p.skin)
    if p.freckles > 0.05:
        count = int(220 * min(p.freckles, 1.2))
        x, y = noise.normal(0, 30, count), noise.normal(28, 17, count)
        size, tone = noise.uniform(0.5, 1.15, count), noise.uniform(0.66, 0.86, count)
        columns, rows = texel(np.clip(x, -60, 60), y)
        for column, row, radius, dim in zip(columns, rows, size, tone, strict=True):
            colour = multiply(base, (dim + 0.08, dim - 0.02, dim - 0.10))
            ellipse(canvas, (column, row), radius, radius, colour)
    if p.scar is not None:
        x0, y0, length, angle = p.scar
        across = np.cos(np.radians(angle)) * length / 2
        down = np.sin(np.radians(angle)) * length / 2
        columns, rows = texel(
            np.array([x0 - across, x0 + across]), np.array([y0 - down, y0 + down])
        )
        line(canvas, columns, rows, multiply(base, (1.02, 0.78, 0.74)), 3)
        line(canvas, columns, rows, multiply(base, (1.14, 1.04, 1.02)), 1)
    for x0, y0, radius in p.moles:
        dark = multiply(base, (0.42,) * 3)
        ellipse(canvas, texel(x0, y0), radius + 0.3, radius + 0.3, dark)


def _wrinkles(p: Identity) -> np.ndarray:
    """Return the lines and bags of old age as uint8; the renderer scales them with age."""
    noise = np.random.default_rng(p.seed + 3)
    lines = np.zeros((HEIGHT, WIDTH), np.uint8)
    bend = noise.uniform(-3, 3)
    t = np.linspace(-1, 1, 9)
    for index, height in enumerate(np.linspace(p.brow_y - 12, -p.hairline + 9, 4)):
        reach = noise.uniform(24, 38)
        y = height + bend * t**2 + noise.normal(0, 0.5, 9)
        line(lines, *texel(t * reach + noise.normal(0, 3), y), 120 - 18 * index, 1)
    for sign in (-1, 1):
        outer = p.eye_distance / 2 + p.eye_width / 2 + 2
        for slope in noise.uniform(-0.9, 0.9, 4):
            length = noise.uniform(6, 12)
            x = sign * (outer + np.array([0, length]))
            line(lines, *texel(x, np.array([slope * 3, slope * length])), 150, 1)
        bag = p.eye_distance / 2 + t * p.eye_width * 0.5
        bag_y = 7 + noise.uniform(2, 5) * (1 - t**2)
        line(lines, *texel(sign * bag, bag_y), 130, 2)
        line(lines, *texel(sign * bag, bag_y + 4), 80, 2)
        fold = np.linspace(0, 1, 8)
        reach = p.mouth_width / 2 + 7 - p.nose_width
        x = sign * (p.nose_width + 4 + reach * np.sin(fold * 1.7))
        y = p.nose_length + 1 + (p.mouth_y - p.nose_length + 6) * fold
        line(lines, *texel(x, y), 105, 2)
        x = sign * (p.mouth_width / 2 + 3 + np.array([0, 2.0, 2.0]))
        line(lines, *texel(x, p.mouth_y + np.array([5, 12, 20.0])), 70, 2)
        x = sign * (4 + np.array([0, 1.0]))
        line(lines, *texel(x, np.array([p.brow_y + 5, p.brow_y - 6])), 90, 1)
    fine = cv2.GaussianBlur(lines, (0, 0), 0.8)
    broad = cv2.GaussianBlur(lines, (0, 0), 3.0)
    return cv2.addWeighted(fine, 0.7, broad, 0.9, 0)


def _cover(p: Identity, g: _Grid, level: np.ndarray) -> np.ndarray:
    noise = np.random.default_rng(p.seed + 4)
    fringe = _double(level) + 0.8 * _crop(_hair_noise("fringe"), noise)
    planes = [
        np.clip(fringe * LEVEL + 128, 0, 255).astype(np.uint8),
        _strands(p, noise),
        _beard(p, g, noise),
        _brows(p, noise),
    ]
    return cv2.merge(planes)


def _strands(p: Identity, noise: np.random.Generator) -> np.ndarray:
    if p.hair_style in ("curly", "afro"):
        field = _crop(_hair_noise("curls"), noise)
    elif p.hair_style in ("buzz", "bald"):
        field = _crop(_white(), noise) * 0.5
    else:
        straight = _crop(_hair_noise("strands"), noise)
        columns = np.arange(WIDTH, dtype=np.float32)[None, :]
        rows = np.arange(HEIGHT, dtype=np.float32)[:, None]
        lean = 1.5 if p.hair_style in ("side_part", "quiff", "bangs") else 0.5
        above = np.clip((0.45 * HEIGHT - rows) / 55, 0, 1)
        shift = above * (rows - HEIGHT * 0.3) * np.float32(lean * np.sign(p.hair_part))
        source = columns + shift + np.float32(7 * p.wave) * np.sin(rows / 9 + columns / 40)
        field = cv2.remap(
            straight,
            source,
            np.repeat(rows, WIDTH, axis=1),
            cv2.INTER_LINEAR,
            None,
            cv2.BORDER_WRAP,
        )
    return cv2.convertScaleAbs(np.maximum(128 + 46 * field, 0))


def _beard(p: Identity, g: _Grid, noise: np.random.Generator) -> np.ndarray:
    if p.beard == "none":
        return np.zeros((HEIGHT, WIDTH), np.uint8)
    x, y = np.abs(g.x)[None, :], g.y[:, None]
    lip_top = p.mouth_y - p.upper_lip - 1.5
    drop = y - 0.012 * x**2
    moustache = _step(drop, p.nose_length + 9, p.nose_length + 15)
    moustache = moustache * (1 - _step(drop, lip_top - 2, lip_top + 3))
    moustache = moustache * (1 - _step(x, p.mouth_width / 2 - 4, p.mouth_width / 2 + 7))
    mouth = np.sqrt((x / (p.mouth_width / 2 + 1)) ** 2 + ((y - p.mouth_y - 2) / 12) ** 2)
    outside = _step(mouth, 0.9, 1.15)
    chin = _step(y, p.mouth_y + 8, p.mouth_y + 18) * (1 - _step(x, 19, 30))
    ring = np.sqrt((x / (p.mouth_width / 2 + 5)) ** 2 + ((y - p.mouth_y - 4) / 19) ** 2)
    frame = np.exp(-(((ring - 1) / 0.17) ** 2)) * _step(y, p.mouth_y - 12, p.mouth_y - 4)
    cheek_line = p.mouth_y + 6 - np.clip(np.abs(g.degrees)[None, :] - 20, 0, 62) * 0.95
    cheeks = _step(y, cheek_line - 3, cheek_line + 9) * (np.abs(g.degrees) < 88)[None, :]
    area = {
        "moustache": moustache,
        "goatee": np.maximum.reduce([moustache, chin, frame]),
        "full": np.maximum.reduce([moustache, chin, frame, cheeks]),
        "stubble": np.maximum.reduce([moustache * 0.9, chin, frame, cheeks]),
    }[p.beard]
    area = area * np.where(y < p.mouth_y - p.upper_lip, 1.0, outside)
    area = area * (1 - _step(y, p.chin_y + 2, p.chin_y + 16) * 0.8)
    area = _double(area)
    grain = 0.35 * _crop(_white(), noise)
    strength = (0.42 if p.beard == "stubble" else 0.92) * p.beard_density
    alpha = area * (strength + grain * (1 - area * 0.5))
    return cv2.convertScaleAbs(np.maximum(cv2.GaussianBlur(alpha, (0, 0), 0.9), 0), alpha=255)


def _brows(p: Identity, noise: np.random.Generator) -> np.ndarray:
    alpha = np.zeros((HEIGHT, WIDTH), np.uint8)
    t = np.linspace(0, 1, 46)
    inner = p.eye_distance / 2 - p.brow_length * 0.52
    x = inner + p.brow_length * t
    y = p.brow_y + p.brow_tilt * (0.5 - t) * 0.6
    y = y - p.brow_arch * np.exp(-(((t - 0.62) / 0.28) ** 2)) + 3.2 * t**3
    half = p.brow_thickness / 2 * np.clip(0.55 + 2.4 * t, 0, 1) * np.clip((1.04 - t) * 2.6, 0.12, 1)
    body = int(175 * p.brow_density)
    for sign in (-1, 1):
        band(alpha, texel, x * sign, y - half, y + half, body)
        root = y + noise.uniform(-1, 1, 46) * half
        rise = 1.6 + 1.1 * noise.random(46)
        ends_x = np.stack([x, x + 0.9 + 1.6 * t]) * sign
        ends_y = np.stack([root + rise * 0.4, root - rise * (1 - t) + 0.3])
        hairs = np.ascontiguousarray(points(*texel(ends_x, ends_y)).swapaxes(0, 1))
        cv2.polylines(alpha, list(hairs), False, int(235 * p.brow_density), 1, cv2.LINE_AA, SHIFT)
    return cv2.GaussianBlur(alpha, (0, 0), 0.75)


def _sample(image: np.ndarray, column: float, row: float) -> float:
    position = np.array([[column]], np.float32), np.array([[row]], np.float32)
    return cv2.remap(image, *position, cv2.INTER_LINEAR, None, cv2.BORDER_REPLICATE)[0, 0]
