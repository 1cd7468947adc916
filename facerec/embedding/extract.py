"""From images to raw embeddings, with or without the mirror image."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from facerec.embedding.model import EmbeddingModel
from facerec.errors import ImageError

Image = npt.NDArray[np.uint8]


@dataclass(frozen=True)
class Embeddings:
    """Raw embeddings of N images.

    Attributes:
        vectors: float32 ``(N, D)``: raw embeddings, or with ``flip`` the sum of the raw embeddings
            of each image and its mirror image.
        norms: float32 ``(N,)``: the raw norm, with ``flip`` the mean over both views, so that the
            mean over N is InsightFace's "XNorm".
        flip: whether mirror images took part.
    """

    vectors: npt.NDArray[np.float32]
    norms: npt.NDArray[np.float32]
    flip: bool


def extract(
    model: EmbeddingModel,
    images: Sequence[Image] | Image | Callable[[int], Image],
    count: int | None = None,
    *,
    flip: bool,
    batch_size: int = 64,
    progress: Callable[[int], None] | None = None,
) -> Embeddings:
    """Embed images one batch at a time; only one batch of pixels is held in memory.

    Args:
        model: what embeds.
        images: uint8 RGB images ``(112, 112, 3)``: a sequence, or a function from index to image.
        count: number of images; needed with a function, else the length of the sequence.
        flip: add the raw embedding of the mirror image, as InsightFace's verification does
            (``recognition/arcface_torch/eval/verification.py``).
        batch_size: images fetched and embedded together.
        progress: called after each batch with the number of images in it.

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
    vectors = np.empty((total, model.embedding_size), np.float32)
    norms = np.empty(total, np.float32)
    for start in range(0, total, batch_size):
        part = slice(start, min(start + batch_size, total))
        batch = np.stack([_checked(fetch(i), i, model) for i in range(part.start, part.stop)])
        vectors[part] = model.embed(batch)
        norms[part] = np.linalg.norm(vectors[part], axis=1)
        if flip:
            mirrored = model.embed(batch[:, :, ::-1])
            vectors[part] += mirrored
            norms[part] = (norms[part] + np.linalg.norm(mirrored, axis=1)) / 2
        if progress is not None:
            progress(part.stop - part.start)
    return Embeddings(vectors, norms, flip)


def _checked(image: Image, index: int, model: EmbeddingModel) -> Image:
    if image.dtype != np.uint8 or image.shape != (*model.image_size, 3):
        height, width = model.image_size
        raise ImageError(
            f"image {index}: {model.name} takes aligned uint8 RGB images of shape "
            f"({height}, {width}, 3), found {image.dtype} of shape {image.shape}"
        )
    return image
