"""Who is in two sets of images at once: proposals with a calibrated number of false ones.

Every subject of A is compared with every subject of B as a template, the sum of the raw embeddings
of all images; `facerec.galleries.impostor_tail` says how likely the best of so many impostors
scores as high. An image whose subject nobody names is a subject of its own.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from facerec.base.defaults import OVERLAP_SHARE
from facerec.base.errors import MetricError
from facerec.base.progress import Progress
from facerec.cosines.unit_rows import UnitRows, on_grid
from facerec.embedding.extraction import Embeddings
from facerec.galleries.impostor_tail import accept, nearest_subjects
from facerec.galleries.members import Side, directions

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, eq=False)
class Overlap:
    """The subjects of A who are probably in B."""

    a: Side
    b: Side
    share: float
    matches: pd.DataFrame
    """A row a subject of A, the surest first: the number of the ``subject`` and of the ``other`` in
    B, the ``cosine`` of their templates, ``log10_p`` of the chance that the best of all impostors
    is as good, how many are ``expected_false`` among this row and all above, and the rows ``image``
    and ``other_image`` of their images that resemble each other most."""

    @property
    def expected_false(self) -> float:
        """Expected false ones among all proposals for A."""
        return float(self.matches["expected_false"].max()) if len(self.matches) else 0.0


def find_overlap(
    a: Embeddings,
    b: Embeddings,
    *,
    share: float = OVERLAP_SHARE,
    device: str | torch.device = "cpu",
    names: tuple[str, str] = ("A", "B"),
    progress: Progress | None = None,
) -> Overlap:
    """Find the subjects of A who are probably in B.

    Assumed: no more than half of what looks like the scores of impostors is anything else; subjects
    of one set with a name have another one only by mistake; impostors in the far tail go on as the
    nearer ones begin. Relatives and doubles count as impostors, but a few are beyond any tail.

    Args:
        a: raw embeddings with ids, and perhaps subjects.
        b: raw embeddings of the other set, by the same network.
        share: of the proposals that may be false, in (0, 1).
        device: where scores are computed, see `choose_device`.
        names: of both sets, for messages.
        progress: see `facerec.base.progress.Progress`.

    Raises:
        MetricError: nobody on one side, or one subject on either, to whom nobody can be compared.
    """
    from facerec.base.devices import choose_device

    first, second = Side(a), Side(b)
    counts = first.classes, second.classes
    if min(counts) < 1 or max(counts) < 2:
        usable = f"usable embeddings of {counts[0]} subjects of {names[0]} and {counts[1]} of"
        raise MetricError(f"{usable} {names[1]} do not tell how alike impostors are; give more")
    templates = directions(first.sums()), directions(second.sums())
    others, log_p = nearest_subjects(
        *templates, share=share, named=second.named, device=choose_device(device), progress=progress
    )
    subject = np.flatnonzero(accept(log_p, share))
    subject = subject[np.argsort(log_p[subject], kind="stable")]
    other = others[subject]
    units = UnitRows(a.vectors), UnitRows(b.vectors)
    images = np.empty((len(subject), 2), np.int64)
    for place, (one, two) in enumerate(np.stack([subject, other], axis=1).tolist()):
        rows, columns = first.of(one), second.of(two)
        scores = on_grid(units[0].unit(rows) @ units[1].unit(columns).T)
        row, column = np.unravel_index(scores.argmax(), scores.shape)
        images[place] = rows[row], columns[column]
    found = {
        "subject": subject,
        "other": other,
        "cosine": np.einsum("nd,nd->n", templates[0][subject], templates[1][other]),
        "log10_p": log_p[subject] / math.log(10),
        "expected_false": np.exp(log_p[subject]) * counts[0],
        "image": images[:, 0],
        "other_image": images[:, 1],
    }
    return Overlap(first, second, share, pd.DataFrame(found))
