"""Photos of people → a folder of aligned crops, by a job of several processes that can go on."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, cast

import numpy as np
from numpy.typing import NDArray

from facerec.base.environment import available_cores
from facerec.base.errors import DatasetError, ImageError, ModelError
from facerec.base.files import atomic_path, check_no_links
from facerec.base.libraries import cv2
from facerec.base.limits import Count, Flags, Probability
from facerec.base.progress import Progress
from facerec.embedding.align import Aligner, NotAcquiredError, align_face, parse_align
from facerec.embedding.extraction import extract
from facerec.embedding.parts import begin_job, job_identity
from facerec.records.decode import decode_image
from facerec.records.images import OnError, SubjectFolders
from facerec.records.processes import process_pool

CROPS = "crops"
LOG = "photos.jsonl"
"""Of a job that goes on: its crops, and what was found in the photos that are done, a line each."""

_SHARE = 8
"""Photos that a process takes at once."""

Line = dict[str, Any]


@dataclass(frozen=True)
class FaceCrops(Flags):
    """How faces are cut out of photos of any size."""

    align: str | None = None
    """Cut the faces out of photos of any size, as facerec embed --align does: insightface, a YuNet
    .onnx file, or a .csv file of five points of each image in pixels (image_id,x1,y1,…,x5,y5)."""
    align_threshold: Probability | None = None
    """Lowest score of a face that the detector of --align may find, from 0 to 1; by default 0.6 for
    YuNet and 0.5 for insightface."""
    faces: Literal["largest", "all"] = "largest"
    """Which faces of a photo are cut out; all of them belong to the photo's person."""
    crops: Path | None = None
    """Write the crops into this folder, as PERSON/photo.jpg.png, besides or in place of --out."""
    model: Path | None = None
    """A model whose calibration has a limit of the face score; crops below it are refused."""
    processes: Count | None = None
    """Processes that cut; by default as many as there are cores."""


def cut_faces(
    photos: SubjectFolders,
    how: FaceCrops,
    parts: Path,
    on_error: OnError = "error",
    progress: Progress | None = None,
) -> list[Line]:
    """Write the faces of photos as ``parts/crops/PERSON/photo.jpg.png``; say what was found.

    A job that was stopped goes on where it was: ``parts`` knows which photos are done.

    Args:
        photos: of people.
        how: ``align`` is needed.
        parts: the folder, which no other process writes.
        on_error: whether a photo that cannot be read stops the work.
        progress: called with the photos done.

    Returns:
        For each photo ``image_id``, ``result`` ("one face", "several faces", "no face", "refused":
        all of them, or "unreadable"), ``faces`` found, ``crops`` written, ``refused``, ``reason``.

    Raises:
        FacerecError: ``parts`` holds those of another job, or cannot be written.
        ImageError: a photo cannot be read (``on_error="error"``).
        ModelError: a detector or a model that cannot be used, or has no limit of the face score.
    """
    cutter, log = _Cutter(photos, how, parts / CROPS), parts / LOG
    begin_job(parts, cutter.job())
    check_no_links(parts, cutter.folder)
    cutter.folder.mkdir(mode=0o700, exist_ok=True)  # people's faces are for the owner alone
    done = {line["image_id"]: line for line in _read(log)}
    missing = [i for i, name in enumerate(photos.ids.tolist()) if name not in done]
    processes = min(how.processes or available_cores(), len(missing) // _SHARE + 1)
    try:
        with (
            log.open("a", encoding="utf-8") as file,
            process_pool(processes, _begin, (photos, how, parts / CROPS)) as pool,
        ):
            file.write("\n")  # a line that a kill cut short ends here
            lines = (
                pool.map(_cut, missing, chunksize=_SHARE) if processes > 1 else map(cutter, missing)
            )
            for line in lines:
                if line["result"] == "unreadable" and on_error == "error":
                    raise ImageError(f"{line['reason']}; or count it and go on by --on-error skip")
                print(json.dumps(line), file=file, flush=True)
                done[line["image_id"]] = line
                if progress is not None:
                    progress("cutting faces", len(done), len(photos))
    except BaseException:
        if not done:  # there is nothing to go on with
            shutil.rmtree(parts, ignore_errors=True)
        raise
    return [done[name] for name in photos.ids.tolist()]


class _Cutter:
    """Cuts the faces out of photos, into files below a folder."""

    def __init__(self, photos: SubjectFolders, how: FaceCrops, folder: Path) -> None:
        from facerec.embedding.loading import load_model

        self.photos, self.every, self.folder = photos, how.faces == "all", folder
        self.aligner = cast(Aligner, parse_align(how.align, how.align_threshold))
        self.model = None if how.model is None else load_model(how.model)
        if self.model is not None and self.model.faces is None:
            raise ModelError(
                f"{how.model}: no calibration says which pictures are faces; run facerec calibrate "
                "on it, or leave out --model"
            )

    def job(self) -> Line:
        """Return what makes a job another one, as JSON types."""
        known = self.model and self.model.describe()
        limit = self.model and self.model.faces and self.model.faces.limit
        about = {"align": self.aligner.describe(), "model": known, "limit": limit}
        photos = {"photos": self.photos.names_sha256(), "faces": self.every}
        return job_identity({**about, **photos})

    def __call__(self, i: int) -> Line:
        """Write the crops of photo ``i``, and return its line of the table."""
        name, where = str(self.photos.ids[i]), self.photos.where(i)
        line: Line = {"image_id": name, "result": "", "faces": 0, "crops": 0, "refused": 0}
        try:
            image = decode_image(self.photos.encoded(i), where, None, upright=True)
            points, _ = self.aligner.faces(image, where, name)
            chosen = points if self.every else points[:1]
            crops = [align_face(image, each, where=where) for each in chosen]
            sound = self._sound(image, chosen, where)
        except (ImageError, DatasetError) as problem:
            found = "no face" if isinstance(problem, NotAcquiredError) else "unreadable"
            return {**line, "result": found, "reason": str(problem)}
        for number in np.flatnonzero(sound).tolist():
            face = f" face {number + 1}" if self.every and len(points) > 1 else ""
            path = self.folder / f"{name}{face}.png"
            # Without any loss, so that a crop is what embed --align sees.
            encoded = cv2.imencode(".png", crops[number][:, :, ::-1])[1].tobytes()
            with atomic_path(path, private=True) as temporary:
                temporary.write_bytes(encoded)
        kind = "several faces" if len(points) > 1 else "one face"
        counts = {"faces": len(points), "crops": int(sum(sound)), "refused": int(sum(~sound))}
        return {**line, "result": kind if any(sound) else "refused", **counts, "reason": ""}

    def _sound(self, image: NDArray[np.uint8], points: Any, where: str) -> NDArray[np.bool_]:
        """Tell which faces the model knows as such; all of them without a model."""
        model = self.model
        if model is None or model.faces is None:
            return np.ones(len(points), bool)
        crops = [align_face(image, each, model.image_size, where, model.cut) for each in points]
        vectors = extract(model, crops, flip=model.flip_mode(None)).vectors
        return model.faces(vectors) >= model.faces.limit


_cutter: Callable[[int], Line]


def _begin(*given: Any) -> None:
    global _cutter
    cv2.setNumThreads(1)
    _cutter = _Cutter(*given)


def _cut(i: int) -> Line:
    return _cutter(i)


def _read(log: Path) -> Iterator[Line]:
    """Yield the whole lines of a log; a kill may have cut the last one short."""
    for text in log.read_text(encoding="utf-8").splitlines() if log.exists() else ():
        if text.endswith("}"):
            yield json.loads(text)
