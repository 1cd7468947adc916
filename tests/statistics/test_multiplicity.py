"""Holm's adjustment against its definition."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from facerec.statistics.multiplicity import holm


@given(st.lists(st.floats(0, 1), min_size=1, max_size=8))
def test_holm(p: list[float]) -> None:
    found = holm(p)
    order = sorted(range(len(p)), key=lambda i: p[i])
    largest = 0.0
    for place, i in enumerate(order):
        largest = max(largest, min(1.0, p[i] * (len(p) - place)))
        assert found[i] == pytest.approx(largest)
