"""Drawn people vary as they were asked to, and what was drawn is measured again."""

from __future__ import annotations

import numpy as np
import pytest
from helpers.toy_audit import default_audit

from facerec.errors import DatasetError
from facerec.fairness.outputs import to_json
from facerec.fairness.population import (
    DEFAULTS,
    FalseMatchSpread,
    MissSpread,
    both_below,
    draw_false_matches,
    draw_means,
    draw_misses,
    false_match_variance,
    from_audit,
    from_embeddings,
    miss_variance,
    subject_counts,
)


def test_drawn_false_matches_have_their_rate_and_variance() -> None:
    spread, people, images, fmr = FalseMatchSpread(2e-3, 0.3, 0.15), 80, 4, 2e-3
    rng = np.random.default_rng(0)
    drawn = [
        subject_counts(0, images, people, draw_false_matches(rng, people, images, fmr, spread))
        for _ in range(250)
    ]
    shares = [group.fmr_share() for group in drawn]
    rates = np.array([share.rate for share in shares if share is not None])
    expected = false_match_variance(people, images, fmr, spread)
    assert rates.mean() == pytest.approx(fmr, rel=0.05)
    assert rates.var() / fmr**2 == pytest.approx(expected, rel=0.25)
    assert all(group.false_matches.diagonal().sum() == 0 for group in drawn)  # type: ignore[union-attr]


def test_comparisons_of_two_people_match_together_as_asked() -> None:
    spread = FalseMatchSpread(1e-3, 0.0, 0.3)
    rng = np.random.default_rng(1)
    counts = draw_false_matches(rng, 400, 3, 1e-3, spread).data
    # Of one match, another comparison of the same two matches as often as they are correlated.
    assert (counts * (counts - 1)).sum() / (counts.sum() * 8) == pytest.approx(0.3, abs=0.05)
    alone = draw_false_matches(rng, 400, 3, 1e-4, FalseMatchSpread(1e-4, 0.0, 0.0)).data
    assert set(alone) == {1}


def test_drawn_misses_have_their_rate_and_variance() -> None:
    spread, people, images, fnmr = MissSpread(0.25, 0.3), 60, 5, 0.1
    rng = np.random.default_rng(2)
    rates = np.array(
        [draw_misses(rng, people, images, fnmr, spread).sum() / (people * 10) for _ in range(500)]
    )
    assert rates.mean() == pytest.approx(fnmr, rel=0.05)
    expected = miss_variance(people, images, fnmr, spread)
    assert rates.var() / fnmr**2 == pytest.approx(expected, rel=0.2)


def test_both_below_is_the_product_or_the_share() -> None:
    assert both_below(0.1, 0.0) == pytest.approx(0.01)
    assert both_below(0.5, 0.5) == pytest.approx(1 / 3, abs=1e-6)  # 1/4 + arcsin(ρ) / 2π


def test_what_was_drawn_is_measured() -> None:
    rng = np.random.default_rng(3)
    people, images, width = 150, 6, 12
    centres = rng.standard_normal((people, width))
    person = np.repeat(np.arange(people), images)
    norms = draw_means(rng, (people,), 1, DEFAULTS.norms, 0.0, 1)[0]
    within = 0.5
    lengths = norms[person] + within * rng.standard_normal(person.size)
    hard = np.exp(0.4 * rng.standard_normal(people))[person, None]
    vectors = centres[person] + 0.3 * hard * rng.standard_normal((person.size, width))
    vectors *= (lengths / np.linalg.norm(vectors, axis=1))[:, None]
    found = from_embeddings(
        vectors, lengths, person, np.zeros(person.size, int), ["all"], source="these"
    )
    assert found.norms.between == pytest.approx(DEFAULTS.norms.of_means(1), rel=0.15)
    assert found.norms.within == pytest.approx(within, rel=0.1)
    assert set(found.source.values()) == {"these"}
    assert found.misses.subject > 0.02 and found.misses.image > 0.02
    assert [round(np.log10(spread.fmr)) for spread in found.false_matches][:2] == [-2, -3]
    assert all(0 <= spread.concordance < 1 for spread in found.false_matches)


def test_one_image_a_person_leaves_the_rest_to_the_defaults() -> None:
    rng = np.random.default_rng(4)
    vectors = rng.standard_normal((42, 8))
    person = np.concatenate([np.arange(40), [0, 1]])
    found = from_embeddings(
        vectors,
        np.linalg.norm(vectors, axis=1),
        person,
        np.zeros(42, int),
        ["all"],
        source="few",
        fmr=("1e-2",),
    )
    assert found.misses == DEFAULTS.misses and "few" in found.source["misses"]
    assert "LFW" in found.source["misses"]


def test_embeddings_of_zeros_are_left_out() -> None:
    rng = np.random.default_rng(5)
    person = np.repeat(np.arange(30), 3)
    vectors = rng.standard_normal((90, 8)) + 2 * rng.standard_normal((30, 8))[person]
    vectors[::10] = 0
    kept = vectors.any(axis=1)
    zero, without = (
        from_embeddings(
            vectors[rows],
            np.linalg.norm(vectors[rows], axis=1),
            person[rows],
            np.zeros(rows.sum(), int),
            ["all"],
            source="these",
            fmr=("1e-1",),
        )
        for rows in (np.ones(90, bool), kept)
    )
    assert zero == without


def test_components_of_an_audit() -> None:
    document = to_json(default_audit())
    found = from_audit(document, source="audit.json")
    rows = [
        row for row in document["norms"] if row["grouping"] == "race" and row["slice"] is not None
    ]
    within = [row["within_sd"]["value"] for row in rows]
    assert min(within) < found.norms.within < max(within)
    assert found.source["norms"] == "audit.json"
    assert found.misses == DEFAULTS.misses and "LFW" in found.source["misses"]
    assert all(spread.subjects >= 0 for spread in found.false_matches)


@pytest.mark.parametrize("document", [{}, {"schema": "other"}, []])
def test_other_files_are_refused(document: object) -> None:
    with pytest.raises(DatasetError, match="embeddings file"):
        from_audit(document, source="x.json")  # type: ignore[arg-type]
