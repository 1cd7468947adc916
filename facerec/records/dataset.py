"""Data sets of faces: record files, image folders, subsets; and the loader that batches them.

A batch is asked for as a whole (`BatchRequest`) and comes back as one uint8 tensor. What it holds
depends on the seed and the request alone: not on workers, ranks, batch size or order.
"""

from __future__ import annotations

import bisect
import functools
import hashlib
import os
import signal
import sys
import threading
from abc import abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from facerec.errors import DatasetError, FacerecError, ImageError, printable
from facerec.files import read_file
from facerec.libraries import cv2
from facerec.names import same_name
from facerec.progress import Progress
from facerec.records.augment import Augmentation, BatchAugmentation, sample_generator
from facerec.records.decode import decode_image
from facerec.records.images import Account, ImageSource, check_unique, text_array, walk_images
from facerec.records.layout import open_image_records, read_list, read_text

if TYPE_CHECKING:
    import torch
    from torch.utils.data import DataLoader

OnError = Literal["error", "skip"]

CLASSES_FILE = "classes.txt"
"""Beside a record file: the name of each class, one a line, in the order of the class numbers."""

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
        return Batch(
            self.images.pin_memory(),
            self.labels.pin_memory(),
            self.indices.pin_memory(),
            self.skipped,
            self.views,
            None if self.targets is None else self.targets.pin_memory(),
        )

    def __len__(self) -> int:
        return len(self.labels)


class BatchSource(Protocol):
    """What gives a batch for a request."""

    def __getitems__(self, request: BatchRequest) -> Batch: ...


