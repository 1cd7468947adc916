"""Measurements of the norm audit: how often its tests err, how often they find, and how fast."""

from __future__ import annotations

import csv
import math
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from apart import apart, clusters, peak
from numpy.typing import NDArray
from rows import Row
from scipy.stats import kruskal

from facerec.embedding import Embeddings
from facerec.fairness.association import associate
from facerec.fairness.attributes import read_attributes
from facerec.fairness.audit import audit_embeddings
from facerec.fairness.groupings import Grouping
from facerec.fairness.norms import SubjectNorms, norm_figures
from facerec.fairness.page import write_audit
from facerec.fairness.rows import select
from facerec.fairness.variance_shares import permute

GROUPS, SUBJECTS, IMAGES = 4, 40, 20
NAMES = ("A", "B", "C", "D")
SIZE = f"{GROUPS} groups × {SUBJECTS} subjects × {IMAGES} images"


SHAPES = {
    "normal": (lambda g, n: g.standard_normal(n), 0.0, 1.0),
    "log-normal": (lambda g, n: np.exp(0.6 * g.standard_normal(n)), np.exp(0.18), 0.788),
    "exponential": (lambda g, n: g.exponential(size=n), 1.0, 1.0),
}
"""Draws of people, their mean and standard deviation."""


def type_one_error(runs: int = 2000, permutations: int = 999) -> list[Row]:
    """Count how often tests at the 5 % level find a difference between groups that have none.

    Beside the test over subjects stands the Kruskal–Wallis test that takes images for independent.

    Args:
        runs: simulated sets for each correlation of the images of one subject.
        permutations: of the groups over subjects.
    """
    generator = np.random.default_rng(0)
    rows = []
    for icc in (0.0, 0.3, 0.5):
        by_subject = by_image = 0
        for seed in range(runs):
            norms = _draw(generator, icc, 0.0)
            by_subject += _rejects(norms, permutations, seed)
            by_image += float(kruskal(*norms.reshape(GROUPS, -1)).pvalue) <= 0.05
        name = f"type-I error at 5 %, {SIZE}, ICC {icc}"
        remark = _remark(by_subject, runs)
        share = 100 * by_subject / runs
        rows += [
            Row(f"{name}, permutation over subjects: not too low", share, "%", 3, "higher", remark),
            Row(f"{name}, permutation over subjects: not too high", share, "%", 7, "lower", remark),
            Row(
                f"{name}, Kruskal–Wallis over images",
                100 * by_image / runs,
                "%",
                remark=f"{_remark(by_image, runs)}; invalid, for comparison",
            ),
        ]
    # Few people who spread twice as much as many, with two photos each.
    groups = np.repeat([0, 1], [45, 15])
    for kind, (draw, mean, spread) in SHAPES.items():
        found = 0
        for seed in range(runs):
            people = (draw(generator, 60) - mean) / spread * (1 + groups)
            noise = generator.standard_normal(60) * np.where(groups, 0.57, 0.36)
            found += permute(people + noise, groups, permutations, seed)[1] <= 0.05
        name = f"type-I error at 5 %, 45 people and 15 who spread twice, {kind}"
        rows.append(Row(name, 100 * found / runs, "%", 7, remark=_remark(found, runs)))
    return rows


def audit_speed(subjects: int = 10_000, images: int = 20, repeats: int = 3) -> list[Row]:
    """Time the norm table, the permutation test and the whole association of one attribute.

    Args:
        subjects: in four groups.
        images: of each.
        repeats: the fastest CPU time counts.
    """
    generator = np.random.default_rng(0)
    groups = generator.integers(GROUPS, size=subjects)
    people = np.repeat(np.arange(subjects), images)
    norms = 20 + generator.standard_normal(subjects)[people]
    norms += generator.standard_normal(len(people))
    sample = SubjectNorms.of(norms, people, Grouping(("group",), NAMES, groups[people]))
    times = np.empty((repeats, 3))
    for row in times:
        start = time.process_time()
        norm_figures(sample)
        middle = time.process_time()
        permute(sample.means, sample.groups)
        late = time.process_time()
        associate(sample)
        row[:] = middle - start, late - middle, time.process_time() - late
    table, test, whole = times.min(axis=0).tolist()
    name = f"norm audit, {subjects:,} subjects × {images} images in {GROUPS} groups"
    remark = f"CPU time, fastest of {repeats}"
    return [
        Row(f"{name}: norm table", table, "s", 10, remark=remark),
        Row(f"{name}: permutation test", test, "s", 10, remark=f"9,999 permutations, {remark}"),
        Row(
            f"{name}: association", whole, "s", remark=f"2,000 replicates, with all pairs, {remark}"
        ),
    ]


