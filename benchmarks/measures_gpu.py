"""The measurements of the suite ``gpu`` behind ``benchmarks/run.py``.

They need PyTorch with Triton, NumPy and SciPy, and nothing else but for the loader, which decodes
images. On a CPU they run at toy size: every row is there, and the figures mean nothing.

Times on a GPU are those of its own clock. A row that fails, does not fit into memory or is not
reached in time says so and the next one is measured.
"""

from __future__ import annotations

import contextlib
import gc
import importlib.util
import itertools
import signal
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from clock import PhaseClock, product_rate
from noise import empty_set, random_batches
from plain_loop import PlainLoop, dense_arcface, dense_centers, plain_sgd
from rich.console import Console
from rows import Row
from torch import Tensor, nn

from facerec.backbones import Backbone, create_backbone, list_backbones, register_backbone
from facerec.base.devices import choose_device, set_numerics
from facerec.heads import SEC
from facerec.records import BatchLoader, Data, FaceDataset, RecordImages
from facerec.training import SGD, Head, Recipe
from facerec.training.distributed import Processes
from facerec.training.learner import Learner
from facerec.training.plan import backbone_flop, head_flop
from facerec.training.sampler import GlobalBatchSampler
from facerec.training.trainer import Trainer

GB = 10**9


class TimeUp(Exception):
    """The suite's time is over."""


@dataclass(frozen=True)
class Size:
    """How large everything is."""

    classes: int = 93_431
    main_batch: int = 512
    width: float = 1.0
    head_batch: int = 1024
    head_classes: tuple[int, ...] = (93_431, 1_000_000, 10_000_000)
    embedding: int = 512
    product: int = 8192
    copied: int = 4 * 2**30
    """Bytes of the buffer whose copying is timed."""
    people: int = 120
    """Generated for the loader, ten photos each."""
    workers: tuple[int, ...] = (2, 8, 16)
    seconds: float = 1.5
    """How long the timed steps of a row take."""


TOY = Size(
    classes=300,
    main_batch=3,
    width=0.125,
    head_batch=8,
    head_classes=(300, 1000, 3000),
    embedding=64,
    product=128,
    copied=2**20,
    people=4,
    workers=(0, 1),
    seconds=0.0,
)


@dataclass
class Timing:
    """What repeated steps took."""

    seconds: float
    """Of a step: the median of some blocks of steps."""
    spread: float
    """Slowest less fastest block, as a share of the median."""
    first: float
    """The first step, in which everything is compiled and chosen, by the clock."""
    peak: int
    """Bytes in use at most during the timed steps; 0 on a CPU."""
    steps: int


