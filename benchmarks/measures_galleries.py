"""The measurements of galleries behind ``benchmarks/run.py``: search, memory, and FPIRs by size.

The search runs in a process of its own, so that its peak memory is that of the work, of the
templates and of the libraries, and of nothing else.
"""

from __future__ import annotations

import math
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from apart import apart, clusters, own_memory
from numpy.typing import NDArray
from rows import Row
from scipy.special import ndtr

from facerec.base.large_arrays import empty
from facerec.cosines.coarse import fast_kinds
from facerec.embedding import Embeddings, write_embeddings
from facerec.galleries import Calibration, Gallery, Space
from facerec.galleries.threshold import DEPTH

DIMENSIONS = 512


def gallery_search(*, people: int = 1_000_000, batches: int = 5) -> list[Row]:
    """Search a gallery exactly, 64 probes at a time.

    Args:
        people: random templates.
        batches: timed; the median counts.
    """
    found = apart(searched, people, batches)
    name = f"exact search of {people:,} × {DIMENSIONS}"
    times = [1000 * seconds / 64 for seconds in found["seconds"]]
    cpu = 1000 * float(np.median(found["used"])) / 64
    spread = f"{min(times):.1f} to {max(times):.1f} over {batches} batches"
    remark = f"batches of 64, 2 threads, {found['kind']}, {spread}; {cpu:.1f} ms of CPU time"
    peer = None if found["peer"] is None else 1000 * found["peer"] / 64 / cpu
    own = "what belongs to the process alone, and the copy that is searched; templates on the disk"
    return [
        Row(f"{name}: a query", float(np.median(times)), "ms", 15.0, remark=remark),
        Row(f"{name}: CPU time of faiss.IndexFlatIP", peer, "×", 10.0, "higher"),
        Row(f"{name}: memory", found["peak"] / 1e9, "GB", 0.75, remark=own),
    ]


def searched(people: int, batches: int) -> dict[str, Any]:
    """Search a gallery on two threads; return seconds of clock and CPU, bytes, FAISS's seconds."""
    torch.set_num_threads(2)
    generator = np.random.default_rng(0)
    gallery = Gallery(Space(None, None, None, DIMENSIONS))
    # As from a file: unit templates, on the disk if they are many, a name each, and nothing else.
    gallery.templates = empty((people, DIMENSIONS), np.float32)
    for start in range(0, people, 4096):
        part = gallery.templates[start : start + 4096]
        part[:] = _unit(generator.standard_normal(part.shape, np.float32))
    gallery.subjects = np.array([f"{i:07d}" for i in range(people)])
    probes = generator.standard_normal((64, DIMENSIONS))
    who = generator.integers(people, size=32)
    probes[:32] = gallery.templates[who] + 0.02 * probes[:32]
    gallery.search(probes[:2], 5)
    seconds, used = [], []
    for _ in range(batches):
        begun, busy = time.perf_counter(), time.process_time()
        rows, scores = gallery.search(probes, 5)
        seconds.append(time.perf_counter() - begun)
        used.append(time.process_time() - busy)
    assert (rows[:32, 0] == who).all() and (np.diff(scores, axis=1) <= 0).all()
    # Copies lie in files without a name, but a search goes through all of one.
    copies = gallery._rows.copies.values()
    held = own_memory() + sum(copy.values.nbytes for copy in copies if copy.held is not None)
    found = {"seconds": seconds, "used": used, "peak": held, "kind": fast_kinds()[0]}
    return found | {"peer": _faiss_seconds(gallery.templates, probes)}


def _faiss_seconds(templates: NDArray[np.float32], probes: NDArray[np.float64]) -> float | None:
    try:
        import faiss
    except ImportError:
        return None
    faiss.omp_set_num_threads(2)
    flat = faiss.IndexFlatIP(DIMENSIONS)
    flat.add(templates)
    start = time.process_time()
    flat.search(probes.astype(np.float32), 5)
    return time.process_time() - start


_COMMAND = "import sys; from facerec.commands.main import main; sys.exit(main())"


