"""Where operating points lie among the non-mated scores."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from facerec.errors import MetricError
from facerec.statistics.operating_points import (
    OperatingPoint,
    Rate,
    allowed_accepts,
    between,
    just_above,
    operating_point,
)
from facerec.verification.scoring.bins import (
    BIN_EDGES,
    Window,
    bins_of,
    window_of_bins,
    within_cosines,
)
from facerec.verification.scoring.tiles import Tiles

_SHARE = 1024
"""One of so many pairs is in the sample, so that it takes little time beside all pairs."""

_BLOCK = 32
"""Images a side of the blocks of pairs in the sample: a compromise of speed and independence."""


class Search:
    """Operating points among the non-mated scores."""

    def __init__(self, tiles: Tiles, non_mated: int, fpr: Sequence[Rate]) -> None:
        self._device, self._non_mated = tiles.device, non_mated
        self.allowed = [allowed_accepts(target, non_mated) for target in fpr]
        # Ranks: 1 for the highest score, 2 for the next, …
        ranks = sorted({count + 1 for count in self.allowed if count < non_mated})
        self._missing = _guess(tiles, non_mated, ranks)
        self._settled: dict[int, tuple[np.float32, int, float | np.floating]] = {}

    @property
    def windows(self) -> list[Window]:
        """Where the scores are that are still to be found."""
        return [window_of_bins(*bins) for bins in self._missing.values()]

    def window(self, allowed: int) -> Window:
        """Return where the threshold for so many false accepts is; it is known at equal ends."""
        if allowed + 1 in self._missing:
            return window_of_bins(*self._missing[allowed + 1])
        cut = within_cosines(self.cut(allowed))
        return cut, cut

    def settle(
        self, histogram: NDArray[np.int64], scores: NDArray[np.float32], counts: NDArray[np.int64]
    ) -> None:
        """Find the scores that are in their windows, and learn the windows of the others.

        The distinct scores, ascending, have all that are in the windows.
        """
        bin_of = bins_of(scores)
        reached = histogram[::-1].cumsum()[::-1]  # scores in a bin and above
        for wanted, (bottom, top) in list(self._missing.items()):
            bin_index = int(np.count_nonzero(reached >= wanted)) - 1
            if not bottom <= bin_index < top:
                self._missing[wanted] = bin_index, bin_index + 1
                continue
            inside = bin_of == bin_index
            check_passes(int(counts[inside].sum()), int(histogram[bin_index]), self._device)
            higher = int(reached[bin_index] - histogram[bin_index])
            descending = counts[inside][::-1].cumsum() + higher
            index = int(np.searchsorted(descending, wanted))
            own = scores[inside][::-1]
            if index:
                above, accepts = own[index - 1], int(descending[index - 1])
            else:  # the next one is in the next bin that has any
                full = np.append(BIN_EDGES[bin_index + 1 :][histogram[bin_index + 1 :] > 0], np.inf)
                above, accepts = full[0], higher
            self._settled[wanted] = own[index], accepts, above
            del self._missing[wanted]

    def cut(self, allowed: int) -> np.float32:
        """Return the lowest threshold for so many false accepts."""
        if allowed >= self._non_mated:
            return np.float32(-np.inf)
        return just_above(self._settled[allowed + 1][0])

    def threshold(self, allowed: int, mated: NDArray[np.float32] | None) -> float:
        """Return the threshold to tell people, which accepts what `cut` does.

        Args:
            allowed: false accepts.
            mated: scores, ascending, if they are known.
        """
        if allowed >= self._non_mated:
            return -math.inf
        score, _, above = self._settled[allowed + 1]
        if mated is None:
            return between(score, just_above(score))
        higher = mated[np.searchsorted(mated, score, side="right") :][:1]
        return between(score, min([above, *higher]))

    def accepts(self, allowed: int) -> int:
        """Return the false accepts at that threshold."""
        return self._non_mated if allowed >= self._non_mated else self._settled[allowed + 1][1]

    def points(
        self,
        fpr: Sequence[Rate],
        missed: Sequence[int] | NDArray[np.int64],
        mated: int,
        scores: NDArray[np.float32] | None,
    ) -> tuple[OperatingPoint, ...]:
        """Describe the operating points; of the mated scores ``missed`` are below each one's."""
        pairs = mated, self._non_mated
        return tuple(
            operating_point(
                target,
                self.threshold(count, scores),
                (mated - int(below), self.accepts(count)),
                pairs,
            )
            for target, count, below in zip(fpr, self.allowed, missed, strict=True)
        )


def _guess(tiles: Tiles, non_mated: int, ranks: Sequence[int]) -> dict[int, tuple[int, int]]:
    """Guess the first bin, and one past the last, that may hold the score of each rank."""
    # The sample are all pairs of some random images with some others, many times over.
    blocks = non_mated // (_SHARE * _BLOCK**2)
    generator = np.random.default_rng(0)
    bins = [np.empty(0, np.int64)]
    for start in range(0, blocks if ranks else 0, 16):
        shape = 2, min(16, blocks - start), _BLOCK
        sides = generator.integers(tiles.subject.size, size=shape)
        left, right = (
            tiles.unit[torch.from_numpy(side).to(tiles.device).view(-1)].view(*side.shape, -1)
            for side in sides
        )
        scores = torch.bmm(left, right.transpose(1, 2)).cpu().numpy()
        subject = tiles.subject[sides]
        other = subject[0][:, :, None] != subject[1][:, None, :]
        bins.append(bins_of(scores[other]))
    descending = np.sort(np.concatenate(bins))[::-1]
    guesses = {}
    for wanted in ranks:
        middle = wanted / non_mated * descending.size
        # Four standard deviations, and some for the smallest counts.
        reach = 4 * math.sqrt(middle) + 4
        low = math.ceil(middle + reach)
        high = math.floor(middle - reach)
        bottom = int(descending[low]) if low < descending.size else 0
        top = int(descending[high]) + 1 if high >= 0 else BIN_EDGES.size
        guesses[wanted] = bottom, top
    # Ranks that compute on different hardware could guess differently.
    return tiles.agreed(guesses)


def check_passes(counted: int, expected: int, device: torch.device) -> None:
    """Refuse scores that another pass counted otherwise."""
    if counted != expected:
        raise MetricError(
            f"{counted} scores in one pass and {expected} in another: matrix products on {device} "
            "are not reproducible; compute on the cpu"
        )
