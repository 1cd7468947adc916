"""The data set of training: its images decoded and augmented, and the loader that batches them.

A batch is asked for as a whole (`BatchRequest`) and comes back as one uint8 tensor. What it holds
depends on the seed and the request alone: not on workers, ranks, batch size or order.
"""

from __future__ import annotations

import bisect
import copy
import functools
import itertools
import os
import signal
import sys
import threading
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from facerec.base.errors import DatasetError, FacerecError
from facerec.base.libraries import cv2
from facerec.base.progress import Progress
from facerec.records.augment import Augmentation, change_image, sample_generator
from facerec.records.decode import decode_image
from facerec.records.images import ImageSource, OnError

if TYPE_CHECKING:
    import torch
    from torch.utils.data import DataLoader

_REPLACEMENT_TRIES = 100
_COUNTED = 2**20  # images whose labels are read only to say how many people there are


@dataclass(frozen=True, eq=False)
class BatchRequest:
    """Which samples a batch is to hold; what a batch sampler yields.

    Attributes:
        epoch: counted from 0; another epoch augments the same sample in another way.
        indices: int64 ``(B,)`` into the data set.
        repeats: int64 ``(B,)``, how often the epoch had each sample before, which augments it in
            another way; ``None`` where no sample comes twice.
    """

    epoch: int
    indices: np.ndarray
    repeats: np.ndarray | None = None


@dataclass(frozen=True)
class Skipped:
    """A sample that could not be read and was replaced (``on_error="skip"``).

    Attributes:
        index: the sample that was asked for.
        where: its file and record, or path.
        cause: the error's sentence.
    """

    index: int
    where: str
    cause: str


@dataclass(eq=False)
class Batch:
    """Images and labels of one request, in the order in which they were asked for.

    Attributes:
        images: uint8 RGB ``(B, height, width, 3)``.
        labels: int64 ``(B,)``.
        indices: int64 ``(B,)``, the samples that are in the batch; where one was skipped, this is
            the one that took its place.
        skipped: the samples asked for that are not in the batch; the others, ``B`` less its
            length, were decoded as asked.
        views: int64 ``(B,)``, which picture of each sample it is: the number of its fixed view
            (`FaceDataset.views`), or without such 1 where the image is mirrored, else 0.
        targets: float32 ``(B, T)``, what a teacher makes of these pictures; None without one.
    """

    images: torch.Tensor
    labels: torch.Tensor
    indices: torch.Tensor
    skipped: list[Skipped]
    views: torch.Tensor | None = None
    targets: torch.Tensor | None = None

    def pin_memory(self) -> Batch:
        """Return the batch in page-locked memory; ``DataLoader`` calls this when asked to pin."""
        held = {n: v.pin_memory() for n, v in vars(self).items() if hasattr(v, "pin_memory")}
        return replace(self, **held)

    def __len__(self) -> int:
        return len(self.labels)


class BatchSource(Protocol):
    """What gives a batch for a request."""

    def __getitems__(self, request: BatchRequest) -> Batch: ...


@dataclass(frozen=True, eq=False)
class Source:
    """One of the sets of images that a data set joins.

    Attributes:
        images: the encoded images.
        weight: visits of each in an epoch.
        shared_classes: the class numbers mean the same people as those of the first source, of
            which this always holds; by default they mean others, and follow those before.
        labelled: the classes are people at all; else the images have the class -1.
    """

    images: ImageSource
    weight: float = 1.0
    shared_classes: bool = False
    labelled: bool = True


