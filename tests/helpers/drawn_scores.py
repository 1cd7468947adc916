"""Scores that hypothesis draws, and how many examples of them tests of statistics take."""

from __future__ import annotations

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from helpers.examples import examples

# Other processes may hold a machine up, so there is no deadline.
few = settings(max_examples=examples(40), deadline=None)

# Few distinct values, so that ties are the rule.
tied = hnp.arrays(
    np.float64, st.integers(1, 25), elements=st.integers(-4, 4).map(lambda value: value / 8)
)
wild = hnp.arrays(
    np.float32,
    st.integers(1, 25),
    elements=st.floats(width=32, allow_nan=False, allow_infinity=True),
)
scores = st.one_of(st.tuples(tied, tied), st.tuples(wild, wild))
