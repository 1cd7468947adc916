from __future__ import annotations

import math

import numpy as np
import pytest

from facerec.errors import MetricError
from facerec.statistics.clustered import ClusteredShare
from facerec.statistics.searches import (
    NOBODY,
    SearchShare,
    ratio_interval,
)


def draw(
    seed: int, persons: int = 30, images: int = 4, chance: float = 0.02, galleries: int = 2
) -> tuple[np.ndarray, ...]:
    """Return events, probe persons, sole causes, galleries of persons and of searches.

    Persons alternate between the galleries, and search those that they are not in.
    """
    generator = np.random.default_rng(seed)
    placed = (
        np.arange(persons) % galleries
        if galleries > 1
        else np.where(np.arange(persons) < persons // 2, 0, NOBODY)
    )
    person, where, events, cause = [], [], [], []
    for gallery in range(galleries):
        entries = np.flatnonzero(placed == gallery)
        for one in np.flatnonzero(placed != gallery):
            for _ in range(generator.integers(1, images + 1)):
                hit = entries[generator.random(entries.size) < chance * (1 + entries % 3)]
                person.append(one)
                where.append(gallery)
                events.append(hit.size > 0)
                cause.append(hit[0] if hit.size == 1 else NOBODY)
    return tuple(map(np.array, (events, person, cause, placed, where)))


@pytest.mark.parametrize("galleries", [1, 2])
def test_parts_of_the_variance_equal_a_naive_loop(galleries: int) -> None:
    events, person, cause, placed, where = draw(1, galleries=galleries)
    share = SearchShare.from_searches(events, person, cause, placed, where)
    size, n, rate = placed.size, events.size, events.mean()
    assert share.rate == rate and share.comparisons == n and share.events == events.sum()

    of_probes, of_entries = np.zeros(size), np.zeros(size)
    cells = np.zeros((size, size))
    for event, one, sole in zip(events, person, cause, strict=True):
        of_probes[one] += event - rate
        if sole != NOBODY:
            of_entries[sole] += 1
            cells[min(one, sole), max(one, sole)] += 1
    for gallery in range(galleries):
        members = [one for one in range(size) if placed[one] == gallery]
        mean = sum(of_entries[one] for one in members) / len(members)
        for one in members:
            of_entries[one] -= mean
    entries = sum(placed >= 0)
    added = (of_entries**2).sum() * entries / (entries - 1)
    added += 2 * (of_probes * of_entries).sum() - (cells**2).sum()
    assert share.entry_variance == pytest.approx(max(0, added) / n**2)
    assert share.plug_in == pytest.approx((of_probes**2).sum() / n**2)
    np.testing.assert_allclose(share.by_probe, of_probes, atol=1e-12)
    np.testing.assert_allclose(share.by_entry, of_entries, atol=1e-12)


def test_without_entries_it_is_the_share_of_mated_comparisons() -> None:
    events, person, _, placed, _ = draw(2)
    none = np.full(events.size, NOBODY)
    share = SearchShare.from_searches(events, person, none, np.full(placed.size, NOBODY))
    other = ClusteredShare.from_pairs(events, person, person)
    mine, theirs = share.interval(), other.interval()
    assert (mine.low, mine.high, mine.effective) == (theirs.low, theirs.high, theirs.effective)
    assert share.test_variance == other.test_variance


def test_covariance_equals_a_naive_loop_and_bounds_the_ratio() -> None:
    events, person, cause, placed, where = draw(4, persons=80, chance=0.01)
    first = person % 4 < 2
    shares = [
        SearchShare.from_searches(events[of], person[of], cause[of], placed, where[of])
        for of in (first, ~first)
    ]
    one, other = shares
    expected = ((one.by_probe + one.by_entry) * (other.by_probe + other.by_entry)).sum()
    mine, theirs = one.cells.toarray(), other.cells.toarray()
    expected -= (mine * theirs).sum()
    assert one.covariance(other) == pytest.approx(expected / one.comparisons / other.comparisons)
    interval = ratio_interval(one, other)
    ratio = one.rate / other.rate
    assert interval.low < ratio < interval.high
    assert math.log(interval.high / ratio) == pytest.approx(math.log(ratio / interval.low))
    turned = ratio_interval(other, one)
    assert (1 / turned.high, 1 / turned.low) == pytest.approx((interval.low, interval.high))


def test_no_event_gives_a_bound_and_no_ratio() -> None:
    _, person, _, placed, where = draw(5)
    none = np.zeros(person.size, bool)
    share = SearchShare.from_searches(none, person, np.full(person.size, NOBODY), placed, where)
    interval = share.interval()
    assert interval.low == 0 and 0 < interval.high < 0.3
    with pytest.raises(MetricError, match="ratio"):
        ratio_interval(share, share)


@pytest.mark.parametrize(
    ("events", "probe", "entry", "gallery"),
    [
        ([True], [0, 1], [NOBODY], [0, 0]),
        ([True], [5], [NOBODY], [0, 0]),
        ([False], [0], [1], [NOBODY, 0]),
        ([True], [0], [1], [NOBODY, NOBODY]),
        ([], [], [], [0]),
    ],
)
def test_what_does_not_fit_is_refused(events, probe, entry, gallery) -> None:
    with pytest.raises(MetricError):
        SearchShare.from_searches(np.array(events, bool), probe, entry, gallery)
