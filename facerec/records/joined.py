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
        parts: the data sets.
        starts: part ``p`` has the samples from ``starts[p]`` to ``starts[p + 1]``.
        offsets: for each part, what its class numbers are raised by.
    """

    def __init__(
        self,
        parts: Sequence[FaceDataset],
        *,
        weights: Sequence[float] | None = None,
        shared_classes: Sequence[bool] | None = None,
    ) -> None:
        """Join.

        Args:
            parts: the data sets, at least one.
            weights: for each part, the visits of its samples in an epoch; by default 1.
            shared_classes: for each part, whether its class numbers mean the same people as those
                of the first, of which this is true; by default all further people are others.

        Raises:
            DatasetError: a class that the first set shares has another name in a further one.
        """
        first = parts[0]
        super().__init__(
            augmentation=first.augmentation,
            on_error=first.on_error,
            seed=first.seed,
            image_size=first.image_size,
        )
        self.parts = list(parts)
        self.starts = [0, *itertools.accumulate(map(len, parts))]
        self._weights = [1.0] * len(parts) if weights is None else list(weights)
        shared = shared_classes or [True] + [False] * (len(parts) - 1)
        # Of sets with the same people, one may know more of them than the first.
        largest = max(
            (part for part, same in zip(parts, shared, strict=True) if same),
            key=lambda part: part.num_classes,
        )
        blocks = [largest]
        self.offsets: list[int] = []
        self.num_classes = largest.num_classes
        for part, same in zip(parts, shared, strict=True):
            if same:
                self.offsets.append(0)
                _compare_names(part, largest)
            else:
                self.offsets.append(self.num_classes)
                self.num_classes += part.num_classes
                blocks.append(part)
        if all(part.class_names is not None for part in parts):
            self.class_names = [name for block in blocks for name in block.class_names or ()]

    @property
    def sources(self) -> list[FaceDataset]:
        """The sources of all parts."""
        return [source for part in self.parts for source in part.sources]

    @property
    def notes(self) -> list[str]:
        """The remarks of all parts."""
        return [note for part in self.parts for note in part.notes]

    def __len__(self) -> int:
        return self.starts[-1]

    def sample(self, i: int) -> tuple[bytes, int]:
        """See `FaceDataset.sample`."""
        part, within = self._place(i)
        data, label = self.parts[part].sample(within)
        return data, label + self.offsets[part]

    def where(self, i: int) -> str:
        """See `FaceDataset.where`."""
        part, within = self._place(i)
        return self.parts[part].where(within)

    def name(self, i: int) -> str:
        """Return the number of the part, from 0, and the name in it: ``part/name``."""
        part, within = self._place(i)
        return f"{part}/{self.parts[part].name(within)}"

    def read_labels(self, progress: Progress | None = None) -> np.ndarray:
        """See `FaceDataset.read_labels`."""
        labels = np.empty(len(self), np.int64)
        for p, part in enumerate(self.parts):
            own = part.load_labels(progress)
            labels[self.starts[p] : self.starts[p + 1]] = np.where(
                own < 0, -1, own + self.offsets[p]
            )
        return labels

    def positions(self, indices: np.ndarray) -> np.ndarray:
        """Return ranks among the samples asked for: by part, then as the part has it."""
        parts = np.searchsorted(self.starts, indices, side="right") - 1
        positions = np.empty(len(indices), np.int64)
        for p in np.unique(parts).tolist():
            rows = parts == p
            positions[rows] = self.parts[p].positions(indices[rows] - self.starts[p])
        ranks = np.empty(len(indices), np.int64)
        ranks[np.lexsort((positions, parts))] = np.arange(len(indices))
        return ranks

    @property
    def weights(self) -> np.ndarray | None:
        """See `FaceDataset.weights`."""
        if all(weight == 1 for weight in self._weights):
            return None
        return np.repeat(np.array(self._weights), np.diff(self.starts))

    def _place(self, i: int) -> tuple[int, int]:
        """Return the part of sample ``i`` and its number there."""
        part = bisect.bisect_right(self.starts, i) - 1
        return part, i - self.starts[part]


def _compare_names(part: FaceDataset, largest: FaceDataset) -> None:
    """Refuse sets whose names say that a class number means two people.

    Raises:
        DatasetError: names the first such class.
    """
    pairs = zip(part.class_names or (), largest.class_names or (), strict=False)
    for number, (name, other) in enumerate(pairs):
        if name != other:
            raise DatasetError(
                f"{part.where(0)}: class {number} of its set is {name!r}, but {other!r} in the set "
                f"of {largest.where(0)}; sets with shared_classes need the same people under the "
                "same numbers"
            )