class Session:
    """What the measures of one run share: the device, its rates, and the time that is left.

    Args:
        toy: measure at toy size even on a GPU; a CPU always does.
        minutes: time for everything.
    """

    def __init__(self, *, toy: bool = False, minutes: float = 8.0) -> None:
        self.device = choose_device("auto")
        self.toy = toy or self.device.type != "cuda"
        self.sizes = TOY if self.toy else Size()
        self.start = time.monotonic()
        self.deadline = self.start + 60 * minutes
        self.product_rates: dict[str, float] = {}
        self.timings: dict[tuple[str, int], Timing] = {}
        self.first_a_block = 1.5
        """Seconds of compiling a block of a backbone, as expected so far."""
        set_numerics(self.device)

    @property
    def size(self) -> str:
        """Say what is measured."""
        if not self.toy:
            return "full"
        return f"TOY on the {self.device.type}, whose figures mean nothing"

    @property
    def is_h100(self) -> bool:
        """Tell whether the bars, which are those of an H100, apply."""
        return not self.toy and "H100" in torch.cuda.get_device_name(self.device)

    @property
    def left(self) -> float:
        """Seconds."""
        return self.deadline - time.monotonic()

    def bar(self, value: float | None) -> float | None:
        """Return a bar where it applies."""
        return value if self.is_h100 else None

    def attempt(
        self, name: str, expected: float, act: Callable[[], Sequence[Row]]
    ) -> Iterator[Row]:
        """Yield the rows of ``act``, or one that says why there are none.

        Args:
            name: of the row.
            expected: seconds that it will take about; with less time left it is not begun.
            act: measures.
        """
        if not self.toy and self.left < expected:
            yield Row(name, None, "", remark=f"not reached: time ({expected:.0f} s expected)")
            return
        rows: Sequence[Row] = ()
        failure = ""
        begun = time.monotonic()
        try:
            with self._alarm():
                rows = act()
        except torch.OutOfMemoryError:
            failure = "does not fit: out of memory"
        except Exception as error:  # the rows after this one are worth as much
            failure = _failure(error)
            if _caused_by(error, TimeUp):  # the compiler may have wrapped it
                failure = f"not reached: time (stopped after {time.monotonic() - begun:.0f} s)"
        # Only here: the traceback held what the act had made.
        self._clean()
        yield from rows or [Row(name, None, "", remark=failure)]

    @contextlib.contextmanager
    def _alarm(self) -> Iterator[None]:
        """Raise `TimeUp` in the block when the time is over."""
        if self.toy or threading.current_thread() is not threading.main_thread():
            yield
            return

        def ring(*_: Any) -> None:
            raise TimeUp

        previous = signal.signal(signal.SIGALRM, ring)
        signal.setitimer(signal.ITIMER_REAL, max(self.left, 0.1))
        try:
            yield
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, previous)

    def _clean(self) -> None:
        gc.collect()
        if self.device.type == "cuda":
            torch.cuda.empty_cache()

    def wait(self) -> None:
        """Wait for the device."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def measure(self, step: Callable[[int], Any], seconds: float | None = None) -> Timing:
        """Time steps that follow each other without waiting.

        Args:
            step: gets a running number.
            seconds: how long the timed steps should take together.
        """
        clock = PhaseClock(self.device)
        begun = time.monotonic()
        step(0)
        self.wait()
        first = time.monotonic() - begun
        warm = 1 if self.toy else 3
        for number in range(warm):
            begun = time.monotonic()
            step(1 + number)
            self.wait()
        one = time.monotonic() - begun
        blocks = 1 if self.toy else 3
        wanted = (self.sizes.seconds if seconds is None else seconds) / blocks
        count = 1 if self.toy else min(100, max(3, round(wanted / one)))
        if self.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(self.device)
        marks = [clock.mark()]
        for block in range(blocks):
            for number in range(count):
                step(1 + warm + block * count + number)
            marks.append(clock.mark())
        self.wait()
        found = [clock.seconds(a, b) / count for a, b in itertools.pairwise(marks)]
        median = statistics.median(found)
        peak = 0
        if self.device.type == "cuda":
            peak = torch.cuda.max_memory_allocated(self.device)
        return Timing(median, (max(found) - min(found)) / median, first, peak, blocks * count)


def _caused_by(error: BaseException | None, kind: type[BaseException]) -> bool:
    """Tell whether an error, or one that it was raised for, is of a kind."""
    while error is not None and not isinstance(error, kind):
        error = error.__cause__ or error.__context__
    return error is not None


def _failure(error: Exception) -> str:
    lines = str(error).strip().splitlines() or [""]
    return f"failed: {type(error).__name__}: {lines[0][:300]}"


# ---------------------------------------------------------------- the card


def gpu_rates(session: Session) -> Iterator[Row]:
    """Measure products of large matrices, and copying within the device's memory."""
    kinds = ("bf16", "fp16", "TF32", "fp32")
    for kind in kinds:
        yield from session.attempt(f"matrix product in {kind}", 5, partial(_product, session, kind))
    yield from session.attempt("memory bandwidth", 5, partial(_bandwidth, session))


def _product(session: Session, kind: str) -> list[Row]:
    size = session.sizes.product
    rate = product_rate(session.device, kind, size)
    session.product_rates[kind] = rate
    name = f"matrix product in {kind}, {size}×{size}×{size}"
    return [Row(name, rate / 1e12, "TFLOP/s", remark="fastest of several")]


def _bandwidth(session: Session) -> list[Row]:
    source = torch.empty(session.sizes.copied, dtype=torch.uint8, device=session.device)
    source.random_(256)
    target = torch.empty_like(source)
    timing = session.measure(lambda number: target.copy_(source), 0.3)
    rate = 2 * len(source) / timing.seconds
    return [Row("memory bandwidth", rate / GB, "GB/s", remark="copy, bytes read and written")]


# ---------------------------------------------------------------- training


