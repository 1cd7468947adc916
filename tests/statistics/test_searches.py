from __future__ import annotations

import math

import numpy as np
import pytest

from facerec.statistics.clustered import ClusteredShare
from facerec.statistics.searches import NOBODY, ratio_interval, search_share


def draw(
    seed: int, persons: int = 30, images: int = 4, chance: float = 0.02, galleries: int = 2
) -> tuple[np.ndarray, ...]:
    """Return events, probe persons, sole causes and the galleries of persons.

    Persons alternate between the galleries, and search those that they are not in.
    """
    generator = np.random.default_rng(seed)
    placed = (
        np.arange(persons) % galleries
        if galleries > 1
        else np.where(np.arange(persons) < persons // 2, 0, NOBODY)
    )
    person, events, cause = [], [], []
    for gallery in range(galleries):
        entries = np.flatnonzero(placed == gallery)
        for one in np.flatnonzero(placed != gallery):
            for _ in range(generator.integers(1, images + 1)):
                hit = entries[generator.random(entries.size) < chance * (1 + entries % 3)]
                person.append(one)
                events.append(hit.size > 0)
                cause.append(hit[0] if hit.size == 1 else NOBODY)
    return tuple(map(np.array, (events, person, cause, placed)))


@pytest.mark.parametrize("galleries", [1, 2])
def test_changes_equal_a_naive_loop(galleries: int) -> None:
    events, person, cause, placed = draw(1, galleries=galleries)
    share = search_share(events, person, cause, placed)
    size, n, rate = placed.size, events.size, events.mean()
    assert share.value == rate and share.comparisons == n and share.events == events.sum()
    caused = np.zeros(size)
    for sole in cause[cause != NOBODY]:
        caused[sole] += 1
    for one in range(size):
        rest = person != one
        change = events[rest].mean() - rate if not rest.all() else 0.0
        if placed[one] >= 0:
            change -= (caused[one] - caused[placed == placed[one]].mean()) / n
        assert share.changes[one] == pytest.approx(change, abs=1e-12)


def test_without_entries_it_is_the_share_of_mated_comparisons() -> None:
    events, person, _, placed = draw(2)
    none = np.full(events.size, NOBODY)
    share = search_share(events, person, none, np.full(placed.size, NOBODY))
    mine, theirs = share.interval(), ClusteredShare.from_pairs(events, person, person).interval()
    assert (mine.low, mine.high) == pytest.approx((theirs.low, theirs.high))


def test_a_ratio_allows_for_the_gallery_that_both_share() -> None:
    events, person, cause, placed = draw(4, persons=80, chance=0.01)
    first = person % 4 < 2
    one, other = (search_share(events[of], person[of], cause[of], placed) for of in (first, ~first))
    interval = ratio_interval(one, other)
    ratio = one.value / other.value
    assert interval.low < ratio < interval.high
    assert math.log(interval.high / ratio) == pytest.approx(math.log(ratio / interval.low))
    turned = ratio_interval(other, one)
    assert (1 / turned.high, 1 / turned.low) == pytest.approx((interval.low, interval.high))
    same = ratio_interval(one, one)
    assert math.log(same.high) < 0.7 * math.log(interval.high / ratio)


def test_no_event_gives_a_bound() -> None:
    _, person, _, placed = draw(5)
    none = np.zeros(person.size, bool)
    share = search_share(none, person, np.full(person.size, NOBODY), placed)
    interval = share.interval()
    assert interval.low == 0 and 0 < interval.high < 0.3