def whole_audit(subjects: int = 10_000, images: int = 20, dimensions: int = 512) -> list[Row]:
    """Audit one attribute with four groups from all pairs, with report, in a process of its own.

    Args:
        subjects: in the groups.
        images: of each.
        dimensions: of an embedding.
    """
    with tempfile.TemporaryDirectory() as folder:
        found = apart(audited, folder, subjects, images, dimensions)
    people = f"{subjects:,} subjects × {images} images in {GROUPS} groups"
    name = f"whole audit, {people}, {dimensions}-d"
    remark = (
        f"{found['pairs']:,} non-mated pairs, 4 targets, 9,999 permutations, 2,000 replicates, "
        f"report; 2 threads, {found['used']:.0f} s of CPU time"
    )
    return [
        Row(name, found["seconds"], "s", 300, remark=remark),
        Row(f"{name}: peak memory", found["peak"], "MB", 4000, remark="of the whole process"),
    ]


def audited(folder: str, subjects: int, images: int, dimensions: int) -> dict[str, Any]:
    """Audit clusters on two threads; return pairs, seconds and MB."""
    torch.set_num_threads(2)
    place = Path(folder)
    person = np.repeat(np.arange(subjects), images)
    ids = np.array([f"{row}.jpg" for row in range(person.size)])
    with (place / "attributes.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["image_id", "subject_id", "group", "label_source"])
        lines = zip(ids, person, strict=True)
        writer.writerows([i, p, "ABCD"[p % GROUPS], "study"] for i, p in lines)
    vectors = clusters(person, dimensions, np.random.default_rng(0), 1.5, 0.15)
    norms = np.linalg.norm(vectors, axis=1)
    start, used = time.perf_counter(), time.process_time()
    labels = read_attributes(place / "attributes.csv", ["group"])
    found = audit_embeddings(Embeddings(vectors, norms, False, ids), labels)
    write_audit(place / "report", found, "benchmark")
    seconds, used = time.perf_counter() - start, time.process_time() - used
    pairs = int(select(found.rows, "threshold", "threshold")["denominator"].iloc[0])
    return {"seconds": seconds, "used": used, "peak": peak() / 2**20, "pairs": pairs}


def _groups() -> NDArray[np.int64]:
    return np.repeat(np.arange(GROUPS), SUBJECTS)


def _draw(generator: np.random.Generator, icc: float, shift: float) -> NDArray[np.float64]:
    """Return norms of SD 1 in each group, ``(subjects, images)``; the first group is shifted."""
    own = math.sqrt(icc) * generator.standard_normal(GROUPS * SUBJECTS)
    noise = generator.standard_normal((GROUPS * SUBJECTS, IMAGES))
    return 20 + (own + shift * (_groups() == 0))[:, None] + math.sqrt(1 - icc) * noise


def _rejects(norms: NDArray[np.float64], permutations: int, seed: int) -> bool:
    people = np.repeat(np.arange(len(norms)), IMAGES)
    groups = Grouping(("group",), NAMES, _groups()[people])
    sample = SubjectNorms.of(norms.ravel(), people, groups)
    return permute(sample.means, sample.groups, permutations, seed)[1] <= 0.05


def _remark(count: int, runs: int) -> str:
    share = count / runs
    error = 100 * math.sqrt(share * (1 - share) / runs)
    return f"{count:,} of {runs:,} sets, Monte-Carlo error {error:.1f} points"
