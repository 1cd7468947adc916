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

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from facerec.base.progress import Progress
from facerec.embedding.calibration import FAR, FaceScore
from facerec.embedding.extraction import Image, extract
from facerec.embedding.model import EmbeddingModel, shifted
from facerec.records.non_faces import SPOILT, things, without_face

FALSE_REFUSALS = 0.005
"""Share of the calibration's faces that lie below the limit; of other sets it is up to twice that
(CFP)."""

SPOILT_WEIGHT = 0.6
"""Weight of the centres of spoilt faces beside that of pictures without a face: nearly all spoilt
faces are refused with it, and of faces of other sets (CFP) hardly more than without them."""

SPOILT_FACES = 128
"""Faces of a calibration that are spoilt: one half gives centres, the other measures the score."""

_NEAR = ("faces of 14 pixels",)
"""Those that need no centre, as they lie where blurred ones do."""


def fit_face_score(
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
    spoilt = SPOILT if len(halves[1]) else {}
    done, kinds = 0, len(pictures) + 1 + 2 * len(spoilt) - len(_NEAR)

    def embedded(pictures: Image) -> NDArray[np.float32]:
        nonlocal done
        done += 1
        if progress is not None:
            progress("looking at pictures without a face", done, kinds)
        return extract(placed, pictures, flip=flip).vectors

    def ruined(kind: str, half: int) -> NDArray[np.float32]:
        return embedded(np.stack([spoilt[kind](face, generator) for face in halves[half]]))

    without = [_units(embedded(each)).mean(axis=0) for each in pictures.values()]
    means = [np.mean(without, axis=0)]
    means += [_units(ruined(kind, 0)).mean(axis=0) for kind in spoilt if kind not in _NEAR]
    centres = _units(np.array(means)).astype(np.float32)
    lengths = np.linalg.norm(vectors, axis=1)
    cosines = np.array([_spread(vectors @ centre / lengths) for centre in centres])
    cosines[1:, 1] /= SPOILT_WEIGHT
    trials = {"pictures without a face": embedded(things(size, generator))}
    trials |= {kind: ruined(kind, 1) for kind in spoilt}
    score = FaceScore(centres, cosines, 0.0, len(vectors), {})
    scores = score(vectors)
    sound = scores[scores >= FAR]  # a few pictures without a face must not move the limit
    limit = float(np.quantile(sound, FALSE_REFUSALS, method="lower")) if len(sound) else FAR
    power = {
        kind: (int((score(trial) < limit).sum()), len(trial)) for kind, trial in trials.items()
    }
    return replace(score, limit=limit, power=power)


def _units(vectors: NDArray[np.floating]) -> NDArray[np.floating]:
    return vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)


def _spread(values: NDArray[np.floating]) -> tuple[float, float]:
    """Return median and standard deviation, which a few pictures of another kind do not move."""
    low, middle, high = np.quantile(values, [0.159, 0.5, 0.841])
    return float(middle), max(float(high - low) / 2, 1e-6)
