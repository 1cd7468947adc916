"""The study of SEC and groups, from drawn faces to its answer."""

from __future__ import annotations

import importlib.util
import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from helpers.tiny_training import narrow_recipe
from helpers.toy_faces import grouping
from scipy import stats

from facerec.embedding.extraction import Embeddings
from facerec.fairness.attributes import read_attributes
from facerec.records.synthetic import Group, SyntheticSet, write_synthetic
from facerec.verification import pack_bench

PATH = Path(__file__).parents[2] / "examples" / "sec_fairness_study.py"


@pytest.fixture(scope="module")
def example() -> ModuleType:
    spec = importlib.util.spec_from_file_location("sec_fairness_study", PATH)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look there
    spec.loader.exec_module(module)
    return module


def test_the_mean_over_seeds_allows_for_seeds_and_subjects(example: ModuleType) -> None:
    generator = np.random.default_rng(0)
    subject = np.repeat(np.arange(24), 3)
    faces = (subject % 2)[:, None] + generator.normal(size=(24, 8))[subject]
    ids = np.arange(72).astype(np.str_)

    def embed(spread: float) -> Embeddings:
        rows = (faces + generator.normal(size=faces.shape)) * (
            5 + spread * generator.normal(size=(72, 1))
        )
        return Embeddings(rows.astype(np.float32), np.linalg.norm(rows, axis=1), False, ids)

    embedded = {seed: (embed(1.0), embed(0.5)) for seed in range(4)}
    changes, notes = example.compare(
        embedded, subject, grouping(subject % 2, "AB"), targets=("1e-1",)
    )
    assert notes == [] and any(change.found.interval for change in changes)
    for change in changes:
        if change.found.value is None:
            assert None in change.seeds
            continue
        mean = np.mean(change.seeds)
        assert change.found.value == pytest.approx(mean)
        assert change.same_sign == sum(np.sign(value) == np.sign(mean) for value in change.seeds)
        if interval := change.found.interval:
            # It is no narrower than that of the seeds alone.
            low, high = stats.ttest_1samp(change.seeds, 0).confidence_interval(0.95)
            assert interval.low <= low + 1e-9 and high - 1e-9 <= interval.high
    lost = embedded[3][1].norms.copy()
    lost[5] = np.nan
    embedded[3] = embedded[3][0], replace(embedded[3][1], norms=lost)
    fewer, _ = example.compare(embedded, subject, grouping(subject % 2, "AB"), targets=("1e-1",))
    assert fewer[0].seeds[0] != changes[0].seeds[0]  # left out of all seeds


@pytest.mark.integration
def test_a_study_of_a_handful_of_faces(tmp_path: Path, example: ModuleType) -> None:
    groups = (Group("A"), Group("B", contrast=0.6, blur=1.5, noise=10.0))
    faces = SyntheticSet(
        subjects=12, images_per_subject=6, pairs_per_fold=16, groups=groups, seed=0
    )
    write_synthetic(tmp_path / "faces", faces)
    recipe = narrow_recipe(tmp_path / "faces", batch_size=16, epochs=1)
    said, changes, notes = example.study(
        recipe,
        pack_bench(tmp_path / "faces" / "lfw.bin"),
        read_attributes(tmp_path / "faces" / "attributes.csv", ["group"]),
        [0],
        tmp_path / "study",
        ("1e-1",),
        replicates=50,
    )
    assert len(said) == 2 and all("variance of people's mean norms" in line for line in said)
    spread = next(change for change in changes if change.name == "CV of norms")
    assert len(spread.seeds) == 1 and spread.found.value is not None
    text = "\n".join(example.answer(said, changes, notes))
    assert "| CV of norms |" in text and "one seed" in text
    folder = tmp_path / "study" / "runs" / "with_SEC_seed0"
    assert example.train(recipe, 0, example.ARMS[1], tmp_path / "study" / "runs") == folder
