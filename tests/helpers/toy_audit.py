"""An audit of made-up people in four groups, with all that a report can hold."""

from __future__ import annotations

import csv
import functools
import tempfile
from dataclasses import replace
from pathlib import Path

import numpy as np

from facerec.embedding.extraction import Embeddings
from facerec.fairness.attributes import read_attributes
from facerec.fairness.audit import audit
from facerec.fairness.baseline import RunPair, compare_runs
from facerec.fairness.one_to_many import SearchPlan
from facerec.fairness.rate_results import Calibration
from facerec.fairness.result import Audit, InputFile

EVIL = "<script>alert(1)</script>"
NAMES = ("Amber", "Blue", "Coral", EVIL)
SIZES = (40, 30, 50, 26)
TARGETS = ("1e-2", "1e-3", "1e-4", "1e-5")
SEXES = ("female", "male")
TINY = 4
"""People of a fifth group, too few to be shown."""
UNKNOWN = 3
"""People without a recorded race, so that the fifth group does not follow from the total."""


@functools.cache
def default_audit() -> Audit:
    """Return an audit with everything in it, the same for all tests."""
    with tempfile.TemporaryDirectory() as folder:
        return toy_audit(Path(folder), compared=True)


def embed(
    groups: np.ndarray, seed: int, images: int = 5, spread: float = 0.22
) -> tuple[np.ndarray, np.ndarray]:
    """Return vectors ``(N, 24)`` of people of these groups, and the number of each one's person.

    Groups differ in how alike their people look, how noisy their images are and in their norms.
    """
    generator = np.random.default_rng(seed)
    centres = generator.normal(size=(groups.max() + 1, 24))
    alike = np.array([0.25, 0.5, 0.45, 0.8, 0.3, 0.3])[groups, None]
    faces = generator.normal(size=(len(groups), 24)) + alike * centres[groups]
    person = np.repeat(np.arange(len(groups)), images)
    quality = generator.normal(1, spread, person.size)
    quality += generator.normal(0, spread / 2, len(groups))[person]
    quality += spread * np.array([0.4, 0, 0.1, -0.6, 0, 0])[groups[person]]
    quality = np.clip(quality, 0.3, 2)
    noise = np.array([0.55, 0.62, 0.6, 0.7, 0.6, 0.6])[groups[person]] / quality
    vectors = faces[person] + noise[:, None] * generator.normal(size=(person.size, 24))
    vectors *= (20 * quality / np.linalg.norm(vectors, axis=1))[:, None]
    return vectors.astype(np.float32), person


def toy_audit(
    folder: Path,
    *,
    names: tuple[str, ...] = NAMES,
    sizes: tuple[int, ...] = SIZES,
    attributes: tuple[str, ...] = ("race", "sex"),
    images: int = 5,
    targets: tuple[str, ...] = TARGETS,
    calibration: Calibration | None = None,
    source: str = "curator",
    compared: bool = False,
    seed: int = 0,
) -> Audit:
    """Audit made-up people.

    Args:
        folder: to write the attributes into.
        names: of the races.
        sizes: people in each.
        attributes: to audit by, and by their intersection if they are two.
        images: of each person.
        targets: nominal FMRs.
        calibration: where thresholds come from.
        source: of the labels.
        compared: add a comparison with another model.
        seed: of the people.
    """
    groups = np.repeat(np.arange(len(names) + 2), (*sizes, TINY, UNKNOWN))
    vectors, person = embed(groups, seed, images)
    generator = np.random.default_rng(seed + 1)
    sexes = generator.permutation(np.arange(len(groups)) % 2)
    ids = np.array([f"{person[row]:03d}/{row}.jpg" for row in range(len(person))])
    path = folder / "attributes.csv"
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["image_id", "subject_id", "race", "sex", "blur", "label_source"])
        for row, number in enumerate(person):
            race = (*names, "Dun", "")[groups[number]]
            sex = SEXES[sexes[number]]
            writer.writerow([ids[row], f"p{number}", race, sex, round(row % 7 / 7, 3), source])
    recorded = read_attributes(
        path, attributes, covariates=["blur"], allow_inferred=source == "inferred"
    )
    reference = names[0] if "race" in attributes else SEXES[0]
    vectors[3] = np.nan
    norms = np.linalg.norm(vectors, axis=1).astype(np.float32)
    embeddings = Embeddings(vectors, norms, True, ids, failures={3: "no face"})
    turned = vectors + generator.normal(size=vectors.shape).astype(np.float32)
    found = audit(
        embeddings,
        recorded,
        intersect=len(attributes) > 1,
        targets=targets,
        calibration=calibration,
        unit=turned,
        searches=SearchPlan(("1e-1", "2e-2", "1e-5"), reference=reference, homogeneous=True),
        permutations=99,
        replicates=50,
        seed=seed,
        inputs=(
            InputFile("embeddings", "e.npz", "ab" * 32, {"images": len(ids), "model": EVIL}),
            InputFile("attributes", "attributes.csv", recorded.sha256, {"lines": len(ids)}),
        ),
    )
    if not compared:
        return found
    other, _ = embed(groups, seed, images, spread=0.05)
    smooth = Embeddings(other, np.linalg.norm(other, axis=1).astype(np.float32), True, ids)
    known = np.where(groups < len(names), groups, -1)[person]
    comparison = compare_runs(
        [RunPair(seed, embeddings, smooth)], person, known, names, attribute="race", replicates=50
    )
    return replace(found, comparison=comparison)