class FaceDataset(ImageSource):
    """Images of one or several sources, or some of them, decoded and augmented by index.

    The samples are those of the first source, then those of the next. Safe under fork and spawn.

    Attributes:
        sources: what was joined.
        num_classes: labels are in ``[0, num_classes)``; some classes may have no image.
        class_names: the name of each class, ``None`` where only numbers are known.
        starts: source ``s`` has the samples from ``starts[s]`` to ``starts[s + 1]``, of which the
            data set may hold some.
        class_maps: for each source, int64 ``(its classes + 1,)``, the class here of each of its
            classes and, at the end, of -1.
        has_unlabelled: whether there are whole images of the class -1, of which nobody knows who is
            on them.
        image_size: (height, width) in pixels, of every image.
        augmentation: applied to batches; ``dataset[i]`` is never augmented.
        on_error: whether a damaged sample raises, or is replaced and listed in its batch.
        seed: of augmentation and replacements, ≥ 0.
        views: how many fixed augmentations each sample has, which are the same for every seed;
            epoch e shows number ``e % views``. By default 0: each epoch draws another.
        mixup: share of the views that are blended with the image of another sample, 0 to 0.5 of
            which they then are (Zhang et al., "mixup", ICLR 2018); needs ``views``.
    """

    views: int = 0
    mixup: float = 0.0

    def __init__(
        self,
        *sources: ImageSource | Source,
        augmentation: Augmentation | None = None,
        on_error: OnError = "error",
        seed: int = 0,
        image_size: tuple[int, int] = (112, 112),
    ) -> None:
        """Join the sources.

        Args:
            sources: at least one, of which the first is labelled.
            augmentation: by default none.
            on_error: see `FaceDataset`.
            seed: see `FaceDataset`.
            image_size: see `FaceDataset`.

        Raises:
            DatasetError: a class that the first source shares has another name in a further one.
        """
        self.sources = [it if isinstance(it, Source) else Source(it) for it in sources]
        self.sources[0] = replace(self.sources[0], shared_classes=True)
        self.starts = [0, *itertools.accumulate(len(source.images) for source in self.sources)]
        self.augmentation = Augmentation(flip=0.0) if augmentation is None else augmentation
        self.on_error, self.seed, self.image_size = on_error, seed, image_size
        labelled = [source for source in self.sources if source.labelled]
        self.has_unlabelled = len(labelled) < len(sources)
        # Of sources with the same people, one may know more of them than the first.
        alike = [source.images for source in labelled if source.shared_classes]
        largest = max(alike, key=lambda images: images.num_classes)
        names, self.num_classes = [largest.class_names], largest.num_classes
        self.class_maps: list[NDArray[np.int64]] = []
        for source in self.sources:
            count, offset = source.images.num_classes if source.labelled else 0, 0
            if source.labelled and source.shared_classes:
                _compare_names(source.images, largest)
            elif source.labelled:
                offset, self.num_classes = self.num_classes, self.num_classes + count
                names.append(source.images.class_names)
            self.class_maps.append(np.append(offset + np.arange(count), -1))
        if None not in names:
            self.class_names = [name for block in names for name in block or ()]
        self.notes = [note for source in self.sources for note in source.images.notes]
        self._rows: NDArray[np.int64] | None = None  # of all samples, those that are in it

    def subset(self, rows: NDArray[np.int64]) -> FaceDataset:
        """Return some samples as a data set of their own, of which replacements come, too.

        Its classes are those with a sample, numbered from 0 in the order of their old numbers.

        Args:
            rows: int64 ``(n,)``, at least one of the samples, in the order that they are to have.
        """
        labels = self.labels[rows]
        kept = np.unique(labels[labels >= 0])
        renumbered = np.full(self.num_classes + 1, -1)
        renumbered[kept] = np.arange(len(kept))
        subset = copy.copy(self)
        subset.__dict__.pop("ids", None)
        subset._rows = rows if self._rows is None else self._rows[rows]
        subset._labels = renumbered[labels]
        subset.class_maps = [renumbered[numbers] for numbers in self.class_maps]
        subset.num_classes = len(kept)
        if self.class_names is not None:
            subset.class_names = [self.class_names[number] for number in kept]
        return subset

    def __len__(self) -> int:
        return self.starts[-1] if self._rows is None else len(self._rows)

    def _locate(self, i: int) -> tuple[int, ImageSource, int]:
        """Return the number of the source of sample ``i``, its images, and the number in these."""
        row = i if self._rows is None else self._rows.item(i)
        number = bisect.bisect_right(self.starts, row) - 1
        return number, self.sources[number].images, row - self.starts[number]

    def sample(self, i: int) -> tuple[bytes, int]:
        """See `ImageSource.sample`."""
        number, images, within = self._locate(i)
        if not self.sources[number].labelled:
            return images.encoded(within), -1
        data, label = images.sample(within)
        return data, self.class_maps[number].item(label)

    def where(self, i: int) -> str:
        """Name sample ``i`` for a message: its file and record, or its path."""
        _, images, within = self._locate(i)
        return images.where(within)

    @functools.cached_property
    def ids(self) -> NDArray[np.str_]:  # type: ignore[override]
        """The names in the source, text ``(N,)``; of several sources ``number/name``, from 0."""
        each = [source.images.ids for source in self.sources]
        if len(each) > 1:
            each = [np.char.add(f"{number}/", names) for number, names in enumerate(each)]
        names = np.concatenate(each)
        return names if self._rows is None else names[self._rows]

    def encoded(self, i: int) -> bytes:
        """Return the encoded image of sample ``i``."""
        _, images, within = self._locate(i)
        return images.encoded(within)

    @property
    def titles(self) -> NDArray[np.str_]:
        """The names of all samples for people to read, text ``(N,)``."""
        whole = len(self.sources) == 1 and self._rows is None
        return self.sources[0].images.titles if whole else self.ids

    def read_labels(self, progress: Progress | None = None) -> NDArray[np.int64]:
        """See `ImageSource.read_labels`."""
        labels = [
            source.images.load_labels(progress) if source.labelled else np.full(size, -1)
            for source, size in zip(self.sources, np.diff(self.starts), strict=True)
        ]
        joined = np.concatenate([*map(np.take, self.class_maps, labels)])
        return joined if self._rows is None else joined[self._rows]

    @property
    def num_subjects(self) -> int | None:
        """How many classes have images; None if a pass over a large file would have to tell."""
        if self._labels is None and len(self) > _COUNTED:
            return None
        return len(np.unique(self.labels[self.labels >= 0]))

    @property
    def weights(self) -> NDArray[np.float64] | None:
        """Visits of each sample in an epoch, float64 ``(N,)``; ``None`` where each has one."""
        each = np.array([source.weight for source in self.sources], np.float64)
        if (each == 1).all():
            return None
        weights = np.repeat(each, np.diff(self.starts))
        return weights if self._rows is None else weights[self._rows]

    def __getitem__(self, i: int) -> tuple[np.ndarray, int]:
        """Return image ``i`` as uint8 RGB ``(height, width, 3)``, not augmented, and its class.

        Raises:
            FacerecError: the sample is damaged.
        """
        image = np.empty((*self.image_size, 3), np.uint8)
        return image, self._decode(range(len(self))[i], image)

    def _decode(self, i: int, out: np.ndarray) -> int:
        """Decode sample ``i`` into ``out`` and return its class."""
        data, label = self.sample(i)
        decode_image(data, self.where(i), self.image_size, out)
        return label

    def __getitems__(self, request: BatchRequest) -> Batch:
        """Return the augmented images of a request.

        Raises:
            FacerecError: a sample is damaged (``on_error="error"``), or so many are that no
                replacement was found.
        """
        import torch  # for batches alone: whoever reads single images needs none of it

        indices = np.array(request.indices, np.int64)  # a copy: replacements are written into it
        images = _allocate((len(indices), *self.image_size, 3))
        labels = np.empty(len(indices), np.int64)
        skipped: list[Skipped] = []
        again = np.zeros_like(indices) if request.repeats is None else request.repeats
        if self.views:
            again = (request.epoch + again) % self.views
        seed, epoch = (0, 0) if self.views else (self.seed, request.epoch)
        # Numbers that no sample has make a repeated one look different.
        numbers = indices + again * len(self)
        decided = self.augmentation.decide(seed, epoch, numbers)
        rows = images.numpy()
        # Files are best read in their order, which is mostly that of the samples.
        order = np.argsort(indices if self._rows is None else self._rows[indices])
        for row, index in zip(order.tolist(), indices[order].tolist(), strict=True):
            image = rows[row]
            try:
                labels[row] = self._decode(index, image)
            except FacerecError as error:
                if self.on_error == "error":
                    raise
                skipped.append(Skipped(index, self.where(index), str(error)))
                index, labels[row] = self._replacement(index, request.epoch, image)
                indices[row] = index
                # A replacement, too, is augmented with the numbers of the sample that was asked
                # for; a view is that of its own sample.
                if self.views:
                    numbers[row] = index + again[row] * len(self)
                    decided[row] = self.augmentation.decide(seed, epoch, numbers[row : row + 1])
            self._blend(index, int(again[row]), image)
            change_image(image, decided[row], seed, epoch, numbers.item(row))
        skipped.sort(key=lambda item: item.index)
        return Batch(
            images,
            torch.from_numpy(labels),
            torch.from_numpy(indices),
            skipped,
            torch.from_numpy(again if self.views else decided[:, 0].astype(np.int64)),
        )

    def _blend(self, index: int, view: int, image: np.ndarray) -> None:
        """Blend a view with another sample's image, in place, the same in every run."""
        if not (self.views and self.mixup):
            return
        generator = sample_generator(0, 0, index + view * len(self), stream=3)
        if generator.random() >= self.mixup:
            return
        other, share = np.empty_like(image), generator.uniform(0, 0.5)
        try:
            self._decode(int(generator.integers(len(self))), other)
        except FacerecError:
            if self.on_error == "error":
                raise
            return  # whoever draws this damaged sample leaves the view as it is
        cv2.addWeighted(image, 1 - share, other, share, 0, image)

    def _replacement(self, index: int, epoch: int, out: np.ndarray) -> tuple[int, int]:
        """Decode another sample in place of a damaged one; the same one in every run."""
        generator = sample_generator(self.seed, epoch, index, stream=1)
        for _ in range(_REPLACEMENT_TRIES):
            other = int(generator.integers(len(self)))
            try:
                return other, self._decode(other, out)
            except FacerecError as error:
                last = error
        raise DatasetError(
            f"{self.where(index)}: no replacement was found for this damaged sample, as "
            f"{_REPLACEMENT_TRIES} others drawn at random are damaged too, the last being: {last}"
        )


