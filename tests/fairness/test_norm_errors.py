from __future__ import annotations

import itertools
import json
from pathlib import Path

import numpy as np
import pytest
from helpers.examples import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from facerec.fairness.groupings import ALL_GROUPS, Grouping
from facerec.fairness.norm_errors import mated_pairs, norm_errors
from facerec.fairness.rows import AREA, DISCARDS, NORMS, TENTHS, Row
from facerec.statistics.discard import DISCARD_SHARES

# Other processes may hold a machine up, so there is no deadline.
few = settings(max_examples=examples(40), deadline=None)
THRESHOLD = -0.8


class People:
    """Mated pairs whose scores rise with the norm; the second group has norms lower by a gap."""

    def __init__(self, persons: int = 120, images: int = 5, gap: float = 2.0) -> None:
        generator = np.random.default_rng(0)
        self.subject = np.repeat(np.arange(persons), images)
        self.group = self.subject % 2
        self.norms = generator.normal(20 - gap * self.group, 2)
        self.first, self.second = mated_pairs(self.subject)
        self.scores = 0.3 * (self.quality - 18) + generator.normal(0, 1, self.first.size)

    @property
    def quality(self) -> np.ndarray:
        return np.minimum(self.norms[self.first], self.norms[self.second])

    def measure(self) -> dict[str, dict[tuple[str, str], Row]]:
        """Return group → figure and target → row."""
        grouping = Grouping(("x",), ("A", "B"), self.group)
        mated = self.scores, np.stack([self.first, self.second])
        found: dict[str, dict[tuple[str, str], Row]] = {}
        for row in norm_errors(grouping, mated, self.norms, self.subject, THRESHOLD):
            found.setdefault(row["group"], {})[row["figure"], row["target"]] = row
        return found


def tenths(figures: dict[tuple[str, str], Row]) -> list[Row]:
    return [figures[TENTHS[NORMS], str(number)] for number in range(1, 11)]


@few
@given(st.lists(st.integers(-1, 5), max_size=25))
def test_mated_pairs_are_those_of_a_loop(subject: list[int]) -> None:
    first, second = mated_pairs(np.array(subject, np.int64))
    expected = {
        (one, other)
        for one, other in itertools.combinations(range(len(subject)), 2)
        if subject[one] == subject[other] >= 0
    }
    found = [tuple(sorted(pair)) for pair in zip(first.tolist(), second.tolist(), strict=True)]
    assert len(found) == len(expected) and set(found) == expected


def test_tenths_and_discards_are_those_of_a_loop() -> None:
    faces = People()
    errors, who = faces.scores < THRESHOLD, faces.subject[faces.first]
    edges = np.sort(faces.quality)[(np.arange(1, 10) * len(errors) // 10) - 1]
    of_pair = faces.group[faces.first]
    found = faces.measure()
    assert list(found) == ["A", "B", ALL_GROUPS]
    parts = of_pair == 0, of_pair == 1, of_pair >= 0
    for figures, part in zip(found.values(), parts, strict=True):
        low = np.concatenate([[-np.inf], edges])
        for fnmr, above, up_to in zip(tenths(figures), low, [*edges, np.inf], strict=True):
            inside = part & (faces.quality > above) & (faces.quality <= up_to)
            counts = fnmr["numerator"], fnmr["denominator"]
            assert counts == (errors[inside].sum(), inside.sum())
            people = np.unique(who[inside])
            of_each = [errors[inside & (who == person)].mean() for person in people]
            assert fnmr["value"] == pytest.approx(np.mean(of_each))
        for share in DISCARD_SHARES:
            fnmr = figures[DISCARDS[NORMS], share]
            gone = part.sum() - fnmr["denominator"]
            assert 0 <= float(share) * part.sum() - gone < 5  # tied pairs leave together
            kept = part & (faces.quality >= np.sort(faces.quality[part])[gone])
            counts = fnmr["numerator"], fnmr["denominator"]
            assert counts == (errors[kept].sum(), kept.sum())
    # Scores rise with norms, so errors fall.
    everyone = tenths(found[ALL_GROUPS])
    assert everyone[0]["numerator"] > 3 * everyone[-1]["numerator"]


def test_published_curves(shared_data: Path) -> None:
    data = json.loads((shared_data / "oracles" / "edc_example_data.json").read_text())
    by_pair = data["similarity_scores"]["scores_by_pair_ids"]
    scores = np.array(list(by_pair.values()))
    threshold = float(np.quantile(scores, 0.05))
    areas = []
    for quality in data["quality_scores_by_sample_id_per_algorithm"].values():
        number = {sample: place for place, sample in enumerate(quality)}
        sides = np.array([[number[s] for s in pair.split("-")] for pair in by_pair]).T
        links = coo_array((np.ones(len(scores)), sides), (len(number), len(number)))
        one = Grouping(("x",), ("all",), np.zeros(len(number), np.int64))
        who = connected_components(links, directed=False)[1]
        norms = np.array(list(quality.values()))
        found = norm_errors(one, (scores, sides), norms, who, threshold)
        areas.append(next(row["value"] for row in found if row["figure"] == AREA))
    expected = [0.0069596816, 0.0093187126, 0.0078432575, 0.0091138562, 0.0070677574]
    assert areas == pytest.approx(expected, abs=5e-11)


def test_equal_norms_share_a_tenth_and_nothing_is_left_is_said() -> None:
    faces = People(persons=20)
    faces.norms[:] = 7.0
    everyone = faces.measure()[ALL_GROUPS]
    assert [one["denominator"] for one in tenths(everyone)] == [len(faces.scores), *[0] * 9]
    totals = {everyone[DISCARDS[NORMS], share]["denominator"] for share in DISCARD_SHARES}
    assert totals == {len(faces.scores)}
    faces.norms[:] = np.nan
    (lacking,) = faces.measure()[""].values()
    assert lacking["value"] is None and "none of 200 mated pairs" in lacking["remark"]
