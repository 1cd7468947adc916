"""From images to raw embeddings, with or without the mirror image."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

import facerec
from facerec.embedding.align import Aligner, NotAcquiredError, face_template
from facerec.embedding.model import EmbeddingModel
from facerec.errors import ImageError, RecordError
from facerec.large_arrays import empty
from facerec.names import same_names
from facerec.progress import Progress
from facerec.records.decode import decode_image
from facerec.records.images import ImageSource
from facerec.threads import batches_ahead

Image = npt.NDArray[np.uint8]

_Vectors = npt.NDArray[np.float32]
_Finish = Callable[[], list[_Vectors]]
"""Waits for the raw embeddings of each view of a batch and returns them."""


@dataclass(frozen=True, eq=False)
class Embeddings:
    """Raw embeddings of N images."""

    vectors: npt.NDArray[np.float32]
    """``(N, D)``: raw embeddings, or with ``flip`` the sum of the raw embeddings of each image and
    its mirror image; NaN where the image was not acquired."""
    norms: npt.NDArray[np.float32]
    """``(N,)``: the raw norm, with ``flip`` the mean over both views, so that the mean over N is
    InsightFace's "XNorm"; NaN where the image was not acquired."""
    flip: bool | None
    """Whether mirror images took part; None for a file of others that does not say."""
    ids: npt.NDArray[np.str_] | None = None
    """Id of each image, ``(N,)``."""
    subjects: npt.NDArray[np.str_] | None = None
    """Who is on each image, ``(N,)``, empty where that is unknown."""
    failures: Mapping[int, str] = field(default_factory=dict)
    """Failures to acquire: row → why."""
    note: Mapping[str, Any] = field(default_factory=dict)
    """How the embeddings were made, as JSON types."""

    def __post_init__(self) -> None:
        """Compose names, as all have that are joined with them."""
        for name in ("ids", "subjects"):
            if (texts := getattr(self, name)) is not None:
                object.__setattr__(self, name, same_names(texts))


def extract(
    model: EmbeddingModel,
    images: Sequence[Image] | Image | Callable[[int], Image],
    count: int | None = None,
    *,
    flip: bool,
    batch_size: int = 64,
    progress: Progress | None = None,
) -> Embeddings:
    """Embed images one batch at a time; only one batch of pixels is held in memory.

    Args:
        model: what embeds.
        images: uint8 RGB images ``(112, 112, 3)``: a sequence, or a function from index to image.
        count: number of images; needed with a function, else the length of the sequence.
        flip: add the raw embedding of the mirror image, as InsightFace's verification does
            (``recognition/arcface_torch/eval/verification.py``).
        batch_size: images fetched and embedded together.
        progress: called after each batch with the images done.

    Raises:
        ImageError: an image of the wrong shape or type.
    """
    if callable(images):
        fetch = images
        if count is None:
            raise TypeError("extract needs count when images is a function")
        total = count
    else:
        fetch = images.__getitem__
        total = len(images) if count is None else count
    vectors = empty((total, model.embedding_size), np.float32)
    norms = np.empty(total, np.float32)

    def begun() -> Iterator[tuple[slice, _Finish]]:
        for start in range(0, total, batch_size):
            rows = slice(start, min(start + batch_size, total))
            batch = np.stack([_checked(fetch(i), i, model) for i in range(rows.start, rows.stop)])
            yield rows, _begin(model, batch, flip)

    for rows, views in _a_batch_late(begun()):
        vectors[rows], norms[rows] = _fused(views)
        if progress is not None:
            progress("embedding", rows.stop, total)
    return Embeddings(vectors, norms, flip)


def embed_images(
    model: EmbeddingModel,
    source: ImageSource,
    *,
    flip: bool,
    align: Aligner | None = None,
    batch_size: int = 64,
    on_error: Literal["error", "skip"] = "error",
    indices: npt.ArrayLike | None = None,
    progress: Progress | None = None,
) -> Embeddings:
    """Decode, align and embed the images of a source; the next batch decodes meanwhile.

    An image that does not decode or has the wrong size ends the work or, with ``"skip"``, is a
    failure to acquire. One without a usable face, or with an embedding that is not finite, is a
    failure to acquire in any case. Failures keep their row and their place in the batch, so no
    other embedding depends on them.

    Args:
        model: what embeds.
        source: encoded images; without ``align`` of exactly the model's image size.
        flip: see `extract`.
        align: finds the face in images of any size.
        batch_size: images decoded and embedded together.
        on_error: what an image that does not decode does.
        indices: int64 ``(N,)`` into the source; by default all images.
        progress: called after each batch with the images done.

    Raises:
        ImageError: an image cannot be read, does not decode, or has the wrong size.
        RecordError: the record of an image is damaged.
        DatasetError: the path of an image leaves its folder (whatever ``on_error`` says).
        ModelError: faces cannot be aligned to the model's image size.
    """
    (embeddings,) = _embed(
        model, source, (flip,), align, batch_size, on_error, indices=indices, progress=progress
    )
    return embeddings


def embed_views(
    model: EmbeddingModel,
    source: ImageSource,
    *,
    align: Aligner | None = None,
    batch_size: int = 64,
    on_error: Literal["error", "skip"] = "error",
    progress: Progress | None = None,
) -> tuple[Embeddings, Embeddings]:
    """Return what `embed_images` does with the mirror images and without, each view embedded once.

    Arguments and errors are those of `embed_images`.

    Returns:
        With ``flip`` and without, for `unit_fusion`.
    """
    both, one = _embed(model, source, (True, False), align, batch_size, on_error, progress=progress)
    return both, one