# Python 3.14 has Linux start a server that forks instead: every worker would unpickle an index of
# its own, and torch would not hear of the death of a process that is no child of this one.
_START_METHOD = "fork" if sys.platform == "linux" else None


class BatchLoader:
    """Reads the batches that a sampler asks for, in worker processes or in this one.

    An error in a worker arrives here as the one sentence that it is, not as the worker's traceback.
    Each iteration runs once through ``requests``; the workers stay for the next one.
    """

    def __init__(
        self,
        dataset: BatchSource,
        requests: Iterable[BatchRequest],
        *,
        workers: int = 0,
        pin_memory: bool = False,
    ) -> None:
        """Prepare; workers start with the first iteration.

        Args:
            dataset: the images.
            requests: what each iteration goes through, such as a batch sampler.
            workers: processes that read and decode; 0 does it in this process.
            pin_memory: return batches in page-locked memory.
        """
        import torch
        from torch.utils.data import DataLoader

        self._loader: DataLoader[Any] = DataLoader(
            _Guarded(dataset),  # type: ignore[arg-type]
            batch_size=None,  # since a request is for a whole batch
            sampler=requests,
            num_workers=workers,
            pin_memory=pin_memory,
            persistent_workers=workers > 0,
            multiprocessing_context=_START_METHOD if workers else None,
            worker_init_fn=_start_worker,
            # By default it draws from torch's global generator, which a resumed run must not.
            generator=torch.Generator(),
        )

    def __iter__(self) -> Iterator[Batch]:
        for item in self._loader:
            if isinstance(item, FacerecError):
                try:
                    raise item
                finally:
                    # Else error, traceback and this frame hold each other, and the workers are
                    # left to the garbage collector, which takes five seconds to stop them.
                    del item
            yield item