def gallery_memory(*, images: int = 200_000, shards: int = 20) -> Iterator[Row]:
    """Run the commands that take embeddings on shards, and tell what memory more images cost.

    What counts is memory that belongs to a process alone: pages of files do not, which the system
    drops when it needs room.

    Args:
        images: in all shards, 20 of a person, against those of the first quarter of the shards.
        shards: files.
    """
    if not Path("/proc/self/status").exists():
        yield Row("memory of commands", None, "MB", remark="read from /proc, which is not here")
        return
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        _write_shards(folder, images // shards, shards)
        quarter = shards // 4
        few, many = folder / f"part-{{000..{quarter - 1:03d}}}.parquet", folder
        fewer = images // shards * quarter
        more = (images - fewer) * DIMENSIONS * 4 / 1e6
        people = folder / "people.npz"
        jobs = {
            "enroll": ("--gallery", str(people)),
            "identify": ("--threshold", "0.5", "--gallery", str(people)),
            "overlap": (str(folder / "part-000.parquet"),),
            "clean": ("--no-across", "--out", str(folder / "proposals.csv")),
            "all-pairs": ("--fpr", "1e-4", "--embeddings"),
        }
        for command, arguments in jobs.items():
            last = command == "all-pairs"
            peaks = []
            for source in (few, many):
                if command == "enroll":
                    people.unlink(missing_ok=True)
                given = (*arguments, str(source)) if last else (str(source), *arguments)
                peaks.append(_peak(command, *given) / 1e6)
            remark = (
                f"{peaks[1]:.0f} MB with {images:,} images in {shards} shards, {peaks[0]:.0f} MB "
                f"with {fewer:,}; the vectors of all take {more:.0f} MB more"
            )
            growth = peaks[1] - peaks[0]
            yield Row(f"memory of {command}: growth", growth, "MB", more / 2, remark=remark)


def _write_shards(folder: Path, images: int, shards: int) -> None:
    """Write so many shards of embeddings, 20 images a person."""
    generator = np.random.default_rng(0)
    for shard in range(shards):
        who = np.arange(images) // 20
        vectors = clusters(who, DIMENSIONS, generator, 0.9)
        names = np.array([f"{shard:03d}-{person:07d}" for person in who])
        ids = np.array([f"{name}/{row:07d}" for row, name in enumerate(names)])
        norms = np.linalg.norm(vectors, axis=1)
        embeddings = Embeddings(vectors, norms, False, ids=ids, subjects=names)
        write_embeddings(folder / f"part-{shard:03d}.parquet", embeddings)


def _peak(*arguments: str) -> int:
    """Run a command and return the most bytes that belonged to its process alone."""
    call = [sys.executable, "-c", _COMMAND, *arguments]
    peak = 0
    with subprocess.Popen(call, stdout=subprocess.DEVNULL) as process:
        while process.poll() is None:
            peak = max(peak, own_memory(process.pid))
            time.sleep(0.004)
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, call)
    return peak


TARGETS = ("1e-1", "1e-2")


@dataclass(frozen=True)
class Crowd:
    """Directions of people: a mean drawn from a list, and normal noise of unit length."""

    means: NDArray[np.float64]
    """``(T, D)``."""
    shares: NDArray[np.float64]
    """Of people with each mean, ``(T,)``."""
    blur: float
    """Length of the noise of an image of a stranger."""

    def people(self, generator: np.random.Generator, count: int) -> NDArray[np.float32]:
        """Draw unit templates."""
        size = self.means.shape[1]
        drawn = np.empty((count, size), np.float32)
        for start in range(0, count, 4096):
            part = drawn[start : start + 4096]
            noise = generator.standard_normal(part.shape, np.float32) / math.sqrt(size)
            mean = generator.choice(len(self.means), size=len(part), p=self.shares)
            part[:] = _unit(self.means[mean] + noise)
        return drawn

    def images(self, generator: np.random.Generator, people: int) -> NDArray[np.float32]:
        """Draw two images of each of so many strangers: all first ones, then all second ones."""
        strangers = self.people(generator, people)
        noise = generator.standard_normal((2, *strangers.shape), np.float32)
        blur = self.blur / math.sqrt(strangers.shape[1])
        return _unit(np.concatenate(list(strangers + blur * noise)))

    def fpir(self, probes: NDArray[np.float32], threshold: float, people: int) -> float:
        """Return the FPIR of probes, over all galleries of so many people that may be drawn.

        A template m + n reaches the cosine t if its part along the probe, which is normal, is t/√(1
        − t²) times its length across. The cube root of the square of that, a noncentral χ², is
        normal but for a trifle (Abdel-Aty, Biometrika 41, 1954).
        """
        size = self.means.shape[1]
        along = probes.astype(np.float64) @ self.means.T
        across = size * np.maximum((self.means**2).sum(axis=1) - along**2, 0.0)
        mean = size - 1 + across
        spread = 2 * (mean + across) / (9 * mean**2)
        nodes, weights = np.polynomial.hermite_e.hermegauss(12)
        chance = np.zeros(len(probes))
        for node, weight in zip(nodes, weights / weights.sum(), strict=True):
            root = 1 - spread + np.sqrt(spread) * node
            length = np.sqrt(mean * np.maximum(root, 0.0) ** 3)
            reach = threshold / math.sqrt(1 - threshold**2) * length
            chance += weight * (ndtr(math.sqrt(size) * along - reach) @ self.shares)
        return float(-np.expm1(people * np.log1p(-chance)).mean())


