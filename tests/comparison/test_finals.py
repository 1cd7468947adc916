"""Models of all folds scored together and apart; result files that are whole or refused."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from helpers.tiny_comparison import BASE, SIDE, protocol
from torch import nn

from facerec.comparison.finals import (
    MODELS,
    RECALLS,
    read_final,
    score_models,
    scored_positions,
    write_final,
)
from facerec.comparison.fit import ArmTrainer
from facerec.comparison.protocol import METRICS
from facerec.comparison.retrieval import clustering, retrieve
from facerec.comparison.splits import split_classes
from facerec.comparison.trunks import create_trunk

pytest.importorskip("sklearn")

SPLIT = split_classes(16)


@pytest.fixture(scope="module")
def models() -> list[nn.Module]:
    return [create_trunk(protocol().trunk, seed, SIDE).eval() for seed in range(4)]


def test_query_against_gallery(trainer: ArmTrainer, monkeypatch: pytest.MonkeyPatch) -> None:
    part = np.where(np.arange(96) % 6 < 2, "query", "gallery")
    monkeypatch.setattr(trainer.images, "partition", part)
    sides = scored_positions(trainer.images, SPLIT)
    assert [len(each) for each in sides] == [16, 32]
    model = create_trunk(protocol().trunk, 0, SIDE).eval()
    run = score_models(trainer, protocol(), [model], sides)
    assert len(run.labels) == 16
    query, gallery = (trainer.embed(model, each, protocol()) for each in sides)
    query_labels, gallery_labels = (trainer.labels[each] for each in sides)
    found = retrieve(query, query_labels, references=(gallery, gallery_labels))
    assert run.mean("concatenated", "map_at_r") == found.means()["map_at_r"]


def test_together_and_apart(trainer: ArmTrainer, models: list[nn.Module]) -> None:
    (queries,) = scored_positions(trainer.images, SPLIT)
    run = score_models(trainer, protocol(), models, [queries], metrics=("nmi", "f1"))
    labels = trainer.labels[queries]
    raw = [trainer.embed(model, queries, protocol()) for model in models]
    unit = [r / np.linalg.norm(r, axis=1, keepdims=True) for r in raw]
    # The cosine of the concatenation is the mean of the models' cosines.
    cosine = np.mean([u @ u.T for u in unit], axis=0)
    np.fill_diagonal(cosine, -2)
    order = np.argsort(-cosine, axis=1, kind="stable")
    hits = labels[order] == labels[:, None]
    assert run.mean("concatenated", "precision_at_1") == hits[:, 0].mean()
    assert run.mean("concatenated", "r_precision") == pytest.approx(hits[:, :5].mean())
    for k in RECALLS:
        assert run.mean("concatenated", f"recall@{k}") == hits[:, :k].any(1).mean()
    apart = [retrieve(r, labels) for r in raw]
    for name in METRICS:
        values = [found.means()[name] for found in apart]
        assert run.mean("separated", name) == pytest.approx(np.mean(values))
    clusters = [clustering(r, labels, seed=0) for r in raw]
    together = clustering(np.concatenate(unit, axis=1), labels, seed=0)
    for asked, value in together.items():
        assert run.mean("concatenated", asked) == value
        values = [found[asked] for found in clusters]
        assert run.mean("separated", asked) == pytest.approx(np.mean(values))
    norms = np.linalg.norm(raw[2].astype(np.float64), axis=1)
    assert run.scores[MODELS, "norm_mean"][2] == pytest.approx(norms.mean())
    assert run.scores[MODELS, "norm_cv2"][2] == pytest.approx(norms.var() / norms.mean() ** 2)


def test_there_and_back(trainer: ArmTrainer, tmp_path: Path) -> None:
    fit, model = trainer.fit(BASE, protocol(), SPLIT.folds[0], seed=0)
    run = score_models(trainer, protocol(), [model], [np.arange(48, 96)], [fit], metrics=("nmi",))
    write_final(tmp_path / "x.npz", run)
    again = read_final(tmp_path / "x.npz")
    assert again.fits == (fit,) and again.dropped == run.dropped
    assert again.scores.keys() == run.scores.keys()
    for key, values in run.scores.items():
        assert np.array_equal(again.scores[key], values)
    assert np.array_equal(again.labels, run.labels)
