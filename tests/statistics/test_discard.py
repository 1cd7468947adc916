from __future__ import annotations

import itertools
from fractions import Fraction

import numpy as np
import pytest
from helpers.examples import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from facerec.errors import MetricError
from facerec.statistics.discard import error_versus_discard

# Other processes may hold a machine up, so there is no deadline.
few = settings(max_examples=examples(40), deadline=None)

comparisons = st.lists(st.tuples(st.booleans(), st.integers(0, 5)), min_size=1, max_size=30)


def naive_curve(errors: list[bool], quality: list[int]) -> list[tuple[int, int]]:
    """Discard every comparison below one quality after another, by counting anew each time."""
    points = []
    for cut in [*sorted(set(quality)), max(quality) + 1]:
        kept = [error for error, value in zip(errors, quality, strict=True) if value >= cut]
        points.append((len(errors) - len(kept), sum(kept)))
    return points


def naive_area(points: list[tuple[int, int]], total: int, limit: Fraction) -> Fraction:
    """Integrate the steps exactly: each error rate holds until the next point."""
    area = Fraction(0)
    for (start, errors), (end, _) in itertools.pairwise(points):
        width = min(Fraction(end, total), limit) - min(Fraction(start, total), limit)
        area += Fraction(errors, total - start) * width
    return area


@few
@given(comparisons, st.sampled_from(["0", "0.2", "1/3", "1"]))
def test_equals_counting_anew(pairs: list[tuple[bool, int]], limit: str) -> None:
    errors, quality = [list(side) for side in zip(*pairs, strict=True)]
    curve = error_versus_discard(errors, quality)
    points = naive_curve(errors, quality)
    assert list(zip(curve.discarded.tolist(), curve.errors.tolist(), strict=True)) == points
    assert curve.comparisons == len(pairs)
    assert curve.error_rates[0] == sum(errors) / len(errors)
    assert (curve.discard_rates[-1], curve.error_rates[-1]) == (1, 0)
    # What it says of its cuts is true of the qualities.
    for cut, discarded in zip(curve.cuts, curve.discarded, strict=True):
        assert np.count_nonzero(~(np.array(quality) >= cut)) == discarded
    expected = float(naive_area(points, len(pairs), Fraction(limit)))
    assert curve.area(limit) == pytest.approx(expected, abs=1e-12)


@few
@given(comparisons, st.randoms(use_true_random=False))
def test_order_and_increasing_transforms_do_not_matter(
    pairs: list[tuple[bool, int]], random: object
) -> None:
    errors, quality = (np.array(side) for side in zip(*pairs, strict=True))
    order = random.sample(range(len(pairs)), len(pairs))  # type: ignore[attr-defined]
    first = error_versus_discard(errors, quality)
    second = error_versus_discard(errors[order], np.exp(quality[order]))
    np.testing.assert_array_equal(first.discarded, second.discarded)
    np.testing.assert_array_equal(first.errors, second.errors)


def test_constant_quality_discards_nothing_or_all() -> None:
    curve = error_versus_discard([True, False, False, True], [3.0] * 4)
    assert curve.discard_rates.tolist() == [0, 1]
    assert curve.error_rates.tolist() == [0.5, 0]
    assert curve.area() == 0.5
    assert curve.area("0.2") == pytest.approx(0.1)


def test_perfect_quality_discards_the_errors_first() -> None:
    total, wrong = 200, 30
    errors = np.arange(total) < wrong
    curve = error_versus_discard(errors, np.arange(total))
    start, shares = wrong / total, curve.discard_rates[:-1]
    expected = np.where(shares <= start, (start - shares) / (1 - shares), 0)
    np.testing.assert_allclose(curve.error_rates[:-1], expected, atol=1e-15)
    assert np.all(curve.error_rates[:-1] >= np.maximum(0, start - shares) - 1e-15)


@pytest.mark.parametrize(
    ("errors", "quality", "sentence"),
    [
        ([], [], "there are no qualities of comparisons"),
        ([True], [np.nan], "1 of 1 qualities of comparisons are NaN, the first at index 0"),
        ([True], [1.0, 2.0], "there are 2 qualities of comparisons but errors of shape (1,)"),
        ([0.5, 1.0], [1.0, 2.0], "and type float64; give one true or false each"),
    ],
)
def test_bad_input(errors: list, quality: list, sentence: str) -> None:
    with pytest.raises(MetricError) as error:
        error_versus_discard(errors, quality)
    assert sentence in str(error.value)