def crowds() -> dict[str, Crowd]:
    """Return the crowds of the simulations.

    The settings of the tail were chosen on the first two.
    """
    generator = np.random.default_rng(5)

    def directions(count: int, size: int) -> NDArray[np.float32]:
        return _unit(generator.standard_normal((count, size)))

    above, below = directions(4, 192), directions(20, 192)
    nested = 0.4 * above[np.arange(20) % 4] + generator.uniform(0.2, 0.6, (20, 1)) * below
    pulls = 0.35 * np.sqrt(-np.log1p(-(np.arange(24) + 0.5) / 24))
    uneven = 1 / np.sqrt(np.arange(1.0, 21.0))

    def even(means: NDArray[np.floating], blur: float) -> Crowd:
        return Crowd(means.astype(np.float64), np.full(len(means), 1 / len(means)), blur)

    return {
        "eight groups, 128-d": even(0.5 * directions(8, 128), 0.5),
        "no groups, 64-d": even(np.zeros((1, 64)), 0.5),
        "likeness that differs, 64-d": even(pulls[:, None] * directions(1, 64), 0.4),
        "20 uneven groups in 4, 192-d": Crowd(nested, uneven / uneven.sum(), 0.7),
    }


def gallery_threshold(
    *, people: int = 1_000_000, probes: int = 8192, repeats: int = 3, fresh: int = 20_000
) -> Iterator[Row]:
    """Predict the threshold for a gallery from a tenth of it, in simulated crowds.

    What it reaches is known in closed form, for fresh strangers and over all galleries, so that
    the error is that of the prediction and not of a count of alarms.

    Args:
        people: of the gallery.
        probes: images of strangers, two each, that calibrate.
        repeats: calibrations of a crowd.
        fresh: images of other strangers.
    """
    generator = np.random.default_rng(0)
    who = -1 - np.tile(np.arange(probes // 2), 2)
    for name, crowd in crowds().items():
        others = crowd.images(generator, fresh // 2)
        calibrations = (
            _calibrated(
                crowd.images(generator, probes // 2), who, crowd.people(generator, people // 10)
            )
            for _ in range(repeats)
        )
        fpir = partial(crowd.fpir, others, people=people)
        yield from _reached(f"{name}, {people:,} people", people, calibrations, fpir)


def lfw_threshold(*, embeddings: Path = Path("lfw.npz"), repeats: int = 40) -> Iterator[Row]:
    """Do the same with real faces: every image searches those of all other people.

    A tenth of the people is what a gallery is before it grows tenfold; a tenth of the images has
    most of the people already, with fewer images each.

    Args:
        embeddings: a file of ``facerec embed`` that says who is on the images.
        repeats: random tenths; the median counts.
    """
    from facerec.embedding import read_embeddings

    if not embeddings.exists():
        yield Row("FPIR, LFW", None, "%", remark=f"needs {embeddings}, made by facerec embed")
        return
    found = read_embeddings(embeddings)
    assert found.subjects is not None
    images = _unit(found.vectors)
    who = np.unique(found.subjects, return_inverse=True)[1]
    scores = images @ images.T
    scores[who[:, None] == who] = -1
    highest = scores.max(axis=1)
    for unit, of in (("people", who), ("images", np.arange(len(images)))):
        generator = np.random.default_rng(0)
        drawn = (
            generator.permutation(of.max() + 1)[: (of.max() + 1) // 10] for _ in range(repeats)
        )
        tenths = (np.flatnonzero(np.isin(of, each)) for each in drawn)
        calibrations = (_calibration(scores[:, tenth], who, who[tenth]) for tenth in tenths)
        name = f"{len(images):,} images of {who.max() + 1:,} people, a tenth of the {unit}"
        yield from _reached(
            name, len(images), calibrations, lambda least: float((highest >= least).mean())
        )


def _calibration(scores: NDArray[Any], probes: NDArray[Any], entries: NDArray[Any]) -> Calibration:
    """Return a calibration of scores ``(P, M)``, without those of a subject with itself."""
    matrix = np.where(probes[:, None] == entries, -np.inf, scores)
    kept = np.argsort(-matrix, axis=1, kind="stable")[:, :DEPTH]
    best = np.take_along_axis(matrix, kept, axis=1).astype(np.float32)
    return Calibration(best, np.where(best > -np.inf, kept, -1), probes, entries)


def gallery_coverage(*, repeats: int = 400, truths: int = 60) -> Iterator[Row]:
    """Count how often the 95 % interval of a predicted FPIR covers the FPIR.

    People of the gallery and strangers differ in how much they resemble everybody; strangers have
    one to eight images. A calibration has 150 strangers and 300 templates.

    Args:
        repeats: calibrations for each row.
        truths: fresh galleries and strangers whose mean is the truth.
    """
    generator = np.random.default_rng(0)
    for size, how in ((300, "exact resampling"), (3000, "ten times the size")):
        drawn = [_crossed(generator, size)[0].max(axis=1) for _ in range(truths)]
        highest = np.concatenate(drawn)
        for target in (0.02, 0.1):
            threshold = float(np.quantile(highest, 1 - target))
            truth = float((highest >= threshold).mean())
            inside, values = 0, []
            for _ in range(repeats):
                scores, who = _crossed(generator, 300)
                calibration = _calibration(scores, who, np.arange(300))
                point = calibration.fpir(threshold, size)
                assert point.value is not None and point.low is not None and point.high is not None
                inside += point.low <= truth <= point.high
                values.append(point.value)
            remark = f"{inside} of {repeats}, mean {np.mean(values):.3g}; bar 93 to 97 %"
            name = f"coverage of FPIR {truth:.3g}, {how}"
            yield Row(name, 100 * inside / repeats, "%", 93.0, "higher", remark)


def _reached(
    what: str, size: int, calibrations: Iterable[Calibration], fpir: Callable[[float], float]
) -> Iterator[Row]:
    """Set the thresholds that calibrations predict against the FPIR that they reach."""
    rates: dict[str, list[float]] = {target: [] for target in TARGETS}
    inside = dict.fromkeys(TARGETS, 0)
    for calibration in calibrations:
        for target in TARGETS:
            point = calibration.threshold(target, size)
            rates[target].append(rate := fpir(point.threshold))
            assert point.low is not None and point.high is not None
            inside[target] += point.low <= rate <= point.high
    for target, values in rates.items():
        yield _row(what, target, values, inside[target])


def _row(what: str, target: str, rates: list[float], inside: int) -> Row:
    ratios = np.array(rates) / float(target)
    error = 100 * abs(float(np.median(ratios)) - 1)
    told = (
        f"reached {np.median(rates):.4g}, the median of {len(rates)} tenths; over the target "
        f"{ratios.min():.2f} to {ratios.max():.2f}, {(abs(ratios - 1) <= 0.2).sum()} within 20 %; "
        f"in the interval {inside} times"
    )
    return Row(f"FPIR {target} from a tenth: {what}, error", error, "%", 20.0, remark=told)


def _unit(vectors: NDArray[np.floating]) -> NDArray[np.float32]:
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    return (vectors / lengths).astype(np.float32)


def _products(probes: NDArray[np.float32], templates: NDArray[np.float32]) -> torch.Tensor:
    return torch.from_numpy(probes) @ torch.from_numpy(templates).T


def _calibrated(
    probes: NDArray[np.float32], who: NDArray[np.int64], templates: NDArray[np.float32]
) -> Calibration:
    best, rows = [], []
    for start in range(0, len(probes), 64):
        top, place = _products(probes[start : start + 64], templates).topk(64, dim=1)
        best.append(top.numpy())
        rows.append(place.numpy())
    return Calibration(np.concatenate(best), np.concatenate(rows), who, np.arange(len(templates)))


def _crossed(
    generator: np.random.Generator, entries: int, people: int = 150, size: int = 64
) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Draw strangers with unequal numbers of images, a gallery, and their scores."""
    counts = generator.integers(1, 9, people)
    common = _unit(generator.standard_normal((1, size)))

    def draw(number: int) -> NDArray[np.float32]:
        # How far somebody is drawn towards what all have in common differs.
        pull = 0.35 * np.sqrt(generator.gamma(1.0, 1.0, (number, 1)))
        noise = generator.standard_normal((number, size)) / math.sqrt(size)
        return _unit(pull * common + noise)

    strangers = np.repeat(draw(people), counts, axis=0)
    noise = generator.standard_normal(strangers.shape) / math.sqrt(size)
    probes = _unit(strangers + 0.4 * noise)
    return probes @ draw(entries).T, -1 - np.repeat(np.arange(people), counts)
