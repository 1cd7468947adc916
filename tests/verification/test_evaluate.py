from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from toy_packs import PixelModel, make_pack

from facerec.errors import ImageError, MetricError
from facerec.files import sha256
from facerec.records.packs import Pack, read_pack, write_pack
from facerec.statistics.intervals import wilson
from facerec.statistics.kfold import fold_indices, insightface_accuracy, kfold_accuracy
from facerec.statistics.rates import auc, eer_rocch, tpr_at_fpr
from facerec.verification import evaluate, evaluate_pack, score_pairs


def make_embeddings(pairs: int = 200, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    generator = np.random.default_rng(seed)
    same = np.tile(np.repeat([True, False], pairs // 20), 10)
    matrix = generator.normal(size=(2 * pairs, 16))
    matrix[1::2][same] += 1.2 * matrix[0::2][same]
    matrix *= generator.uniform(1, 30, (2 * pairs, 1))
    return matrix.astype(np.float32), same


# --- scores -----------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
@pytest.mark.parametrize("pairs", [1, 512, 1100])
def test_cosines_equal_a_plain_loop(dtype: type, pairs: int) -> None:
    matrix = np.random.default_rng(0).normal(size=(2 * pairs, 8)).astype(dtype)
    expected = []
    for first, second in matrix.astype(float).reshape(pairs, 2, 8):
        expected.append(first @ second / np.sqrt((first @ first) * (second @ second)))
    scores = score_pairs(matrix)
    assert scores.dtype == np.float32
    np.testing.assert_allclose(scores, expected, rtol=0, atol=1e-7)


def test_large_and_small_norms_do_not_matter() -> None:
    # Squares of these leave the range of float16 and float32.
    matrix = np.array([[3e4, 0], [3e4, 3e4]], np.float16)
    assert score_pairs(matrix)[0] == pytest.approx(np.sqrt(0.5), abs=1e-7)
    matrix = np.array([[1e-30, 0], [1e30, 1e30]], np.float32)
    assert score_pairs(matrix)[0] == pytest.approx(np.sqrt(0.5), abs=1e-7)


def test_zero_and_broken_embeddings_have_no_score() -> None:
    good = [1.0, 2.0]
    rows = [good, [0, 0], [np.nan, 1], good, [np.inf, 1], good, good, good]
    scores = score_pairs(np.array(rows))
    assert np.isnan(scores).tolist() == [True, True, True, False]
    assert scores[3] == 1.0


@pytest.mark.parametrize("matrix", [np.ones(4), np.ones((3, 2)), np.ones((2, 2), int)])
def test_what_is_no_set_of_pairs(matrix: np.ndarray) -> None:
    with pytest.raises(MetricError, match=r"embeddings of pairs have shape \(2n, D\)"):
        score_pairs(matrix)


# --- figures ----------------------------------------------------------------------------------


def test_figures_are_those_of_the_statistics() -> None:
    matrix, same = make_embeddings()
    norms = np.linalg.norm(matrix, axis=1)
    result = evaluate(matrix, same, name="toy", norms=norms, compat="insightface", flip=False)
    scores = score_pairs(matrix)
    positives, negatives = scores[same], scores[~same]
    assert result.accuracy == kfold_accuracy(scores, same)
    assert result.accuracy.std == pytest.approx(3 * result.accuracy.sem, rel=1e-12)
    assert result.insightface == insightface_accuracy(matrix[0::2], matrix[1::2], same)
    assert result.accuracy_interval == wilson(result.accuracy.correct, 200)
    assert [p.point for p in result.points] == [
        tpr_at_fpr(positives, negatives, target) for target in ("1e-1", "1e-2", "1e-3", "1e-4")
    ]
    assert result.point(0.1).tpr_interval == wilson(result.point("0.1").point.true_accepts, 100)
    assert result.point("1/10").fpr_interval == wilson(10, 100)
    assert result.auc.value == auc(positives, negatives)
    assert result.auc.interval.low < result.auc.value < result.auc.interval.high
    assert result.eer.value == eer_rocch(positives, negatives)
    assert result.eer.interval.low < result.eer.value < result.eer.interval.high
    assert result.norms is not None
    assert result.norms.mean == pytest.approx(norms.mean())
    assert result.norms.cv == pytest.approx(norms.std() / norms.mean())
    assert (result.same, result.different, result.failures, result.notes) == (100, 100, (), ())
    np.testing.assert_array_equal(result.positives, positives)


def test_scale_of_single_embeddings_changes_no_figure() -> None:
    matrix, same = make_embeddings()
    # Powers of two scale exactly.
    scale = 2.0 ** np.random.default_rng(3).integers(-5, 6, (len(matrix), 1))
    first, second = (
        evaluate(rows, same, name="toy", compat="insightface").to_json()
        for rows in (matrix, matrix * scale.astype(np.float32))
    )
    assert first == second


def test_failures_keep_their_place_in_the_folds() -> None:
    matrix, same = make_embeddings()
    matrix[2 * 3] = 0  # pair 3, a same pair of fold 1
    matrix[2 * 15 + 1, 4] = np.nan  # pair 15, a different pair of fold 1
    result = evaluate(matrix, same, name="toy", compat="insightface")
    assert [(f.pair, f.issame, f.reason) for f in result.failures] == [
        (3, True, "the embedding of its first image is zero"),
        (15, False, "the embedding of its second image is not finite"),
    ]
    assert (result.same, result.different) == (99, 99)
    assert result.notes == (
        "2 of 200 pairs have no score (failure to acquire) and are left out of all rates; the "
        "first is pair 3: the embedding of its first image is zero",
    )
    valid = np.ones(200, bool)
    valid[[3, 15]] = False
    scores = score_pairs(matrix)
    assert result.accuracy == kfold_accuracy(scores[valid], same[valid], fold_indices(200)[valid])
    assert result.insightface is not None and result.insightface.pairs == 198
    listed = result.to_json()["pairs"]["failures"]
    assert [failure["pair"] for failure in listed] == [3, 15]
    assert np.isnan(result.scores[[3, 15]]).all()


def test_class_without_a_score_is_an_error() -> None:
    matrix, same = make_embeddings()
    matrix[0::2][same] = np.nan
    with pytest.raises(MetricError) as error:
        evaluate(matrix, same, name="toy")
    assert str(error.value) == (
        "toy: no same pair has a score (100 in the pack, 100 pairs without a usable embedding in "
        "all), so no error rate can be computed"
    )
    with pytest.raises(MetricError, match="no different pair has a score"):
        evaluate(make_embeddings()[0], np.ones(200, bool), name="toy")


def test_lengths_that_differ() -> None:
    matrix, same = make_embeddings()
    with pytest.raises(MetricError, match=r"there are 200 pairs but labels of shape \(199,\)"):
        evaluate(matrix, same[:-1], name="toy")
    with pytest.raises(MetricError, match=r"norms have shape \(200,\), expected \(400,\)"):
        evaluate(matrix, same, name="toy", norms=np.ones(200))


def test_unknown_point() -> None:
    matrix, same = make_embeddings()
    result = evaluate(matrix, same, name="toy", fpr=["0.1", "1/20"])
    with pytest.raises(MetricError) as error:
        result.point("0.2")
    assert str(error.value) == "toy: no TPR was computed at FPR 0.2, only at 0.1, 1/20"


def test_json_has_every_figure_and_is_strict() -> None:
    matrix, same = make_embeddings()
    norms = np.linalg.norm(matrix, axis=1)
    result = evaluate(matrix, same, name="toy", norms=norms, fpr=["1e-1", "1e-3", "1"], flip=True)
    text = json.dumps(result.to_json(), allow_nan=False)
    figures = json.loads(text)
    tenth, thousandth, whole = figures["tpr_at_fpr"]
    point = result.point("1e-1").point
    assert (tenth["tpr"], tenth["threshold"]) == (point.tpr, point.threshold)
    assert (tenth["true_accepts"], tenth["positives"]) == (point.true_accepts, 100)
    assert (tenth["false_accepts"], tenth["negatives"], tenth["fpr_realised"]) == (10, 100, 0.1)
    assert tenth["tpr_interval"]["assumption"] == "assuming independent comparisons"
    assert tenth["tpr_interval"]["low"] < point.tpr < tenth["tpr_interval"]["high"]
    assert tenth["resolvable"] and not tenth["reliable"]
    # What cannot be resolved is no number.
    assert (thousandth["tpr"], thousandth["tpr_interval"]) == (None, None)
    assert not thousandth["resolvable"]
    assert (whole["tpr"], whole["threshold"]) == (1.0, "-inf")
    assert figures["accuracy"]["mean"] == result.accuracy.mean
    assert figures["accuracy"]["interval"]["low"] == result.accuracy_interval.low
    assert len(figures["accuracy"]["thresholds"]) == 10
    assert figures["eer"]["method"] == "ROC convex hull"
    assert figures["eer_step"]["low"] <= figures["eer_step"]["value"]
    assert figures["norms"]["images"] == 400
    assert figures["flip"] is True
    assert figures["d_prime"] == result.d_prime


def test_single_class_folds_are_noted() -> None:
    matrix, same = make_embeddings()
    order = np.argsort(~same, kind="stable")
    rows = np.stack([2 * order, 2 * order + 1], axis=1).reshape(-1)
    result = evaluate(matrix[rows], same[order], name="calfw")
    assert len(result.notes) == 1
    assert result.notes[0].startswith("folds 1, 2, 3, 4, 5, 6, 7, 8, 9, 10 of 10 hold pairs of one")


def test_repeated_images_are_noted() -> None:
    matrix, same = make_embeddings()
    images = np.arange(400)
    images[1] = 0  # pair 0 compares an image with itself
    images[6:8] = [5, 4]  # pair 3 is pair 2 the other way round
    images[399] = 10  # an image of fold 1 again in fold 10
    result = evaluate(matrix, same, name="toy", images=images)
    assert result.notes == (
        "1 pairs compare an image with itself, the first is pair 0",
        "1 pairs repeat an earlier pair of the same two images",
        "1 image occurs in more than one fold (10 in folds 1 and 10); this biases accuracy upwards",
    )


# --- packs ------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def pack(tmp_path_factory: pytest.TempPathFactory) -> Pack:
    return read_pack(make_pack(tmp_path_factory.mktemp("pack") / "toy.npz"))


def plain_embeddings(pack: Pack, flip: bool) -> np.ndarray:
    from facerec.records.decode import decode_image

    model = PixelModel()
    images = [decode_image(pack.encoded(i), str(i)) for i in range(2 * len(pack))]
    stack = np.stack(images)
    vectors = model.embed(stack)
    return vectors + model.embed(stack[:, :, ::-1]) if flip else vectors


@pytest.mark.parametrize("flip", [True, False])
def test_pack_equals_plain_embedding(pack: Pack, flip: bool) -> None:
    counts: list[int] = []
    result = evaluate_pack(PixelModel(), pack, flip=flip, batch_size=7, progress=counts.append)
    expected = evaluate(plain_embeddings(pack, flip), pack.issame, name="toy")
    np.testing.assert_array_equal(result.scores, expected.scores)
    assert result.accuracy == expected.accuracy
    assert result.accuracy.mean > 0.9
    assert result.flip is flip
    assert result.model == {"name": "pixels"}
    assert result.pack == {"path": str(pack.path), "sha256": sha256(pack.path)}
    assert sum(counts) == 160


def test_norms_are_the_mean_over_both_views(pack: Pack) -> None:
    result = evaluate_pack(PixelModel(), pack)
    # Mirroring moves pixels but keeps their norm here.
    norms = np.linalg.norm(plain_embeddings(pack, flip=False), axis=1)
    assert result.norms is not None
    assert result.norms.mean == pytest.approx(norms.mean(), rel=1e-3)


def test_images_are_embedded_once(tmp_path: Path, pack: Pack) -> None:
    images = [pack.encoded(i) for i in range(40)]
    write_pack(tmp_path / "twice.npz", images * 2, [*pack.issame[:20], *pack.issame[:20]])
    model = PixelModel()
    result = evaluate_pack(model, read_pack(tmp_path / "twice.npz"), flip=False)
    assert model.seen == 40
    assert "20 pairs repeat an earlier pair of the same two images" in result.notes


def broken_pack(path: Path, pack: Pack) -> Pack:
    images = [pack.encoded(i) for i in range(160)]
    images[9] = images[9][:300]  # cut, in pair 4
    write_pack(path, images, pack.issame.tolist())
    return read_pack(path)


def test_image_that_does_not_decode_ends_the_evaluation(tmp_path: Path, pack: Pack) -> None:
    path = tmp_path / "cut.npz"
    with pytest.raises(ImageError, match=r"cut\.npz, image 9 \(pair 4\): .*cut short"):
        evaluate_pack(PixelModel(), broken_pack(path, pack))


def test_image_that_does_not_decode_is_counted_and_listed(tmp_path: Path, pack: Pack) -> None:
    path = tmp_path / "cut.npz"
    result = evaluate_pack(PixelModel(), broken_pack(path, pack), on_error="skip")
    whole = evaluate_pack(PixelModel(), pack)
    assert [failure.pair for failure in result.failures] == [4]
    assert "cut.npz, image 9 (pair 4): " in result.failures[0].reason
    assert "image 9" in result.notes[0]
    others = np.arange(80) != 4
    np.testing.assert_array_equal(result.scores[others], whole.scores[others])
    assert result.norms is not None and result.norms.values.size == 159


def test_bad_target_is_found_before_embedding(pack: Pack) -> None:
    model = PixelModel()
    with pytest.raises(MetricError, match="FPR target 'often' is not a rate"):
        evaluate_pack(model, pack, fpr=["often"])
    assert model.seen == 0
