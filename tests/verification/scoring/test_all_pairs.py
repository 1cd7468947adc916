"""All pairs by tiles equal all pairs by one dense matrix, sorting and naive loops."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import combinations
from typing import Any

import numpy as np
import pytest
import torch
from helpers.examples import examples
from helpers.plain_rates import tpr_at_fpr
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from facerec.base.defaults import ALL_PAIRS_TARGETS
from facerec.base.errors import MetricError
from facerec.cosines import counts
from facerec.statistics.clustered import ClusteredShare
from facerec.statistics.operating_points import OperatingPoint
from facerec.verification.scoring import AllPairs, ErrorTable, score_all_pairs

TARGETS = ("1", "0.9", "1/2", "1e-1", "1e-2", "1e-3", "1e-6", "1e-9", "0")


def on_a_grid(generator: np.random.Generator, images: int, size: int = 16) -> NDArray[np.float32]:
    """Embeddings of entries ±c: their cosines are exact in float32, in any order of summation."""
    signs = generator.choice([-1.0, 1.0], size=(images, size))
    return (signs * 2.0 ** generator.integers(-3, 4, size=(images, 1))).astype(np.float32)


def people(generator: np.random.Generator, images: int, count: int) -> NDArray[np.int64]:
    """Subjects in random order, of which at least one has two images and two differ."""
    drawn = generator.integers(count, size=images)
    drawn[:3] = 0, 0, 1
    return generator.permutation(drawn)


def same_points(
    found: Sequence[OperatingPoint], expected: Sequence[OperatingPoint], scores: NDArray[np.float32]
) -> None:
    """Require equal counts, and thresholds that tell the same scores apart."""
    for one, other in zip(found, expected, strict=True):
        assert replace(one, threshold=other.threshold) == other
        assert np.array_equal(scores >= one.threshold, scores >= other.threshold)


class Dense:
    """The brute force: every pair of images in a list."""

    def __init__(self, vectors: NDArray[np.float32], subjects: NDArray[np.generic]) -> None:
        unit = vectors.astype(np.float64)
        unit /= np.linalg.norm(unit, axis=1, keepdims=True)
        self.first, self.second = np.triu_indices(len(unit), 1)
        self.scores = (unit @ unit.T)[self.first, self.second].astype(np.float32)
        self.same = subjects[self.first] == subjects[self.second]
        self.subjects = subjects

    def check(self, found: AllPairs, targets: tuple[str, ...]) -> None:
        mated_scores, impostor = np.sort(self.scores[self.same]), self.scores[~self.same]
        assert (found.mated, found.non_mated) == (mated_scores.size, impostor.size)
        expected = [tpr_at_fpr(mated_scores, impostor, target) for target in targets]
        same_points(found.points, expected, self.scores)
        assert np.array_equal(found.mated_scores, mated_scores)

    def check_table(self, table: ErrorTable, threshold: float, found: AllPairs) -> None:
        wrong = (self.scores >= threshold) != self.same
        names, subject = np.unique(self.subjects, return_inverse=True)
        assert np.array_equal(found.subjects, names)
        missed, involved = np.zeros((2, names.size), int)
        between = np.zeros((names.size, names.size), int)
        for pair in np.flatnonzero(wrong):
            one, other = sorted(subject[[self.first[pair], self.second[pair]]])
            if one == other:
                missed[one] += 1
            else:
                between[one, other] += 1
                involved[[one, other]] += 1
        assert np.array_equal(table.missed, missed)
        assert np.array_equal(table.involved, involved)
        assert np.array_equal(table.by_pair.toarray(), between)
        # The parts recombine to the whole.
        assert table.missed.sum() == missed.sum() == np.count_nonzero(wrong & self.same)
        assert table.false_matches == between.sum() == np.count_nonzero(wrong & ~self.same)
        assert table.involved.sum() == 2 * table.false_matches


@settings(deadline=None, max_examples=examples(40))
@given(
    seed=st.integers(0, 10**6),
    images=st.integers(4, 40),
    count=st.integers(2, 12),
    size=st.sampled_from([4, 16]),
    data=st.data(),
)
def test_equals_brute_force_whatever_the_tile(
    seed: int, images: int, count: int, size: int, data: st.DataObject
) -> None:
    generator = np.random.default_rng(seed)
    vectors, subjects = on_a_grid(generator, images, size), people(generator, images, count)
    tile = data.draw(st.integers(1, images), "tile")
    thresholds = data.draw(st.lists(st.sampled_from([-1.0, -0.5, 0.0, 0.3, 0.5, 1.0])), "at")
    found = score_all_pairs(vectors, subjects, fpr=TARGETS, thresholds=thresholds, tile=tile)
    dense = Dense(vectors, subjects)
    dense.check(found, TARGETS)
    assert found.failures.size == found.lost_mated == found.lost_non_mated == 0
    edges = thresholds + [point.threshold for point in found.points]
    assert [table.threshold for table in found.tables] == edges
    assert [table.target for table in found.tables] == [None] * len(thresholds) + list(TARGETS)
    for table in found.tables:
        dense.check_table(table, table.threshold, found)


@settings(deadline=None, max_examples=examples(25))
@given(
    seed=st.integers(0, 10**6),
    count=st.integers(2, 12),
    tile=st.integers(3, 20),
    right=st.sampled_from([0, 0.5]),
)
def test_a_wrong_guess_changes_no_figure(seed: int, count: int, tile: int, right: float) -> None:
    generator = np.random.default_rng(seed)
    vectors, subjects = on_a_grid(generator, 20, 64), people(generator, 20, count)
    arguments: dict[str, Any] = {"fpr": TARGETS, "thresholds": [0.25], "tile": tile}
    guess, reaches = counts._guess, []

    def narrow(sample: Any, allowed: Sequence[int], reach: int) -> list[counts.Window]:
        reaches.append(reach)
        found = guess(sample, allowed, reach)
        if reach > 4:
            return found
        wrong = [np.sort(generator.uniform(-1, 1, 2)).astype(np.float32) for _ in found]
        return [
            one if one[0] == one[1] or generator.random() < right else (other[0], other[1])
            for one, other in zip(found, wrong, strict=True)
        ]

    whole = score_all_pairs(vectors, subjects, **arguments)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(counts, "_guess", narrow)
        patch.setattr(counts, "PENDING", 30)
        found = score_all_pairs(vectors, subjects, **arguments)
    assert reaches[0] == 4 and set(reaches) <= {4, 32}
    same(whole, found)
    dense = Dense(vectors, subjects)
    dense.check(found, TARGETS)
    for table in found.tables:
        dense.check_table(table, table.threshold, found)


def clustered(images: int, count: int, size: int, seed: int = 0) -> tuple[NDArray, NDArray]:
    generator = np.random.default_rng(seed)
    subjects = generator.integers(count, size=images)
    centres = generator.standard_normal((count, size))
    noise = generator.standard_normal((images, size))
    return (7 * (centres[subjects] + noise + 0.2)).astype(np.float32), subjects


def test_a_sample_finds_the_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    vectors, subjects = clustered(2000, 600, 16)
    targets = ("0.9", *ALL_PAIRS_TARGETS)
    arguments: dict[str, Any] = {"fpr": targets, "thresholds": [0.4, 0.8], "tile": 256}
    monkeypatch.setattr(counts, "_SHARE", 10**9)
    whole = score_all_pairs(vectors, subjects, **arguments)
    # Of 2 million pairs 1 in 16, in blocks of 8 × 8: windows leave most scores out.
    monkeypatch.setattr(counts, "_SHARE", 16)
    monkeypatch.setattr(counts, "_BLOCK", 8)
    stages = set()
    progress = {"progress": lambda *now: stages.add(now[0])}
    same(whole, score_all_pairs(vectors, subjects, **arguments, **progress))
    assert stages == {"comparing all pairs", "comparing mated pairs"}
    monkeypatch.setattr(counts, "KEPT", 1000)
    with pytest.raises(MetricError, match="more than 1,000 non-mated pairs"):
        score_all_pairs(vectors, subjects, **arguments)


def same(first: AllPairs, second: AllPairs) -> None:
    """Require that two results are equal in every count and bit."""
    assert first.points == second.points
    for name in ("mated_scores", "subjects", "failures"):
        assert np.array_equal(getattr(first, name), getattr(second, name)), name
    assert len(first.tables) == len(second.tables)
    for one, other in zip(first.tables, second.tables, strict=True):
        assert (one.threshold, one.target) == (other.threshold, other.target)
        for name in ("missed", "involved", "false_matches"):
            assert np.array_equal(getattr(one, name), getattr(other, name)), name
        assert (one.by_pair != other.by_pair).nnz == 0


def test_failures_to_acquire_are_left_out_and_counted() -> None:
    generator = np.random.default_rng(1)
    vectors, subjects = on_a_grid(generator, 30), people(generator, 30, 5)
    broken = [3, 11, 12, 29]
    vectors[broken] = [[0.0], [np.nan], [np.inf], [-np.inf]]
    vectors[11, 1:] = 1
    found = score_all_pairs(vectors, subjects, fpr=TARGETS, thresholds=[0.25], tile=8)
    kept = np.setdiff1d(np.arange(30), broken)
    dense = Dense(vectors[kept], subjects[kept])
    dense.check(found, TARGETS)
    dense.check_table(found.tables[0], 0.25, found)
    assert found.failures.tolist() == broken and found.images == 26
    lost = [pair for pair in combinations(range(30), 2) if set(pair) & set(broken)]
    mated = sum(bool(subjects[i] == subjects[j]) for i, j in lost)
    assert (found.lost_mated, found.lost_non_mated) == (mated, len(lost) - mated)


def compare_shares(found: ClusteredShare, expected: ClusteredShare) -> None:
    assert (found.events, found.comparisons) == (expected.events, expected.comparisons)
    assert found.interval().low == pytest.approx(expected.interval().low, abs=1e-9)
    assert found.interval().high == pytest.approx(expected.interval().high, abs=1e-9)


def test_shares_are_those_of_the_single_pairs() -> None:
    generator = np.random.default_rng(3)
    vectors, subjects = on_a_grid(generator, 120, 64), people(generator, 120, 25)
    arguments: dict[str, Any] = {"fpr": ["1e-1", "1e-2"], "thresholds": [0.4], "tile": 50}
    found = score_all_pairs(vectors, subjects, **arguments, pair_limit=2**28)
    dense = Dense(vectors, subjects)
    first, second = subjects[dense.first], subjects[dense.second]
    places = [np.flatnonzero(found.subjects % 2 == parity) for parity in (0, 1)]
    for table in found.tables:
        accepted = dense.scores >= np.float32(table.threshold)
        even = first % 2 + second % 2
        for share, part in (
            (table.fmr_share(), ~dense.same),
            (table.fmr_among(places[0]), ~dense.same & (even == 0)),
            (table.fmr_among(places[1]), ~dense.same & (even == 2)),
            (table.fmr_among(*places), ~dense.same & (even == 1)),
        ):
            expected = ClusteredShare.from_pairs(accepted[part], first[part], second[part])
            compare_shares(share, expected)
        for part, alike, share in (
            (dense.same, False, table.fnmr_share()),
            (dense.same & (even == 2), False, table.fnmr_among(places[1])),
            (dense.same & (even == 2), True, table.fnmr_among(places[1], alike=True)),
        ):
            sides = first[part], first[part]
            compare_shares(share, ClusteredShare.from_pairs(~accepted[part], *sides, alike=alike))
        assert table.fmr_among(places[0][:1]) is table.fmr_among(places[0], places[0][:0]) is None


def test_above_the_limit_sums_by_subject_serve() -> None:
    vectors, subjects = clustered(120, 25, 32, seed=3)
    arguments: dict[str, Any] = {"fpr": ["1e-1", "1e-3"], "tile": 50}
    exact = score_all_pairs(vectors, subjects, **arguments, pair_limit=2**28)
    many, few = score_all_pairs(vectors, subjects, **arguments, pair_limit=50).tables
    assert many.false_matches > 50 >= few.false_matches
    assert many.by_pair is None and few.by_pair is not None
    compare_shares(few.fmr_share(), exact.tables[1].fmr_share())
    share, best = many.fmr_share(), exact.tables[0].fmr_share()
    assert (share.events, share.comparisons) == (best.events, best.comparisons)
    assert share.interval().low < best.value < share.interval().high


@pytest.mark.parametrize("shift", [-1, 0, 1])
def test_a_float64_threshold_decides_as_in_exact_arithmetic(shift: int) -> None:
    vectors, subjects = clustered(60, 12, 16)
    found = score_all_pairs(vectors, subjects, fpr=["1e-1"])
    score = float(found.mated_scores[found.mated_scores.size // 2])
    threshold = score + shift * 1e-12  # far less than the grain of float32
    table = score_all_pairs(vectors, subjects, fpr=(), thresholds=[threshold]).tables[0]
    expected = np.count_nonzero(found.mated_scores.astype(np.float64) < threshold)
    assert table.missed.sum() == expected


VECTORS = on_a_grid(np.random.default_rng(0), 6)


@pytest.mark.parametrize(
    ("vectors", "subjects", "arguments", "message"),
    [
        (VECTORS[0], [1], {}, r"float32 of shape \(16,\)"),
        (VECTORS, [0, 0, 1, 1, 2, 2], {"fpr": ["2"]}, "target '2' is not a rate"),
        (VECTORS, range(6), {}, "6 usable images of 6 subjects make 0 mated and 15 non-mated"),
        (VECTORS, [0] * 6, {}, "15 mated and 0 non-mated pairs"),
        (VECTORS * np.float32(0), [0, 0, 1, 1, 2, 2], {}, r"\(6 images have no usable embedding"),
    ],
)
def test_bad_input_is_refused(
    vectors: NDArray, subjects: list[int], arguments: dict, message: str
) -> None:
    with pytest.raises(MetricError, match=message):
        score_all_pairs(vectors, list(subjects), **arguments)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_gpu_decides_like_the_cpu() -> None:
    vectors, subjects = clustered(3000, 500, 128)
    arguments: dict[str, Any] = {"thresholds": [0.2]}
    cpu = score_all_pairs(vectors, subjects, **arguments)
    for tile in (500, None):
        same(cpu, score_all_pairs(vectors, subjects, **arguments, device="cuda", tile=tile))
