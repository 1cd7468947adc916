from __future__ import annotations

import itertools
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
from helpers.plain_rates import tpr_at_fpr
from helpers.toy_embeddings import take
from helpers.toy_faces import Toy, grouping, of_all, of_list, pair_list
from numpy.typing import NDArray

from facerec.embedding.extraction import Embeddings
from facerec.fairness.baseline import Change, Key, compare_models
from facerec.fairness.differentials import max_over_geomean
from facerec.fairness.rates import GroupErrors
from facerec.statistics.clustered import paired_difference
from facerec.statistics.kfold import kfold_accuracy
from facerec.verification.bench import Pairs
from facerec.verification.evaluation import score_pairs

pytestmark = pytest.mark.integration

TARGETS = ("5e-1", "1e-1")
NAMES = ("A", "B")


@dataclass(frozen=True)
class People:
    subject: NDArray[np.int64]
    group: NDArray[np.int64]
    ids: NDArray[np.str_]

    def embed(self, seed: int, noise: float = 1.0, spread: float = 0.3) -> Embeddings:
        """Persons are directions, those of B close together; norms differ by group."""
        generator = np.random.default_rng(seed)
        own = generator.normal(size=(int(self.subject.max()) + 1, 8))
        own[np.unique(self.subject[self.group == 1])] += 0.8
        rows = own[self.subject] + noise * generator.normal(size=(len(self.subject), 8))
        norms = 10 + self.group + 5 * spread * generator.normal(size=len(rows))
        rows *= (np.abs(norms) / np.linalg.norm(rows, axis=1))[:, None]
        vectors = rows.astype(np.float32)
        return Embeddings(vectors, np.linalg.norm(vectors, axis=1), False, self.ids)

    def pairs(self, folds: int = 4, per_fold: int = 24) -> Pairs:
        """Same and different pairs, half of each in every fold."""
        generator = np.random.default_rng(99)
        every = np.array(list(itertools.combinations(range(len(self.subject)), 2)))
        same = self.subject[every[:, 0]] == self.subject[every[:, 1]]
        chosen = []
        for label in (True, False):
            rows = generator.choice(np.flatnonzero(same == label), folds * per_fold // 2, False)
            chosen.append(every[rows].reshape(folds, -1, 2))
        first, second = np.concatenate(chosen, axis=1).reshape(-1, 2).T
        labels = self.subject[first] == self.subject[second]
        return Pairs(first, second, labels, self.subject, np.repeat(np.arange(folds), per_fold))


def people(persons: int = 24, images: int = 3) -> People:
    subject = np.repeat(np.arange(persons), images)
    ids = np.array([f"{person}/{row}.jpg" for row, person in enumerate(subject)])
    return People(subject, subject % 2, ids)


def compare(
    faces: People, baseline: Embeddings, new: Embeddings, **options: Any
) -> tuple[dict[Key, Change], list[str]]:
    options = dict[str, Any](targets=TARGETS) | options
    groups = grouping(faces.group, NAMES)
    changes, notes = compare_models(baseline, new, faces.subject, groups, **options)
    return {change.key: change for change in changes}, notes


def count(faces: People, vectors: NDArray[np.floating], pairs: Pairs | None) -> GroupErrors:
    people = Toy(vectors, faces.subject, faces.group, NAMES)
    if pairs is None:
        return of_all(people, TARGETS)
    sides = np.stack([pairs.first, pairs.second])
    return of_list(people, TARGETS, pair_list(people, sides=sides))


# --- the joint bootstrap -----------------------------------------------------------------------


class BruteForce:
    """Computes every figure with each person as often as drawn, by repeating things."""

    def __init__(self, faces: People, side: Embeddings, pairs: Pairs, listed: bool) -> None:
        self.faces, self.norms, self.pairs = faces, side.norms.astype(np.float64), pairs
        self.scores = score_pairs(side.vectors, pairs.first, pairs.second)
        self.sides, self.rated = (pairs.first, pairs.second), self.scores
        if not listed:
            self.sides = np.triu_indices(len(faces.subject), 1)
            self.rated = score_pairs(side.vectors, *self.sides)
        errors = count(faces, side.vectors, pairs if listed else None)
        self.thresholds = [at.point.threshold for at in errors.points]

    def __call__(self, times: NDArray[np.integer]) -> dict[tuple[str, str], float]:
        norms = np.repeat(self.norms, times[self.faces.subject])
        found = {("CV of norms", ""): float(norms.std(ddof=1) / norms.mean())}
        persons = np.arange(len(times))
        means = np.array([self.norms[self.faces.subject == p].mean() for p in persons])
        own, groups = np.repeat(means, times), np.repeat(persons % 2, times)
        parts = [own[groups == code] for code in range(2)]
        found["η²", ""] = float(1 - sum(len(x) * x.var() for x in parts) / (len(own) * own.var()))
        found["Cliff's δ", ""] = float(np.mean(np.sign(parts[0][:, None] - parts[1])))
        pairs, scores = self.pairs, self.scores
        _, weight = self.weigh((pairs.first, pairs.second), times)
        cuts = kfold_accuracy(scores, pairs.issame, pairs.folds).thresholds
        thresholds = np.array(list(cuts))
        right = (scores >= thresholds[pairs.folds]) == pairs.issame
        found["accuracy", ""] = float(np.repeat(right, weight).mean())
        drawn, same = np.repeat(scores, weight), np.repeat(pairs.issame, weight)
        for target, threshold in zip(TARGETS, self.thresholds, strict=True):
            found["TPR@FPR", target] = tpr_at_fpr(drawn[same], drawn[~same], target).tpr
            for of, rates in self.rates(threshold, times).items():
                found[f"max/geomean of {of}", target] = float(max_over_geomean(rates))
        return found

    def weigh(
        self, sides: Any, times: NDArray[np.integer]
    ) -> tuple[NDArray[np.integer], NDArray[np.integer]]:
        """Return the persons of pairs, and how often each pair is there."""
        one, other = persons = np.stack([self.faces.subject[side] for side in sides])
        return persons, np.where(one == other, times[one], times[one] * times[other])

    def rates(self, threshold: float | None, times: NDArray[np.integer]) -> dict[str, list[float]]:
        (one, other), weight = self.weigh(self.sides, times)
        # The engine of all pairs may round a cosine to the neighbour of ours.
        accepted = self.rated >= np.float64(threshold) + 1e-6
        rates: dict[str, list[float]] = {"FMR": [], "FNMR": []}
        for code in range(2):
            inside = (one % 2 == code) & (other % 2 == code)
            for of, part, wrong in (
                ("FMR", inside & (one != other), accepted),
                ("FNMR", inside & (one == other), ~accepted),
            ):
                rates[of].append(float(np.repeat(wrong[part], weight[part]).mean()))
        return rates


@pytest.mark.parametrize("impostors", ["all", "list"])
def test_the_jackknife_is_that_of_brute_force(impostors: Any) -> None:
    faces = people(images=6)
    pairs = faces.pairs(per_fold=180)
    both = faces.embed(1, noise=2.0), faces.embed(2, noise=1.8)
    found, _ = compare(faces, *both, pairs=pairs, impostors=impostors)
    times = np.vstack([np.ones(24, np.uint8), 1 - np.eye(24, dtype=np.uint8)])
    sides = [list(map(BruteForce(faces, side, pairs, impostors == "list"), times)) for side in both]
    assert {key[:2] for key in found} == set(sides[0][0])
    compared = set()
    for (figure, target, *_), change in found.items():
        if change.value is None:
            assert change.status == "withheld" and "matches" in change.remark
            continue
        values = np.array([[row[figure, target] for row in side] for side in sides])
        differences = values[1] - values[0]
        assert change.baseline.value == pytest.approx(values[0, 0], rel=1e-9)
        assert change.new.value == pytest.approx(values[1, 0], rel=1e-9)
        assert change.value == pytest.approx(differences[0], abs=1e-9)
        compared.add(figure)
        if figure in ("accuracy", "TPR@FPR"):
            continue  # influences are those of the figure to first order
        expected = paired_difference([change.value], differences[1:] - differences[0])
        assert change.interval.low == pytest.approx(expected.low, abs=1e-9)
        assert change.interval.high == pytest.approx(expected.high, abs=1e-9)
    assert {"max/geomean of FMR", "max/geomean of FNMR", "accuracy", "TPR@FPR"} < compared


# --- laws --------------------------------------------------------------------------------------


def test_identical_models_differ_in_nothing() -> None:
    faces = people()
    found, _ = compare(faces, faces.embed(0), faces.embed(0), pairs=faces.pairs())
    known = [change for change in found.values() if change.value is not None]
    assert len(known) >= 6
    for change in known:
        assert change.value == 0 and change.interval is None
        assert change.remark == "no interval: no subject makes a difference"


# --- fusion, failures, groups ------------------------------------------------------------------


def test_images_that_fail_anywhere_take_part_nowhere() -> None:
    faces = people()
    pairs = faces.pairs()
    baseline, new = faces.embed(0, 1.4), faces.embed(10)
    lost = int(pairs.first[0])
    vectors, norms = new.vectors.copy(), new.norms.copy()
    vectors[lost] = norms[lost] = np.nan
    found, notes = compare(faces, baseline, replace(new, vectors=vectors, norms=norms), pairs=pairs)
    gone = int(((pairs.first == lost) | (pairs.second == lost)).sum())
    assert any(f"{gone} of 96 pairs are left out" in note for note in notes)
    # The same as if that image had never been there.
    kept = np.arange(72) != lost

    rest = People(faces.subject[kept], faces.group[kept], faces.ids[kept])
    again, _ = compare(rest, take(baseline, kept), take(new, kept))
    for key, change in again.items():
        if key[0] != "TPR@FPR":
            assert (found[key].value, found[key].interval) == (change.value, change.interval)


def test_what_the_data_cannot_carry_is_withheld_with_its_reason() -> None:
    faces = people()
    found, _ = compare(faces, faces.embed(1), faces.embed(2), targets=("1e-6",))
    for figure in ("TPR@FPR", "max/geomean of FMR"):
        change = found[figure, "1e-6", "", ""]
        assert change.value is None and change.status == "unresolved"
        assert change.remark.startswith("baseline: ")