def _recipe(session: Session, backbone: str, batch: int, **changes: Any) -> Recipe:
    """Return the recipe that is measured: what the defaults give on this device, and bf16."""
    fast = session.device.type == "cuda"
    recipe = Recipe(
        data=Data(Path()),
        backbone=Backbone(
            backbone, embedding_size=session.sizes.embedding, width=session.sizes.width
        ),
        regularizer=SEC(weight=1.0),
        head=Head(precision="bf16" if fast else "fp32"),
        optimizer=SGD(lr=0.01),  # random labels diverge at the usual rate
        batch_size=batch,
        precision="bf16" if fast else "fp32",
    )
    return replace(recipe, **changes)


def _learner(
    session: Session, recipe: Recipe, classes: int, dataset: FaceDataset | None = None
) -> Learner:
    torch._dynamo.reset()  # or other sizes than before would be compiled for all sizes at once
    return Learner(recipe, dataset or empty_set(classes), Processes(0, 1, session.device))


def _flop(recipe: Recipe, classes: int) -> int:
    """Return the FLOP of convolutions and products in a step."""
    head = head_flop(recipe.batch_size, classes, recipe.backbone.embedding_size)
    return recipe.batch_size * backbone_flop(recipe) + head


def _depth(backbone: str) -> int:
    """Return the number of blocks, with which the time to compile grows."""
    with torch.device("meta"):
        return len(getattr(create_backbone(backbone), "blocks", ())) or 20


def _expected(session: Session, backbone: str) -> float:
    """Return the seconds that a training row takes about."""
    return 10 + session.first_a_block * _depth(backbone)


def _row_name(session: Session, backbone: str, batch: int) -> str:
    return f"{backbone}, batch {batch:,}, {session.sizes.classes:,} classes"


SETTINGS: dict[str, dict[str, Any] | None] = {
    "default": {},
    "eager": None,
    "reduce-overhead": {"mode": "reduce-overhead"},
    "combo kernels": {"options": {"combo_kernels": True}},
    "coordinate descent": {"options": {"coordinate_descent_tuning": True}},
    "max-autotune": {"mode": "max-autotune-no-cudagraphs"},
}
"""Arguments of torch.compile by name, those that compile fast first; None does not compile. Recipes
choose between the first two."""


def _setting_row(
    session: Session, backbone: str, batch: int, setting: str, found: dict[str, Timing]
) -> Iterator[Row]:
    """Yield the row of facerec's step under a setting of torch.compile."""
    words = "not compiled" if setting == "eager" else f"compiled, {setting}"
    name = f"{_row_name(session, backbone, batch)}: facerec's step, {words}"

    def act() -> list[Row]:
        recipe = _recipe(session, backbone, batch, compile=False)
        learner = _learner(session, recipe, session.sizes.classes)
        if (arguments := SETTINGS[setting]) is not None:
            learner.stepper.model = torch.compile(learner.stepper.network, **arguments)
        batches = random_batches(3, batch, session.sizes.classes, session.device)

        def step(number: int) -> None:
            torch.compiler.cudagraph_mark_step_begin()  # nobody reads the last step's embeddings
            learner.train_step(batches[number % len(batches)])

        found[setting] = timing = session.measure(step)
        remark = (
            f"channels-last, {recipe.precision}, {1000 * timing.seconds:.2f} ms, "
            f"spread {100 * timing.spread:.1f} %, first step {timing.first:.1f} s"
        )
        return [Row(name, batch / timing.seconds, "images/s", None, "higher", remark)]

    expected = 15 if setting == "eager" else _expected(session, backbone)
    yield from session.attempt(name, expected, act)


def _training_row(session: Session, backbone: str, batch: int) -> Iterator[Row]:
    """Yield the rows of facerec's whole step."""
    name = _row_name(session, backbone, batch)

    def act() -> list[Row]:
        sizes = session.sizes
        recipe = _recipe(session, backbone, batch)
        learner = _learner(session, recipe, sizes.classes)
        batches = random_batches(3, batch, sizes.classes, session.device)
        losses: list[Tensor] = []

        def step(number: int) -> None:
            losses[:] = [learner.train_step(batches[number % len(batches)])["loss"]]

        timing = session.measure(step)
        session.timings[backbone, batch] = timing
        first = timing.first / _depth(backbone)
        session.first_a_block = first
        rate = _flop(recipe, sizes.classes) / timing.seconds
        product = session.product_rates.get("bf16")
        finite = "" if bool(losses[0].isfinite()) else "; the loss is NOT FINITE"
        bars = {"iresnet50": 6000.0, "iresnet100": 3200.0}
        bar = bars.get(backbone) if batch == sizes.main_batch else None
        return [
            Row(
                f"{name}: facerec's step",
                batch / timing.seconds,
                "images/s",
                session.bar(bar),
                "higher",
                f"{1000 * timing.seconds:.2f} ms, spread {100 * timing.spread:.1f} %, "
                f"{timing.steps} steps, compiled {learner.compiled}, "
                f"head by {learner.head.kernel}{finite}",
            ),
            Row(
                f"{name}: share of the bf16 product's rate",
                100 * rate / product if product else None,
                "%",
                remark=f"{rate / 1e12:.3g} TFLOP/s of convolutions and products",
            ),
            Row(f"{name}: peak memory", timing.peak / GB if timing.peak else None, "GB"),
            Row(
                f"{name}: first step, compiling included",
                timing.first,
                "s",
                remark="not in the rows above",
            ),
        ]

    yield from session.attempt(f"{name}: facerec's step", _expected(session, backbone), act)