class _Guarded:
    """Hands errors over as values: ``DataLoader`` would wrap them in the worker's traceback."""

    def __init__(self, dataset: BatchSource) -> None:
        self.dataset = dataset

    def __getitem__(self, request: BatchRequest) -> Batch | FacerecError:
        try:
            return self.dataset.__getitems__(request)
        except FacerecError as error:
            return error


def _start_worker(worker: int) -> None:
    # One process a core already; OpenCV's own threads would only get in their way.
    cv2.setNumThreads(0)
    # Batch systems and Ctrl-C signal the whole process group. The training process decides what
    # that means, and would be torn from the middle of a step by the death of a worker.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if hasattr(signal, "sigwaitinfo"):  # not on macOS
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
        threading.Thread(target=_leave_on_sigterm, args=(os.getppid(),), daemon=True).start()


def _leave_on_sigterm(parent: int) -> None:
    """End this process at a SIGTERM of its parent, and at nobody else's."""
    while signal.sigwaitinfo({signal.SIGTERM}).si_pid != parent:
        pass
    os._exit(0)


def _allocate(shape: tuple[int, ...]) -> torch.Tensor:
    """Return uint8 memory, in a worker such as the main process can map without a copy."""
    import torch
    from torch.utils.data import get_worker_info

    if get_worker_info() is None:
        # NumPy asks the kernel for large pages, which makes filling fresh memory ten times faster.
        return torch.from_numpy(np.empty(shape, np.uint8))
    storage = torch.UntypedStorage._new_shared(int(np.prod(shape)), device="cpu")
    return torch.empty(0, dtype=torch.uint8).set_(storage).view(shape)


def _compare_names(source: ImageSource, largest: ImageSource) -> None:
    """Refuse sources whose names say that a class number means two people.

    Raises:
        DatasetError: names the first such class.
    """
    pairs = zip(source.class_names or (), largest.class_names or (), strict=False)
    for number, (name, other) in enumerate(pairs):
        if name != other:
            raise DatasetError(
                f"{source.where(0)}: class {number} of its set is {name!r}, but {other!r} in the "
                f"set of {largest.where(0)}; sets with shared_classes need the same subjects "
                "under the same numbers"
            )
