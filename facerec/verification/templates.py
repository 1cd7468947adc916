"""Template protocols: several images stand for one subject, and what is compared is templates.

Embeddings of images become vectors of templates here (`template_vectors`); 1:1 comparisons then go
the way of all pairs (`facerec.verification.evaluation`), 1:N searches through
`facerec.verification.identification`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.sparse import csr_array

from facerec.cosines.unit_rows import real_matrix, row_norms
from facerec.verification.bench import Bench

NOBODY = -1
"""Subject of a gallery template that is nobody's mate, such as a distractor."""

# Of all embeddings at a time, in float64.
_COLUMNS = 64


@dataclass(frozen=True, eq=False)
class SearchSet:
    """Templates of one side of a 1:N search: the probes, or one gallery."""

    name: str
    templates: NDArray[np.int64]
    """Places among the templates of the bench, ``(k,)``, each once."""
    subjects: NDArray[np.int64]
    """Subject of each, ``(k,)``, as numbers that all sets of a bench share; or `NOBODY`."""


@dataclass(frozen=True, eq=False, kw_only=True)
class TemplateBench(Bench):
    """A protocol over T templates of m images, listed in r (template, image) rows.

    Items of its pairs are the templates; it has none where there are no comparisons of 1:1.
    """

    image_rows: NDArray[np.int64]
    """Place among the images, ``(r,)``; an image may be in several templates."""
    template_rows: NDArray[np.int64]
    """Place among the templates, ``(r,)``."""
    media_rows: NDArray[np.int64]
    """Media id, ``(r,)``: images of one template that share it are frames of one video."""
    template_ids: NDArray[np.str_]
    """Name of each template, ``(T,)``."""
    detector_scores: NDArray[np.float32] | None = None
    """Confidence of the face detector, ``(m,)``."""
    probes: SearchSet | None = None
    """Searches of 1:N; None where their lists are not there."""
    galleries: tuple[SearchSet, ...] = ()
    """Each is searched with all probes; figures are averaged over them."""


class TemplateVectors(NamedTuple):
    """The vectors of T templates, and how they came to be."""

    vectors: NDArray[np.float32]
    """Not normalised, ``(T, D)``; NaN for a template without any embedding."""
    score: str
    """What is compared, in a few words."""
    notes: tuple[str, ...]
    """What a reader must know, one sentence each."""


def template_vectors(
    vectors: ArrayLike, bench: TemplateBench, norm_weighting: Literal["raw", "unit"]
) -> TemplateVectors:
    """Pool the embeddings of images into one vector a template, which is not normalised.

    The mean over the images of one media id, then the sum over media. Each embedding is first
    divided by its norm (``norm_weighting="unit"``) or keeps it (``"raw"``), so that images with
    large norms count more; and where the bench has detector scores it is multiplied by its own.

    The name "N1" of published figures does not say which: of the two scripts of
    ``deepinsight/insightface``, ``recognition/arcface_torch/eval_ijbc.py`` means *raw* norms by
    ``use_norm_score=True``, and ``recognition/_evaluation_/ijb/ijb_evals.py`` *unit* norms. Their
    "N1D1F1" are two protocols.

    Sums run in float64.

    Vectors are raw embeddings of all images, ``(m, D)``, with flip the sum of both views. A row
    that is zero or not finite is a failure to acquire: its image is left out, also of the mean
    over its media.

    Raises:
        MetricError: not a matrix of real numbers.
    """
    matrix = real_matrix(vectors, "embeddings")
    detector, said = bench.detector_scores, ""
    weights = np.ones(len(matrix))
    if detector is not None:
        weights, said = weights * detector, ", weighted by the detector's scores"
    norms = row_norms(matrix)
    if norm_weighting == "unit":
        weights /= norms

    usable = ~np.isnan(norms)[bench.image_rows]
    count = len(bench.template_ids)
    rows, template = bench.image_rows[usable], bench.template_rows[usable]
    frames = np.stack([template, bench.media_rows[usable]])
    _, video, sizes = np.unique(frames, axis=1, return_inverse=True, return_counts=True)
    shares = weights[rows] / sizes[video.reshape(-1)]
    pooling = csr_array((shares, (template, rows)), (count, len(matrix)))
    sums = np.empty((count, matrix.shape[1]), np.float32)
    for start in range(0, matrix.shape[1], _COLUMNS):
        sums[:, start : start + _COLUMNS] = pooling @ matrix[:, start : start + _COLUMNS]
    empty = np.bincount(template, minlength=count) == 0
    sums[empty] = np.nan
    score = (
        f"cosine of template vectors, float32 ({norm_weighting} norms{said}; mean over the images "
        "of a medium, sum over media)"
    )
    notes = []
    if not usable.all():
        notes.append(
            f"{(~usable).sum()} of {usable.size} images of templates have no usable embedding and "
            f"are left out; {empty.sum()} of {count} templates have no image left"
        )
    return TemplateVectors(sums, score, tuple(notes))
