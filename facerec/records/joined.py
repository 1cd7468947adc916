"""Several data sets as one."""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Sequence

import numpy as np

from facerec.errors import DatasetError
from facerec.progress import Progress
from facerec.records.dataset import FaceDataset


class JoinedDataset(FaceDataset):
    """The samples of several data sets, one set after the other.

    Augmentation, policy and seed are those of the first; replacements of damaged samples come from
    all of them.

    Attributes:
        sets: the data sets.
        starts: set ``s`` has the samples from ``starts[s]`` to ``starts[s + 1]``.
        offsets: for each set, what its class numbers are raised by.
    """

    def __init__(
        self,
        sets: Sequence[FaceDataset],
        *,
        weights: Sequence[float] | None = None,
        shared_classes: Sequence[bool] | None = None,
        labelled: Sequence[bool] | None = None,
    ) -> None:
        """Join.

        Args:
            sets: the data sets, at least one.
            weights: for each set, the visits of its samples in an epoch; by default 1.
            shared_classes: for each set, whether its class numbers mean the same identities as
                those of the first, of which this is true; by default all further ones are others.
            labelled: for each set, whether its classes are identities at all, of the first this is
                true; the images of others have the class -1. By default all are.

        Raises:
            DatasetError: a class that the first set shares has another name in a further one.
        """
        first = sets[0]
        super().__init__(
            augmentation=first.augmentation,
            on_error=first.on_error,
            seed=first.seed,
            image_size=first.image_size,
        )
        self.sets = list(sets)
        self.starts = [0, *itertools.accumulate(map(len, sets))]
        self._labelled = [True] * len(sets) if labelled is None else list(labelled)
        self.has_unlabelled = not all(self._labelled)
        self._weights = [1.0] * len(sets) if weights is None else list(weights)
        shared = shared_classes or [True] + [False] * (len(sets) - 1)
        # Of sets with the same identities, one may know more of them than the first.
        largest = max(
            (
                s
                for s, same, known in zip(sets, shared, self._labelled, strict=True)
                if same and known
            ),
            key=lambda dataset: dataset.num_classes,
        )
        blocks = [largest]
        self.offsets: list[int] = []
        self.num_classes = largest.num_classes
        for dataset, same, known in zip(sets, shared, self._labelled, strict=True):
            if not known:
                self.offsets.append(0)
            elif same:
                self.offsets.append(0)
                _compare_names(dataset, largest)
            else:
                self.offsets.append(self.num_classes)
                self.num_classes += dataset.num_classes
                blocks.append(dataset)
        if all(block.class_names is not None for block in blocks):
            self.class_names = [name for block in blocks for name in block.class_names or ()]

    @property
    def sources(self) -> list[FaceDataset]:
        """The sources of all sets."""
        return [source for dataset in self.sets for source in dataset.sources]

    @property
    def notes(self) -> list[str]:
        """The remarks of all sets."""
        return [note for dataset in self.sets for note in dataset.notes]

    def __len__(self) -> int:
        return self.starts[-1]

    def sample(self, i: int) -> tuple[bytes, int]:
        """See `FaceDataset.sample`."""
        number, within = self._locate(i)
        data, label = self.sets[number].sample(within)
        return data, label + self.offsets[number] if self._labelled[number] else -1

    def where(self, i: int) -> str:
        """See `FaceDataset.where`."""
        number, within = self._locate(i)
        return self.sets[number].where(within)

    def name(self, i: int) -> str:
        """Return the number of the set, from 0, and the name in it: ``number/name``."""
        number, within = self._locate(i)
        return f"{number}/{self.sets[number].name(within)}"

    def read_labels(self, progress: Progress | None = None) -> np.ndarray:
        """See `FaceDataset.read_labels`."""
        labels = np.empty(len(self), np.int64)
        for p, dataset in enumerate(self.sets):
            own = dataset.load_labels(progress) if self._labelled[p] else np.array(-1)
            labels[self.starts[p] : self.starts[p + 1]] = np.where(
                own < 0, -1, own + self.offsets[p]
            )
        return labels

    def positions(self, indices: np.ndarray) -> np.ndarray:
        """Return ranks among the samples asked for: by set, then as the set has it."""
        sets = np.searchsorted(self.starts, indices, side="right") - 1
        positions = np.empty(len(indices), np.int64)
        for p in np.unique(sets).tolist():
            rows = sets == p
            positions[rows] = self.sets[p].positions(indices[rows] - self.starts[p])
        ranks = np.empty(len(indices), np.int64)
        ranks[np.lexsort((positions, sets))] = np.arange(len(indices))
        return ranks

    @property
    def weights(self) -> np.ndarray | None:
        """See `FaceDataset.weights`."""
        if all(weight == 1 for weight in self._weights):
            return None
        return np.repeat(np.array(self._weights), np.diff(self.starts))

    def _locate(self, i: int) -> tuple[int, int]:
        """Return the number of the set of sample ``i``, and its number there."""
        number = bisect.bisect_right(self.starts, i) - 1
        return number, i - self.starts[number]


def _compare_names(dataset: FaceDataset, largest: FaceDataset) -> None:
    """Refuse sets whose names say that a class number means two identities.

    Raises:
        DatasetError: names the first such class.
    """
    pairs = zip(dataset.class_names or (), largest.class_names or (), strict=False)
    for number, (name, other) in enumerate(pairs):
        if name != other:
            raise DatasetError(
                f"{dataset.where(0)}: class {number} of its set is {name!r}, but {other!r} in the "
                f"set of {largest.where(0)}; sets with shared_classes need the same identities "
                "under the same numbers"
            )
