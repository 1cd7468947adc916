"""Where faces lie in their crops: moving them, and finding out by how much."""

from __future__ import annotations

import math

import numpy as np
import pytest
from helpers.examples import examples
from helpers.toy_model import ToyModel
from hypothesis import given, settings
from hypothesis import strategies as st

from facerec.embedding import Embeddings
from facerec.embedding.model import shifted
from facerec.embedding.placement import (
    ALIKE,
    alike_note,
    alike_words,
    better_placement,
    stranger_cosine,
    try_placements,
)

moves = st.integers(-6, 6)


@given(moves, moves)
@settings(max_examples=examples(40), deadline=None)
def test_a_shift_moves_pixels_and_black_comes_in(across: int, down: int) -> None:
    images = np.random.default_rng(0).integers(1, 256, (2, 6, 7, 3), np.uint8)
    moved = shifted(images, (across, down))
    for n, y, x, c in np.ndindex(*images.shape):
        inside = 0 <= y - down < 6 and 0 <= x - across < 7
        assert moved[n, y, x, c] == (images[n, y - down, x - across, c] if inside else 0)
    back = shifted(moved, (-across, -down))
    inner = back[:, abs(down) : 6 - abs(down), abs(across) : 7 - abs(across)]
    # Where nothing left the picture, it is as it was.
    own = images[:, abs(down) : 6 - abs(down), abs(across) : 7 - abs(across)]
    np.testing.assert_array_equal(inner, own)
    np.testing.assert_array_equal(shifted(images, (0, 0)), images)


def window(pixels: np.ndarray) -> np.ndarray:
    """Embed the mean colour of the middle."""
    size = pixels.shape[1] // 2
    middle = slice(size - 12, size + 12)
    return pixels[:, middle, middle].astype(float).mean(axis=(1, 2)) / 255


def squares(across: int, down: int, side: int = 112, half: int = 12) -> np.ndarray:
    """Draw bright squares that lie beside the middle."""
    pixels = np.zeros((4, side, side, 3), np.uint8)
    rows, columns = (slice(side // 2 + by - half, side // 2 + by + half) for by in (down, across))
    pixels[:, rows, columns] = np.arange(150, 250, 25)[:, None, None, None]
    return pixels


@pytest.mark.parametrize("shift", [(0, 0), (8, 0), (-12, 4), (4, -8)])
def test_a_planted_placement_is_found_by_the_norm(shift: tuple[int, int]) -> None:
    across, down = shift
    model, pictures, done = ToyModel(window), squares(-across, -down), []
    tried = try_placements(model, pictures, progress=lambda *now: done.append(now))
    assert next(iter(tried)) == shift
    assert [*tried.values()] == sorted(tried.values(), reverse=True)
    for at, norm in tried.items():
        norms = np.linalg.norm(window(shifted(pictures, at)), axis=1)
        assert norm == pytest.approx(norms.mean(), rel=1e-5)
    assert done[-1][1] == len(tried) <= done[-1][2]
    # A model that is moved so already needs nothing.
    assert not better_placement(model.with_preprocessing(model.preprocessing, shift), pictures)
    said = better_placement(model, pictures)
    assert (f"--shift {across} {down}" in said) is (shift != (0, 0) and max(map(abs, shift)) < 12)


def test_steps_grow_with_the_pictures_and_nothing_is_said_without_any() -> None:
    model = ToyModel(window, side=224)
    assert next(iter(try_placements(model, squares(-16, 0, 224)))) == (16, 0)
    assert better_placement(None, squares(0, 0)) == better_placement(model, squares(0, 0)[:0]) == ""


def test_the_cosine_of_strangers_is_that_of_two_loops() -> None:
    generator = np.random.default_rng(0)
    vectors = generator.standard_normal((40, 8)).astype(np.float32) + 0.7
    who = generator.choice(["a", "b", "c", "d", ""], 40)
    vectors[3], vectors[4], vectors[5] = 0, np.nan, np.inf
    rows = [row for row in range(40) if row not in (3, 4, 5) and who[row]]
    norm = np.linalg.norm
    pairs = [(vectors[i], vectors[j]) for i in rows for j in rows if who[i] != who[j]]
    cosines = [float(a @ b / norm(a) / norm(b)) for a, b in pairs]
    found = stranger_cosine(vectors, who)
    assert found == pytest.approx(np.mean(cosines), abs=1e-6)
    assert math.isnan(stranger_cosine(vectors, np.full(40, "a")))
    assert math.isnan(stranger_cosine(vectors, np.full(40, "")))
    assert found > ALIKE and f"{found:.2f}" in alike_words(found)
    embeddings = Embeddings(vectors, np.linalg.norm(vectors, axis=1), True)
    assert alike_note(embeddings, who) == ""  # four people tell nothing
    every = np.arange(40).astype(str)
    assert alike_note(embeddings, every) == alike_words(stranger_cosine(vectors, every)) != ""
    assert alike_note(embeddings, None) == alike_words(math.nan) == alike_words(ALIKE) == ""
