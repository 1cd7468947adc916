"""Bridges on planted maps between two spaces: what they recover, and what they say it costs."""

from __future__ import annotations

from dataclasses import replace
from datetime import date
from pathlib import Path

import numpy as np
import pytest
from helpers.toy_embeddings import made, take

from facerec.base.errors import DatasetError, ModelError
from facerec.embedding import Embeddings
from facerec.galleries.bridge import Bridge
from facerec.galleries.gallery import Gallery

OLD, NEW = 24, 40
MAP = np.linalg.qr(np.random.default_rng(9).normal(size=(NEW, OLD)))[0].T  # keeps angles


def photos(
    people: int, seed: int, noise: tuple[float, float] = (0.9, 0.5), images: int = 4, name: str = ""
) -> tuple[Embeddings, Embeddings]:
    """Return what two networks see of the same photos: the same people, each with its own noise."""
    rng = np.random.default_rng(seed)
    who = np.repeat(np.arange(people), images)
    truth = rng.normal(size=(people, OLD))[who] + 0.3 * rng.normal(size=(len(who), OLD))
    ids = np.array([f"{name}{seed}/{person}/{row}" for row, person in enumerate(who)])
    subjects = np.array([f"{name}{seed}/{person}" for person in who])
    found = []
    for model, spread in zip("on", noise, strict=True):
        vectors = truth + spread * rng.normal(size=truth.shape)
        vectors = (vectors if model == "o" else vectors @ MAP).astype(np.float32)
        found.append(made(vectors, subjects, model, ids=ids, flip=True))
    return found[0], found[1]


@pytest.fixture(scope="module")
def bridge() -> Bridge:
    return Bridge.build(*photos(150, 0))


def cosines(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    first, second = (each / np.linalg.norm(each, axis=1, keepdims=True) for each in (first, second))
    return first @ second.T


def test_a_planted_map_is_found_through_noise() -> None:
    clear = Bridge.build(*photos(100, 1, (0.0, 0.0)))
    old, new = photos(50, 2, (0.0, 0.0))
    assert np.diag(cosines(clear(new.vectors), old.vectors)).min() > 0.999
    rows = new.vectors.copy()
    rows[3] = 0
    assert np.isnan(clear(rows)[3]).all()


@pytest.mark.parametrize("noise", [(0.9, 0.5), (0.7, 1.0)])
def test_the_price_is_that_of_other_people(noise: tuple[float, float]) -> None:
    """Misses on five hundred other people are what folds of the bridge's people foretold."""
    made = Bridge.build(*photos(150, 3, noise))
    old, new = photos(500, 4, noise)
    who = np.unique(old.subjects, return_inverse=True)[1]
    same, upper = who[:, None] == who, np.triu(np.ones((len(who), len(who)), bool), 1)
    missed = []
    for probes in (old.vectors, made(new.vectors)):
        scores = cosines(probes, old.vectors)
        limit = np.quantile(scores[~same & upper], 1 - made.price.fpr)
        missed.append((scores[same & upper] <= limit).mean())
    price, true = made.price, missed[1] / missed[0]
    assert price.ratio is not None and price.low is not None and price.high is not None
    assert price.low < price.ratio < price.high
    assert 1 / 1.5 < price.ratio / true < 1.5 and price.low < true < price.high
    assert (price.ratio < 1) == (true < 1) == (noise[0] > noise[1])
    assert (price.anew < price.old) == (noise[0] > noise[1])


def test_too_few_misses_tell_no_ratio() -> None:
    price = Bridge.build(*photos(120, 5, (0.01, 0.01))).price
    assert (price.ratio, price.low, price.high) == (None, None, None)


def test_a_file_gives_the_same_bridge_and_is_private(bridge: Bridge, tmp_path: Path) -> None:
    path = tmp_path / "bridge.npz"
    bridge.write(path)
    again = Bridge.read(path)
    np.testing.assert_array_equal(again.matrix, bridge.matrix)
    assert (again.old, again.new, again.price) == (bridge.old, bridge.new, bridge.price)
    assert path.stat().st_mode & 0o777 == 0o600
    np.savez(tmp_path / "other.npz", matrix=bridge.matrix)
    for other in (tmp_path / "other.npz", tmp_path / "none.npz"):
        with pytest.raises(DatasetError, match=other.name):
            Bridge.read(other)


def test_what_makes_no_bridge_is_refused() -> None:
    old, new = photos(120, 6)
    with pytest.raises(DatasetError, match="of one network"):
        Bridge.build(old, old)
    with pytest.raises(DatasetError, match="10 named people"):
        Bridge.build(take(old, slice(40)), new)
    with pytest.raises(DatasetError, match="0 named people"):
        Bridge.build(old, photos(120, 7)[1])
    with pytest.raises(DatasetError, match="0 named people"):
        Bridge.build(replace(old, subjects=None), new)
    digests = np.arange(len(old.vectors)).astype("S32")
    with pytest.raises(DatasetError, match="another photo"):
        Bridge.build(replace(old, digests=digests), replace(new, digests=digests[::-1]))
    digests[1] = digests[0]
    twice = Bridge.build(replace(old, digests=digests), replace(new, digests=digests))
    assert twice.price.photos == len(old.vectors) - 1


def test_translated_searches_check_spaces_and_leave_the_gallery_alone(bridge: Bridge) -> None:
    old, new = photos(60, 8, name="enrolled")
    gallery = Gallery(bridge.old)
    gallery.enroll(take(old, slice(0, None, 2)))
    gallery.calibrate()
    before = gallery.calibration
    translated = gallery.translated(bridge)
    probes = take(new, slice(1, None, 2))
    found = translated.identify(probes, threshold=0.3)
    assert (found.subjects[found.rows[:, 0]] == probes.subjects).mean() > 0.9
    with pytest.raises(ModelError, match="bridge"):
        translated.identify(old, threshold=0.3)
    with pytest.raises(ModelError, match="gallery"):
        gallery.identify(new, threshold=0.3)
    with pytest.raises(ModelError):
        translated.enroll(new)
    with pytest.raises(ModelError, match="bridge"):
        Gallery(bridge.new).translated(bridge)
    strangers = photos(200, 11)[1]
    translated.calibrate(strangers)
    point = translated.point("1e-1")
    others = photos(300, 12)[1]
    alarms = np.mean([a.subject is not None for a in translated.identify(others, threshold=point)])
    assert 0.05 < alarms < 0.2
    assert gallery.calibration is before and gallery.bridge is None


def test_who_is_deleted_or_expired_is_not_found_through_a_bridge(bridge: Bridge) -> None:
    gallery = Gallery(bridge.old)
    gallery.enroll(photos(5, 13)[0], expires=date(2001, 1, 1))
    gallery.enroll(photos(5, 14)[0])
    gallery.delete("14/0")
    found = gallery.translated(bridge).identify(photos(5, 14)[1], threshold=-1.0)
    assert sorted(set(found.subjects)) == ["14/1", "14/2", "14/3", "14/4"]