def _plain_row(session: Session, backbone: str, batch: int) -> Iterator[Row]:
    """Yield the rows of the plain loop, and how facerec compares."""
    name = _row_name(session, backbone, batch)

    def act() -> list[Row]:
        sizes = session.sizes
        config = _recipe(session, backbone, batch).backbone
        loop = PlainLoop(config, sizes.classes, session.device)
        batches = [
            (b.images.permute(0, 3, 1, 2).float().contiguous().sub_(127.5).div_(127.5), b.labels)
            for b in random_batches(3, batch, sizes.classes, session.device)
        ]
        timing = session.measure(lambda number: loop.step(*batches[number % len(batches)]))
        rows = [
            Row(
                f"{name}: plain loop",
                batch / timing.seconds,
                "images/s",
                None,
                "higher",
                f"fp16, contiguous, not compiled, dense head; {1000 * timing.seconds:.2f} ms, "
                f"spread {100 * timing.spread:.1f} %",
            ),
            Row(f"{name}: plain loop, peak memory", timing.peak / GB or None, "GB"),
        ]
        ours = session.timings.get((backbone, batch))
        if ours is not None:
            bar = 2.5 if backbone in ("iresnet50", "iresnet100") else None
            rows.append(
                Row(
                    f"{name}: facerec against the plain loop",
                    timing.seconds / ours.seconds,
                    "×",
                    session.bar(bar),
                    "higher",
                    f"memory {ours.peak / timing.peak:.2f} ×" if timing.peak else "",
                )
            )
        return rows

    yield from session.attempt(f"{name}: plain loop", 15, act)


def gpu_training(session: Session) -> Iterator[Row]:
    """Measure whole steps of the two usual backbones, each against the plain loop."""
    for backbone in ("iresnet50", "iresnet100"):
        batch = session.sizes.main_batch
        yield from _training_row(session, backbone, batch)
        yield from _plain_row(session, backbone, batch)
        yield from _setting_row(session, backbone, batch, "eager", {})


def gpu_settings(session: Session) -> Iterator[Row]:
    """Measure iResNet-18 under each setting of torch.compile, and say which is the fastest."""
    batch, found = session.sizes.main_batch, dict[str, Timing]()
    title = f"{_row_name(session, 'iresnet18', batch)}: fastest setting of torch.compile"
    for setting in SETTINGS:
        if session.device.type == "cuda" or setting in ("default", "eager"):
            yield from _setting_row(session, "iresnet18", batch, setting, found)
    if found:
        fastest = min(found, key=lambda setting: found[setting].seconds)
        remark = f"{fastest} (of {', '.join(found)})"
        yield Row(title, batch / found[fastest].seconds, "images/s", None, "higher", remark)


# ---------------------------------------------------------------- the head alone


class _Pixel(nn.Module):
    """A linear map of one pixel, which costs next to nothing."""

    embedding_norm = None

    def __init__(self, embedding_size: int) -> None:
        super().__init__()
        self.embedding_size = embedding_size
        self.fc = nn.Linear(3, embedding_size)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(x.flatten(1).float())


def pixel(config: Backbone) -> nn.Module:
    return _Pixel(config.embedding_size)


HEAD_FORMS = {
    "fused in float32": Head(precision="fp32", kernel="torch"),
    "fused in bf16": Head(precision="bf16", kernel="torch"),
    "Triton in float32": Head(precision="fp32", kernel="triton"),
    "Triton in bf16": Head(precision="bf16", kernel="triton"),
    "fused in bf16, sampled 0.1": Head(sample_rate=0.1, precision="bf16", kernel="torch"),
    "Triton in bf16, sampled 0.1": Head(sample_rate=0.1, precision="bf16", kernel="triton"),
}
"""facerec's ways, of which training takes the faster kernel."""