class FaceDataset(ImageSource):
    """Face images with integer classes, read by index.

    Subclasses say where the encoded images are; decoding, augmentation and the policy for damaged
    samples are here. Safe under fork and spawn.

    Attributes:
        num_classes: labels are in ``[0, num_classes)``; some classes may have no image.
        class_names: the name of each class, ``None`` where only numbers are known.
        image_size: (height, width) in pixels, of every image.
        augmentation: applied to batches; ``dataset[i]`` is never augmented.
        on_error: whether a damaged sample raises, or is replaced and listed in its batch.
        seed: of augmentation and replacements, ≥ 0.
        views: how many fixed augmentations each sample has, which are the same for every seed;
            epoch e shows number ``e % views``. By default 0: each epoch draws another.
        mixup: share of the views that are blended with the image of another sample, 0 to 0.5 of
            which they then are (Zhang et al., "mixup", ICLR 2018); needs ``views``.
        has_unlabelled: whether there are whole images of the class -1, of which nobody knows who is
            on them.
    """

    num_classes: int
    class_names: list[str] | None = None
    views: int = 0
    mixup: float = 0.0
    has_unlabelled: bool = False

    def __init__(
        self,
        *,
        augmentation: Augmentation | None = None,
        on_error: OnError = "error",
        seed: int = 0,
        image_size: tuple[int, int] = (112, 112),
    ) -> None:
        self.augmentation = Augmentation(flip=0.0) if augmentation is None else augmentation
        self.on_error: OnError = on_error
        self.seed = seed
        self.image_size = image_size
        self._labels: np.ndarray | None = None

    @property
    def notes(self) -> list[str]:
        """What was found on opening that a user should know, one sentence each."""
        return []

    @property
    def sources(self) -> list[FaceDataset]:
        """The data sets that the images come from: this one, or those it is made of."""
        return [self]

    @abstractmethod
    def __len__(self) -> int: ...

    @functools.cached_property
    def ids(self) -> NDArray[np.str_]:  # type: ignore[override]
        """The names of all samples, text ``(N,)``; made on first use."""
        return text_array([self.name(i) for i in range(len(self))], "the training set")

    @property
    def titles(self) -> NDArray[np.str_]:
        """The names of all samples for people to read, text ``(N,)``."""
        return self.ids

    def samples_by_name(self) -> dict[str, int]:
        """Return the sample of each name, from `titles` and `ids`, without blanks at its ends."""
        both = self.titles.tolist(), self.ids.tolist()
        return {name.strip(): i for names in both for i, name in enumerate(names)}

    @abstractmethod
    def sample(self, i: int) -> tuple[bytes, int]:
        """Return the encoded image and the class of sample ``i``.

        Raises:
            FacerecError: the sample is damaged or its label is no class of this data set.
        """

    def encoded(self, i: int) -> bytes:
        """Return the encoded image of sample ``i``; raises as `sample` does."""
        return self.sample(i)[0]

    @abstractmethod
    def where(self, i: int) -> str:
        """Name sample ``i`` for a message: its file and record, or its path."""

    @abstractmethod
    def name(self, i: int) -> str:
        """Return a short identifier of sample ``i``, unique in the data set."""

    @abstractmethod
    def read_labels(self, progress: Progress | None = None) -> np.ndarray:
        """Read the classes of all samples, int64 ``(N,)``.

        Under ``on_error="skip"`` a damaged sample has the class -1.

        Args:
            progress: called now and then with the samples done.

        Raises:
            FacerecError: a sample is damaged or its label is no class of this data set.
        """

    def positions(self, indices: np.ndarray) -> np.ndarray:
        """Return numbers in whose order the samples are best read, such as file offsets."""
        return indices

    @property
    def labels(self) -> np.ndarray:
        """The classes of all samples, int64 ``(N,)``; read on first use, see `read_labels`."""
        return self.load_labels()

    def load_labels(self, progress: Progress | None = None) -> np.ndarray:
        """Return `labels`, with a view of the reading if they are not there yet."""
        if self._labels is None:
            self._labels = self.read_labels(progress)
        return self._labels

    def label_names(self) -> NDArray[np.str_]:
        """Return the name of the class of each image, ``(N,)``, empty where it is damaged."""
        # The last name is for the label -1 of a damaged sample.
        names = [*(self.class_names or map(str, range(self.num_classes))), ""]
        return np.array(names, np.str_)[self.labels]

    @functools.cached_property
    def identities(self) -> int | None:
        """How many classes have images; None if a pass over a large file would have to tell."""
        if self._labels is None and len(self) > _COUNTED:
            return None
        return len(np.unique(self.labels[self.labels >= 0]))

    @property
    def weights(self) -> np.ndarray | None:
        """Visits of each sample in an epoch, float64 ``(N,)``; ``None`` where each has one."""
        return None

    def __getstate__(self) -> dict[str, Any]:
        # Workers read the class with each image; tables would only cost them memory.
        state = {**self.__dict__, "_labels": None}
        for name in ("ids", "titles"):
            state.pop(name, None)
        return state

    def __getitem__(self, i: int) -> tuple[np.ndarray, int]:
        """Return image ``i`` as uint8 RGB ``(height, width, 3)``, not augmented, and its class.

        Raises:
            FacerecError: the sample is damaged.
        """
        if not -len(self) <= i < len(self):
            raise IndexError(f"sample {i} of a data set of {len(self)}")
        image = np.empty((*self.image_size, 3), np.uint8)
        return image, self._decode(i % len(self), image)

    def _decode(self, i: int, out: np.ndarray) -> int:
        """Decode sample ``i`` into ``out`` and return its class."""
        data, label = self.sample(i)
        try:
            decode_image(data, "", self.image_size, out)
        except ImageError:  # only now is it worth the time to word where the image is
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
        augment = self._augmentation(request.epoch, indices, again)
        rows = images.numpy()
        order = np.argsort(self.positions(indices), kind="stable")
        for row, index in zip(order.tolist(), indices[order].tolist(), strict=True):
            image = rows[row]
            try:
                labels[row] = self._decode(index, image)
            except FacerecError as error:
                if self.on_error == "error":
                    raise
                skipped.append(Skipped(index, self.where(index), str(error)))
                indices[row], labels[row] = self._replacement(index, request.epoch, image)
                if self.views:  # a view is that of its own sample
                    view = slice(row, row + 1)
                    self._blend(int(indices[row]), int(again[row]), image)
                    self._augmentation(request.epoch, indices[view], again[view])(0, image)
                    continue
            self._blend(index, int(again[row]), image)
            # A replacement, too, is augmented with the numbers of the sample that was asked for.
            augment(row, image)
        skipped.sort(key=lambda item: item.index)
        return Batch(
            images,
            torch.from_numpy(labels),
            torch.from_numpy(indices),
            skipped,
            torch.from_numpy(again if self.views else augment.mirrored.astype(np.int64)),
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

    def _augmentation(
        self, epoch: int, indices: np.ndarray, again: np.ndarray
    ) -> BatchAugmentation:
        """Decide on the changes of samples; ``again`` tells their repeats, or views, apart."""
        # Numbers that no sample has make a repeated one look different.
        numbers = indices + again * len(self)
        seed, epoch = (0, 0) if self.views else (self.seed, epoch)
        return BatchAugmentation(self.augmentation, seed, epoch, numbers)

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


class RecordDataset(FaceDataset):
    """The images of a record file.

    Attributes:
        records: the record file.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        label_index: int | None = None,
        num_classes: int | None = None,
        progress: Progress | None = None,
        **options: Any,
    ) -> None:
        """Open the file and its index.

        Args:
            path: a ``.rec`` file, or the folder that holds it.
            label_index: which label of an array is the class.
            num_classes: by default from the file ``property``, without one from the labels, which
                takes one pass over the file.
            progress: called during that pass with the images done.
            options: those of `FaceDataset`.

        Raises:
            RecordError: the file or its index is damaged.
            DatasetError: the file has no image.
        """
        super().__init__(**options)
        self.records = open_image_records(Path(path), label_index)
        if not len(self.records):
            raise DatasetError(f"{self.records.path}: has no images; check the path")
        if num_classes is not None:
            self.records.num_classes = num_classes
        if self.records.num_classes is None:
            self._labels = self.read_labels(progress)
            self.records.num_classes = int(self._labels.max()) + 1
        self.num_classes = self.records.num_classes
        if self.num_classes < 1:
            raise DatasetError(
                f"{self.records.path}: {self.num_classes} classes; not one image has a usable label"
            )
        self.class_names = _read_class_names(self.records.path.parent, self.num_classes)

    @property
    def notes(self) -> list[str]:
        """What was found on opening that a user should know, one sentence each."""
        return self.records.notes

    def __len__(self) -> int:
        return len(self.records)

    def sample(self, i: int) -> tuple[bytes, int]:
        """See `FaceDataset.sample`."""
        return self.records.sample(i)

    def where(self, i: int) -> str:
        """See `FaceDataset.where`."""
        return self.records.where(i)

    def name(self, i: int) -> str:
        """Return the key of the record."""
        return str(self.records.keys[i])

    @functools.cached_property
    def titles(self) -> NDArray[np.str_]:
        """The paths of all images if the ``.lst`` beside the records tells them, else the keys."""
        path = self.records.path.with_suffix(".lst")
        try:
            paths = read_list(path) if path.is_file() else {}
        except DatasetError as problem:
            self.notes.append(f"{problem} (images are named by their keys)")
            return self.ids
        names = ["/".join(paths.get(key, ())) for key in self.records.keys.tolist()]
        if "" in names or len({*names, *self.ids.tolist()}) < 2 * len(names):
            return self.ids
        return text_array(names, str(path))

    def read_labels(self, progress: Progress | None = None) -> np.ndarray:
        """See `FaceDataset.read_labels`."""
        return self.records.labels(progress, self.on_error)

    def positions(self, indices: np.ndarray) -> np.ndarray:
        """Return the offsets in the record file."""
        return self.records.offsets[indices]


class FolderDataset(FaceDataset):
    """Images in a folder of folders, one an identity: ``identity/image.jpg``.

    Identities are numbered in the order of their names, images follow in the order of theirs.
    Notes count what is no image (`walk_images`), and name identities that have none for it; these
    are no classes. The content of an image, not its suffix, says of which kind it is.

    Attributes:
        root: the folder, with symbolic links resolved.
    """

    def __init__(self, path: str | os.PathLike[str], **options: Any) -> None:
        """List the folder.

        Args:
            path: the folder of identities.
            options: those of `FaceDataset`.

        Raises:
            DatasetError: no such folder, no image of an identity in it, folders with images inside
                an identity, or a symbolic link that leads out of the folder.
        """
        super().__init__(**options)
        given = Path(path)
        if not given.is_dir():
            problem = "is a file, not a folder" if given.exists() else "there is no such folder"
            raise DatasetError(
                f"{given}: {problem}; images are expected as FOLDER/identity/image.jpg"
            )
        self.root = given.resolve()
        account, loose = Account(), list[str]()
        identities: list[str] = []
        files: list[bytes] = []
        starts = [0]
        for inside, names in walk_images(given, account):
            identity, *nested = inside.split("/")[:-1] or [""]
            if nested:
                raise DatasetError(
                    f"{given / inside}: a folder inside the identity folder {identity}; images are "
                    f"expected as {given}/identity/image.jpg"
                )
            if not identity:
                loose = names
                continue
            identities.append(identity)
            files += map(os.fsencode, names)
            starts.append(len(files))
        self._notes = account.notes(str(given))
        if loose:
            self._notes.append(
                f"{given}: images beside the identity folders are left out: {len(loose):,}, the "
                f"first is {printable(loose[0])}"
            )
        if not identities:
            beside = f"{len(loose):,} images are in no such folder" if loose else ""
            found = "; ".join(filter(None, (beside, str(account)))) or "it is empty"
            raise DatasetError(
                f"{given}: has no identity folders with images ({found}); images are expected as "
                f"{given}/identity/image.jpg"
            )
        self._starts = np.array(starts, np.int64)
        # One array of bytes: millions of strings would be copied by every forked worker.
        self._files = np.array(files)
        self._folders = identities
        self.class_names = [same_name(identity) for identity in identities]
        check_unique(np.array(self.class_names), str(given), "identity folders")
        self.num_classes = len(identities)

    @property
    def notes(self) -> list[str]:
        """What was found on opening that a user should know, one sentence each."""
        return self._notes

    def __len__(self) -> int:
        return len(self._files)

    def sample(self, i: int) -> tuple[bytes, int]:
        """See `FaceDataset.sample`."""
        path = self.root / self._path(i)
        try:
            return read_file(path), self._label(i)
        except OSError as problem:
            raise DatasetError(
                f"{path}: cannot be read ({problem.strerror or problem}); check that it is still "
                "there and its rights"
            ) from problem

    def where(self, i: int) -> str:
        """See `FaceDataset.where`."""
        return str(self.root / self._path(i))

    def name(self, i: int) -> str:
        """Return ``identity/image.jpg``."""
        return same_name(self._path(i))

    def _path(self, i: int) -> str:
        return f"{self._folders[self._label(i)]}/{os.fsdecode(bytes(self._files[i]))}"

    def names_sha256(self) -> str:
        """Return a hash of the names of identities and images, in their order."""
        digest = hashlib.sha256("\0".join(self._folders).encode(errors="surrogateescape"))
        for array in (self._starts, self._files):
            digest.update(array.tobytes())
        return digest.hexdigest()

    def _label(self, i: int) -> int:
        return bisect.bisect_right(self._starts, i) - 1

    def read_labels(self, progress: Progress | None = None) -> np.ndarray:
        """See `FaceDataset.read_labels`; nothing needs to be read."""
        return np.repeat(np.arange(self.num_classes), np.diff(self._starts))


class Subset(FaceDataset):
    """Some samples, or all samples of some classes, of another data set.

    Augmentation, policy and seed are taken over from it; replacements of damaged samples come from
    the subset.

    Attributes:
        dataset: the other data set.
        indices: int64 ``(N,)``, the samples in it, in the order of this one.
        classes: int64 ``(num_classes,)``, the class in the other data set of each class here.
    """

    def __init__(
        self,
        dataset: FaceDataset,
        *,
        indices: Sequence[int] | np.ndarray | None = None,
        classes: Iterable[int] | np.ndarray | None = None,
        relabel: bool = True,
        unlabelled: bool = False,
    ) -> None:
        """Choose samples.

        Args:
            dataset: the other data set.
            indices: the samples to keep, in this order; or
            classes: the classes whose samples to keep.
            relabel: number the classes that remain from 0, in the order of their old numbers,
                instead of keeping numbers and count.
            unlabelled: with ``classes``, keep unlabelled samples too, if the data set has any.

        Raises:
            DatasetError: an index or class that does not exist or occurs twice, or no sample left.
        """
        if (indices is None) == (classes is None):
            raise TypeError("give either indices or classes")
        super().__init__(
            augmentation=dataset.augmentation,
            on_error=dataset.on_error,
            seed=dataset.seed,
            image_size=dataset.image_size,
        )
        self.dataset = dataset
        labels = dataset.labels
        if classes is not None:
            kept = _checked(classes, dataset.num_classes, "class")
            mask = np.zeros(dataset.num_classes + 1, bool)  # the last is for the class -1
            mask[kept] = True
            self.has_unlabelled = mask[-1] = unlabelled and dataset.has_unlabelled
            self.indices = np.flatnonzero(mask[labels])
        else:
            assert indices is not None
            self.indices = _checked(indices, len(dataset), "sample")
            kept = np.unique(labels[self.indices])
            kept = kept[kept >= 0]
        if not len(self.indices):
            raise DatasetError("a subset without any sample; choose other samples or classes")
        self.classes = np.sort(kept) if relabel else np.arange(dataset.num_classes)
        self._new_label = np.full(dataset.num_classes + 1, -1)
        self._new_label[self.classes] = np.arange(len(self.classes))
        self.num_classes = len(self.classes)
        if dataset.class_names is not None:
            self.class_names = [dataset.class_names[i] for i in self.classes]

    @property
    def sources(self) -> list[FaceDataset]:
        """Those of the other data set."""
        return self.dataset.sources

    @property
    def notes(self) -> list[str]:
        """The remarks of the other data set."""
        return self.dataset.notes

    def __len__(self) -> int:
        return len(self.indices)

    def sample(self, i: int) -> tuple[bytes, int]:
        """See `FaceDataset.sample`."""
        data, label = self.dataset.sample(int(self.indices[i]))
        return data, int(self._new_label[label])

    def where(self, i: int) -> str:
        """See `FaceDataset.where`."""
        return self.dataset.where(int(self.indices[i]))

    def name(self, i: int) -> str:
        """Return the name in the other data set."""
        return self.dataset.name(int(self.indices[i]))

    def read_labels(self, progress: Progress | None = None) -> np.ndarray:
        """See `FaceDataset.read_labels`."""
        return self._new_label[self.dataset.labels[self.indices]]

    def positions(self, indices: np.ndarray) -> np.ndarray:
        """Return those of the other data set."""
        return self.dataset.positions(self.indices[indices])

    @property
    def weights(self) -> np.ndarray | None:
        """Those of the other data set."""
        weights = self.dataset.weights
        return None if weights is None else weights[self.indices]


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
        prefetch: int = 2,
        start_method: Literal["fork", "spawn", "forkserver"] | None = None,
    ) -> None:
        """Prepare; workers start with the first iteration.

        Args:
            dataset: the images.
            requests: what each iteration goes through, such as a batch sampler.
            workers: processes that read and decode; 0 does it in this process.
            pin_memory: return batches in page-locked memory.
            prefetch: batches that each worker prepares ahead.
            start_method: of the workers; by default forked on Linux, elsewhere the system's.
        """
        import torch
        from torch.utils.data import DataLoader

        self._loader: DataLoader[Any] = DataLoader(
            _Guarded(dataset),  # type: ignore[arg-type]
            batch_sampler=requests,  # type: ignore[arg-type]
            collate_fn=_identity,
            num_workers=workers,
            pin_memory=pin_memory,
            prefetch_factor=prefetch if workers else None,
            persistent_workers=workers > 0,
            multiprocessing_context=start_method or _START_METHOD if workers else None,
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

    def __getitem__(self, request: BatchRequest) -> Batch:
        return self.dataset.__getitems__(request)

    def __getitems__(self, request: BatchRequest) -> Batch | FacerecError:
        try:
            return self.dataset.__getitems__(request)
        except FacerecError as error:
            return error


def _identity(item: Any) -> Any:
    return item


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


def _checked(values: Iterable[int] | np.ndarray, limit: int, noun: str) -> np.ndarray:
    """Return ``values`` as int64, all different and in ``[0, limit)``."""
    array = np.array(values if isinstance(values, (np.ndarray, Sequence)) else list(values))
    wrong = array.ndim != 1 or (len(array) and not np.issubdtype(array.dtype, np.integer))
    if wrong or len(np.unique(array)) < len(array) or ((array < 0) | (array >= limit)).any():
        raise DatasetError(
            f"a subset by {noun} needs different whole numbers from 0 to {limit - 1:,}"
        )
    return array.astype(np.int64)


def _read_class_names(folder: Path, num_classes: int) -> list[str] | None:
    path = folder / CLASSES_FILE
    if not path.is_file():
        return None
    names = read_text(path).removesuffix("\n").split("\n")
    if len(names) != num_classes:
        raise DatasetError(
            f"{path}: names {len(names):,} classes where the records have {num_classes:,}; it "
            "belongs to another record file, restore or remove it"
        )
    return names
