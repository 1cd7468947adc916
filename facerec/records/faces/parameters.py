"""What a generated subject is (`Identity`) and how one photo of them was taken (`Nuisance`).

Lengths are millimetres on a head whose eyes are about 63 mm apart, measured from the point
between the eyes: x to the viewer's right, y down, z towards the viewer. Angles are degrees,
colours RGB in [0, 255].
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, get_origin, get_type_hints

import numpy as np

Colour = tuple[float, float, float]

HAIR_STYLES = (
    "bald", "buzz", "short", "quiff", "side_part", "tied", "bangs", "bob", "long", "curly", "afro",
)  # fmt: skip
BEARDS = ("none", "stubble", "moustache", "goatee", "full")

_SKIN = np.array(
    [(246, 214, 194), (236, 194, 167), (222, 172, 138), (199, 146, 110), (163, 113, 82),
     (122, 81, 58), (88, 58, 43)],
    dtype=np.float64,
)  # fmt: skip
_HAIR = {
    "black": (30, 26, 26),
    "dark brown": (56, 38, 29),
    "brown": (92, 61, 40),
    "light brown": (138, 98, 64),
    "red": (150, 70, 36),
    "blond": (200, 160, 104),
    "light blond": (226, 198, 150),
}
_EYES = {
    "dark brown": (50, 32, 22),
    "brown": (92, 58, 34),
    "hazel": (122, 96, 52),
    "green": (96, 122, 84),
    "blue": (92, 132, 172),
    "grey": (128, 138, 146),
}


class Trait:
    """How a measure is spread over subjects: a normal distribution, cut off on both sides.

    Its mean moves with two hidden traits in [0, 1], so that what goes together in subjects goes
    loosely together here: ``rugged`` ties jaw, brows, lips, beard and hair length together, and
    ``depth`` is that of the skin's colour.
    """

    def __init__(
        self, mean: float, spread: float, low: float, high: float, **slopes: float
    ) -> None:
        self.mean, self.spread, self.low, self.high = mean, spread, low, high
        self.slopes = slopes  # added in the order in which they are written, for the same rounding

    def draw(self, generator: np.random.Generator, **hidden: float) -> float:
        """Draw the measure of one subject."""
        mean = self.mean
        for name, slope in self.slopes.items():
            mean += slope * hidden[name]
        return float(np.clip(generator.normal(mean, self.spread), self.low, self.high))


@dataclass(frozen=True)
class Uniform:
    """A measure that is spread evenly from ``low`` to ``high``."""

    low: float
    high: float

    def draw(self, generator: np.random.Generator, **hidden: float) -> float:
        """Draw the measure of one subject."""
        return float(generator.uniform(self.low, self.high))


@dataclass(frozen=True)
class Identity:
    """One generated subject: what stays the same from photo to photo."""

    seed: int
    """Source of the textures: strands, freckles, the course of wrinkles."""
    base_age: float
    """Years; most photos of the subject lie close to it."""

    head_width: Annotated[float, Trait(0.94, 0.04, 0.85, 1.06, rugged=0.02)]
    hairline: Annotated[float, Trait(61, 6.5, 46, 76)]
    cheekbones: Annotated[float, Trait(3.5, 2.4, -2, 9)]
    cheek_hollow: Annotated[float, Trait(0.6, 2.6, -5, 6)]
    jaw_width: Annotated[float, Trait(0.765, 0.05, 0.65, 0.95, rugged=0.075)]
    jaw_square: Annotated[float, Trait(0.95, 0.3, 0.6, 2.3, rugged=0.55)]
    chin_y: Annotated[float, Trait(103, 4.2, 93, 116, rugged=3.5)]
    chin_width: Annotated[float, Trait(10, 3.0, 6, 22, rugged=6)]
    chin_forward: Annotated[float, Trait(3.5, 2.6, -3, 9)]
    ears: Annotated[float, Trait(11, 3.4, 4, 20)]
    eye_distance: Annotated[float, Trait(63, 3.2, 55, 71)]
    eye_width: Annotated[float, Trait(30, 1.9, 24.5, 35, rugged=-1.5)]
    eye_open: Annotated[float, Trait(0.40, 0.05, 0.27, 0.52, rugged=-0.05)]
    eye_tilt: Annotated[float, Trait(3.5, 3.8, -6, 13)]
    eye_depth: Annotated[float, Trait(5.0, 1.8, 1.5, 10, rugged=1.5)]
    lid_crease: Annotated[float, Trait(3.6, 1.6, 0.6, 7)]
    lashes: Annotated[float, Trait(1.25, 0.22, 0.5, 1.8, rugged=-0.55)]
    brow_y: Annotated[float, Trait(-20.5, 2.2, -27, -14, rugged=3.0)]
    brow_thickness: Annotated[float, Trait(3.0, 1.0, 1.6, 7.5, rugged=2.4)]
    brow_arch: Annotated[float, Trait(4.4, 1.7, 0, 8, rugged=-2.6)]
    brow_tilt: Annotated[float, Trait(0.8, 2.6, -6, 7)]
    brow_length: Annotated[float, Trait(37, 3.0, 29, 45)]
    brow_density: Annotated[float, Uniform(0.62, 1.0)]
    nose_length: Annotated[float, Trait(38, 3.4, 30, 47)]
    nose_width: Annotated[float, Trait(13.5, 1.8, 9.5, 21, rugged=1.5, depth=2.0)]
    nose_bridge: Annotated[float, Trait(5.5, 2.0, 0.5, 11, depth=-2.5, rugged=1)]
    nose_tip: Annotated[float, Trait(20.5, 3.0, 13, 29, rugged=1.5)]
    nose_hump: Annotated[float, Trait(0.3, 1.7, -3, 4.5)]
    nose_tip_width: Annotated[float, Trait(6.2, 1.2, 4, 10.5, rugged=1, depth=1)]
    mouth_y: Annotated[float, Trait(71.5, 2.6, 65, 79)]
    mouth_width: Annotated[float, Trait(52, 4.0, 42, 63)]
    upper_lip: Annotated[float, Trait(6.4, 1.3, 3.0, 11, rugged=-1.4, depth=1.8)]
    lower_lip: Annotated[float, Trait(8.6, 1.4, 5.0, 13, rugged=-1.2, depth=2.0)]
    cupid: Annotated[float, Uniform(0.1, 1.0)]
    blush: Annotated[float, Uniform(0.1, 1.0)]

    iris: Colour
    lip_colour: Colour
    skin: Colour
    freckles: float
    moles: tuple[tuple[float, float, float], ...]
    """Each ``(x, y, radius)``; z follows from the surface."""
    scar: tuple[float, float, float, float] | None
    """``(x, y, length, angle)`` or none."""

    hair_style: str
    hair_colour: Colour
    hair_volume: float
    hair_part: float
    """-1 parted on the viewer's left, 1 on the right."""
    wave: float
    grey_onset: float
    """Age at which the hair begins to turn grey."""
    recession: float
    """Millimetres that the hairline moves up between 30 and 70 years."""
    beard: str
    beard_density: float
    wears_glasses: bool
    frame: int
    """0 round, 1 rectangular, 2 wide with a heavy upper rim."""
    frame_colour: Colour


