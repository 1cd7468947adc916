"""The frozen cases: each computes its figures in an empty folder, perhaps from research data."""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import math
import os
import platform
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import torch

from golden import adapters
from golden.adapters import Figures, command
from golden.people import People, people

FOLDER = Path(__file__).parent


# --- from seeded numbers alone ---------------------------------------------------------------


def scores(folder: Path) -> Figures:
    """Scores of 1,200 pairs in ten folds, and those of a second model on the same."""
    generator = np.random.default_rng(5)
    same = np.arange(1200) % 2 == 0
    common = generator.normal(np.where(same, 0.55, 0.05), 0.12)
    for name in ("one", "other"):
        column = np.round(common + generator.normal(0, 0.1, len(same)), 6)
        rows = [[int(same[pair]), column[pair].item(), pair // 120] for pair in range(1200)]
        adapters.write_csv(folder / f"{name}.csv", ["label", "score", "fold"], rows)
    given = [folder / "one.csv"]
    command("verify-scores", *given, "--json", folder / "one.json")
    more = ["--compare", folder / "other.csv", "--json", folder / "both.json"]
    command("verify-scores", *given, *more)
    figures = adapters.verification(folder / "one.json")
    return figures | adapters.difference(folder / "both.json")


def all_pairs(folder: Path) -> Figures:
    """All pairs of 369 images of three groups."""
    adapters.write_people(people(), folder / "p")
    given = ["--embeddings", folder / "p.npz", "--subjects", folder / "p.csv", "--group", "tone"]
    more = ["--fpr", "1e-1", "1e-2", "1e-3", "--threshold", 0.3, 0.5]
    command("all-pairs", *given, *more, "--json", folder / "f.json")
    return adapters.all_pairs(folder / "f.json")


def audit(folder: Path) -> Figures:
    """An audit of the same people, with searches."""
    adapters.write_people(people(), folder / "p")
    given = ["--embeddings", folder / "p.npz", "--attributes", folder / "p.csv", "--group", "tone"]
    more = ["--fmr", "1e-1", "1e-2", "--permutations", 499, "--replicates", 200]
    search = ["--one-to-many", "--fpir", "2e-1", "1e-1", "--reference", "amber"]
    command("audit", *given, *more, *search, "--out", folder / "audit")
    return adapters.audit(folder / "audit")


def part(whole: People, rows: np.ndarray[Any, Any], prefix: str = "") -> People:
    ids, subjects = (np.char.add(prefix, names[rows]) for names in (whole.ids, whole.subjects))
    return People(whole.vectors[rows], ids, subjects, whole.groups[rows])


def overlap(folder: Path) -> Figures:
    """Two sets that share 15 people."""
    whole = people(3, sizes=(60,), names=("all",), images=(4, 9), noise=0.5, size=60)
    person, odd = (
        np.array([int(name[1:]) for name in whole.subjects]),
        np.arange(len(whole.ids)) % 2,
    )
    adapters.write_people(part(whole, (person < 35) & ((person >= 15) | (odd == 0))), folder / "a")
    second = (person >= 35) | ((person < 15) & (odd == 1))
    adapters.write_people(part(whole, second, "b"), folder / "b")
    command("overlap", folder / "a.npz", folder / "b.npz", "--csv", folder / "list.csv")
    return adapters.overlap(folder / "list.csv")


def clean(folder: Path) -> Figures:
    """A set with wrong labels, a person under two labels, two people under one, and a duplicate."""
    whole = people(4, sizes=(60,), names=("all",), images=(8, 12), noise=0.5)
    generator, labels = np.random.default_rng(0), whole.subjects.copy()
    person = np.array([int(name[1:]) for name in labels])
    wrong = generator.choice(np.flatnonzero(person >= 6), 12, replace=False)
    labels[wrong] = [f"p{(who + 7) % 54 + 6:03d}" for who in person[wrong]]
    labels[np.flatnonzero(person == 0)[:4]] = "q000"
    labels[person == 2] = "p001"
    whole.vectors[np.flatnonzero(person == 4)[0]] = whole.vectors[np.flatnonzero(person == 4)[1]]
    adapters.write_people(whole._replace(subjects=labels), folder / "c")
    command("clean", folder / "c.npz", "--out", folder / "proposals.csv")
    return adapters.proposals(folder / "proposals.csv")


def gallery(folder: Path) -> Figures:
    """A gallery of 30 people, to which others come, and 25 strangers."""
    whole = people(6, sizes=(55,), names=("all",), images=(3, 6), noise=0.6, size=40)
    person = np.array([int(name[1:]) for name in whole.subjects])
    first = np.unique(person, return_index=True)[1]
    enrolled = np.isin(np.arange(len(person)), [*first, *(first + 1)]) & (person < 30)
    adapters.write_people(part(whole, enrolled), folder / "enrolled")
    adapters.write_people(part(whole, ~enrolled, "probe/"), folder / "probes")
    file = folder / "gallery.npz"
    command("enroll", folder / "enrolled.npz", "--gallery", file)
    command("enroll", "--gallery", file, "--delete", "p004")
    figures: Figures = {}
    for name, more in (("fixed", ("--threshold", 0.5)), ("estimated", ("--fpir", "1e-1"))):
        given = [folder / "probes.npz", "--gallery", file, "--json", folder / f"{name}.json"]
        command("identify", *given, *more)
        figures |= getattr(adapters, f"identified_{name}")(folder / f"{name}.json")
    return figures


def heads(folder: Path) -> Figures:
    """Margins, norm penalties and the losses of comparisons in float64."""
    generator = np.random.default_rng(8)
    first, second, centers = (
        torch.from_numpy(generator.normal(size=size)) for size in ((16, 8), (16, 8), (5, 8))
    )
    labels = torch.arange(16) % 4
    return {
        **adapters.margin_losses(3 * first, centers, labels),
        **adapters.norm_penalties(3 * first, 4 * second),
    }


def comparison(folder: Path) -> Figures:
    """Losses of a comparison, what a search finds among made-up people, and differences."""
    generator = np.random.default_rng(9)
    embeddings = torch.from_numpy(generator.normal(size=(16, 8)))
    made = people(10, sizes=(40,), names=("all",), images=(2, 9), noise=1.2)
    labels = np.array([int(name[1:]) for name in made.subjects])
    arm, base = generator.normal(0.6, 0.02, 8), generator.normal(0.58, 0.02, 8)
    return {
        **adapters.comparison_losses(embeddings, torch.arange(16) % 4),
        **adapters.retrieval(made.vectors, labels),
        **adapters.clusters(made.vectors, labels),
        **adapters.over_seeds(arm, base),
    }


# --- from what a network computes ------------------------------------------------------------


def run(folder: Path) -> Figures:
    """The losses of a run, and what its network computes."""
    generator = np.random.default_rng(11)
    for person in range(6):
        (folder / "images" / f"p{person}").mkdir(parents=True)
        face = generator.integers(0, 255, (7, 7, 3))
        for number in range(8):
            noisy = np.clip(face + generator.normal(0, 25, face.shape), 0, 255).astype(np.uint8)
            pixels = cv2.resize(noisy, (112, 112), interpolation=cv2.INTER_NEAREST)
            cv2.imwrite(str(folder / "images" / f"p{person}" / f"{number}.png"), pixels)
    runs = folder / "runs"
    adapters.train(folder / "images", runs, "run")
    faces = generator.integers(0, 256, (8, 112, 112, 3), dtype=np.uint8)
    steps = adapters.losses(runs / "run")
    norms = np.linalg.norm(adapters.embed(runs / "run", faces), axis=1)
    return {
        "steps": len(steps),
        "first loss": steps[0],
        "last loss": steps[-1],
        "mean norm": float(norms.mean()),
    }


def lfw_small(folder: Path, data: Path) -> Figures:
    """200 pairs of LFW by the published network."""
    bench = ["--bench", data / "lfw_small" / "small_py3.bin", "--no-flip"]
    model = ["--model", data / "teacher" / "MobileFaceNet.onnx"]
    command("verify", *bench, *model, "--fpr", "1e-1", "1e-2", "--json", folder / "f.json")
    return adapters.verification(folder / "f.json")


def embedded(folder: Path, data: Path) -> Path:
    """Return the embeddings of LFW, which take a minute or two, made once a folder."""
    path = folder.parent / "lfw.npz"
    if not path.exists():
        model, bench = data / "teacher" / "MobileFaceNet.onnx", data / "lfw" / "lfw.bin"
        command("embed", "--model", model, "--bench", bench, "--no-flip", "--out", path)
    return path


def lfw(folder: Path, data: Path) -> Figures:
    """View 2 of LFW."""
    given = ["--bench", data / "lfw" / "lfw.bin", "--embeddings", embedded(folder, data)]
    more = ["--compat", "insightface"]
    command("verify", *given, *more, "--json", folder / "f.json")
    return adapters.verification(folder / "f.json")


def lfw_pairs(folder: Path, data: Path) -> Figures:
    """All 29,648,850 pairs of its images."""
    who = ["--subjects", data / "lfw" / "attributes.csv", "--group", "gender"]
    more = ["--fpr", "1e-2", "1e-3", "1e-4", "1e-5", "--threshold", 0.3, 0.5]
    given = ["--embeddings", embedded(folder, data)]
    command("all-pairs", *given, *who, *more, "--json", folder / "f.json")
    return adapters.all_pairs(folder / "f.json")


def lfw_audit(folder: Path, data: Path) -> Figures:
    """The audit of its images by gender, all pairs, with searches."""
    given = ["--embeddings", embedded(folder, data), "--group", "gender"]
    who = ["--attributes", data / "lfw" / "attributes.csv", "--reference", "male"]
    more = ["--fmr", "1e-2", "1e-3", "1e-4", "--permutations", 499, "--replicates", 200]
    search = ["--one-to-many", "--fpir", "1e-1", "1e-2"]
    command("audit", *given, *who, *more, *search, "--out", folder / "audit")
    return adapters.audit(folder / "audit")


def cars(folder: Path, data: Path) -> Figures:
    """Retrieval of every fifth class of Cars196's training half by published features."""
    with np.load(data / "features" / "cars196_efficientnet_lite0.npz") as file:
        features, labels = file["features"], file["labels"]
    chosen = labels % 5 == 1
    return adapters.retrieval(features[chosen].astype(np.float32), labels[chosen].astype(np.int64))


EXACT: dict[str, Callable[[Path], Figures]] = {
    case.__name__: case
    for case in (scores, all_pairs, audit, overlap, clean, gallery, heads, comparison)
}
NETWORK: dict[str, Callable[..., Figures]] = {
    case.__name__: case for case in (run, lfw_small, lfw, lfw_pairs, lfw_audit, cars)
}
WITH_DATA = ("lfw_small", "lfw", "lfw_pairs", "lfw_audit", "cars")
HEAVY = ("lfw", "lfw_pairs", "lfw_audit")
"""Those that need the embeddings of all of LFW."""

TIGHT = 1e-9
"""Relative; float64 sums in another order differ by 1e-13 or so."""

LOOSE = (2e-3, 3)
"""Relative, and how many comparisons may lie on the other side of a threshold."""


def compute(name: str, folder: Path, data: Path | None) -> Figures:
    """Return the figures of a case, as JSON types."""
    folder.mkdir(parents=True, exist_ok=True)
    figures = EXACT[name](folder) if name in EXACT else NETWORK[name](folder, *_data(name, data))
    found: Figures = json.loads(json.dumps(figures))
    return found


def _data(name: str, data: Path | None) -> tuple[Path, ...]:
    return (data,) if name in WITH_DATA and data is not None else ()


def written_on() -> str:
    """Return a hash of the processor's model and the libraries that compute embeddings on it."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    said = sorted({line for line in lines if line.startswith(("model", "stepping", "flags"))})
    versions = [importlib.metadata.version(name) for name in ("numpy", "torch", "onnxruntime")]
    told = [torch.backends.cpu.get_cpu_capability(), os.environ.get("OPENBLAS_CORETYPE", "")]
    text = "\n".join([platform.machine(), *said, *versions, *told])
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def is_interval(name: str) -> bool:
    return name.endswith((" low", " high")) or name.startswith(adapters.ESTIMATED)


def differences(found: Figures, stored: Figures, loose: bool) -> list[str]:
    """Return every figure that is another than the stored one, in words."""
    return [
        f"{name}: {found.get(name, 'missing')!r}, stored {stored.get(name, 'nothing')!r}"
        for name in sorted(found.keys() | stored.keys())
        if name not in found or name not in stored or not same(found[name], stored[name], loose)
    ]


def same(found: Any, stored: Any, loose: bool) -> bool:
    """Tell whether two figures are equal, or on another processor close enough."""
    numbers = isinstance(found, (int, float)) and isinstance(stored, (int, float))
    if not numbers:
        return bool(found == stored)
    if isinstance(stored, int):
        return abs(found - stored) <= (max(LOOSE[1], LOOSE[0] * stored) if loose else 0)
    relative, absolute = (LOOSE[0], LOOSE[0]) if loose else (TIGHT, 1e-12)
    return math.isclose(found, stored, rel_tol=relative, abs_tol=absolute)
