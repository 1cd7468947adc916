"""All pairs are scored once for all groupings, with the results of one scoring a grouping."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.toy_audit import toy_audit
from helpers.toy_faces import toy
from numpy.typing import NDArray
from scipy.sparse import csr_array

from facerec.errors import MetricError
from facerec.fairness import rates as module
from facerec.fairness.pair_counts import SubjectCounts
from facerec.fairness.rates import GroupErrors, all_pairs_group_rates, all_pairs_rates

TARGETS = ("1e-1", "1e-2")


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return what counts how often all pairs are scored."""
    made: list[int] = []
    score = module.score_all_pairs

    def counting(vectors: NDArray, *arguments: Any, **options: Any) -> Any:
        made.append(len(vectors))
        return score(vectors, *arguments, **options)

    monkeypatch.setattr(module, "score_all_pairs", counting)
    return made


def test_an_audit_scores_once_a_fusion(calls: list[int], tmp_path: Path) -> None:
    found = toy_audit(tmp_path, sizes=(24, 26, 22, 25), targets=TARGETS)
    assert [part.name for part in found.groupings] == ["race", "sex", "race × sex"]
    assert all(isinstance(part.fusion, tuple) for part in found.groupings)
    assert len(calls) == 2


def assert_same(one: GroupErrors, other: GroupErrors) -> None:
    assert one.rates == other.rates
    assert one.histograms == other.histograms
    assert (one.subjects, one.calibration) == (other.subjects, other.calibration)
    for row, same_row in zip(one.counts, other.counts, strict=True):
        for counts, expected in zip(row, same_row, strict=True):
            assert isinstance(counts, SubjectCounts) and isinstance(expected, SubjectCounts)
            for name in ("members", "false_matches", "images", "missed", "mated"):
                mine, its = (
                    value.toarray() if isinstance(value, csr_array) else value
                    for value in (getattr(counts, name), getattr(expected, name))
                )
                np.testing.assert_array_equal(mine, its)


def made_up(
    seed: int, torn: bool = False
) -> tuple[NDArray, NDArray, list[tuple[NDArray, tuple[str, ...]]]]:
    """Return vectors, subjects and three groupings, in which some subjects have no group.

    Args:
        seed: of it all.
        torn: also images without a group, of subjects who have one.
    """
    faces = toy(persons=36, images=4, seed=seed)
    generator = np.random.default_rng(seed)
    vectors = faces.vectors.copy()
    vectors[generator.choice(len(vectors), 5, replace=False)] = np.nan
    subject = np.where(generator.random(len(vectors)) < 0.03, -1, faces.subject)
    second = (generator.integers(-1, 2, 36))[faces.subject]
    third = np.where((faces.group < 2) & (second >= 0), 2 * faces.group + second, -1)
    if torn:
        second[generator.random(second.size) < 0.1] = -1
    names = faces.names, ("f", "m"), ("Af", "Am", "Bf", "Bm")
    return vectors, subject, list(zip((faces.group, second, third), names, strict=True))


@pytest.mark.parametrize("torn", [False, True])
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_results_are_those_of_a_loop_over_groupings(
    calls: list[int], seed: int, torn: bool
) -> None:
    vectors, subject, groupings = made_up(seed, torn)
    found = all_pairs_rates(vectors, subject, groupings, targets=TARGETS)
    assert len(calls) == (4 if torn else 1)
    for errors, (group, names) in zip(found, groupings, strict=True):
        assert not isinstance(errors, MetricError)
        expected = all_pairs_group_rates(
            vectors, subject, group, names, targets=TARGETS, calibration=errors.calibration
        )
        assert_same(errors, expected)
    # The first grouping has everybody, so its own impostors are all of them.
    assert not isinstance(found[0], MetricError)
    assert_same(found[0], all_pairs_group_rates(vectors, subject, *groupings[0], targets=TARGETS))


def test_results_are_those_of_a_loop_where_false_matches_are_too_many(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    score = module.score_all_pairs
    monkeypatch.setattr(
        module, "score_all_pairs", lambda *a, **options: score(*a, **options, pair_limit=3)
    )
    vectors, subject, groupings = made_up(3)
    found = all_pairs_rates(vectors, subject, groupings, targets=TARGETS)
    for errors, (group, names) in zip(found, groupings, strict=True):
        assert not isinstance(errors, MetricError)
        assert_same(
            errors,
            all_pairs_group_rates(
                vectors, subject, group, names, targets=TARGETS, calibration=errors.calibration
            ),
        )


def test_a_grouping_without_pairs_does_not_stop_the_others() -> None:
    vectors, subject, groupings = made_up(0)
    alone = np.where(subject == subject.max(), 0, -1)
    found = all_pairs_rates(vectors, subject, [*groupings, (alone, ("one",))], targets=TARGETS)
    assert [isinstance(errors, MetricError) for errors in found] == [False, False, False, True]
    assert "of 1 identities" in str(found[3])