def _embed(
    model: EmbeddingModel,
    source: ImageSource,
    flips: Sequence[bool],
    align: Aligner | None,
    batch_size: int,
    on_error: Literal["error", "skip"],
    *,
    indices: npt.ArrayLike | None = None,
    progress: Progress | None,
) -> list[Embeddings]:
    """Return the embeddings with each value of ``flip``, see `embed_images`."""
    if align is not None:
        face_template(model.image_size)  # before minutes of work
    rows = np.arange(len(source)) if indices is None else np.asarray(indices, np.int64)
    buffers = [
        (empty((len(rows), model.embedding_size), np.float32), np.empty(len(rows), np.float32))
        for _ in flips
    ]
    failures: dict[int, str] = {}

    def face(index: int) -> Image:
        where = source.where(index)
        if align is None:
            data, size = source.encoded(index), model.image_size
            return decode_image(data, where, size, upright=source.upright)
        image = decode_image(source.encoded(index), where, size=None, upright=True)
        return align.crop(image, str(source.ids[index]), where, model.image_size)

    def begun() -> Iterator[tuple[slice, _Finish]]:
        for start, faces in batches_ahead(face, rows, batch_size):
            batch = np.zeros((len(faces), *model.image_size, 3), np.uint8)
            for position, future in enumerate(faces):
                try:
                    batch[position] = future.result()
                except (ImageError, RecordError) as error:
                    if on_error == "error" and not isinstance(error, NotAcquiredError):
                        raise
                    failures[start + position] = str(error)
            yield slice(start, start + len(faces)), _begin(model, batch, any(flips))

    for block, views in _a_batch_late(begun()):
        for flip, (vectors, norms) in zip(flips, buffers, strict=True):
            vectors[block], norms[block] = _fused(views if flip else views[:1])
            finite = np.isfinite(vectors[block]).all(axis=1) & np.isfinite(norms[block])
            for row in block.start + np.flatnonzero(~finite):
                where = source.where(rows[row])
                failures.setdefault(int(row), f"{where}: its embedding is not finite")
        if progress is not None:
            progress("embedding", block.stop, len(rows))
    for vectors, norms in buffers:
        vectors[list(failures)] = np.nan
        norms[list(failures)] = np.nan
    return [
        Embeddings(
            vectors,
            norms,
            flip,
            ids=source.ids[rows],
            failures=dict(sorted(failures.items())),
            note=describe_embedding(model, flip=flip, align=align, batch_size=batch_size),
        )
        for flip, (vectors, norms) in zip(flips, buffers, strict=True)
    ]


def describe_embedding(
    model: EmbeddingModel, *, flip: bool, align: Aligner | None, batch_size: int
) -> dict[str, Any]:
    """Return what a report must say about how embeddings are made, as JSON types."""
    return {
        "facerec": facerec.__version__,
        "model": model.describe(),
        "flip": flip,
        "align": None if align is None else align.describe(),
        "batch_size": batch_size,
    }


def _begin(model: EmbeddingModel, batch: Image, flip: bool) -> _Finish:
    """Begin to embed the images of a batch and, with ``flip``, their mirror images."""
    views = [_begin_view(model, batch)]
    if flip:
        views.append(_begin_view(model, batch[:, :, ::-1]))
    return lambda: [view() for view in views]


def _fused(views: Sequence[_Vectors]) -> tuple[_Vectors, _Vectors]:
    """Return the vectors and norms of a batch, see `Embeddings`, from those of one or two views."""
    vectors, *mirrored = views
    norms = np.linalg.norm(vectors, axis=1)
    for other in mirrored:
        vectors = vectors + other
        norms = (norms + np.linalg.norm(other, axis=1)) / 2
    return vectors, norms


def _begin_view(model: EmbeddingModel, images: Image) -> Callable[[], _Vectors]:
    if isinstance(model, EmbeddingModel):
        return model.embed_later(images)
    vectors = model.embed(images)  # whatever else embeds has no more than that
    return lambda: vectors


def _a_batch_late(
    begun: Iterable[tuple[slice, _Finish]],
) -> Iterator[tuple[slice, list[_Vectors]]]:
    """Finish every batch when the next one has begun, so that a GPU always has one to work on."""
    waiting: tuple[slice, _Finish] | None = None
    for item in begun:
        if waiting is not None:
            yield waiting[0], waiting[1]()
        waiting = item
    if waiting is not None:
        yield waiting[0], waiting[1]()


def _checked(image: Image, index: int, model: EmbeddingModel) -> Image:
    if image.dtype != np.uint8 or image.shape != (*model.image_size, 3):
        height, width = model.image_size
        raise ImageError(
            f"image {index}: {model.name} takes aligned uint8 RGB images of shape "
            f"({height}, {width}, 3), found {image.dtype} of shape {image.shape}"
        )
    return image


def unit_fusion(both: Embeddings, one: Embeddings) -> npt.NDArray[np.float32]:
    """Return sums of two views of each image, both normalised before they are added, ``(m, D)``.

    Args:
        both: raw sums of image and mirror image.
        one: raw embeddings of the images alone, in the same order.

    Returns:
        Rows are NaN where a view has no direction.
    """
    first = one.vectors.astype(np.float64)
    second = both.vectors.astype(np.float64) - first
    with np.errstate(invalid="ignore", divide="ignore"):
        views = [view / np.linalg.norm(view, axis=1, keepdims=True) for view in (first, second)]
    return (views[0] + views[1]).astype(np.float32)
