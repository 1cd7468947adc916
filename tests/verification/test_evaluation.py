from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.plain_rates import auc, eer_rocch, tpr_at_fpr
from helpers.toy_packs import PixelModel, make_pack, toy_pairs

from facerec.base.errors import MetricError
from facerec.base.files import sha256
from facerec.embedding.extraction import Embeddings
from facerec.records.decode import decode_image
from facerec.records.images import MemoryImages
from facerec.records.packs import read_pack, write_pack
from facerec.statistics.clustered import ClusteredShare
from facerec.statistics.kfold import fold_indices, insightface_accuracy, kfold_accuracy
from facerec.verification import (
    Bench,
    VerificationResult,
    evaluate_bench,
    evaluate_embeddings,
    pack_bench,
    score_pairs,
    select_embeddings,
)
from facerec.verification.bench import Pairs
from facerec.verification.evaluation import XNORM, evaluate


def make_embeddings(pairs: int = 200, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Raw embeddings of pairs in ten folds; row 2i and 2i + 1 are pair i."""
    generator = np.random.default_rng(seed)
    same = np.tile(np.repeat([True, False], pairs // 20), 10)
    matrix = generator.normal(size=(2 * pairs, 16))
    matrix[1::2][same] += 1.2 * matrix[0::2][same]
    matrix *= generator.uniform(1, 30, (2 * pairs, 1))
    return matrix.astype(np.float32), same


def toy_bench(same: np.ndarray, subjects: np.ndarray | None = None, **changes: Any) -> Bench:
    ids = [f"image{i}" for i in range(2 * len(same))]
    pairs = toy_pairs(same, subjects)
    return replace(Bench("toy", MemoryImages("memory", ids, []), pairs), **changes)


def run(
    matrix: np.ndarray, same: np.ndarray, norms: np.ndarray | None = None, **flags: Any
) -> VerificationResult:
    norms = np.linalg.norm(matrix, axis=1) if norms is None else norms
    return evaluate_embeddings(Embeddings(matrix, norms, False), toy_bench(same), **flags)


def score_rows(matrix: np.ndarray) -> np.ndarray:
    rows = np.arange(len(matrix))
    return score_pairs(matrix, rows[0::2], rows[1::2])


# --- scores -----------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
@pytest.mark.parametrize("pairs", [1, 512, 1100])
def test_cosines_equal_a_plain_loop(dtype: type, pairs: int) -> None:
    matrix = np.random.default_rng(0).normal(size=(2 * pairs, 8)).astype(dtype)
    rows = matrix.astype(float).reshape(pairs, 2, 8)
    expected = [one @ other / np.sqrt((one @ one) * (other @ other)) for one, other in rows]
    scores = score_rows(matrix)
    assert scores.dtype == np.float32
    np.testing.assert_allclose(scores, expected, rtol=0, atol=1e-7)
    for broken in (0, np.nan, np.inf):
        matrix[1] = broken
        assert np.isnan(score_rows(matrix)[0])


# --- figures ----------------------------------------------------------------------------------


def test_figures_are_those_of_the_statistics() -> None:
    matrix, same = make_embeddings()
    norms = np.linalg.norm(matrix, axis=1)
    result = run(matrix, same, compat="insightface")
    scores = score_rows(matrix)
    positives, negatives = scores[same], scores[~same]
    kfold = result.folds["accuracy"]
    assert kfold == kfold_accuracy(scores, same, fold_indices(same.size))
    assert kfold.std == pytest.approx(3 * kfold.sem, rel=1e-12)
    assert result.folds["insightface"] == insightface_accuracy(
        matrix[0::2], matrix[1::2], same, fold_indices(same.size)
    )
    assert [p.point for p in result.points] == [
        tpr_at_fpr(positives, negatives, target) for target in ("1e-1", "1e-2", "1e-3", "1e-4")
    ]
    assert result.auc.value == auc(positives, negatives)
    assert result.auc.interval.low < result.auc.value < result.auc.interval.high
    assert result.eer.value == eer_rocch(positives, negatives)
    assert result.eer.interval.low < result.eer.value < result.eer.interval.high
    assert result.metrics[XNORM].value == pytest.approx(norms.mean())
    assert result.metrics["norm CV"].value == pytest.approx(norms.std() / norms.mean())
    assert (result.mated, result.non_mated, result.failures, result.notes) == (100, 100, (), ())
    np.testing.assert_array_equal(result.mated_scores, positives)
    # 100 different pairs resolve two of the targets.
    assert [row.fpr for row in result.thresholds()] == ["1e-1", "1e-2"]
    for row, found in zip(result.thresholds(), result.points, strict=False):
        tpr, fpr, ends = found.tpr.interval, found.fpr.interval, found.threshold.interval
        assert (row.threshold, row.tpr) == (found.point.threshold, found.point.tpr)
        assert row.false_accepts == (found.point.false_accepts, 100)
        assert row.tpr_interval == (tpr.low, tpr.high) and row.fpr_interval == (fpr.low, fpr.high)
        assert row.threshold_interval in ((ends.low, ends.high), None)


def with_persons(people: int = 40) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Embeddings of few people in many pairs, whose comparisons depend on each other."""
    generator = np.random.default_rng(1)
    same = np.tile(np.repeat([True, False], 30), 10)
    people_directions = generator.normal(size=(people, 16)) + generator.normal(size=16)
    first = generator.integers(people, size=len(same))
    second = np.where(same, first, (first + generator.integers(1, people, len(same))) % people)
    subjects = np.stack([first, second], axis=1).reshape(-1)
    matrix = people_directions[subjects] + 0.8 * generator.normal(size=(len(subjects), 16))
    return matrix.astype(np.float32), same, subjects


def test_with_persons_intervals_allow_for_dependence() -> None:
    matrix, same, subjects = with_persons()
    embeddings = Embeddings(matrix, np.linalg.norm(matrix, axis=1), False)
    bench = toy_bench(same, subjects, subjects_from="the list")
    known = evaluate_embeddings(embeddings, bench)
    unknown = evaluate_embeddings(embeddings, toy_bench(same))
    assert known.subjects == 40
    assert "40 subjects (known from the list)" in known.basis
    # The figures are the same, the intervals wider.
    assert known.folds == unknown.folds and known.auc.value == unknown.auc.value
    pairs = [
        (known.accuracy.interval, unknown.accuracy.interval),
        (known.auc.interval, unknown.auc.interval),
        (known.eer.interval, unknown.eer.interval),
        (known.points[0].tpr.interval, unknown.points[0].tpr.interval),
        (known.points[0].fpr.interval, unknown.points[0].fpr.interval),
    ]
    for wide, narrow in pairs:
        assert wide.high - wide.low > 1.1 * (narrow.high - narrow.low)
    point = known.points[0]
    assert point.threshold.interval.low < point.point.threshold < point.threshold.interval.high
    scores = known.scores
    accepted = scores[~same] >= point.point.threshold
    first, second = subjects[0::2], subjects[1::2]
    share = ClusteredShare.from_pairs(accepted, first[~same], second[~same])
    assert point.fpr.interval == share.interval()
    assert evaluate_embeddings(embeddings, bench).to_json() == known.to_json()


def test_pairs_without_folds_have_no_accuracy() -> None:
    matrix, same = make_embeddings()
    bench = toy_bench(same, pairs=replace(toy_pairs(same), folds=None))
    embeddings = Embeddings(matrix, np.linalg.norm(matrix, axis=1), False)
    result = evaluate_embeddings(embeddings, bench, compat="insightface")
    assert (result.accuracy, result.folds) == (None, {})
    assert json.loads(json.dumps(result.to_json(), allow_nan=False))["folds"] == {}


def test_failures_keep_their_place_in_the_folds() -> None:
    matrix, same = make_embeddings()
    matrix[2 * 3] = 0  # pair 3, a same pair of fold 1
    matrix[2 * 15 + 1, 4] = np.nan  # pair 15, a different pair of fold 1
    result = run(matrix, same, compat="insightface")
    assert [(f.pair, f.issame, f.reason) for f in result.failures] == [
        (3, True, "the embedding of its first image is zero or not finite"),
        (15, False, "the embedding of its second image is zero or not finite"),
    ]
    assert (result.mated, result.non_mated) == (99, 99)
    assert len(result.notes) == 1 and result.notes[0].startswith("2 of 200 pairs have no score")
    valid = np.ones(200, bool)
    valid[[3, 15]] = False
    scores = score_rows(matrix)
    parts = scores[valid], same[valid], fold_indices(200)[valid]
    assert result.folds["accuracy"] == kfold_accuracy(*parts)
    assert result.folds["insightface"].pairs == 198
    listed = result.to_json()["pairs"]["failures"]
    assert [failure["pair"] for failure in listed] == [3, 15]
    assert np.isnan(result.scores[[3, 15]]).all()


def test_pairs_of_an_image_with_itself_are_left_out_and_repeats_are_said() -> None:
    matrix, same = make_embeddings()
    pairs, kept = toy_pairs(same), ~np.isin(np.arange(200), [3, 15])
    pairs.second[~kept] = pairs.first[~kept]
    pairs.first[7], pairs.second[7] = pairs.second[8], pairs.first[8]
    embeddings = Embeddings(matrix, np.linalg.norm(matrix, axis=1), False)
    result = evaluate_embeddings(embeddings, toy_bench(same, pairs=pairs), compat="insightface")
    assert (result.mated, result.non_mated, result.failures) == (99, 99, ())
    scores = score_pairs(matrix, pairs.first, pairs.second)[kept]
    assert result.folds["accuracy"] == kfold_accuracy(scores, same[kept], fold_indices(200)[kept])
    assert result.auc.value == auc(scores[same[kept]], scores[~same[kept]])
    assert result.folds["insightface"].pairs == 198
    said = [note.split(",")[0] for note in result.notes]
    assert said[0] == "2 pairs compare an image with itself and are left out"
    assert said[1].startswith("1 pair of the same two images") and len(said) == 2


def test_labels_the_wrong_way_round_are_said() -> None:
    matrix, same = make_embeddings()
    right, wrong = run(matrix, same), run(matrix, ~same)
    assert wrong.metrics["d′"].value == -right.metrics["d′"].value < 0
    (note,) = wrong.notes
    assert note.startswith("different pairs tend to score higher") and right.notes == ()
    # Where a list of scores has said so already, once is enough.
    assert evaluate(right.scores, toy_pairs(~same), name="x", notes=[note]).notes == (note,)


@pytest.mark.parametrize("photos", [2, 60])
def test_where_a_few_people_have_most_pairs_each_person_weighs_alike_too(photos: int) -> None:
    """One person has ``photos`` photos, 40 others have three."""
    generator = np.random.default_rng(2)
    who = np.repeat(np.arange(41), [photos] + [3] * 40)
    matrix = generator.normal(size=(41, 16))[who] + 0.9 * generator.normal(size=(who.size, 16))
    first, second = np.triu_indices(who.size, 1)
    pairs = Pairs(first, second, who[first] == who[second], who)
    result = evaluate(score_pairs(matrix, first, second), pairs, name="x")
    rows = {(row["figure"], row["target"]): row for row in result.to_json()["rows"]}
    alike, each = (rows.get((f"TPR@FPR{end}", "1e-2")) for end in (", people alike", ""))
    assert (alike is None) == (photos == 2)
    if alike is not None:
        accepted = result.scores >= result.points[1].point.threshold
        people = [accepted[pairs.issame & (who[first] == person)].mean() for person in range(41)]
        assert alike["value"] == pytest.approx(np.mean(people))
        assert alike["low"] < alike["value"] < alike["high"]
        assert each["low"] is None and "too few for an interval" in each["remark"]


def test_a_fold_without_a_score_leaves_the_others() -> None:
    matrix, same = make_embeddings()
    matrix[40:80] = np.nan  # pairs of the second fold
    result = run(matrix, same, compat="insightface")
    kept = np.r_[:20, 40:200]
    parts = score_rows(matrix)[kept], same[kept], fold_indices(180, 9)
    assert result.folds["accuracy"] == kfold_accuracy(*parts)
    assert result.folds["insightface"].folds == 9 and "9 folds" in result.accuracy.remark
    matrix[80:] = np.nan
    assert run(matrix, same, fpr=["1e-1"]).accuracy is None


def test_class_without_a_score_is_an_error() -> None:
    matrix, same = make_embeddings()
    matrix[0::2][same] = np.nan
    # Why the first of them has none: most often it is why none has.
    first = int(same.argmax())
    with pytest.raises(MetricError, match=rf"toy: no same pair .* pair {first}: "):
        run(matrix, same)
    with pytest.raises(MetricError, match="no different pair has a score"):
        run(make_embeddings()[0], np.ones(200, bool))


# --- joining ----------------------------------------------------------------------------------


def test_embeddings_join_by_id() -> None:
    matrix, same = make_embeddings()
    bench = toy_bench(same)
    matrix[7] = np.nan
    order = np.random.default_rng(0).permutation(450)
    everything = np.concatenate([matrix, np.ones((50, 16), np.float32)])
    ids = np.array([*bench.images.ids.tolist(), *(f"other{i}" for i in range(50))])
    where, norms = (
        {int(np.flatnonzero(order == 7)[0]): "no face"},
        np.linalg.norm(everything, axis=1),
    )
    shuffled = Embeddings(everything[order], norms[order], False, ids[order], failures=where)
    joined = select_embeddings(shuffled, bench.images.ids, "toy")
    np.testing.assert_array_equal(joined.vectors, matrix)
    assert joined.failures == {7: "no face"}
    result = evaluate_embeddings(joined, bench)
    assert [failure.reason for failure in result.failures] == ["no face"]
    assert result.points == run(matrix, same).points


def test_persons_that_embeddings_name_count_where_pairs_alone_would_have_to_tell() -> None:
    matrix, same = make_embeddings()
    by_pairs = np.arange(2 * len(same))
    by_pairs[1::2][same] = by_pairs[0::2][same]
    # Each two same pairs of a fold are of one person, as their names tell.
    names = np.char.add("p", by_pairs.astype(str)).astype(object)
    for pair in np.flatnonzero(same):
        names[2 * pair : 2 * pair + 2] = f"both {pair // 2}"
    embeddings = Embeddings(matrix, np.linalg.norm(matrix, axis=1), False)
    named = replace(embeddings, subjects=names.astype(str))
    bench = toy_bench(same, by_pairs, subjects_from="same pairs")
    listed = replace(bench, subjects_from="the list")
    cases = (embeddings, bench), (named, bench), (named, listed)
    assert [evaluate_embeddings(*case).subjects for case in cases] == [300, 250, 300]
    wrong = replace(embeddings, subjects=np.full(len(matrix), "everybody"))
    contradicted = evaluate_embeddings(wrong, bench)
    assert contradicted.subjects == 300
    assert any("contradict" in note and "embeddings" in note for note in contradicted.notes)


# --- packs ------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_pack(tmp_path_factory.mktemp("pack") / "toy.npz")


@pytest.fixture(scope="module")
def bench(path: Path) -> Bench:
    return pack_bench(path)


def plain_embeddings(path: Path, flip: bool) -> np.ndarray:
    model, pack = PixelModel(), read_pack(path)
    images = [decode_image(data, str(i)) for i, data in enumerate(pack.images)]
    stack = np.stack(images)
    vectors = model.embed(stack)
    return vectors + model.embed(stack[:, :, ::-1]) if flip else vectors


@pytest.mark.parametrize("flip", [True, False])
def test_pack_equals_plain_embedding(path: Path, bench: Bench, flip: bool) -> None:
    seen: list[tuple[str, int, int]] = []
    result = evaluate_bench(
        PixelModel(), bench, flip=flip, batch_size=7, progress=lambda *now: seen.append(now)
    )
    expected = run(plain_embeddings(path, flip), bench.pairs.issame)
    np.testing.assert_array_equal(result.scores, expected.scores)
    assert result.folds["accuracy"] == expected.folds["accuracy"]
    assert result.folds["accuracy"].mean > 0.9
    assert result.flip is flip
    assert result.model == {"name": "pixels"}
    assert result.source == {"path": str(path), "sha256": sha256(path), "format": "pack"}
    assert seen[-1] == ("embedding", 160, 160)
    # Two people in a different pair, one in a same pair.
    assert result.subjects == 120 and "same pairs" in result.basis


def test_image_that_does_not_decode_is_counted_and_listed(
    tmp_path: Path, path: Path, bench: Bench
) -> None:
    pack = read_pack(path)
    images = list(pack.images)
    images[9] = images[9][:300]  # cut, in pair 4
    write_pack(tmp_path / "cut.npz", images, pack.issame.tolist())
    cut = pack_bench(tmp_path / "cut.npz")
    result = evaluate_bench(PixelModel(), cut, on_error="skip")
    whole = evaluate_bench(PixelModel(), bench)
    assert [failure.pair for failure in result.failures] == [4]
    assert "cut.npz, image 9 (pair 4): " in result.failures[0].reason
    assert "image 9" in result.notes[0]
    others = np.arange(80) != 4
    np.testing.assert_array_equal(result.scores[others], whole.scores[others])
    assert result.metrics[XNORM].total == 159
