from __future__ import annotations

import csv
import itertools
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from facerec.base.errors import DatasetError, MetricError
from facerec.embedding import Embeddings
from facerec.fairness import rows as names
from facerec.fairness.attributes import Joined, join, read_attributes
from facerec.fairness.findings import findings_of
from facerec.fairness.groupings import EVERYBODY, OTHERS
from facerec.fairness.one_to_many import OtherSubjects, draw_galleries, search_groups
from facerec.fairness.rows import At
from facerec.fairness.settings import SearchPlan
from facerec.report.tidy import tidy

GROUPS = ("east", "west")
SEED = 0
PLAN = SearchPlan(fpir=("1e-1", "5e-2"), reference="west")


def people(
    folder: Path, persons: int = 44, failures: tuple[int, ...] = (), seed: int = 0
) -> tuple[Embeddings, Joined]:
    """Return embeddings of persons of two groups with 1 to 5 images, and their attributes joined.

    Every fourth person is of group west, and one image has no group.
    """
    generator = np.random.default_rng(seed)
    images = generator.integers(1, 6, persons)
    person = np.repeat(np.arange(persons), images)
    centres = generator.normal(size=(persons, 6))
    vectors = centres[person] + 0.7 * generator.normal(size=(person.size, 6))
    vectors *= generator.uniform(5, 20, (person.size, 1))
    ids = [f"{one}/{row}.jpg" for row, one in enumerate(person)]
    path = folder / "attributes.csv"
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["image_id", "subject_id", "region", "label_source"])
        for row, one in enumerate(person):
            region = GROUPS[int(one % 4 == 0)]
            writer.writerow([ids[row], f"p{one:02d}", "" if row == 7 else region, "study"])
    vectors = vectors.astype(np.float32)
    vectors[list(failures)] = np.nan
    norms, lost = np.linalg.norm(vectors, axis=1), dict.fromkeys(failures, "no face")
    embeddings = Embeddings(vectors, norms, True, np.array(ids), failures=lost)
    return embeddings, join(read_attributes(path, ["region"]), embeddings)


def naive(
    embeddings: Embeddings, joined: Joined, plan: SearchPlan
) -> list[tuple[int, bool, float, float]]:
    """Return image, whether it is mated, best other score and mate of all searches, by loops."""
    half, enrolled = draw_galleries(joined.subjects, embeddings.ids, SEED)
    units = embeddings.vectors.astype(np.float64)
    units /= np.linalg.norm(units, axis=1, keepdims=True)
    failed = ~joined.acquired
    templates = {}
    for one in range(joined.subjects.max() + 1):
        images = np.flatnonzero(joined.subjects == one)
        chosen = [units[i] for i in images if enrolled[i] and not failed[i]]
        if chosen:
            mean = np.mean(chosen, axis=0)
            templates[one] = mean / np.linalg.norm(mean)
    searches = []
    for gallery in (0, 1):
        entries = [one for one in templates if half[one] == gallery]
        for i, one in enumerate(joined.subjects):
            inside = half[one] == gallery
            if failed[i] or (inside and (enrolled[i] or one not in entries)):
                continue
            scores = {e: float(units[i] @ templates[e]) for e in entries}
            mate = scores.pop(one, -np.inf)
            searches.append((i, bool(inside), max(scores.values()), mate))
    return searches


def search(
    embeddings: Embeddings,
    joined: Joined,
    plan: SearchPlan = PLAN,
    others: OtherSubjects | None = None,
) -> pd.DataFrame:
    rows, _ = search_groups(embeddings, joined, joined.groupings, plan, SEED, others)
    return tidy(rows)


def one(
    found: pd.DataFrame, figure: str, group: str = "", at: At = names.NOWHERE, kind: Any = "value"
) -> Any:
    """Return the only row of a figure."""
    (row,) = names.select(found, figure, kind, at, group=group).itertuples()
    return row


