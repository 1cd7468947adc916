"""Groups of faces: simulated people with a heavy tail, what is planted among them, and links."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy.special import ndtr

from facerec.base.errors import MetricError
from facerec.galleries.grouping import Grouping, group_faces
from facerec.galleries.impostor_tail import BentTail, standardise


def faces(sizes: Any, size: int = 128, noise: float = 0.6, seed: int = 0) -> Any:
    """Vectors about centres, with some photos far noisier than others, and who is on each."""
    rng = np.random.default_rng(seed)
    who = np.repeat(np.arange(len(sizes)), sizes)
    centres = rng.normal(size=(len(sizes), size)) + 0.3 * rng.normal(size=size)
    spread = noise * np.sqrt(5 / rng.chisquare(5, (len(who), 1)))
    return centres[who] + spread * rng.normal(size=(len(who), size)), who


def measures(groups: np.ndarray, who: np.ndarray) -> tuple[float, float]:
    """Precision and recall of pairs, by looking at each."""
    one, other = np.triu_indices(len(who), 1)
    found, right = groups[one] == groups[other], who[one] == who[other]
    return (found & right).sum() / max(found.sum(), 1), (found & right).sum() / right.sum()


def grouped(vectors: np.ndarray, **how: Any) -> Grouping:
    table = pd.DataFrame(how, index=np.arange(len(vectors)).astype(str))
    return group_faces(vectors, table)


def with_siblings() -> Any:
    """Sixty siblings, as one person's photos would be, on one photo."""
    vectors, who = faces([3] * 200)
    centre, rng = 2 * np.ones(128), np.random.default_rng(1)
    vectors = np.concatenate([vectors, centre + 0.8 * rng.normal(size=(60, 128))])
    photos = np.append(np.arange(600), np.full(60, 600)).astype(str)
    return vectors, np.append(who, 200 + np.arange(60)), {"photo": photos}


def with_non_faces() -> Any:
    vectors, who = faces([3] * 200)
    rng = np.random.default_rng(1)
    things = 2 * np.ones(128) + rng.normal(size=(30, 128))
    return np.concatenate([vectors, things]), np.append(who, np.full(30, 200)), {}


@pytest.mark.parametrize(
    ("made", "recall"),
    [
        ((*faces([3] * 300), {}), 0.9),
        ((*faces([6] * 60), {}), 0.6),
        ((*faces([200, *[2] * 200]), {}), 0.9),
        (with_siblings(), 0.9),
        (with_non_faces(), 0.9),
        ((*faces([1] * 400), {}), None),
    ],
    ids=["many", "few people", "a third is one", "siblings", "non-faces", "strangers"],
)
def test_people_are_grouped(made: Any, recall: float | None) -> None:
    vectors, who, how = made
    found = grouped(vectors, **how)
    people_joined = len(np.unique(np.stack([found.groups, who]), axis=1).T) - found.groups.max()
    assert people_joined <= 3 * found.wrong + 3
    if recall is None:
        return
    right = measures(found.groups, who)
    assert right[0] >= 0.99 and right[1] >= recall, right
    for photo in np.unique(how.get("photo", [])):
        there = found.groups[how["photo"] == photo]
        assert len(set(there)) == len(there)
    sizes = np.bincount(found.groups)[1:]
    assert (np.diff(sizes) <= 0).all()  # numbered from the largest on
    alone = sizes[found.groups - 1] == 1
    assert np.array_equal(np.isnan(found.doubt), alone)


def test_one_far_from_its_group_is_in_doubt() -> None:
    vectors = faces([4] * 100)[0]
    vectors[0] = vectors[4]  # of somebody else
    must = np.where(np.arange(400) < 4, "together", "")
    found = grouped(vectors, must=must)
    assert len(set(found.groups[:4])) == 1
    assert np.nanargmax(found.doubt) == 0 and found.doubt[0] > 100 * np.nanmedian(found.doubt)
    assert (found.groups[1:4] == found.groups[1]).all()


def test_links() -> None:
    vectors, _ = faces([4] * 100, noise=0.4)
    number = np.arange(400)
    free = grouped(vectors)
    assert free.groups[0] == free.groups[1] != free.groups[4]
    kept = grouped(vectors, cannot=np.where(number < 2, "twins", ""))
    assert kept.groups[0] != kept.groups[1]
    for how in ("must", "digest"):
        joined = grouped(vectors, **{how: np.where(np.isin(number, [0, 4]), "he", "")})
        assert joined.groups[0] == joined.groups[4]
    with pytest.raises(MetricError, match=r"'1' .*its cannot"):
        grouped(vectors, must=np.where(number < 2, "a", ""), cannot=np.where(number < 2, "b", ""))


def test_new_faces_are_placed_and_old_groups_stay() -> None:
    vectors, who = faces([6] * 100, noise=0.5)
    old = np.where(np.arange(600) % 2, who + 7, 0)  # numbers need not begin at 1
    old[who == 3] = 0  # a new person
    old[1] = 500  # one who was taken for two
    found = grouped(vectors, group=np.where(old, old.astype(str), ""))
    assert (found.groups[old > 0] == old[old > 0]).all()
    new = (old == 0) & (who != 3) & (who != 0)
    assert np.mean(found.groups[new] == who[new] + 7) > 0.95
    assert set(found.groups[who == 3]) == {501}
    assert {frozenset(pair[:2]) for pair in found.merges} == {frozenset((7, 500))}


@pytest.mark.parametrize(
    ("vectors", "words"),
    [(faces([1] * 3)[0], "3 faces"), (faces([60], noise=0.4)[0], "one person")],
)
def test_too_little_to_learn_from(vectors: np.ndarray, words: str) -> None:
    with pytest.raises(MetricError, match=words):
        grouped(vectors)


def test_tail_and_scale_are_what_they_say() -> None:
    """Of independent normal vectors the tail is that of a normal law, though mates are there."""
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(1500, 400)).astype(np.float32)
    rows[1::10] = rows[::10]  # 150 pairs of mates
    tail = BentTail(rows @ rows.T / 20, np.triu(np.ones((1500, 1500)), 1))
    assert np.exp(tail.log_share(np.array([3.0, 4.0]))) == pytest.approx(ndtr([-3, -4]), rel=1)
    weights = rng.uniform(0.1, 1, 50)
    units = rows[:50] / np.linalg.norm(rows[:50], axis=1, keepdims=True)
    (scaled,) = standardise(units, weights=weights)
    centred = units - weights @ units / (weights.sum() + 1000)
    spread = ((centred @ centred.T) ** 2) @ weights
    spread += 2000 * weights @ ((centred @ centred.T) ** 2) @ weights / weights.sum() ** 2
    spread /= weights.sum() + 2000
    assert scaled == pytest.approx(centred / spread[:, None] ** 0.25, rel=1e-4, abs=1e-5)
