"""The teacher's embeddings: made once, of the very pixels; the loss; images without a label."""

from __future__ import annotations

from dataclasses import replace
from itertools import islice
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from helpers import toy_onnx
from helpers.lives import noisy_recipe
from helpers.tiny_training import make_trainer, weights, write_training_set
from helpers.training_runs import assert_close, assert_resumes, joined, over_ranks, trained

from facerec.backbones import Backbone
from facerec.base.errors import CheckpointError, ModelError, TrainingError
from facerec.embedding.loading import load_model
from facerec.heads import SEC, AdaFace, ArcFace, MagFace, MarginClassifier, SphereFace2017
from facerec.records import Augmentation, BatchRequest, Data, Part, open_dataset
from facerec.training import Distillation, Recipe
from facerec.training import distillation as module
from facerec.training.run import check_same_run, write_manifest
from facerec.training.trainer import Trainer

IMAGES = 56


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with training images and a teacher of 8 dimensions."""
    folder = tmp_path_factory.mktemp("distillation")
    write_training_set(folder / "data")
    onnx.save(toy_onnx.tiles(batch=1), folder / "teacher.onnx")
    return folder


def taught(place: Path, cache: Path, changes: dict[str, object] | None = None, **fields) -> Recipe:
    config = Distillation(place / "teacher.onnx", cache=cache, **fields)
    chosen = {"margin": None, "regularizer": None, "distillation": config} | (changes or {})
    return replace(noisy_recipe(place / "data"), **chosen)  # type: ignore[arg-type]


def folder_of(cache: Path) -> Path:
    (found,) = (path for path in cache.iterdir() if not path.name.startswith("."))
    return found


# ---------------------------------------------------------------- targets


@pytest.mark.parametrize(("views", "mixup"), [(0, 0.0), (3, 0.0), (3, 0.6)])
@pytest.mark.parametrize("workers", [0, 2])
def test_a_batch_has_the_teachers_embeddings_of_its_very_pixels(
    place: Path, tmp_path: Path, views: int, mixup: float, workers: int
) -> None:
    augmentation = Augmentation(flip=0.5, photometric=0.5 if views else 0.0)
    recipe = taught(place, tmp_path, {"workers": workers, "epochs": 4}, views=views, mixup=mixup)
    recipe = replace(recipe, data=replace(recipe.data, augmentation=augmentation))
    teacher = load_model(place / "teacher.onnx")
    trainer = make_trainer(recipe)
    seen: dict[tuple[int, int], np.ndarray] = {}
    for batch in trainer.batches():
        wanted = teacher.embed(batch.images.numpy())
        np.testing.assert_allclose(batch.targets, wanted, rtol=2e-3, atol=2e-2)
        keys = zip(batch.indices.tolist(), batch.views.tolist(), strict=True)
        for key, image in zip(keys, batch.images.numpy(), strict=True):
            assert np.array_equal(seen.setdefault(key, image), image)
    assert {view for _, view in seen} == set(range(views or 2))


def test_blended_views_lie_between_two_images(place: Path) -> None:
    dataset = open_dataset(Data(place / "data", augmentation=Augmentation(flip=0.0)), 0)
    plain = np.stack([dataset[i][0] for i in range(IMAGES)]).astype(float)
    dataset.views, dataset.mixup = 4, 0.5
    indices = np.arange(IMAGES)
    blended = 0
    for view in range(4):
        images = dataset.__getitems__(BatchRequest(view, indices)).images.numpy().astype(float)
        for own, image in zip(plain, images, strict=True):
            if np.array_equal(own, image):
                continue
            blended += 1
            # Of the other images one explains the difference by a share of at most a half.
            ways, difference = plain - own, image - own
            products = (ways * difference).sum((1, 2, 3))
            shares = products / np.maximum((ways * ways).sum((1, 2, 3)), 1)
            left = [np.abs(difference - s * way).max() for s, way in zip(shares, ways, strict=True)]
            assert min(left) < 1.1 and 0 <= shares[int(np.argmin(left))] <= 0.501
    # Half of 224 views, but for those that meet themselves; five standard deviations.
    assert abs(blended - 0.5 * 4 * IMAGES) < 5 * 0.5 * np.sqrt(4 * IMAGES)
    dataset.mixup = 0.0
    again = dataset.__getitems__(BatchRequest(3, indices)).images.numpy()
    assert np.array_equal(again, plain)


def test_the_file_is_shared_and_not_made_again(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = make_trainer(taught(place, tmp_path))
    monkeypatch.setattr(module, "_embed", None)
    second = make_trainer(taught(place, tmp_path, {"seed": 5, "margin": ArcFace()}, loss="mse"))
    assert first.learner.targets.path == second.learner.targets.path
    assert not list(tmp_path.glob(".*"))  # neither lock nor parts are left
    mean_square = np.square(np.load(first.learner.targets.path).astype(float)).mean()
    assert first.learner.targets.scale == pytest.approx(mean_square**-0.5)


@pytest.mark.parametrize(
    ("loss", "changes"),
    [
        ("cosine", {}),
        ("mse", {"margin": ArcFace(scale=16.0), "regularizer": SEC(weight=0.5)}),
        ("relation", {"accumulation": 2}),
    ],
)
def test_resumed_equals_uninterrupted_bit_for_bit(
    place: Path, tmp_path: Path, loss, changes: dict[str, object]
) -> None:
    recipe = taught(place, tmp_path / "cache", changes, loss=loss, views=2)
    whole, _ = assert_resumes(recipe, tmp_path / "run")
    assert ("distiller.map.weight" in weights(whole)) == (loss != "relation")
    names = load_model(tmp_path / "run").backbone.state_dict()  # type: ignore[attr-defined]
    assert not any("map" in name for name in names)


# ---------------------------------------------------------------- the step


def test_a_network_learns_the_teacher_without_labels(place: Path, tmp_path: Path) -> None:
    recipe = taught(place, tmp_path, {"epochs": 30})
    trainer = make_trainer(recipe)
    sample = trainer.learner.dataset.sample
    trainer.learner.dataset.sample = lambda i: (sample(i)[0], -1)  # type: ignore
    first = trainer.learner.train_step(next(trainer.batches()))
    trainer.fit()
    trainer.learner.stepper.step -= 1
    last = trainer.learner.train_step(next(trainer.batches()))
    assert last["teacher_cosine"] > 0.8 > 0.5 > first["teacher_cosine"]
    torch.testing.assert_close(last["distillation"], 1 - last["teacher_cosine"])
    assert "target_cosine" not in last and last["loss"] == last["distillation"]


@pytest.mark.parametrize("loss", ["cosine", "mse", "relation"])
def test_micro_batches_equal_the_whole(place: Path, tmp_path: Path, loss) -> None:
    backbone = Backbone(name="tiny_linear", embedding_size=16)
    recipe = taught(place, tmp_path, {"backbone": backbone, "clip_norm": None}, loss=loss)
    whole, parts = trained(recipe), trained(replace(recipe, accumulation=3))
    assert_close(weights(whole), weights(parts))


@pytest.mark.integration
@pytest.mark.parametrize("loss", ["mse", "relation"])
def test_ranks_equal_one_process_and_share_the_pass(place: Path, tmp_path: Path, loss) -> None:
    backbone = Backbone(name="tiny_linear", embedding_size=16)
    changes = {"backbone": backbone, "clip_norm": None, "margin": ArcFace(scale=16.0)}
    recipe = taught(place, tmp_path / "cache", changes, loss=loss)
    ranks = over_ranks(2, tmp_path / "two", recipe)
    alone = replace(recipe.distillation, cache=tmp_path / "one")  # type: ignore[type-var]
    one = trained(replace(recipe, distillation=alone))
    assert_close(weights(one), joined(ranks))
    arrays = [np.load(folder_of(tmp_path / n) / module.ARRAY_FILE) for n in ("cache", "one")]
    assert np.array_equal(*arrays)


# ---------------------------------------------------------------- images of nobody knows whom


def unlabelled(place: Path, cache: Path, **fields: object) -> Recipe:
    """Both halves of the data are the same images; the second half is of nobody."""
    data = Data(place / "data", also=(Part(place / "data", labelled=False),))
    return taught(place, cache, {"data": data, "margin": ArcFace(scale=16.0), **fields})


def test_the_margin_sees_labelled_images_alone() -> None:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(6, 5, generator=generator, dtype=torch.float64)
    labels = torch.tensor([2, -1, 0, -1, -1, 3])
    for margin in (ArcFace(), MagFace(), SphereFace2017(), AdaFace(t_alpha=0.5)):
        for rate in (1.0, 0.9):
            results = []
            for kept in (torch.arange(6), torch.tensor([0, 2, 5])):
                head = MarginClassifier(
                    4, 5, margin, seed=1, sample_rate=rate, unlabelled=len(kept) == 6
                ).double()
                own = x[kept].clone().requires_grad_()
                if rate < 1:
                    head.classes, head.num_visited = torch.tensor([0, 2, 3]), 3
                output = head(own, labels[kept])
                output.loss.backward()
                rows = own.grad[labels[kept] >= 0]
                cosine = output.figures["target_cosine"]
                results.append((output.loss, cosine, head.weight.grad, rows))
                assert not own.grad[labels[kept] < 0].any()
            for with_others, alone in zip(*results, strict=True):
                torch.testing.assert_close(with_others.to_dense(), alone.to_dense())
    nobody = MarginClassifier(4, 5, ArcFace(), seed=1, unlabelled=True).double()
    assert nobody(x, torch.full((6,), -1)).loss == 0
    strict = MarginClassifier(4, 5, ArcFace(), seed=1).double()
    for head, label in ((strict, -1), (nobody, -2)):
        with pytest.raises(TrainingError, match="label lies outside"):
            head(x, torch.full((6,), label))


@pytest.mark.parametrize("margin", [ArcFace(scale=16.0), MagFace(scale=16.0, l_a=0.5)], ids=str)
def test_micro_batches_with_unequal_numbers_of_labels_equal_the_whole(
    place: Path, tmp_path: Path, margin: ArcFace | MagFace
) -> None:
    backbone = Backbone(name="tiny_linear", embedding_size=16)
    recipe = unlabelled(place, tmp_path, backbone=backbone, margin=margin, clip_norm=None)
    kept = []
    for accumulation in (1, 6):  # pairs of images: with two labels, with one, with none
        trainer = make_trainer(replace(recipe, accumulation=accumulation))
        figures = [trainer.learner.train_step(batch) for batch in islice(trainer.batches(), 3)]
        kept.append((weights(trainer), figures))
    torch.testing.assert_close(kept[1], kept[0], rtol=1e-4, atol=1e-5)


# ---------------------------------------------------------------- bad input


def teacher_of(weight: np.ndarray, path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(toy_onnx, "WEIGHT", weight)
    onnx.save(toy_onnx.tiles(batch=1), path)
    return path


@pytest.mark.parametrize(
    ("weight", "says"),
    [
        (np.full((8, 147), np.nan), "NaN"),
        (np.full((8, 147), 1e6), "65,504"),
        (np.zeros((8, 147)), "zero"),
    ],
)
def test_a_teacher_of_no_use_is_refused_and_leaves_nothing(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, weight: np.ndarray, says: str
) -> None:
    teacher = teacher_of(weight, tmp_path / "bad.onnx", monkeypatch)
    recipe = taught(place, tmp_path / "cache")
    with pytest.raises(ModelError, match=says):
        make_trainer(replace(recipe, distillation=Distillation(teacher, cache=tmp_path / "cache")))
    assert not (tmp_path / "cache").exists()


def test_a_run_goes_on_with_the_teacher_that_it_began_with(place: Path, tmp_path: Path) -> None:
    recipe = taught(place, tmp_path)
    trainer: Trainer = make_trainer(recipe)
    write_manifest(tmp_path, trainer.learner)
    elsewhere = replace(recipe.distillation, teacher=tmp_path / "elsewhere.onnx")
    moved = replace(recipe, distillation=elsewhere)
    check_same_run(tmp_path, moved, trainer.learner.dataset, trainer.learner.teacher)
    with pytest.raises(CheckpointError, match="another teacher"):
        check_same_run(tmp_path, moved, trainer.learner.dataset, "b" * 64)
