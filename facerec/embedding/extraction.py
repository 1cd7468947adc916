"""From images to raw embeddings, with or without the mirror image."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

import facerec
from facerec.base.errors import ImageError, RecordError
from facerec.base.large_arrays import empty
from facerec.base.names import same_names
from facerec.base.progress import Progress
from facerec.cosines.unit_rows import row_norms
from facerec.embedding.align import Aligner, NotAcquiredError, align_face, face_template
from facerec.embedding.model import EmbeddingModel, shifted
from facerec.embedding.photo_faces import EveryFace, PhotoFace
from facerec.records.decode import batches_ahead, decode_image
from facerec.records.images import ImageSource

Image = npt.NDArray[np.uint8]

_Vectors = npt.NDArray[np.float32]
_Finish = Callable[[], tuple[_Vectors, _Vectors]]
"""Waits for a batch and returns its vectors and norms, see `Embeddings`."""


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
    several: Mapping[int, str] = field(default_factory=dict)
    """Row → a sentence on a photo with several faces, of which one is embedded."""
    digests: npt.NDArray[np.bytes_] | None = None
    """`image_digest` of each image, ``(N,)``, empty for one that was not acquired; None where the
    images are not known."""
    face_scores: npt.NDArray[np.float32] | None = None
    """``(N,)``, NaN where the image was not acquired, see `FaceScore`; None where the model has no
    limits. The limit is in the note."""
    faces: Sequence[PhotoFace] = ()
    """Which face of which photo each row is, where every face has a row; in no file."""

    def __post_init__(self) -> None:
        """Compose names, as all have that are joined with them."""
        for name in ("ids", "subjects"):
            if (texts := getattr(self, name)) is not None:
                object.__setattr__(self, name, same_names(texts))

    @property
    def face_limit(self) -> float | None:
        """Face score below which a picture is none of a face that the model knows."""
        limit = self.note.get("face_limit")
        return limit if isinstance(limit, float) and self.face_scores is not None else None

    @property
    def unlike(self) -> npt.NDArray[np.bool_]:
        """Which images, ``(N,)``, do not look like the faces that the model was calibrated on."""
        if self.face_limit is None or self.face_scores is None:
            return np.zeros(len(self.norms), bool)
        return self.face_scores < self.face_limit

    def without_unlike(self) -> Embeddings:
        """Return embeddings in which images that are `unlike` faces are failures to acquire."""
        rows = np.flatnonzero(self.unlike).tolist()
        if not rows:
            return self
        assert self.face_scores is not None
        vectors, norms = self.vectors.copy(), self.norms.copy()
        vectors[rows], norms[rows] = np.nan, np.nan
        reasons = {
            row: f"no face that the model knows: face score {self.face_scores[row]:.1f}, below the "
            f"limit of {self.face_limit:.1f}"
            for row in rows
        }
        return replace(self, vectors=vectors, norms=norms, failures={**self.failures, **reasons})


def extract(
    model: EmbeddingModel, images: Iterable[Image], *, flip: bool, batch_size: int = 64
) -> Embeddings:
    """Embed images one batch at a time; only one batch of pixels is held in memory.

    Args:
        model: what embeds.
        images: uint8 RGB images ``(112, 112, 3)``.
        flip: add the raw embedding of the mirror image, as InsightFace's verification does
            (``recognition/arcface_torch/eval/verification.py``).
        batch_size: images fetched and embedded together.

    Raises:
        ImageError: images of the wrong shape or type.
    """
    waiting = iter(images)
    found = [(np.empty((0, model.embedding_size), np.float32), np.empty(0, np.float32))]
    while batch := list(itertools.islice(waiting, batch_size)):
        found.append(_begin(model, np.stack(batch), flip)())
    vectors, norms = map(np.concatenate, zip(*found, strict=True))
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
    failure to acquire. One without a usable face, or with an embedding that is zero or not finite,
    is a failure to acquire in any case. Failures keep their row and their place in the batch, so no
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
    if align is not None:
        face_template(model.image_size)  # before minutes of work
    rows = np.arange(len(source)) if indices is None else np.asarray(indices, np.int64)
    vectors = empty((len(rows), model.embedding_size), np.float32)
    norms = np.empty(len(rows), np.float32)
    failures: dict[int, str] = {}

    several: dict[int, str] = {}
    digests = np.zeros(len(rows), "S32")

    face = functools.partial(read_face, model, source, align=align)

    def begun() -> Iterator[tuple[slice, _Finish]]:
        for start, faces in batches_ahead(face, rows, batch_size):
            batch = np.zeros((len(faces), *model.image_size, 3), np.uint8)
            for position, future in enumerate(faces):
                try:
                    batch[position], note, digests[start + position] = future.result()
                except (ImageError, RecordError) as error:
                    if on_error == "error" and not isinstance(error, NotAcquiredError):
                        raise
                    failures[start + position] = str(error)
                    continue
                if note:
                    several[start + position] = note
            yield slice(start, start + len(faces)), _begin(model, batch, flip)

    # A batch is finished when the next one has begun, so that a GPU always has one to work on.
    ends: Iterable[Any] = itertools.chain(begun(), (None,))
    try:
        for (block, finish), _ in itertools.pairwise(ends):
            vectors[block], norms[block] = finish()
            bad = np.isnan(row_norms(vectors[block])) | ~np.isfinite(norms[block])
            for row in block.start + np.flatnonzero(bad):
                where = source.where(rows[row])
                failures.setdefault(int(row), f"{where}: its embedding is zero or not finite")
            if progress is not None:
                progress("embedding", block.stop, len(rows))
    except BaseException:
        model.stop()
        raise
    failed = list(failures)
    vectors[failed], norms[failed] = np.nan, np.nan
    return Embeddings(
        vectors,
        norms,
        flip,
        ids=source.ids[rows],
        failures=dict(sorted(failures.items())),
        face_scores=None if model.faces is None else model.faces(vectors),
        note=describe_embedding(model, flip=flip, align=align, batch_size=batch_size),
        several=several,
        digests=digests,
        faces=[source.shown[row] for row in rows] if isinstance(source, EveryFace) else (),
    )


def read_face(
    model: EmbeddingModel, source: ImageSource, index: int, align: Aligner | None
) -> tuple[Image, str, bytes]:
    """Return the face of an image as the model takes it, a sentence on others, and its digest.

    The face is uint8 RGB ``(H, W, 3)``, the digest that of `image_digest`.

    Raises:
        ImageError: it does not decode, has the wrong size, or no face is found.
        RecordError: its record is damaged.
    """
    data, where = source.encoded(index), source.where(index)
    if align is None:
        image = decode_image(data, where, model.image_size, upright=source.upright)
        return image, "", image_digest(data)
    image = decode_image(data, where, size=None, upright=True)
    (points, _), note = align.choose(image, where, align.number, str(source.ids[index]))
    crop = align_face(image, points[0], model.image_size, where, model.cut)
    number = source.shown[index].face if isinstance(source, EveryFace) else align.number
    return crop, note, image_digest(data, number or 1)


def draw_faces(
    model: EmbeddingModel,
    source: ImageSource,
    rows: npt.NDArray[np.integer],
    count: int,
    align: Aligner | None = None,
) -> npt.NDArray[np.uint8]:
    """Return faces of some images, drawn at random, uint8 RGB ``(n, H, W, 3)`` with n ≤ count.

    Images without a face that can be read are left out.
    """
    faces: list[Image] = []
    for index in np.random.default_rng(0).permutation(rows):
        if len(faces) == count:
            break
        with contextlib.suppress(ImageError, RecordError):
            faces.append(read_face(model, source, int(index), align)[0])
    return np.stack(faces) if faces else np.empty((0, *model.image_size, 3), np.uint8)


def constant(embeddings: Embeddings) -> str | None:
    """Return a sentence if the embeddings of all images point the same way; None if they do not.

    Of rows that are finite and not zero, two or more, all cosines with the first are 1 to within
    1e-6. Pictures that are the same do that, too, and are not meant.
    """
    if embeddings.digests is not None and len(np.unique(embeddings.digests)) < 2:
        return None
    vectors, norms = embeddings.vectors, row_norms(embeddings.vectors)
    rows = np.flatnonzero(~np.isnan(norms))
    if len(rows) < 2:
        return None
    first = vectors[rows[0]] / norms[rows[0]]
    with np.errstate(all="ignore"):  # of the other rows
        cosines = np.einsum("nd,d->n", vectors, first) / norms
    if (cosines < 1 - 1e-6).any():
        return None
    return (
        f"the {len(rows)} embeddings all point the same way, so the network does not tell pictures "
        "apart; check its preprocessing and that it was exported in evaluation mode"
    )


def image_digest(data: bytes, number: int = 1) -> bytes:
    """Return 32 characters that tell faces of photos apart: of SHA-256, in base 16.

    Args:
        data: the encoded image.
        number: which of its faces is meant, from the largest on.
    """
    # The second face of a photo may be another person's.
    return hashlib.sha256(data + b"face %d" % number * (number > 1)).hexdigest()[:32].encode()


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
        **({} if model.faces is None else {"face_limit": model.faces.limit}),
    }


def _begin(model: EmbeddingModel, batch: Image, flip: bool) -> _Finish:
    """Begin to embed images and, with ``flip``, their mirror images; norms are means over both."""
    # First, as the mirror image of a face at the left lies at the right.
    batch = shifted(batch, model.shift)
    views = [model.embed_later(batch)]
    if flip:
        views.append(model.embed_later(batch[:, :, ::-1]))

    def finish() -> tuple[_Vectors, _Vectors]:
        vectors, *mirrored = (view() for view in views)
        norms = np.linalg.norm(vectors, axis=1)
        for other in mirrored:
            vectors = vectors + other
            norms = (norms + np.linalg.norm(other, axis=1)) / 2
        return vectors, norms

    return finish
