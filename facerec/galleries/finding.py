"""Which photos of a folder show the person of a photo?"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from facerec.base.errors import ImageError
from facerec.base.files import check_place
from facerec.embedding.align import NotAcquiredError
from facerec.embedding.extraction import Embeddings, describe_embedding, image_digest
from facerec.embedding.file import read_embeddings, write_embeddings
from facerec.embedding.recognizer import FaceRecognizer, Photo, loaded, read_photo
from facerec.records.images import FolderImages


@dataclass(frozen=True)
class Found:
    """A photo of a folder, and how alike its face is."""

    image: str
    """Path of the photo in the folder."""
    similarity: float
    same: bool | None
    """Whether the similarity reaches the model's threshold; None without one, without a face, or
    for a picture that is not what the model knows as a face."""
    note: str = ""
    """What is to be known of the two photos, such as several faces."""
    face_score: float | None = None
    """Face score, see `FaceScore`; None where the model has no limits."""


def find(
    photo: Photo,
    people: str | Path,
    *,
    model: str | Path | FaceRecognizer,
    detector: str | None = None,
    keep: bool = False,
) -> list[Found]:
    """Return the photos of a folder by how alike their faces are, the most alike first.

    Of a photo with several faces the most alike one counts. Photos without a face, or that do not
    decode, stand at the end, with a similarity of NaN.

    Args:
        photo: whose face is looked for, of several the largest.
        people: a folder of photos, at any depth.
        model: see `facerec.load`, or what that returned.
        detector: see `facerec.load`.
        keep: keep the embeddings of its faces in PEOPLE.facerec.npz beside it, so that another
            search looks at new and changed photos alone. They are personal data.

    Raises:
        ImageError: the photo that is looked for does not decode, or shows no face.
        FacerecError: the folder holds no photos, or what is kept is damaged or a link.
    """
    own = model if isinstance(model, FaceRecognizer) else loaded(str(model), detector)
    source = FolderImages(people)
    limit = own.threshold().threshold if own.thresholds else None
    image, where = read_photo(photo, "the photo")
    asked, several = own.face(image, where)
    wanted = own.embed(asked)
    if said := own.misplaced(image, where) or own.unlike(own.face_score(wanted), where):
        raise NotAcquiredError(said)
    file = Path(f"{Path(people).resolve()}.facerec.npz")
    how: Any = {"flip": own.flip, "batch_size": own.model.batch_size}
    note = describe_embedding(own.model, align=own.detector, **how)
    faces = _read_kept(file, note) if keep else {}
    found, kept = [], dict[tuple[bytes, int], tuple[str, NDArray[np.float32]]]()
    for index, name in enumerate(source.ids.tolist()):
        where, digest, said = source.where(index), b"", ""
        try:
            data = source.encoded(index)
            image, digest = read_photo(data, where)[0], image_digest(data)
            said = own.misplaced(image, name)
            if digest not in faces:
                faces[digest] = own.embed([face for face, _ in own.faces(image, where)[0]])
        except ImageError as error:
            said = str(error)
        rows = []
        for number, vector in enumerate(faces.get(digest, ()), 1):
            kept[digest, number] = f"{name} face {number}", vector
            cosine, score = float(own.similarity(wanted, vector)), own.face_score(vector)
            unknown = said or own.unlike(score, name)
            rows.append((not unknown, cosine, number, score, unknown))
        # A face that the model knows goes before a better one that it does not know.
        best = max(rows, key=lambda row: row[:2], default=(False, math.nan, 0, None, said))
        _, cosine, number, score, unknown = best
        same = cosine >= limit if limit is not None and not unknown else None
        more = f"{name}: {len(rows)} faces, face {number} from the largest on is most alike"
        notes = [unknown] if not rows else [several, more * (len(rows) > 1), unknown]
        found.append(Found(name, cosine, same, "; ".join(filter(None, notes)), score))
    if keep and kept:
        digests = np.array([digest for digest, _ in kept])
        ids, vectors = map(np.array, zip(*kept.values(), strict=True))
        norms = np.linalg.norm(vectors, axis=1)
        every = Embeddings(vectors, norms, own.flip, ids, note=note, digests=digests)
        write_embeddings(file, every)
    return sorted(found, key=lambda item: (math.isnan(item.similarity), -item.similarity))


def _read_kept(path: Path, note: Mapping[str, Any]) -> dict[bytes, NDArray[np.float32]]:
    """Return the embeddings of the faces of photos that a file keeps, by `image_digest`.

    There are none where it was made otherwise than a note says.

    Raises:
        FacerecError: it is damaged, or a link.
    """
    check_place(path)
    found = read_embeddings(path) if path.exists() else None
    if found is None or found.note != json.loads(json.dumps(note)):
        return {}
    rows: Any = pd.Series(found.norms).groupby(cast(Any, found.digests).tolist()).indices
    return {digest: found.vectors[at] for digest, at in rows.items()}