_TRAITS: dict[str, Trait | Uniform] = {
    name: hint.__metadata__[0]
    for name, hint in get_type_hints(Identity, include_extras=True).items()
    if get_origin(hint) is Annotated
}
_VOLUME, _GREY_ONSET = Trait(1.0, 0.22, 0.55, 1.6), Trait(51, 8, 36, 72)


def draw_identity(generator: np.random.Generator) -> Identity:
    """Draw a subject."""
    g = generator

    def between(low: float, high: float) -> float:
        return float(g.uniform(low, high))

    rugged = float(np.clip(g.normal(g.choice((0.2, 0.8)), 0.17), 0.0, 1.0))
    depth = float(g.beta(0.95, 1.15))
    skin = _mix_table(_SKIN, depth) * g.normal(1.0, 0.025, 3)
    # The fairer the skin, the more often hair and eyes are light.
    fair = max(0.0, 1.0 - 1.8 * depth)
    hairs = (0.4 + 4.0 * depth, 1.5, 1.3 * (1.1 - depth), fair, 0.6 * fair, 1.1 * fair, 0.5 * fair)
    hair_colour = np.array(_HAIR[_pick(g, tuple(_HAIR), hairs)])
    hair_colour = hair_colour * g.uniform(0.88, 1.15) + g.normal(0, 3, 3)
    eyes = (0.5 + 4.0 * depth, 1.5, 0.7 * (1.0 - depth), 0.9 * fair, 1.9 * fair, 0.8 * fair)
    iris = np.array(_EYES[_pick(g, tuple(_EYES), eyes)]) + g.normal(0, 8, 3)
    base_age = between(20.0, 50.0)

    if rugged > 0.5:
        hair_weights = (1.0, 1.6, 2.6, 2.2, 2.4, 0.3, 0.4, 0.1, 0.6, 1.1, 0.4 + 0.8 * depth)
        beard = _pick(g, BEARDS, (3.4, 1.6, 0.9, 0.9, 1.7))
    else:
        hair_weights = (0.05, 0.2, 0.7, 0.3, 0.7, 2.0, 1.9, 2.2, 2.8, 1.6, 0.3 + 0.8 * depth)
        beard = "none"
    lip = np.array(skin) * (0.84, 0.54, 0.55) + (18 - 14 * depth, 8, 12)
    if rugged < 0.45:
        # A little lipstick for some.
        lip = lip + g.uniform(0, 1) ** 2 * np.array((10, -40, -25))

    moles = tuple(
        (between(-52, 52), between(-40, 92), between(0.9, 2.1))
        for _ in range(g.choice((0, 0, 1, 1, 2, 3)))
    )
    scar = None
    if g.random() < 0.07:
        scar = (between(-45, 45), between(-35, 60), between(10, 22), between(0, 180))

    return Identity(
        seed=int(g.integers(2**31)),
        base_age=base_age,
        **{name: trait.draw(g, rugged=rugged, depth=depth) for name, trait in _TRAITS.items()},
        iris=_colour(iris),
        lip_colour=_colour(lip),
        skin=_colour(skin),
        freckles=float(max(0.0, g.normal(-0.5, 0.6))) if depth < 0.55 else 0.0,
        moles=moles,
        scar=scar,
        hair_style=_pick(g, HAIR_STYLES, hair_weights),
        hair_colour=_colour(hair_colour),
        hair_volume=_VOLUME.draw(g),
        hair_part=float(g.choice((-1.0, 1.0))) * between(0.35, 1.0),
        wave=between(0.0, 1.0) ** 1.5,
        grey_onset=_GREY_ONSET.draw(g),
        recession=between(0, 26) * rugged,
        beard=beard,
        beard_density=between(0.55, 1.0),
        wears_glasses=bool(g.random() < 0.16),
        frame=int(g.integers(3)),
        frame_colour=_colour(
            np.array(((24, 22, 24), (70, 44, 30), (150, 128, 96), (44, 52, 84))[g.integers(4)])
        ),
    )


