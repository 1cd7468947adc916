"""The measurements behind ``benchmarks/run.py``, each a function that returns rows of its table.

A ratio compares two things measured in turn within the same seconds, so that whatever else the
machine does falls on both.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

import cv2
import numpy as np
import torch
from apart import apart, peak, run_program
from noise import empty_set, random_batches
from rows import Row
from torch import nn

from facerec.backbones import Backbone, Preprocessing, normalize
from facerec.heads import SEC
from facerec.records import Augmentation, BatchRequest, Data, FaceDataset, RecordImages
from facerec.records.dataset import Batch
from facerec.records.recordio import ImageRecord, RecordIndex, encode_record, pack, write_index
from facerec.records.synthetic import SyntheticSet, write_synthetic
from facerec.training import Recipe
from facerec.training.distributed import Processes
from facerec.training.learner import Learner
from facerec.verification.bench import Pairs, contiguous_folds
from facerec.verification.evaluation import evaluate, score_pairs


def loader(
    records: Path | None = None, *, batches: int = 40, batch_size: int = 128, repeats: int = 9
) -> list[Row]:
    """Compare loading batches from a record file with `cv2.imdecode` alone on the same images.

    Both run in this thread, in turn, over the same random batches. The fastest of ``repeats`` CPU
    times stands for a batch (the slower ones met another process), the median ratio for them all.

    Args:
        records: a record file or its folder; by default faces are generated.
        batches: random batches.
        batch_size: images in each.
        repeats: times that each batch is measured.
    """
    with TemporaryDirectory() as folder:
        if records is None:
            records = Path(folder)
            write_synthetic(records, SyntheticSet(0, 40, 10, pairs_per_fold=4), processes=1)
        threads = cv2.getNumThreads()
        cv2.setNumThreads(1)
        try:
            return _loader(records, batches, batch_size, repeats)
        finally:
            cv2.setNumThreads(threads)


def _loader(records: Path, batches: int, batch_size: int, repeats: int) -> list[Row]:
    variants = [
        FaceDataset(RecordImages(records), augmentation=Augmentation()),
        FaceDataset(RecordImages(records), augmentation=Augmentation(flip=0.0)),
    ]
    generator = np.random.default_rng(0)
    flags = cv2.IMREAD_COLOR | cv2.IMREAD_IGNORE_ORIENTATION
    times = np.empty((batches, 1 + len(variants)))
    sizes = []
    for row in times:
        request = BatchRequest(0, generator.integers(len(variants[0]), size=batch_size))
        files = [np.frombuffer(variants[0].encoded(i), np.uint8) for i in request.indices.tolist()]
        sizes += [len(file) for file in files]

        def decode(files: list[np.ndarray] = files) -> None:
            for file in files:
                cv2.imdecode(file, flags)

        def load(dataset: FaceDataset, request: BatchRequest = request) -> Batch:
            return dataset.__getitems__(request)

        acts: list[Callable[[], object]] = [decode]
        acts += [lambda dataset=dataset, load=load: load(dataset) for dataset in variants]
        row[:] = np.inf
        for _ in range(repeats):
            for column, act in enumerate(acts):
                start = time.thread_time()
                act()
                row[column] = min(row[column], time.thread_time() - start)
    alone, *loaded = np.median(batch_size / times, axis=0)
    ratios = np.median(times[:, :1] / times[:, 1:], axis=0)
    rows = []
    for kind, bar, ratio, rate in zip(
        ("default (flip)", "no augmentation"), (0.92, None), ratios, loaded, strict=True
    ):
        bytes_each = f"JPEGs of {np.mean(sizes):,.0f} bytes"
        remark = f"{rate:,.0f} against {alone:,.0f} images/s per core, {bytes_each}"
        name = f"loader against cv2.imdecode alone, {kind}"
        rows.append(Row(name, float(ratio), "×", bar, "higher", remark))
    return rows


def _open(folder: str, places: str, image_bytes: int) -> dict[str, float]:
    """Open records, and read some: seconds, bytes by which the peak has grown, and reads/s."""
    chosen = np.load(places).tolist()
    before, start = peak(), time.perf_counter()
    dataset = RecordImages(Path(folder))
    seconds, opened, start = time.perf_counter() - start, peak(), time.perf_counter()
    for place in chosen:
        image, label = dataset.sample(place)
        assert label == place % dataset.num_classes and len(image) == image_bytes
    rate = len(chosen) / (time.perf_counter() - start)
    memory = {"opened": opened - before, "read": peak() - before}
    return {"records": len(dataset), "seconds": seconds, "rate": rate, **memory}


def random_access(count: int = 1_000_000, image_bytes: int = 2976, reads: int = 2000) -> list[Row]:
    """Open a sparse record file with an index of ``count`` lines in a new process, and read in it.

    Args:
        count: records; with their framing and 2,976 bytes of image each takes 3,008.
        image_bytes: in each record, a multiple of 4.
        reads: random places that are written, and read five times each.
    """
    classes = min(count, 93_431)
    size = len(encode_record(pack(ImageRecord(0, 0.0, 0, 0, bytes(image_bytes)))))
    chosen = np.random.default_rng(0).choice(count, min(reads, count), replace=False)
    with TemporaryDirectory() as name:
        folder = Path(name)
        with (folder / "train.rec").open("wb") as file:
            for key in sorted({0, count - 1, *chosen.tolist()}):
                file.seek(key * size)
                image = bytes([255]) * image_bytes
                file.write(encode_record(pack(ImageRecord(0, key % classes, key, 0, image))))
        keys = np.arange(count)
        write_index(folder / "train.idx", RecordIndex(keys, keys * size))
        (folder / "property").write_text(f"{classes},112,112\n{count}\n")
        np.save(folder / "places.npy", np.tile(chosen, 5))
        places = str(folder / "places.npy")
        found = [apart(_open, name, places, image_bytes) for _ in range(3)]
    best = min(found, key=lambda item: item["seconds"])
    assert best["records"] == count
    memory = max(item["read"] for item in found) / 2**20
    name = f"{count:,} records of {size:,} bytes"
    grown = f"peak resident growth; {best['opened'] / 2**20:.0f} MB by opening, the rest by reads"
    return [
        Row(f"{name}: open", best["seconds"], "s", 2.0, remark="fastest of three new processes"),
        Row(f"{name}: memory", memory, "MB", 100.0, remark=grown),
        Row(f"{name}: random reads", best["rate"], "1/s", remark="image bytes and class by index"),
    ]


CLASSES = 1000


class _Contiguous(nn.Module):
    def __init__(self, backbone: nn.Module) -> None:
        super().__init__()
        self.backbone = backbone.to(memory_format=torch.contiguous_format)  # type: ignore[call-overload]

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.backbone(normalize(images, Preprocessing()).contiguous())


def training_step(*, batch_size: int = 32, width: float = 1.0, steps: int = 4) -> list[Row]:
    """Compare the trainer's step in bf16 and channels-last with fp32 in contiguous memory.

    Both are whole steps of the same iResNet-18 with ArcFace over 1,000 classes and SEC: forward,
    backward, clipping and SGD. They alternate after one step each that is not counted. That is
    done twice: on one thread by CPU time, which other processes hardly touch, and on all threads by
    the clock, where a thread that loses its core to another process keeps all others waiting.

    Args:
        batch_size: images.
        width: factor on the channels.
        steps: of each kind.
    """

    def trainer(**changes: object) -> Learner:
        recipe = Recipe(
            data=Data(Path()),
            backbone=Backbone("iresnet18", width=width),
            regularizer=SEC(weight=0.1),
            batch_size=batch_size,
            **changes,  # type: ignore[arg-type]
        )
        return Learner(recipe, empty_set(CLASSES), Processes(0, 1, torch.device("cpu")))

    plain = trainer(precision="fp32")
    plain.stepper.model = _Contiguous(plain.backbone)
    contestants = {"fp32": plain, "eager": trainer(precision="bf16")}
    (batch,) = random_batches(1, batch_size, CLASSES)

    def measure(clock: Callable[[], float], kind: str) -> list[Row]:
        times: dict[str, list[float]] = {name: [] for name in contestants}
        for step in range(steps + 1):
            for name, contestant in contestants.items():
                start = clock()
                loss = contestant.train_step(batch)["loss"]
                assert torch.isfinite(loss)
                if step:
                    times[name].append(clock() - start)
        plain, ours = (statistics.median(values) for values in times.values())
        name = (
            f"training step, iResNet-18, batch {batch_size}: bf16 + channels_last against fp32 "
            f"contiguous, {kind}"
        )
        remark = f"{ours:.2f} s against {plain:.2f} s, medians of {steps} steps"
        return [Row(name, plain / ours, "×", 2.5, "higher", remark)]

    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        rows = measure(time.process_time, "one thread, CPU time")
    finally:
        torch.set_num_threads(threads)
    return rows + measure(time.perf_counter, f"{threads} threads, clock")


def figures(*, pairs: int = 6000, dimensions: int = 512, repeats: int = 7) -> list[Row]:
    """Time the verification figures of one bench, from raw embeddings on.

    Args:
        pairs: half of them of one person.
        dimensions: of an embedding.
        repeats: the median of these counts.
    """
    generator = np.random.default_rng(0)
    first = generator.standard_normal((pairs, dimensions))
    same = np.arange(pairs) % (pairs // 10) < pairs // 20  # InsightFace's order: 300 and 300
    shared = np.where(same, 0.2, 0.0)[:, None]
    second = shared * first + (1 - shared) * generator.standard_normal(first.shape)
    embeddings = np.stack([first, second], axis=1).reshape(2 * pairs, dimensions)
    embeddings = embeddings.astype(np.float32)
    rows = 2 * np.arange(pairs)
    labelled = Pairs(rows, rows + 1, same, folds=contiguous_folds(pairs))
    times = []
    for _ in range(repeats + 1):
        start = time.perf_counter()
        scores = score_pairs(embeddings, labelled.first, labelled.second)
        result = evaluate(scores, labelled, name="random")
        times.append(time.perf_counter() - start)
    name = f"ten-fold accuracy and TPR@FPR of {pairs:,} pairs, {dimensions}-d"
    told = f"{len(result.points)} FPR targets, AUC and EER with intervals; median of {repeats}"
    return [Row(name, statistics.median(times[1:]), "s", 0.1, remark=told)]


_IMPORT = """
import json, time
import torch
start = time.perf_counter()
import facerec
package = time.perf_counter() - start
import facerec.training.trainer
print(json.dumps({"package": package, "trainer": time.perf_counter() - start}))
"""


def import_time(*, repeats: int = 5) -> list[Row]:
    """Time ``import facerec`` in new processes that have imported torch.

    Args:
        repeats: processes; the median counts.
    """
    run_program(_IMPORT)  # writes the byte code where there is none yet
    found = [run_program(_IMPORT) for _ in range(repeats)]
    rows = []
    for what, key, bar in (("", "package", 1.0), (".training.trainer", "trainer", None)):
        seconds = statistics.median(item[key] for item in found)
        remark = f"median of {repeats} new processes"
        name = f"import facerec{what} beyond import torch"
        rows.append(Row(name, seconds, "s", bar, remark=remark))
    return rows
