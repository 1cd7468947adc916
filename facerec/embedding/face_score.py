"""Is a picture a face that this network knows? A score from pictures that certainly are none.

A network of faces gives all pictures without a face nearly one direction, whatever is on them. The
centre of that direction needs no data: a few hundred generated pictures have it. Ruined faces have
directions of their own, one for blurred ones, one for turned ones and so on, which some faces of a
calibration show when they are spoilt. How far an embedding lies from the nearest of these centres
tells faces, placed as the network expects, from all else. Its length, the other sign of a poor
picture, is left out: women's norms are lower than men's in networks in use, and a limit on the norm
refuses three times as many of them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from facerec.base.libraries import cv2
from facerec.base.progress import Progress
from facerec.base.recipe import check
from facerec.embedding.extraction import extract
from facerec.embedding.model import EmbeddingModel, shifted
from facerec.statistics.intervals import wilson

Image = NDArray[np.uint8]

FALSE_REFUSALS = 0.005
"""Share of the calibration's faces that lie below the limit; of other sets it is up to twice that
(CFP)."""

FAR = -4.5
"""Score below which a picture of a calibration is left out: of 7,701 images of LFW none or one
in networks in use, where nearly all pictures without a face lie lower."""

SPOILT_WEIGHT = 0.6
"""Weight of the centres of spoilt faces beside that of pictures without a face: nearly all spoilt
faces are refused with it, and of faces of other sets (CFP) hardly more than without them."""

EACH = 60
"""Generated pictures of a kind."""

SPOILT_FACES = 128
"""Faces of a calibration that are spoilt: one half gives centres, the other measures the score."""

MOST_CENTRES = 100
"""Of a file."""

WEAK = 50
"""Refused pictures of a kind, of 100, below which it is said that the score does not see it."""


@dataclass(frozen=True, eq=False)
class FaceScore:
    """How far embeddings are from pictures that are no faces, in standard deviations of faces."""

    centres: NDArray[np.float32]
    """Mean directions of pictures without a face, and of each kind of spoilt faces, ``(K, D)``, of
    length 1."""
    cosines: NDArray[np.float64]
    """Median and standard deviation of faces' cosines to each, as of a normal law, ``(K, 2)``; the
    latter over the centre's weight."""
    limit: float
    """Score below which a picture is refused."""
    faces: int
    """Faces of the calibration, of which `FALSE_REFUSALS` lie below the limit."""
    power: Mapping[str, tuple[int, int]]
    """Kind of picture → how many were refused, of how many."""

    def __call__(self, vectors: NDArray[np.floating]) -> NDArray[np.float32]:
        """Return the face scores of raw embeddings ``(N, D)``, float32 ``(N,)``; NaN for NaN."""
        with np.errstate(all="ignore"):
            lengths = np.sqrt(np.einsum("nd,nd->n", vectors, vectors))
            cosines = vectors @ self.centres.T / lengths[:, None]
            away = (self.cosines[:, 0] - cosines) / self.cosines[:, 1]
            return np.asarray(away.min(axis=1), np.float32)

    def far(self, vectors: NDArray[np.floating]) -> NDArray[np.bool_]:
        """Tell which embeddings ``(N, D)`` lie where no face does, whatever the limit is."""
        return np.asarray(self(vectors) < FAR)

    def below(self, score: float) -> str:
        """Say that a score is below the limit."""
        return f"face score {score:.1f}, below the limit of {self.limit:.1f}"

    @property
    def words(self) -> str:
        """Say how much the score refuses at least, by kind, and what it does not see."""
        told = [f"{n} of 100 {kind}" for kind, n in self.least.items() if n >= WEAK]
        refuses = f"refuses at least {', '.join(told)}" if told else "refuses few pictures"
        return f"{refuses}; it does not see {self.blind}" if self.blind else refuses

    @property
    def least(self) -> dict[str, int]:
        """How many of 100 pictures of each kind are refused at the least, with 95 % confidence."""
        return {
            kind: int(100 * wilson(*each, confidence=0.9).low) if each[1] else 0
            for kind, each in (dict.fromkeys(_SPOILT, (0, 0)) | {**self.power}).items()
        }

    @property
    def blind(self) -> str:
        """The kinds of pictures of which it may refuse less than half; empty if there are none."""
        names = [kind for kind, least in self.least.items() if least < WEAK]
        return " and ".join(filter(None, [", ".join(names[:-1]), *names[-1:]]))

    def to_json(self) -> dict[str, Any]:
        """Return all fields as JSON types."""
        rounded = [[float(f"{x:.6g}") for x in centre] for centre in self.centres.tolist()]
        return {**vars(self), "centres": rounded, "cosines": self.cosines.tolist()}

    @classmethod
    def from_json(cls, found: Mapping[str, Any]) -> FaceScore:
        """Return what `to_json` wrote.

        Raises:
            KeyError, TypeError, ValueError, RecipeError: it is damaged.
        """
        with np.errstate(over="ignore"):
            centres = np.array(found["centres"], np.float32)
        cosines = np.array(found["cosines"], np.float64)
        limit = check(float, found["limit"], "face score", "limit")
        faces = check(int, found["faces"], "face score", "faces")
        power = check(dict[str, tuple[int, int]], found["power"], "face score", "power")
        if (
            centres.ndim != 2
            or not 0 < len(centres) <= MOST_CENTRES
            or cosines.shape != (len(centres), 2)
            or not (np.abs(np.linalg.norm(centres, axis=1) - 1) < 0.01).all()
            or not np.isfinite([*cosines.ravel(), limit]).all()
            or cosines[:, 1].min() <= 0
            or not 1 <= faces < 1e15
            or not all(0 <= seen <= of < 1e15 for seen, of in power.values())
        ):
            raise ValueError("its face score is none")
        return cls(centres, cosines, limit, faces, power)

    @classmethod
    def fit(
        cls,
        model: EmbeddingModel,
        vectors: NDArray[np.floating],
        *,
        flip: bool,
        faces: Image | None = None,
        progress: Progress | None = None,
    ) -> FaceScore:
        """Return the face score of a model, with its limit on some people's faces.

        Args:
            model: what embeds.
            vectors: embeddings of faces, ``(N, D)``, all of them finite.
            flip: whether mirror images are added.
            faces: some of these faces, uint8 RGB ``(n, H, W, 3)`` as they come; without them there
                is one centre, and nobody knows what the score does with poor faces.
            progress: see `facerec.base.progress.Progress`.
        """
        placed = model.with_preprocessing(model.preprocessing)
        size, generator = model.image_size, np.random.default_rng(0)
        pictures = without_face(size, generator)
        faces = np.empty((0, *size, 3), np.uint8) if faces is None else faces
        halves = np.array_split(shifted(faces, model.shift), 2)
        spoilt = _SPOILT if len(halves[1]) else {}
        done, kinds = 0, len(pictures) + 1 + 2 * len(spoilt) - len(_NEAR)

        def embedded(pictures: Image) -> NDArray[np.float32]:
            nonlocal done
            done += 1
            if progress is not None:
                progress("looking at pictures without a face", done, kinds)
            return extract(placed, pictures, flip=flip).vectors

        def ruined(kind: str, half: int) -> NDArray[np.float32]:
            return embedded(np.stack([spoilt[kind](face, generator) for face in halves[half]]))

        known = [[_direction(embedded(each)) for each in pictures.values()]]
        known += [[_direction(ruined(kind, 0))] for kind in spoilt if kind not in _NEAR]
        centres = np.array([_unit(np.mean(each, axis=0)) for each in known], np.float32)
        lengths = np.linalg.norm(vectors, axis=1)
        cosines = np.array([_spread(vectors @ centre / lengths) for centre in centres])
        cosines[1:, 1] /= SPOILT_WEIGHT
        trials = {"pictures without a face": embedded(_things(size, generator))}
        trials |= {kind: ruined(kind, 1) for kind in spoilt}
        score = cls(centres, cosines, 0.0, len(vectors), {})
        scores = score(vectors)
        sound = scores[scores >= FAR]  # a few pictures without a face must not move the limit
        limit = float(np.quantile(sound, FALSE_REFUSALS, method="lower")) if len(sound) else FAR
        power = {
            kind: (int((score(trial) < limit).sum()), len(trial)) for kind, trial in trials.items()
        }
        return replace(score, limit=limit, power=power)