def restyle(identity: Identity, generator: np.random.Generator) -> Identity:
    """Give the subject another haircut of similar length, as decades do."""
    short = ("buzz", "short", "quiff", "side_part", "curly")
    long = ("tied", "bangs", "bob", "long", "curly")
    family = short if identity.hair_style in (*short[:4], "bald", "afro") else long
    return replace(
        identity,
        hair_style=str(generator.choice(family)),
        hair_part=float(generator.choice((-1.0, 1.0)) * generator.uniform(0.35, 1.0)),
        hair_volume=float(np.clip(identity.hair_volume * generator.uniform(0.8, 1.25), 0.55, 1.6)),
    )


@dataclass(frozen=True)
class Nuisance:
    """The circumstances of one photo: what a face embedding has to ignore."""

    yaw: float = 0.0
    """Degrees; positive turns the face to the viewer's right."""
    pitch: float = 0.0
    """Degrees; positive looks down."""
    roll: float = 0.0
    """Degrees that remain after alignment."""
    shift: tuple[float, float] = (0.0, 0.0)
    """Error of the alignment in pixels (x, y)."""
    zoom: float = 1.0
    """Error of the alignment as a factor on the size."""

    light_azimuth: float = 25.0
    """Degrees; positive comes from the viewer's right."""
    light_elevation: float = 30.0
    """Degrees above the horizon."""
    light: float = 0.75
    """Strength of the directed light."""
    ambient: float = 0.5
    """Strength of the light from everywhere."""
    warmth: float = 0.0
    """-1 is a blue shade, 1 a lamp's yellow."""

    smile: float = 0.0
    """0 to 1."""
    mouth_open: float = 0.0
    """0 to 1."""
    brow_raise: float = 0.0
    """-1 (frown) to 1."""
    blink: float = 0.0
    """0 open to 1 closed."""
    gaze: tuple[float, float] = (0.0, 0.0)
    """Millimetres that the irises move (x, y)."""
    age: float | None = None
    """Years; none takes the subject's base age."""
    glasses: bool = False

    contrast: float = 1.0
    """Factor on the deviation from the image's mean."""
    brightness: float = 1.0
    blur: float = 0.3
    """Standard deviation of the camera's blur in pixels."""
    noise: float = 2.0
    """Standard deviation of the sensor noise in grey levels."""
    jpeg_quality: int = 90