@pytest.mark.parametrize("failures", [(), (3, 4, 30, 61, 62, 63)])
def test_all_counts_equal_those_of_a_naive_loop(tmp_path: Path, failures: tuple[int, ...]) -> None:
    embeddings, joined = people(tmp_path, failures=failures)
    plan = PLAN
    found = search(embeddings, joined, plan)
    codes, searches = joined.groupings[0].codes, naive(embeddings, joined, plan)
    for (basis, code), target in itertools.product(((EVERYBODY, None), ("west", 1)), plan.fpir):
        of_basis = [s[2] for s in searches if not s[1] and code in (None, codes[s[0]])]
        at = At(target, basis)
        threshold = one(found, names.FPIR_THRESHOLD, at=at, kind="threshold")
        value, allowed = threshold.value, int(float(target) * len(of_basis) + 1e-9)
        assert threshold.denominator == len(of_basis)
        assert threshold.numerator == sum(best >= value for best in of_basis) <= allowed
        # A lower threshold would let one more in than the target allows.
        rejected = max(best for best in of_basis if best < value)
        assert sum(best >= rejected - 1e-6 for best in of_basis) > allowed
        for g, name in enumerate((*GROUPS, EVERYBODY)):
            mine = [x for x in searches if name == EVERYBODY or codes[x[0]] == g]
            fpir, fnir = (one(found, figure, name, at) for figure in ("FPIR", "FNIR"))
            assert fpir.denominator == sum(not mated for _, mated, *_ in mine)
            assert fpir.numerator == sum(not m and best >= value for _, m, best, _ in mine)
            assert fnir.denominator == sum(mated for _, mated, *_ in mine)
            assert fnir.numerator == sum(m and mate < value for _, m, _, mate in mine)
            first = one(found, names.RANK_1, name)
            assert first.numerator == sum(m and best >= mate for _, m, best, mate in mine)
            assert first.low <= first.value <= first.high
    # Failures to enrol are counted by group.
    _, enrolled = draw_galleries(joined.subjects, embeddings.ids, 0)
    for g, name in enumerate((*GROUPS, EVERYBODY)):
        inside = codes == g if g < 2 else np.ones(codes.size, bool)
        row = one(found, names.NOT_ENROLLED, name)
        here = set(joined.subjects[inside].tolist())
        made = set(joined.subjects[enrolled & joined.acquired].tolist())
        assert (row.numerator, row.denominator) == (len(here - made), len(here))


def test_ratios_are_of_the_rates_and_withheld_for_few_errors(tmp_path: Path) -> None:
    embeddings, joined = people(tmp_path, persons=120)
    found = search(embeddings, joined, SearchPlan(fpir=("3e-1", "1e-2")))
    at = At("3e-1", EVERYBODY)
    many = one(found, "FPIR", "west", at, "ratio")
    west, east = (one(found, "FPIR", group, at) for group in ("west", "east"))
    assert many.value == pytest.approx(west.value / east.value)
    assert many.low < many.value < many.high
    ratios = found[found["kind"] == "ratio"]
    assert set(ratios["group"]) == {"west"} and set(ratios["other"]) == {"east"}  # of the most
    few = one(found, "FPIR", "west", At("1e-2", EVERYBODY), "ratio")
    assert np.isnan(few.value) and few.status == "withheld" and "errors" in few.remark


def test_the_largest_detected_ratio_is_a_finding_and_no_other(tmp_path: Path) -> None:
    embeddings, joined = people(tmp_path, persons=160)
    plan, vectors = SearchPlan(fpir=("3e-1",)), embeddings.vectors
    # Images of west are noisier: their persons are missed more often.
    west = joined.groupings[0].codes == 1
    noise = np.random.default_rng(3).normal(size=vectors.shape)
    length = np.linalg.norm(vectors, axis=1, keepdims=True)
    vectors[west] += (0.5 * length * noise)[west].astype(np.float32)
    found = search(embeddings, joined, plan)
    said = [line.said for line in findings_of(found, ["region"]) if "FNIR" in line.detail]
    ratio = one(found, "FNIR", "west", At("3e-1", EVERYBODY), "ratio")
    assert ratio.low > 1 and len(said) == 1 and f"{ratio.value:.3g} times [" in said[0]
    # Groups drawn by chance differ by nothing that is detected.
    by_chance = replace(joined.groupings[0], codes=joined.subjects % 2)
    found = search(embeddings, replace(joined, groupings=(by_chance,)), plan)
    assert not [line for line in findings_of(found, ["region"]) if "In a search" in line.said]


