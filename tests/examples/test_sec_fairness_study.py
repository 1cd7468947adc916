"""The study of SEC and groups, from drawn faces to its answer."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest
from helpers.tiny_training import narrow_recipe

from facerec.fairness.attributes import read_attributes
from facerec.records.synthetic import Group, SyntheticSet, write_synthetic
from facerec.verification import pack_bench

PATH = Path(__file__).parents[2] / "examples" / "sec_fairness_study.py"


@pytest.mark.integration
def test_a_study_of_a_handful_of_faces(tmp_path: Path) -> None:
    spec = importlib.util.spec_from_file_location("sec_fairness_study", PATH)
    example = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(example)
    groups = (Group("A"), Group("B", contrast=0.6, blur=1.5, noise=10.0))
    faces = SyntheticSet(
        subjects=12, images_per_subject=6, pairs_per_fold=16, groups=groups, seed=0
    )
    write_synthetic(tmp_path / "faces", faces)
    recipe = narrow_recipe(tmp_path / "faces", batch_size=16, epochs=1)
    said, comparison = example.study(
        recipe,
        pack_bench(tmp_path / "faces" / "lfw.bin"),
        read_attributes(tmp_path / "faces" / "attributes.csv", ["group"]),
        [0],
        tmp_path / "study",
        ("1e-1",),
        replicates=50,
    )
    assert len(said) == 2 and all("variance of people's mean norms" in line for line in said)
    spread = next(change for change in comparison.changes if change.figure == "CV of norms")
    assert len(spread.seeds) == 1 and spread.value is not None
    text = "\n".join(example.answer(said, comparison))
    assert "| CV of norms |" in text and "one seed" in text
    folder = tmp_path / "study" / "runs" / "with_SEC_seed0"
    assert example.train(recipe, 0, example.ARMS[1], tmp_path / "study" / "runs") == folder
