"""A head and the circumstances of a photo become an aligned 112x112 image.

Eyes and mouth, which move, are painted into a copy of the head's textures; the surface is then
found for every pixel by marching along its ray, and colour, light and cover are looked up there.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import cv2
import numpy as np

from facerec.records.faces.drawing import (
    TEXELS,
    TOP,
    WIDTH,
    A,
    B,
    Pixels,
    band,
    ellipse,
    fill_polygon,
    line,
    multiply,
    texel,
)
from facerec.records.faces.head import LEVEL, Head, build_head
from facerec.records.faces.parameters import Identity, Nuisance

SIZE = 112
TEMPLATE = np.array(
    [
        [38.2946, 51.6963],
        [73.5318, 51.5014],
        [56.0252, 71.7366],
        [41.5493, 92.3655],
        [70.7299, 92.2041],
    ]
)
"""Where eyes, nose tip and mouth corners lie in an aligned image (ArcFace's five points)."""

_CROSS = np.ones((3, 3), np.uint8)
_NOISE = cv2.GaussianBlur(
    np.random.default_rng(112).standard_normal((320, 320, 3), dtype=np.float32), (0, 0), 0.6
)
_NOISE = (_NOISE * 0.85 + 0.15 * _NOISE.mean(axis=-1, keepdims=True)) / _NOISE.std()


def encode(image: np.ndarray, quality: int) -> bytes:
    """Encode an RGB image as JPEG."""
    _, data = cv2.imencode(".jpg", image[..., ::-1], [cv2.IMWRITE_JPEG_QUALITY, quality])
    return data.tobytes()


def render(identity: Identity, nuisance: Nuisance, generator: np.random.Generator) -> np.ndarray:
    """Render one photo.

    Args:
        identity: the subject.
        nuisance: the circumstances, JPEG quality excepted (see `encode`).
        generator: draws background, clothes and sensor noise.

    Returns:
        uint8 image (112, 112, 3) in RGB, aligned to ``TEMPLATE``.
    """
    head = build_head(identity)
    age = identity.base_age if nuisance.age is None else nuisance.age
    rotation = _rotation(nuisance)
    points = _moved_landmarks(head, nuisance) @ rotation.T
    image_from_camera = _alignment(points, nuisance)

    skin_texture, cover_texture = _paint(identity, head, nuisance, age)
    columns, rows, depth, hit = _march(head, rotation, image_from_camera)
    # Planes (3, 112, 112) rather than pixels: numpy is several times faster on long inner loops.
    skin = _planes(_look_up(skin_texture, columns, rows))
    cover = _planes(_look_up(cover_texture, columns, rows))
    diffuse, shine, facing = _light(head, nuisance, rotation, columns, rows)

    hair, hair_alpha = _hair_colour(cover, identity, age)
    colour = _skin_colour(skin, cover, identity, nuisance, age)
    key = (
        0.92 * nuisance.light * _rgb((1 + 0.10 * nuisance.warmth, 1.0, 1 - 0.16 * nuisance.warmth))
    )
    # Red light travels farthest inside skin, so the terminator is soft and warm.
    wrap = _rgb((0.34, 0.20, 0.14))
    lit = np.maximum(diffuse + wrap, 0) * (key / (1 + wrap))
    colour *= lit + nuisance.ambient * (0.72 + 0.28 * facing)
    colour += 32 * key * (shine * (1 - hair_alpha))
    hair_lit = key * np.maximum(0.8 * diffuse + 0.2, 0) + nuisance.ambient * (0.65 + 0.35 * facing)
    hair *= hair_lit + (0.10 * nuisance.light) * np.sqrt(shine) * (cover[1] / 128) ** 3
    colour += (hair - colour) * hair_alpha

    scene = _over(_background(nuisance, generator), colour, hit)
    image = cv2.merge(list(scene))
    if nuisance.glasses:
        _glasses(image, identity, rotation, image_from_camera, depth, hit, head, nuisance)
    return _camera(image, nuisance, generator)


def _planes(image: np.ndarray) -> np.ndarray:
    return np.array(cv2.split(image), dtype=np.float32)


def _rgb(values: object) -> np.ndarray:
    return np.array(values, np.float32).reshape(3, 1, 1)


def _over(scene: np.ndarray, colour: np.ndarray, hit: np.ndarray) -> np.ndarray:
    """Lay the head over the scene with a soft edge."""
    solid = hit.astype(np.float32)
    edge = cv2.GaussianBlur(solid, (5, 5), 0.8)
    # Just outside the edge, where no surface is, take the colour from inside.
    weight = 1 / np.maximum(edge, 1e-3)
    for index in range(3):
        spread = cv2.GaussianBlur(colour[index] * solid, (5, 5), 0.8) * weight
        np.copyto(spread, colour[index], where=hit)
        colour[index] = spread
    return scene + (colour - scene) * np.clip(edge * 1.7 - 0.35, 0, 1)


def _rotation(nuisance: Nuisance) -> np.ndarray:
    yaw, pitch = math.radians(nuisance.yaw), math.radians(nuisance.pitch)
    turn = np.array(
        [[math.cos(yaw), 0, math.sin(yaw)], [0, 1, 0], [-math.sin(yaw), 0, math.cos(yaw)]]
    )
    nod = np.array(
        [[1, 0, 0], [0, math.cos(pitch), math.sin(pitch)], [0, -math.sin(pitch), math.cos(pitch)]]
    )
    return nod @ turn


def _moved_landmarks(head: Head, nuisance: Nuisance) -> np.ndarray:
    points = head.landmarks.copy()
    points[3:, 0] += np.array([-1, 1]) * (5.0 * nuisance.smile - 1.5 * nuisance.mouth_open)
    points[3:, 1] += 2.0 * nuisance.mouth_open - 4.5 * nuisance.smile
    return points


def _alignment(points: np.ndarray, nuisance: Nuisance) -> np.ndarray:
    """Return the similarity (2, 3) that takes camera millimetres to pixels.

    The least-squares similarity in the complex plane, followed by the errors of alignment.
    """
    source = points[:, 0] + 1j * points[:, 1]
    target = TEMPLATE[:, 0] + 1j * TEMPLATE[:, 1]
    from_mean = source - source.mean()
    factor = np.vdot(from_mean, target) / np.vdot(from_mean, from_mean)
    factor = factor * nuisance.zoom * np.exp(1j * math.radians(nuisance.roll))
    offset = target.mean() + complex(*nuisance.shift) - factor * source.mean()
    return np.array(
        [[factor.real, -factor.imag, offset.real], [factor.imag, factor.real, offset.imag]]
    )


def _march(
    head: Head, rotation: np.ndarray, image_from_camera: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Find the surface behind every pixel.

    A coarse march over every second pixel, a few steps of refinement for all pixels, and a patient
    march for those at a jump in depth, where a neighbour's depth says nothing.

    Returns:
        Texture columns and rows, depth towards the camera in mm, and whether the ray hits.
    """
    inverse = cv2.invertAffineTransform(image_from_camera)
    back = (rotation.T / np.array([A, 2 / TEXELS, B])[:, None]).astype(np.float32)
    # Rows of `rays`: x / A, row of the radius map, z / B as functions of (u, v, 1, depth).
    rays = np.hstack([back[:, :2] @ inverse, back[:, 2:]]).astype(np.float32)
    rays[1, 2] += -TOP * (TEXELS / 2) - 0.5

    def starts(size: int) -> list[np.ndarray]:
        pixel = (np.arange(size, dtype=np.float32) + 0.5) * np.float32(SIZE / size)
        u, v = pixel[None, :] - np.float32(0.5), pixel[:, None] - np.float32(0.5)
        return [ray[0] * u + (ray[1] * v + ray[2]) for ray in rays]

    step_x, step_row, step_z = rays[:, 3]
    centre, shift = np.float32(WIDTH / 4), np.float32(WIDTH / 4 - 0.5)

    def gap(start: list[np.ndarray], depth: np.ndarray) -> tuple[np.ndarray, ...]:
        """Return how far outside (> 0) the points lie, as a share, with their map position."""
        x, row, z = step_x * depth, step_row * depth, step_z * depth
        x += start[0]
        row += start[1]
        z += start[2]
        # cv2.magnitude rounds by where its arrays lie in memory, which differs from call to call.
        rho = cv2.sqrt(x * x + z * z)
        # sin(phi / 2) = x / sqrt(2 rho (rho + z)); the map's columns run in it.
        behind = np.maximum(rho + z, np.float32(1e-6))
        column = x * centre / cv2.sqrt(rho * behind * 2) + shift
        radius = cv2.remap(head.radius, column, row, cv2.INTER_LINEAR, None, cv2.BORDER_REPLICATE)
        return rho - radius, column, row

    def patient(start: list[np.ndarray], depth: np.ndarray, steps: int, least: float) -> np.ndarray:
        """March on with a least step, so that rays that graze the surface get past it."""
        hit = np.zeros(depth.shape, bool)
        for _ in range(steps):
            distance = gap(start, depth)[0]
            hit |= distance < 0.004
            depth -= np.maximum(54 * distance, np.where(hit, np.float32(-2.6), np.float32(least)))
        return hit

    coarse = starts(SIZE // 2)
    depth: np.ndarray = np.full((SIZE // 2, SIZE // 2), 118, np.float32)
    hits = patient(coarse, depth, 12, 8.0)
    depth[~hits] = -140
    near, far = cv2.dilate(depth, _CROSS), cv2.erode(depth, _CROSS)
    jump = cv2.resize(
        (near - far > 11).view(np.uint8), (SIZE, SIZE), interpolation=cv2.INTER_NEAREST
    )
    near = cv2.resize(near, (SIZE, SIZE), interpolation=cv2.INTER_NEAREST)
    depth = cv2.resize(depth, (SIZE, SIZE), interpolation=cv2.INTER_LINEAR)
    hit = cv2.resize(hits.view(np.uint8), (SIZE, SIZE), interpolation=cv2.INTER_NEAREST).view(bool)

    fine = starts(SIZE)
    jumps = np.flatnonzero(jump)
    edge_start = [begin.ravel()[jumps][None, :] for begin in fine]
    edge_depth = near.ravel()[jumps][None, :] + np.float32(2)
    edge_hit = patient(edge_start, edge_depth, 14, 7.0)
    depth.ravel()[jumps] = edge_depth[0]
    hit.ravel()[jumps] = edge_hit[0]
    depth -= np.float32(60) * np.clip(gap(fine, depth)[0], -0.06, 0.06)
    _, column, row = gap(fine, depth)
    return column * 2 + np.float32(0.5), row * 2 + np.float32(0.5), depth, hit


def _look_up(texture: np.ndarray, columns: np.ndarray, rows: np.ndarray) -> np.ndarray:
    return cv2.remap(texture, columns, rows, cv2.INTER_LINEAR, None, cv2.BORDER_REPLICATE)


def _light(
    head: Head,
    nuisance: Nuisance,
    rotation: np.ndarray,
    columns: np.ndarray,
    rows: np.ndarray,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return diffuse light, specular light and the cosine to the viewer for every pixel."""
    azimuth, elevation = (
        math.radians(nuisance.light_azimuth),
        math.radians(nuisance.light_elevation),
    )
    light = np.array(
        [
            math.sin(azimuth) * math.cos(elevation),
            -math.sin(elevation),
            math.cos(azimuth) * math.cos(elevation),
        ]
    )
    viewer = np.array([0.0, 0.0, 1.0])
    half = (light + viewer) / np.linalg.norm(light + viewer)
    directions = (np.stack([light, half, viewer]) @ rotation).astype(np.float32)
    cosines = cv2.transform(head.normals, directions)
    cosines = _look_up(cosines, (columns - 0.5) / 2, (rows - 0.5) / 2)
    diffuse, halfway, facing = cv2.split(cosines)
    shine = cv2.pow(np.maximum(halfway, 0), 18)
    return diffuse, shine, np.maximum(facing, 0)


def _grey(identity: Identity, age: float) -> float:
    return float(np.clip((age - identity.grey_onset) / 26, 0, 0.92))


def _skin_colour(
    skin: np.ndarray, cover: np.ndarray, identity: Identity, nuisance: Nuisance, age: float
) -> np.ndarray:
    old = float(np.clip((age - 26) / 42, 0, 1.1))
    lines = skin[3] * np.float32((0.03 + 0.40 * old + 0.07 * nuisance.smile) / 255)
    colour = skin[:3] * (1 - lines * _rgb((0.75, 1.0, 1.05)))
    grey = _grey(identity, age)
    dark = _rgb(identity.hair_colour)
    beard = dark * (1 - grey) * 0.8 + grey * _rgb((172, 170, 166))
    brows = dark * (1 - 0.6 * grey) * 0.72 + 0.6 * grey * _rgb((150, 146, 142))
    if identity.beard != "none":
        colour += (beard * (0.6 + cover[1] / 320) - colour) * (cover[2] / 255)
    colour += (np.minimum(brows, 140) - colour) * (cover[3] / 255)
    return colour


def _hair_colour(
    cover: np.ndarray, identity: Identity, age: float
) -> tuple[np.ndarray, np.ndarray]:
    grey = _grey(identity, age)
    recede = identity.recession * float(np.clip((age - 30) / 40, 0, 1)) * 0.6
    cropped = identity.hair_style in ("buzz", "bald")
    soft = 0.1 if cropped or identity.hair_style == "short" else 0.16
    alpha = np.clip(cover[0] * (soft / LEVEL) + (0.35 - soft * (128 / LEVEL + recede)), 0, 1)
    if cropped:
        alpha *= 0.82
    base = _rgb(identity.hair_colour) * (1 - grey) + grey * _rgb((186, 184, 182))
    return base * (0.52 + cover[1] * (0.92 / 255)), alpha


def _paint(
    identity: Identity, head: Head, nuisance: Nuisance, age: float
) -> tuple[np.ndarray, np.ndarray]:
    """Paint eyes and mouth into a copy of the textures and move the brows.

    Colours of three values leave 0 in the fourth channel: what moves has no wrinkles.
    """
    skin = head.skin.copy()
    for sign in (-1, 1):
        _eye(skin, identity, nuisance, age, sign)
    _mouth(skin, identity, nuisance, age)
    cover = head.cover
    rise = round(nuisance.brow_raise * 3.5 * TEXELS)
    if rise:
        cover = cover.copy()
        first, last = int((-45 - TOP) * TEXELS), int((-5 - TOP) * TEXELS)
        cover[first:last, :, 3] = head.cover[first + rise : last + rise, :, 3]
    return skin, cover


_ToPixels = Callable[[np.ndarray | float, np.ndarray | float], Pixels]


def _patch(
    skin: np.ndarray, x: float, y: float, width: float, height: float
) -> tuple[np.ndarray, _ToPixels]:
    """Return a view of the texture around (x, y), and how to find positions in it."""
    corner = np.array([[x - width, x + width], [y - height, y + height]])
    columns, rows = texel(corner[0], corner[1])
    left, top = int(columns[0]), int(rows[0])

    def to_pixels(x: np.ndarray | float, y: np.ndarray | float) -> Pixels:
        column, row = texel(x, y)
        return column - left, row - top

    return skin[top : int(rows[1]) + 2, left : int(columns[1]) + 2], to_pixels


def _blend(target: np.ndarray, source: np.ndarray, mask: np.ndarray) -> None:
    weight = mask.astype(np.float32)[..., None] / 255
    target[:] = (target + (source - target.astype(np.float32)) * weight + 0.5).astype(np.uint8)


_LID = np.linspace(-1, 1, 13)


def _eye(skin: np.ndarray, identity: Identity, nuisance: Nuisance, age: float, sign: int) -> None:
    p = identity
    old = float(np.clip((age - 30) / 45, 0, 1))
    centre, half = sign * p.eye_distance / 2, p.eye_width / 2
    opening = p.eye_width * p.eye_open * (1 - 0.16 * old) * (1 - 0.18 * nuisance.smile)
    opening = opening * (1 + 0.12 * nuisance.brow_raise)
    upper, lower = opening * 0.60 * (1 - 0.97 * nuisance.blink), opening * 0.40
    if nuisance.blink > 0.5:
        lower *= 0.8
    # The almond is fullest towards the nose above and towards the ear below.
    t = _LID
    tilt = math.tan(math.radians(p.eye_tilt))
    across = centre + sign * half * t
    base = -tilt * half * t
    top = base - upper * (1 - np.abs(t + 0.12 * (1 - t * t)) ** 2.1)
    closing = lower * (1 - nuisance.blink * 0.2)
    bottom = base + closing * (1 - np.abs(t - 0.15 * (1 - t * t)) ** 2.3)
    if nuisance.blink > 0.6:
        top = np.maximum(top, bottom - 0.9)

    patch, to_pixels = _patch(skin, centre, 0, half + 7, 17)

    # Upper lid: a soft shadow up to the crease.
    crease = top - (p.lid_crease + 1.0) * (1.04 - t * t)
    lid = patch.copy()
    band(lid, to_pixels, across, top, crease, multiply(p.skin, (0.80, 0.70, 0.66)))
    line(lid, *to_pixels(across, crease), multiply(p.skin, (0.58, 0.46, 0.42)), 1)
    line(lid, *to_pixels(across, bottom + 1.0), multiply(p.skin, (0.80, 0.66, 0.62)), 1)
    cv2.addWeighted(cv2.GaussianBlur(lid, (3, 3), 0.7), 0.8, patch, 0.2, 0, dst=patch)

    mask = np.zeros(patch.shape[:2], np.uint8)
    band(mask, to_pixels, across, top, bottom, 255)
    eye = np.empty_like(patch)
    eye[:] = (226, 220, 214, 0)
    look_x, look_y = nuisance.gaze
    iris_x, iris_y = centre + look_x, -opening * 0.10 + look_y
    centre_of_iris = column, row = to_pixels(iris_x, iris_y)
    corner = to_pixels(centre - sign * half * 0.93, base[0])
    ellipse(eye, corner, 2.4, 1.9, (196, 138, 128))
    ellipse(eye, centre_of_iris, 6.1, 6.1, multiply(p.iris, (0.45, 0.45, 0.48)))
    ellipse(eye, centre_of_iris, 5.2, 5.2, multiply(p.iris, (0.95, 0.95, 0.95)))
    ellipse(eye, (column, row + 1.6), 3.6, 3.0, multiply(p.iris, (1.22, 1.2, 1.16)))
    ellipse(eye, centre_of_iris, 2.3, 2.3, (14, 12, 12))
    eye = cv2.GaussianBlur(eye, (3, 3), 0.5)
    # The upper lid throws a shadow on the eyeball.
    _, top_row = to_pixels(centre, -upper)
    shadow = np.clip(0.60 + (np.arange(patch.shape[0]) - top_row) * 0.085, 0.5, 1.0)
    eye = (eye * shadow[:, None, None]).astype(np.uint8)
    glint = 1.5 * (1 if nuisance.light_azimuth > 0 else -1)
    ellipse(eye, to_pixels(iris_x + glint, iris_y - 1.9), 0.85, 0.85, (250, 250, 250))
    _blend(patch, eye, mask)

    lash = multiply(0.35 * np.array(p.hair_colour) + 8, (0.8, 0.72, 0.7))
    thick = 2 if p.lashes > 0.65 else 1
    line(patch, *to_pixels(across[1:], top[1:]), lash, thick)
    if p.lashes > 0.9:
        tip = centre + sign * half * np.array([1.0, 1.0 + 0.10 * p.lashes])
        line(patch, *to_pixels(tip, base[-1] + np.array([0, -2.0 * p.lashes])), lash, 1)
    if nuisance.blink < 0.6:
        lower_lid = multiply(p.skin, (0.60, 0.46, 0.42))
        line(patch, *to_pixels(across[4:], bottom[4:] + 0.3), lower_lid, 1)


_LIP = np.linspace(-1, 1, 15)


def _mouth(skin: np.ndarray, identity: Identity, nuisance: Nuisance, age: float) -> None:
    p, t = identity, _LIP
    old = float(np.clip((age - 30) / 45, 0, 1))
    smile, opened = nuisance.smile, nuisance.mouth_open
    half = p.mouth_width / 2 + 5.0 * smile - 1.5 * opened
    thin = (1 - 0.32 * old) * (1 - 0.22 * smile)
    upper, lower = p.upper_lip * thin, p.lower_lip * thin
    corner = p.mouth_y + 2.0 * opened - 4.5 * smile
    arc = 1 - t * t
    seam = corner + (6.0 * smile - 1.0 * opened) * arc + 2.2 * arc
    gap_up = seam - 2.2 * opened * arc - 1.4 * smile * opened * arc
    gap_down = seam + 11.0 * opened * arc**0.8 + 1.0 * smile * opened
    bow = (
        1
        - 0.30 * p.cupid * np.exp(-((t / 0.16) ** 2))
        + 0.12 * p.cupid * np.exp(-(((np.abs(t) - 0.27) / 0.16) ** 2))
    )
    top = gap_up - upper * arc * bow
    bottom = gap_down + lower * arc**1.2
    across = half * t

    patch, to_pixels = _patch(skin, 0, p.mouth_y + 6, half + 8, 34)

    lip = np.array(p.lip_colour) * (1 - 0.10 * old) + 0.10 * old * np.array(p.skin)
    paint = patch.copy()
    mask = np.zeros(patch.shape[:2], np.uint8)
    band(paint, to_pixels, across, top, gap_up, multiply(lip, (0.86, 0.82, 0.82)))
    band(paint, to_pixels, across, gap_down, bottom, multiply(lip, (0.97, 0.95, 0.95)))
    gloss = to_pixels(0.0, gap_down[7] + lower * 0.42)
    ellipse(paint, gloss, half * 0.36, lower * 0.2, multiply(lip, (1.10, 1.12, 1.12)))
    band(mask, to_pixels, across, top, bottom, 255)
    paint = cv2.GaussianBlur(paint, (5, 5), 0.9)
    _blend(patch, paint, cv2.GaussianBlur(mask, (5, 5), 1.1))

    if opened > 0.05:
        inside = patch.copy()
        band(inside, to_pixels, across, gap_up, gap_down, (58, 24, 24))
        teeth_low = np.minimum(gap_up + (3.2 + 3.2 * smile) * arc**0.5, gap_down - 0.6)
        band(inside, to_pixels, across, gap_up, np.maximum(teeth_low, gap_up), (206, 197, 184))
        if opened > 0.45:
            tongue = to_pixels(0.0, gap_down[7] - 2.0)
            ellipse(inside, tongue, half * 0.42, 2.6 * opened, (150, 74, 74))
        hole = np.zeros_like(mask)
        band(hole, to_pixels, across, gap_up, gap_down, 255)
        _blend(patch, cv2.GaussianBlur(inside, (3, 3), 0.6), hole)
        line(patch, *to_pixels(across, gap_up), multiply(lip, (0.5, 0.42, 0.42)), 1)
    else:
        dark = multiply(lip, (0.48, 0.38, 0.38))
        line(patch, *to_pixels(across, seam), dark, 1)
    for sign in (-1, 1):
        at = to_pixels(sign * (half + 0.4), corner)
        ellipse(patch, at, 1.3, 1.1, multiply(p.skin, (0.58, 0.44, 0.42)))


def _background(nuisance: Nuisance, generator: np.random.Generator) -> np.ndarray:
    """Return a blurred room or street, and shoulders in front of it."""
    g = generator
    base = g.uniform(40, 215) + g.normal(0, 11, 3)
    coarse = base + g.normal(0, 1, (5, 5, 1)) * g.uniform(6, 34) + g.normal(0, 4, (5, 5, 3))
    scene = cv2.resize(coarse.astype(np.float32), (28, 28), interpolation=cv2.INTER_CUBIC)
    if g.random() < 0.5:
        # Something upright in the distance: a door, a window frame, a tree.
        edge, width = g.integers(0, 28), g.integers(1, 10)
        scene[:, edge : edge + width] += g.normal(0, 26, 3).astype(np.float32)
    scene = cv2.resize(scene, (SIZE, SIZE), interpolation=cv2.INTER_CUBIC)
    planes = _planes(scene) * np.float32(0.55 + 0.5 * nuisance.ambient)
    cloth = np.clip(g.uniform(20, 220) + g.normal(0, 26, 3), 8, 240) * (0.4 + 0.6 * nuisance.light)
    slope, height = g.uniform(0.25, 0.6), g.uniform(98, 108)
    x = np.arange(SIZE, dtype=np.float32) - 56 - nuisance.yaw * 0.15
    collar = height + 34 * np.exp(-((x / 17.0) ** 2)) + slope * (np.abs(x) - 30)
    first = int(np.clip(collar.min(), 0, SIZE))
    below = np.clip((np.arange(first, SIZE)[:, None] - collar) / 2, 0, 1).astype(np.float32)
    planes[:, first:] += (_rgb(cloth) - planes[:, first:]) * below
    return planes


def _glasses(
    image: np.ndarray,
    identity: Identity,
    rotation: np.ndarray,
    image_from_camera: np.ndarray,
    depth: np.ndarray,
    hit: np.ndarray,
    head: Head,
    nuisance: Nuisance,
) -> None:
    """Draw rims, bridge and temples in space, where the head does not hide them."""
    p = identity
    distance = p.eye_distance / 2 + 1
    width, height, power = ((22, 19, 2.0), (24, 15.5, 4.5), (25, 18, 3.0))[p.frame]
    front = head.landmarks[0, 2] + 13.0
    around = np.linspace(0, 2 * np.pi, 25)
    cosine, sine = np.cos(around), np.sin(around)
    rim_x = width * np.sign(cosine) * np.abs(cosine) ** (2 / power)
    rim_y = 4 + height * np.sign(sine) * np.abs(sine) ** (2 / power)

    def bend(x: np.ndarray) -> np.ndarray:
        return front + 4.0 - (x / 30) ** 2 * 4.0

    curves = [
        np.stack([sign * distance + rim_x, rim_y, bend(sign * distance + rim_x)], axis=-1)
        for sign in (-1, 1)
    ]
    bridge = np.linspace(-1, 1, 5) * (distance - width + 0.5)
    curves.append(np.stack([bridge, 1 - 3 * (1 - (bridge / 12) ** 2), bend(bridge) + 2], axis=-1))
    for sign in (-1, 1):
        start = sign * (distance + width)
        x = np.linspace(start, sign * (A * p.head_width + 3), 8)
        z = np.linspace(bend(np.array(start)), -8, 8)
        curves.append(np.stack([x, np.linspace(-1, -4, 8), z], axis=-1))

    overlay = np.zeros((SIZE, SIZE), np.uint8)
    lens = np.zeros((SIZE, SIZE), np.uint8)
    for index, curve in enumerate(curves):
        camera = curve @ rotation.T
        pixels = camera[:, :2] @ image_from_camera[:, :2].T + image_from_camera[:, 2]
        nearest = np.clip(np.round(pixels), 0, SIZE - 1).astype(int)
        surface = depth[nearest[:, 1], nearest[:, 0]]
        seen = (camera[:, 2] > surface - 5) | ~hit[nearest[:, 1], nearest[:, 0]]
        if index < 2 and seen.all():
            fill_polygon(lens, pixels[:, 0], pixels[:, 1], 255)
        for first in range(len(curve) - 1):
            if seen[first] and seen[first + 1]:
                heavy = 2 if p.frame == 2 and index < 2 and first >= 12 else 1
                ends = pixels[first : first + 2]
                line(overlay, ends[:, 0], ends[:, 1], 255, heavy)
    image += lens[..., None] * np.float32(0.035)
    light = np.float32(nuisance.ambient + 0.5 * nuisance.light)
    colour = np.array(p.frame_colour, np.float32) * light
    image += (colour - image) * (overlay[..., None] * np.float32(0.9 / 255))


def _camera(image: np.ndarray, nuisance: Nuisance, generator: np.random.Generator) -> np.ndarray:
    # Half of the way to automatic exposure for the face, so that dark skin is not lost in noise.
    exposure = np.clip((118 / max(float(image[30:100, 30:82].mean()), 1.0)) ** 0.5, 0.8, 2.0)
    image = image * np.float32(nuisance.brightness * exposure)
    # A shoulder as film has it, instead of clipping at white.
    over = np.maximum(image - 195, 0)
    image = np.minimum(image, 195) + over * (60 / (60 + over))
    if nuisance.contrast != 1.0:
        mean = float(image.mean())
        image = mean + (image - mean) * np.float32(nuisance.contrast)
    sigma = math.hypot(nuisance.blur, 0.35)
    blurred = np.asarray(cv2.GaussianBlur(image, (0, 0), sigma))
    top, left = generator.integers(0, _NOISE.shape[0] - SIZE, 2)
    grain = _NOISE[top : top + SIZE, left : left + SIZE] * np.float32(nuisance.noise)
    # Saturates and rounds.
    return np.asarray(cv2.convertScaleAbs(np.maximum(blurred + grain, 0)))
