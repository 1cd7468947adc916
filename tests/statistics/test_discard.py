from __future__ import annotations

import itertools
from fractions import Fraction

import numpy as np
import pytest
from helpers.drawn_scores import few
from hypothesis import given
from hypothesis import strategies as st

from facerec.statistics.discard import error_versus_discard

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
    # What it says of its cuts is true of the qualities.
    for cut, discarded in zip(curve.cuts, curve.discarded, strict=True):
        assert np.count_nonzero(~(np.array(quality) >= cut)) == discarded
    expected = float(naive_area(points, len(pairs), Fraction(limit)))
    assert curve.area(limit) == pytest.approx(expected, abs=1e-12)