DENSE = ("plain dense", "plain dense, bf16 autocast")
"""What they are set against: in float32, and in bf16 as the reference trainer computes it."""


def gpu_heads(session: Session) -> Iterator[Row]:
    """Measure forward, backward and update of the head alone, with its extra memory."""
    if "pixel" not in list_backbones():
        register_backbone(pixel)
    for classes in session.sizes.head_classes:
        name = f"head alone, {classes:,} classes, batch {session.sizes.head_batch:,}"
        found: dict[str, tuple[float, int]] = {}
        for half in (False, True):
            words = DENSE[half]
            yield from session.attempt(
                f"{name}: {words}",
                8,
                partial(_plain_head, session, name, words, classes, half, found),
            )
        for words, form in HEAD_FORMS.items():
            if form.kernel == "triton" and session.device.type != "cuda":
                yield Row(f"{name}: {words}", None, "ms", remark="the kernels need CUDA")
                continue
            yield from session.attempt(
                f"{name}: {words}",
                8,
                partial(_fused_head, session, name, words, form, classes, found),
            )


def _head_rows(
    session: Session, name: str, words: str, classes: int, found: dict[str, tuple[float, int]]
) -> list[Row]:
    seconds, extra = found[words]
    held, told = extra / GB if extra else None, "peak beyond weights, momentum and batch"
    rows = [
        Row(f"{name}: {words}", 1000 * seconds, "ms", remark="forward, backward and update"),
        Row(f"{name}: {words}, extra memory", held, "GB", remark=told),
    ]
    for plain in () if words in DENSE else [dense for dense in DENSE if dense in found]:
        seconds_plain, extra_plain = found[plain]
        # The bars are set against what computes in the same numbers.
        judged = words == "Triton in bf16" and plain == DENSE[1] and classes <= 1_000_000
        bars = [session.bar(value) if judged else None for value in (2.0, 0.03)]
        faster, more = seconds_plain / seconds, extra / extra_plain if extra_plain else None
        rows += [
            Row(f"{name}: {words}, against {plain}", faster, "×", bars[0], "higher", "time"),
            Row(f"{name}: {words}, extra memory against {plain}", more, "×", bars[1]),
        ]
    return rows


def _timed_head(session: Session, step: Callable[[PhaseClock], None]) -> tuple[float, int]:
    """Return seconds of the ranges of a step, and bytes that it takes at most besides."""
    device, seconds = session.device, []
    clock = PhaseClock(device)
    for _ in range(2):
        step(clock)
    session.wait()
    before = 0
    if device.type == "cuda":
        before = torch.cuda.memory_allocated(device)
        torch.cuda.reset_peak_memory_stats(device)
    for _ in range(1 if session.toy else 10):
        clock.restart()
        if device.type == "cuda":
            # As in training, where a backbone keeps the device busy, the host runs ahead.
            torch.cuda._sleep(20_000_000)
        step(clock)
        session.wait()
        seconds.append(sum(clock.totals().values()))
    extra = torch.cuda.max_memory_allocated(device) - before if device.type == "cuda" else 0
    return statistics.median(seconds), extra


def _plain_head(
    session: Session,
    name: str,
    words: str,
    classes: int,
    half: bool,
    found: dict[str, tuple[float, int]],
) -> list[Row]:
    sizes, device = session.sizes, session.device
    weight = dense_centers(classes, sizes.embedding, device)
    optimizer = plain_sgd([weight])
    embeddings = torch.randn(sizes.head_batch, sizes.embedding, device=device, requires_grad=True)
    labels = torch.randint(classes, (sizes.head_batch,), device=device)

    def step(clock: PhaseClock) -> None:
        optimizer.zero_grad()
        embeddings.grad = None
        with clock("head"), torch.autocast(device.type, torch.bfloat16, enabled=half):
            loss = dense_arcface(embeddings, weight, labels)
        with clock("backward"):
            loss.backward()
        with clock("optimizer"):
            optimizer.step()

    found[words] = _timed_head(session, step)
    return _head_rows(session, name, words, classes, found)