@dataclass(frozen=True)
class Conditions:
    """What is different between kinds of photos."""

    yaw: tuple[float, float]
    """Degrees, least and most; the side is drawn."""
    age: float = 3.5
    """Standard deviation around the subject's base age, in years."""


# With `draw_nuisance` the one place where difficulty is set.
CONDITIONS = {
    "frontal": Conditions(yaw=(0.0, 10.0)),
    "everyday": Conditions(yaw=(0.0, 25.0)),
    "profile": Conditions(yaw=(55.0, 75.0)),
    # Training photos span what the three benches ask for.
    "training": Conditions(yaw=(0.0, 40.0), age=8.0),
}
TRAINING_PROFILE_SHARE = 0.12
TRAINING_AGED_SHARE = 0.15
RESTYLED_SHARE = 0.5
"""Share of the later photos in age pairs that show another haircut."""


def draw_nuisance(
    identity: Identity,
    conditions: Conditions,
    generator: np.random.Generator,
    age: float | None = None,
) -> Nuisance:
    """Draw the circumstances of one photo of ``identity``.

    Args:
        identity: the subject, for their age and glasses.
        conditions: the kind of photo.
        generator: the only source of randomness.
        age: years; none draws one close to the subject's base age.
    """
    g = generator

    def normal(mean: float, spread: float, most: float) -> float:
        return float(np.clip(g.normal(mean, spread), -most, most))

    if age is None:
        age = float(np.clip(identity.base_age + g.normal(0, conditions.age), 18, 85))
    smile = float(g.uniform(0.35, 1.0) if g.random() < 0.45 else g.uniform(0.0, 0.3))
    opened = float(g.uniform(0.15, 0.8)) if g.random() < 0.25 else 0.0
    # Who wears glasses takes them off now and then.
    wears = g.random() < (0.85 if identity.wears_glasses else 0.03)
    blinks = g.random() < 0.04
    return Nuisance(
        yaw=float(g.uniform(*conditions.yaw) * g.choice((-1.0, 1.0))),
        pitch=normal(0, 6.0, 18),
        roll=float(g.normal(0, 2.0)),
        shift=(float(g.normal(0, 0.9)), float(g.normal(0, 0.9))),
        zoom=float(np.exp(g.normal(0, 0.02))),
        light_azimuth=normal(0, 38.0, 80),
        light_elevation=float(g.uniform(0.0, 60.0)),
        light=float(g.uniform(0.35, 0.95)),
        ambient=float(g.uniform(0.35, 0.65)),
        warmth=normal(0.1, 0.4, 1),
        smile=smile,
        mouth_open=opened,
        brow_raise=normal(0, 0.35, 1),
        blink=float(g.uniform(0.5, 1.0)) if blinks else float(g.uniform(0, 0.2)),
        gaze=(normal(0, 1.6, 4), normal(0, 0.7, 1.5)),
        age=age,
        glasses=bool(wears),
        contrast=float(g.uniform(0.8, 1.15)),
        brightness=float(g.uniform(0.82, 1.14)),
        blur=float(g.uniform(0.2, 0.8)),
        noise=float(g.uniform(1.0, 5.0)),
        jpeg_quality=int(g.integers(75, 96)),
    )


def _pick(
    generator: np.random.Generator, names: tuple[str, ...], weights: tuple[float, ...]
) -> str:
    share = np.array(weights)
    return names[int(generator.choice(len(names), p=share / share.sum()))]


def _mix_table(table: np.ndarray, position: float) -> np.ndarray:
    row = position * (len(table) - 1)
    return np.array([np.interp(row, np.arange(len(table)), channel) for channel in table.T])


def _colour(values: np.ndarray) -> Colour:
    red, green, blue = np.clip(values, 6, 250).round(1).tolist()
    return (red, green, blue)
