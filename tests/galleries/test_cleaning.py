"""Faults that are planted in generated embeddings are found, at thresholds that nobody named."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.metrics import f1_score, roc_auc_score

from facerec.galleries import clean_set
from facerec.galleries.label_faults import log_ratio
from facerec.galleries.members import Members, directions


def faces(people=40, images=10, noise=0.9, size=48, seed=0):
    """Vectors of people, ``(people · images, size)``, and who is on each."""
    generator = np.random.default_rng(seed)
    centers = generator.standard_normal((people, size))
    who = np.repeat(np.arange(people), images)
    vectors = centers[who] + noise * generator.standard_normal((len(who), size))
    return vectors.astype(np.float32), who


def names(who):
    return np.array([f"p{number:03d}" for number in who])


def ids(who):
    return np.array([f"i{row}" for row in range(len(who))])


def planted(who, share, seed=1):
    """Give a share of the images another label; return labels and which are wrong."""
    generator = np.random.default_rng(seed)
    people = who.max() + 1
    wrong = np.zeros(len(who), bool)
    wrong[generator.choice(len(who), round(share * len(who)), replace=False)] = True
    moved = (who + generator.integers(1, people, len(who))) % people
    return np.where(wrong, moved, who), wrong


def of(result, kind):
    """Return the proposals of a kind."""
    return [proposal for proposal in result.proposals if proposal.kind == kind]


def proposed_images(result, count):
    """Return which images are proposed for a wrong label, ``(count,)``."""
    return np.isin(ids(np.arange(count)), [p.image_id for p in of(result, "wrong_label")])


def duplicate_pairs(result):
    """Return pairs of rows: the image to go and the one that stays."""
    return [(int(p.image_id[1:]), int(p.other_id[1:])) for p in of(result, "duplicate")]


@pytest.mark.parametrize("share", [0.0, 0.01, 0.05, 0.2])
def test_planted_wrong_labels_are_found(share):
    vectors, who = faces()
    labels, wrong = planted(who, share)
    result = clean_set(vectors, names(labels), ids(who))
    found = proposed_images(result, len(who))
    if not share:
        assert found.mean() < 0.02
        return
    assert roc_auc_score(wrong, result.probability) > 0.99
    assert f1_score(wrong, found) > 0.9
    rows = {f"i{row}": f"p{who[row]:03d}" for row in np.flatnonzero(wrong)}
    asked = [p for p in of(result, "wrong_label") if p.image_id in rows]
    right = [p for p in asked if p.proposed_label == rows[p.image_id]]
    assert len(right) > 0.85 * len(asked) > 0.75 * len(rows)


def test_strangers_are_to_be_left_out():
    vectors, who = faces()
    strangers, _ = faces(people=20, images=1, seed=7)
    vectors[::20] = strangers
    result = clean_set(vectors, names(who), ids(who))
    wrong = np.arange(len(who)) % 20 == 0
    assert f1_score(wrong, proposed_images(result, len(who))) > 0.9
    found = [p for p in of(result, "wrong_label") if int(p.image_id[1:]) % 20 == 0]
    assert np.mean([p.proposed_label == "" for p in found]) > 0.8


def test_people_with_two_labels_are_merged_and_others_are_not():
    vectors, who = faces()
    labels = names(who)
    for person in range(6):
        rows = np.flatnonzero(who == person)
        labels[rows[:3]] = f"q{person:03d}"
    result = clean_set(vectors, labels, ids(who))
    merged = {(p.label, p.proposed_label) for p in of(result, "merge")}
    assert merged == {(f"q{person:03d}", f"p{person:03d}") for person in range(6)}
    assert not of(result, "mixture")
    assert not proposed_images(result, len(who)).any()


def test_classes_of_two_people_are_split():
    vectors, who = faces()
    mixed = np.where(who < 8, who // 2 * 2, who)  # 0 and 1, 2 and 3, 4 and 5, 6 and 7
    result = clean_set(vectors, names(mixed), ids(who))
    found = of(result, "mixture")
    assert {p.label for p in found} == {"p000", "p002", "p004", "p006"}
    for label in ("p000", "p002", "p004", "p006"):
        rows = [int(p.image_id[1:]) for p in found if p.label == label]
        assert len(rows) == 10 and len(set(who[rows].tolist())) == 1
    assert {p.proposed_label for p in found if p.label == "p000"} == {"p000~2"}


@pytest.mark.parametrize("images, share, noise", [(5, 0.1, 0), (3, 0.5, 0.05), (10, 1.0, 0.1)])
def test_many_duplicates_are_found_too(images, share, noise):
    vectors, who = faces(people=60, images=images)
    generator = np.random.default_rng(1)
    rows = generator.choice(len(who), round(share * len(who)), replace=False)
    copies = vectors[rows] + noise * generator.standard_normal((len(rows), vectors.shape[1]))
    everybody = np.concatenate([who, who[rows]])
    both = np.concatenate([vectors, copies.astype(np.float32)])
    result = clean_set(both, names(everybody), ids(everybody))
    found = {tuple(sorted(pair)) for pair in duplicate_pairs(result)}
    planted_pairs = {(row, len(who) + copy) for copy, row in enumerate(rows.tolist())}
    assert len(found & planted_pairs) >= 0.98 * len(rows)
    assert len(found - planted_pairs) <= 0.05 * len(rows)


def test_a_label_of_many_people_makes_no_duplicates():
    vectors, who = faces(people=200, images=5, noise=0.7, size=128)
    result = clean_set(vectors, np.where(who < 100, "all", names(who)), ids(who))
    assert not duplicate_pairs(result)


def test_means_of_classes_equal_a_loop():
    vectors, who = faces(people=4, images=5, size=3)
    generator = np.random.default_rng(0)
    label = generator.permutation(who)
    weights = generator.random(20)
    sums = Members(vectors, np.where(label, label, -1), 6).sums(weights)
    means = directions(sums)
    for number in range(6):
        rows = label == number if number else np.zeros(20, bool)
        total = (vectors[rows] * weights[rows, None]).sum(0)
        assert np.allclose(sums[number], total, atol=1e-6)
        direction = total / max(np.linalg.norm(total), 1e-9)
        assert np.allclose(means[number], direction, atol=1e-6)


def test_how_much_more_frequent_has_a_closed_form_for_two_normal_distributions():
    generator = np.random.default_rng(0)
    sound, faulty = generator.standard_normal((2, 20_000, 1)) + np.array([2.0, -1.0])[:, None, None]
    asked = np.linspace(-2, 3, 11)[:, None]
    found = log_ratio(sound, faulty, asked, np.ones(len(sound)))
    np.testing.assert_allclose(found, -3 * asked[:, 0] + 1.5, atol=0.25)


def test_duplicates_are_found_and_different_photos_are_not():
    vectors, who = faces(images=12)
    labels = names(who)
    generator = np.random.default_rng(1)
    assert not duplicate_pairs(clean_set(vectors, labels, ids(who)))
    copies = {100: 101, 200: 207, 50: 400}  # the last one under two labels
    for source, copy in copies.items():
        vectors[copy] = vectors[source] + 0.05 * generator.standard_normal(48)
    pairs = duplicate_pairs(clean_set(vectors, labels, ids(who)))
    assert {tuple(sorted(pair)) for pair in pairs} == set(copies.items())
    assert (400, 50) in pairs  # the one whose label is wrong goes
    alone = duplicate_pairs(clean_set(vectors, labels, ids(who), across=False))
    assert (101, 100) in alone and (400, 50) not in alone


def test_pictures_without_a_face_are_no_person():
    """They would be one person of their own; few sound faces score low, and these stay."""
    vectors, who = faces()
    generator = np.random.default_rng(3)
    cars = np.arange(0, 120, 4)  # of people 0 to 11, all of one direction
    vectors[cars] = 5 * generator.standard_normal(vectors.shape[1]) + 0.3 * vectors[cars]
    scores = np.maximum(generator.standard_normal(len(who)), -2.7)
    scores[cars], scores[[201, 202]] = -7 - generator.random(30), -2.6
    result = clean_set(vectors, names(who), ids(who), face_scores=scores, face_limit=-2.58)
    none = of(result, "no_face")
    low = {f"i{row}" for row in np.flatnonzero(scores < -2.58)}
    assert {p.image_id for p in none} == low and not low & {f"i{row}" for row in result.rows}
    assert {p.image_id for p in none if p.accept} == {f"i{row}" for row in cars}
    assert [p.score for p in none] == sorted((p.score for p in none), reverse=True)
    assert not low & {p.image_id for p in result.proposals if p.kind != "no_face"}
    unseen = clean_set(vectors, names(who), ids(who))
    assert low & {p.image_id for p in unseen.proposals}