def _unit(vector: NDArray[np.floating]) -> NDArray[np.floating]:
    return vector / max(float(np.linalg.norm(vector)), 1e-12)


def _direction(vectors: NDArray[np.floating]) -> NDArray[np.floating]:
    """Return the mean of unit vectors."""
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    return np.asarray((vectors / np.maximum(lengths, 1e-12)).mean(axis=0))


def _spread(values: NDArray[np.floating]) -> tuple[float, float]:
    """Return median and standard deviation, which a few pictures of another kind do not move."""
    low, middle, high = np.quantile(values, [0.159, 0.5, 0.841])
    return float(middle), max(float(high - low) / 2, 1e-6)


def without_face(size: tuple[int, int], generator: np.random.Generator) -> dict[str, Image]:
    """Return kinds of generated pictures without a face, uint8 RGB ``(EACH, H, W, 3)`` each."""
    height, width = size
    y, x = np.mgrid[:height, :width] / max(size)
    ones = np.ones((height, width, 1))

    def colours() -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        return generator.integers(0, 256, 3), generator.integers(0, 256, 3)

    def mixed(share: NDArray[np.floating]) -> NDArray[np.floating]:
        one, other = colours()
        return one * (1 - share[..., None]) + other * share[..., None]

    def along(angle: float) -> NDArray[np.float64]:
        return np.cos(angle) * x + np.sin(angle) * y

    def noise() -> NDArray[np.floating]:
        channels = generator.choice([1, 3])
        return generator.uniform(60, 195) + generator.uniform(20, 90) * generator.normal(
            size=(height, width, channels)
        )

    def smooth() -> NDArray[np.floating]:
        blurred = cv2.GaussianBlur(noise(), (0, 0), 2.0 ** generator.uniform(0, 4.3))
        field = np.asarray(blurred).reshape(height, width, -1)
        spread = max(float(field.std()), 1e-6)
        return (field - field.mean()) / spread * generator.uniform(20, 70) + 127

    def gradient() -> NDArray[np.floating]:
        share = along(generator.uniform(0, 2 * np.pi))
        return mixed((share - share.min()) / np.ptp(share))

    def checkers() -> NDArray[np.floating]:
        angle, side = generator.uniform(0, np.pi), generator.uniform(0.04, 0.4)
        return mixed((along(angle) // side + along(angle + np.pi / 2) // side) % 2)

    kinds: dict[str, Callable[[], NDArray[Any]]] = {
        "constants": lambda: colours()[0] * ones,
        "noise": noise,
        "smooth noise": smooth,
        "gradients": gradient,
        "checkers": checkers,
    }
    return {
        name: _pictures([draw() + np.zeros(3) for _ in range(EACH)]) for name, draw in kinds.items()
    }


def _things(size: tuple[int, int], generator: np.random.Generator) -> Image:
    """Return pictures without a face that gave no centre, to measure the score on, as many.

    Things that hide each other, of all sizes, have the statistics of photos without being any (A.
    Lee, D. Mumford, J. Huang, "Occlusion models for natural images", IJCV 41, 2001). Pale and soft
    ones are refused least, and as often as photos of cars, in networks that refuse few of either.
    """

    def colour() -> NDArray[np.floating]:
        drawn = generator.integers(0, 256, 3)
        return drawn.mean() + 0.4 * (drawn - drawn.mean())

    def draw() -> Image:
        picture = np.zeros((*size, 3), np.uint8) + colour().astype(np.uint8)
        for _ in range(int(generator.integers(30, 200))):
            radius = 0.027 * max(size) * (1 - 0.99 * generator.uniform()) ** -0.7
            centre = (generator.uniform(-0.1, 1.1, 2) * size[::-1]).tolist()
            sides = [2 * radius * generator.uniform(0.3, 1), 2 * radius]
            thing = centre, sides, generator.uniform(0, 180)
            if generator.uniform() < 0.5:
                cv2.ellipse(picture, thing, colour().tolist(), -1)
            else:
                cv2.fillPoly(picture, [cv2.boxPoints(thing).astype(np.int32)], colour().tolist())
        return _blurred(picture, generator.uniform(1.5, 3) * size[0] / 112)

    return np.stack([draw() for _ in range(EACH)])


def _pictures(drawn: list[Any]) -> Image:
    return np.clip(np.stack(drawn), 0, 255).astype(np.uint8)


def _blurred(picture: Image, spread: float) -> Image:
    return cv2.GaussianBlur(picture, (0, 0), spread).astype(np.uint8, copy=False)


def _shrunk(face: Image, generator: np.random.Generator) -> Image:
    height, width = face.shape[:2]
    small = cv2.resize(face, (width // 8, height // 8), interpolation=cv2.INTER_AREA)
    large = cv2.resize(small, (width, height), interpolation=cv2.INTER_LINEAR)
    return large.astype(np.uint8, copy=False)


def _turned(face: Image, generator: np.random.Generator) -> Image:
    height, width = face.shape[:2]
    angle = 30 * generator.choice([-1, 1])
    turn = cv2.getRotationMatrix2D(((width - 1) / 2, (height - 1) / 2), angle, 1)
    return cv2.warpAffine(face, turn, (width, height)).astype(np.uint8, copy=False)


def _shuffled(face: Image, generator: np.random.Generator) -> Image:
    rows, columns = (np.array_split(np.arange(side), 4) for side in face.shape[:2])
    height, width = (min(map(len, parts)) for parts in (rows, columns))
    tiles = [face[r[0] :][:height, c[0] :][:, :width] for r in rows for c in columns]
    order, shuffled = generator.permutation(16), face.copy()
    for place, tile in enumerate(order):
        top, left = rows[place // 4][0], columns[place % 4][0]
        shuffled[top : top + height, left : left + width] = tiles[tile]
    return shuffled


_SPOILT: dict[str, Callable[[Image, np.random.Generator], Image]] = {
    "faces in shuffled pieces": _shuffled,
    "upside-down faces": lambda face, _: np.ascontiguousarray(face[::-1, ::-1]),
    "blurred faces": lambda face, _: _blurred(face, face.shape[0] * 4 / 112),
    "faces of 14 pixels": _shrunk,
    "faces turned by 30°": _turned,
}
"""Ways of spoiling the faces of a calibration."""

_NEAR = ("faces of 14 pixels",)
"""Those that need no centre, as they lie where blurred ones do."""
