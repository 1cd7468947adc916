from __future__ import annotations

from fractions import Fraction

import numpy as np
from helpers.drawn_scores import few
from helpers.plain_rates import search
from hypothesis import given
from hypothesis import strategies as st

from facerec.statistics.identification import tpir_at_fpir
from facerec.statistics.operating_points import parse_rate

ENROLLED, STRANGERS = "abcd", "xyz"


@st.composite
def matrices(draw: st.DrawFn) -> tuple[np.ndarray, list[str], list[str]]:
    """Few distinct scores, so that ties are the rule; several entries a subject."""
    gallery = draw(st.lists(st.sampled_from(ENROLLED), min_size=1, max_size=6))
    mated = draw(st.lists(st.sampled_from(gallery), min_size=1, max_size=8))
    others = draw(st.lists(st.sampled_from(STRANGERS), min_size=1, max_size=8))
    probes = draw(st.permutations([*mated, *others]))
    cells = st.one_of(st.integers(-3, 3).map(float), st.sampled_from([-np.inf, np.inf]))
    size = len(probes) * len(gallery)
    scores = draw(st.lists(cells, min_size=size, max_size=size))
    return np.array(scores).reshape(len(probes), len(gallery)), probes, gallery


def naive_rates(
    scores: np.ndarray, probes: list[str], gallery: list[str], threshold: float
) -> tuple[Fraction, Fraction]:
    """TPIR and FPIR at a threshold: sort a candidate list for every search, mates last in ties."""
    hits = mated = alarms = strangers = 0
    for row, probe in zip(scores.tolist(), probes, strict=True):
        candidates = sorted(
            zip(row, gallery, strict=True), key=lambda entry: (-entry[0], entry[1] == probe)
        )
        if probe in gallery:
            mated += 1
            # The best mate, after every other subject that is as good; its twins take no place.
            place = next(i for i, (_, name) in enumerate(candidates) if name == probe)
            hits += place == 0 and candidates[place][0] >= threshold
        else:
            strangers += 1
            alarms += any(score >= threshold for score in row)
    return Fraction(hits, mated), Fraction(alarms, strangers)


@few
@given(matrices(), st.sampled_from(["0", "0.2", "1/3", "1/2", "1"]))
def test_tpir_is_the_best_that_respects_the_target(
    data: tuple[np.ndarray, list[str], list[str]], fpir: str
) -> None:
    scores, probes, gallery = data
    point = tpir_at_fpir(search(*data), fpir)
    tpir, realised = naive_rates(*data, point.threshold)
    assert Fraction(point.true_accepts, point.mated) == tpir
    assert Fraction(point.false_accepts, point.non_mated) == realised <= parse_rate(fpir)
    # No threshold that respects the target does better.
    for threshold in [*np.unique(scores), -np.inf]:
        other, alarms = naive_rates(*data, threshold)
        if alarms <= parse_rate(fpir):
            assert other <= tpir
    assert point.mated == sum(probe in gallery for probe in probes)