def test_thresholds_of_other_people_are_those_of_galleries_of_that_size(tmp_path: Path) -> None:
    embeddings, joined = people(tmp_path)
    others_of, known = people(tmp_path, persons=70, seed=4)
    other = others_of.vectors
    people_of = np.array([f"p{person}" for person in known.subjects])
    people_of[5], other[9], other[11] = "", np.nan, 0
    norms = np.linalg.norm(other, axis=1)
    others = OtherSubjects.of(Embeddings(other, norms, True, subjects=people_of), "C.npz")
    used = ~np.isin(np.arange(len(people_of)), (5, 9, 11))
    assert len(others.vectors) == used.sum() and others.count == len(set(people_of[used]))
    plan = PLAN
    found = search(embeddings, joined, plan, others)
    size = 22  # half of the 44 subjects
    units = others.vectors / np.linalg.norm(others.vectors, axis=1, keepdims=True)
    _, enrolled = draw_galleries(others.subjects, others.ids, SEED)
    order = np.random.default_rng((SEED, 2)).permutation(others.count)
    best = []
    for start in range(0, others.count // size * size, size):
        inside = set(order[start : start + size].tolist())
        assert len(inside) == size
        sums = {one: units[enrolled & (others.subjects == one)].sum(axis=0) for one in inside}
        for unit, who in zip(units, others.subjects, strict=True):
            if who not in inside:
                best.append(max(unit @ t / np.linalg.norm(t) for t in sums.values()))
    for target in plan.fpir:
        threshold = one(found, names.FPIR_THRESHOLD, at=At(target, OTHERS), kind="threshold")
        assert threshold.denominator == len(best)
        allowed = int(float(target) * len(best) + 1e-9)
        # Scores are rounded to a grid of 4e-7.
        sure = sum(score >= threshold.value + 1e-6 for score in best)
        rejected = max(score for score in best if score < threshold.value)
        perhaps = sum(score >= rejected - 1e-6 for score in best)
        assert sure <= threshold.numerator <= allowed < perhaps
    again = search(embeddings, joined, plan)
    for group in GROUPS:
        assert one(again, names.RANK_1, group)[1:] == one(found, names.RANK_1, group)[1:]


def test_impossible_requests_are_refused(tmp_path: Path) -> None:
    embeddings, joined = people(tmp_path)
    with pytest.raises(MetricError):
        search(embeddings, joined, SearchPlan(fpir=("2",)))
    with pytest.raises(DatasetError, match="north"):
        search(embeddings, joined, SearchPlan(reference="north"))
    who = np.array([f"p{person}" for person in joined.subjects])
    few = joined.subjects < 22
    vectors, norms = embeddings.vectors[few], embeddings.norms[few]
    others = OtherSubjects.of(Embeddings(vectors, norms, True, None, who[few]), "C.npz")
    with pytest.raises(DatasetError, match=r"C\.npz.*22"):
        search(embeddings, joined, PLAN, others)
    with pytest.raises(DatasetError, match="nobody"):
        OtherSubjects.of(Embeddings(vectors, norms, True), "C.npz")


def test_without_mated_searches_the_others_are_counted(tmp_path: Path) -> None:
    embeddings, joined = people(tmp_path)
    found = search(embeddings, replace(joined, subjects=np.arange(len(joined.subjects))))
    at = At("1e-1", EVERYBODY)
    alarms, misses = (one(found, figure, EVERYBODY, at) for figure in ("FPIR", "FNIR"))
    assert alarms.denominator == len(joined.subjects) and alarms.value <= 0.1
    assert misses.remark == "no search" and np.isnan(misses.value)