def _fused_head(
    session: Session,
    name: str,
    words: str,
    form: Head,
    classes: int,
    found: dict[str, tuple[float, int]],
) -> list[Row]:
    """Measure the head in a trainer's step, whose backbone maps one pixel."""
    sizes, device = session.sizes, session.device
    recipe = _recipe(
        session,
        "pixel",
        sizes.head_batch,
        regularizer=None,
        head=form,
        precision="fp32",
        compile=False,
    )

    def drawn(num_classes: int, embedding_size: int, rows: range, **_: Any) -> Tensor:
        # Drawing billions of numbers one after another would take minutes.
        return torch.randn(len(rows), embedding_size, device=device)

    with mock.patch("facerec.heads.classifier.draw_centers", drawn):
        learner = _learner(session, recipe, classes)
    batches = random_batches(3, sizes.head_batch, classes, session.device, pixels=1)

    def step(clock: PhaseClock) -> None:
        @contextlib.contextmanager
        def phase(part: str) -> Iterator[None]:
            with contextlib.nullcontext() if part == "forward" else clock(part):
                yield

        with mock.patch("facerec.training.step.record_function", phase):
            learner.train_step(batches[learner.step % len(batches)])

    found[words] = _timed_head(session, step)
    return _head_rows(session, name, words, classes, found)


# ---------------------------------------------------------------- around training


def gpu_loader(session: Session) -> Iterator[Row]:
    """Measure the loader into the device by workers, and a training step that it feeds."""
    missing = [m for m in ("cv2", "simplejpeg") if importlib.util.find_spec(m) is None]
    if missing:
        told = f"{' and '.join(missing)} not installed; decoding needs OpenCV and simplejpeg"
        yield Row("loader", None, "", remark=told)
        return
    from facerec.records.synthetic import SyntheticSet, write_synthetic

    with tempfile.TemporaryDirectory() as folder:
        faces = SyntheticSet(0, session.sizes.people, 10, pairs_per_fold=4)
        write_synthetic(Path(folder), faces, processes=1 if session.toy else 8)
        data = Path(folder)
        for workers in session.sizes.workers:
            name = f"loader into the {session.device.type}, {workers} workers"
            yield from session.attempt(name, 15, partial(_loader, session, data, workers, name))
        name = "iresnet50 fed by the loader"
        expected = 15 + session.first_a_block * _depth("iresnet50") / 2
        yield from session.attempt(name, expected, partial(_fed, session, data, name))


def _loader(session: Session, data: Path, workers: int, name: str) -> list[Row]:
    dataset = FaceDataset(RecordImages(data))
    batch = min(session.sizes.main_batch, len(dataset))
    skipped, counted = (2, 2) if session.toy else (2 * workers + 4, 10 * workers + 20)
    sampler = GlobalBatchSampler(len(dataset), batch, epochs=1_000_000)
    loader = BatchLoader(
        dataset, sampler, workers=workers, pin_memory=session.device.type == "cuda"
    )
    batches = (batch.images.to(session.device, non_blocking=True) for batch in loader)
    for _ in range(skipped):
        next(batches)
    session.wait()
    begun = time.monotonic()
    for _ in range(counted):
        next(batches)
    session.wait()
    rate = batch * counted / (time.monotonic() - begun)
    remark = f"generated faces from the page cache, batch {batch}, {counted} batches"
    return [Row(name, rate, "images/s", None, "higher", remark)]


def _fed(session: Session, data: Path, name: str) -> list[Row]:
    dataset = FaceDataset(RecordImages(data))
    batch = min(session.sizes.main_batch, len(dataset))
    workers = session.sizes.workers[-1]
    recipe = _recipe(session, "iresnet50", batch, workers=workers, epochs=1_000_000)
    learner = _learner(session, recipe, dataset.num_classes, dataset)
    trainer = Trainer(learner, Path(), Console(quiet=True))
    clock, data_batches = PhaseClock(session.device), trainer.batches()
    for _ in range(3 + 2 * workers):  # those that lie ready hide how fast the loader is
        trainer.learner.train_step(next(data_batches))
    session.wait()
    steps = 1 if session.toy else 20
    start = clock.mark()
    for _ in range(steps):
        with clock("data"):
            loaded = next(data_batches)
        trainer.learner.train_step(loaded)
    end = clock.mark()
    session.wait()
    whole = clock.seconds(start, end)
    waiting = 100 * clock.totals()["data"] / whole
    told = f"{waiting:.1f} % of a step waiting for data; {dataset.num_classes} classes"
    what = f"{name}, batch {batch}, {workers} workers"
    return [Row(what, steps * batch / whole, "images/s", None, "higher", told)]
