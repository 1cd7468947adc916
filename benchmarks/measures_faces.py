"""What calibrated models refuse, on pictures that took no part in their calibration.

``FACEREC_TEST_DATA`` has cars and LFW; ``FACEREC_MODELS`` names models with a calibration on LFW,
with a comma between two; ``FACEREC_DETECTOR`` a YuNet file, for crops by its boxes.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray
from rows import Row

from facerec.embedding.align import NotAcquiredError, YuNet
from facerec.embedding.face_score import fit_face_score
from facerec.embedding.model import shifted
from facerec.embedding.recognizer import FaceRecognizer, load
from facerec.records import Data
from facerec.records.decode import decode_image
from facerec.records.non_faces import SPOILT
from facerec.records.tables import TextTable
from facerec.records.training_set import open_images
from facerec.verification.bench import find_pack, pack_bench

Images = NDArray[np.uint8]
COUNT = 300


def face_refusals() -> Iterator[Row]:
    """Yield the shares of refused pictures by kind, and of strangers who are called the same."""
    folder, models = os.environ.get("FACEREC_TEST_DATA"), os.environ.get("FACEREC_MODELS")
    if not folder or not models:
        remark = "FACEREC_TEST_DATA and FACEREC_MODELS are not set"
        yield Row("pictures that a model refuses", None, "%", remark=remark)
        return
    for number, path in enumerate(models.split(",")):
        yield from _of_model(load(path), Path(folder), not number)


def _of_model(model: FaceRecognizer, folder: Path, first: bool) -> Iterator[Row]:
    bench = pack_bench(find_pack("lfw", folder / "lfw"))
    rows = np.random.default_rng(3).permutation(len(bench.images))[: 4 * COUNT]
    faces = shifted(_decoded(bench.images, rows), model.model.shift)
    model.model.shift = model.model.cut = (0, 0)  # the faces lie right before they are spoilt
    scores = {"faces": _scores(model, faces)}
    assert model.face_limits is not None
    limit, power = model.face_limits.limit, model.face_limits.least
    name, least = model.model.name, 98.0 if first else 93.0
    for kind, pictures in _pictures(faces[:COUNT], folder).items():
        scores[kind] = _scores(model, pictures)
        refused = 100 * float((scores[kind] < limit).mean())
        told = kind in power
        bar = least if kind not in SPOILT or kind in list(SPOILT)[:2] else None
        remark = f"stated: at least {power[kind]}" if told else ""
        yield Row(f"{name}: {kind} refused", refused, "%", bar, "higher", remark=remark)
        same = 100 * _same(model, pictures)
        yield Row(f"{name}: two of different {kind} called the same", same, "%", _most(kind))
    low, lfw = scores["faces"] < limit, faces[:COUNT]
    yield Row(f"{name}: faces of LFW refused", 100 * float(low.mean()), "%")
    gender = _genders(folder)
    of = np.array([gender.get(str(bench.images.ids[row]), "") for row in rows])
    shares = [100 * float(low[of == group].mean()) for group in ("female", "male")]
    remark = f"{shares[0]:.2f} % of women, {shares[1]:.2f} % of men, {len(rows):,} images"
    ratio = max(shares) / max(min(shares), 1e-9)
    yield Row(f"{name}: refusals of women against men", ratio, "×", 1.6, remark=remark)
    records = open_images(folder / "cfp_train", Data(folder / "cfp_train"))
    own = load(model.model.path or Path(), shift=(0, 0))  # these lie on the template
    kinds = {"frontal": np.arange(len(records)) % 14 < 10}  # ten, then four profiles a person
    for kind, chosen in {**kinds, "profile": ~kinds["frontal"]}.items():
        faces = _decoded(records, np.flatnonzero(chosen))
        refused = 100 * float((_scores(own, faces) < limit).mean())
        yield Row(f"{name}: CFP {kind} refused", refused, "%", 1.0 if kind == "frontal" else None)
    if "FACEREC_DETECTOR" in os.environ:
        yield from _boxes(model, lfw, name)


def _most(kind: str) -> float | None:
    """Return the bar of pairs that are called the same."""
    bars = {"blurred faces": 2.0, "faces of 14 pixels": 10.0, "faces turned by 30°": 12.0}
    return {**bars, "upside-down faces": 2.0}.get(kind, 1.0)


def _decoded(images: Any, rows: NDArray[np.int64]) -> Images:
    return np.stack([decode_image(images.encoded(row), "LFW", (112, 112)) for row in rows])


def _scores(model: FaceRecognizer, pictures: Images) -> NDArray[np.float32]:
    assert model.face_limits is not None
    return model.face_limits(model.embed(pictures))


def _same(model: FaceRecognizer, pictures: Images) -> float:
    """Return the share of pairs of neighbours that get "the same person" as their answer."""
    vectors = model.embed(pictures)
    answers = [model.verify(*pair).same for pair in itertools.pairwise(vectors)]
    return float(np.mean([answer is True for answer in answers]))


def _pictures(faces: Images, folder: Path) -> dict[str, Images]:
    generator = np.random.default_rng(4)
    files = sorted((folder / "cars196_half" / "cars_train").glob("*.jpg"))
    chosen = [files[i] for i in generator.permutation(len(files))[:COUNT]]
    cars = [cv2.resize(cv2.imread(str(file))[:, :, ::-1], (112, 112)) for file in chosen]
    flat = np.broadcast_to(generator.integers(0, 256, (COUNT, 1, 1, 3)), (COUNT, 112, 112, 3))
    share = np.linspace(0, 1, 112)[None, :, None, None]
    ends = generator.integers(0, 256, (2, COUNT, 1, 1, 3))
    steps = np.broadcast_to(ends[0] * (1 - share) + ends[1] * share, (COUNT, 112, 112, 3))
    text = np.full((COUNT, 112, 112, 3), 255, np.uint8)
    for page in text:
        for line in range(12, 112, 14):
            words = "".join(map(chr, generator.integers(97, 123, 24)))
            cv2.putText(page, words, (2, line), cv2.FONT_HERSHEY_SIMPLEX, 0.4, (0, 0, 0), 1)
    made = {
        "cars": np.stack(cars),
        "constants": flat,
        "noise": generator.integers(0, 256, (COUNT, 112, 112, 3)),
        "text": text,
        "gradients": steps,
        **{
            kind: np.stack([spoil(face, generator) for face in faces])
            for kind, spoil in SPOILT.items()
        },
    }
    return {kind: pictures.astype(np.uint8) for kind, pictures in made.items()}


def _genders(folder: Path) -> dict[str, str]:
    rows = TextTable(folder / "lfw" / "attributes.csv").rows(("image_id", "gender"))
    return {image: gender for _, (image, gender) in rows}


def _boxes(model: FaceRecognizer, faces: Images, name: str) -> Iterator[Row]:
    """Cut faces out by a detector's boxes, as other libraries do, and compare strangers."""
    detector, crops = YuNet(os.environ["FACEREC_DETECTOR"]), []
    for face in faces:
        try:
            box = detector.faces(np.pad(face, ((56, 56), (56, 56), (0, 0))), "a crop")[1][0]
        except NotAcquiredError:
            continue
        left, top, right, bottom = np.maximum(box, 0).astype(int)
        padded = np.pad(face, ((56, 56), (56, 56), (0, 0)))[top:bottom, left:right]
        crops.append(cv2.resize(padded, (112, 112)))
    for looked in (False, True):
        answers = [
            (model.misplaced(a, "") or model.misplaced(b, "") if looked else "")
            or model.verify(*model.embed([a, b])).same
            for a, b in itertools.pairwise(crops)
        ]
        share = 100 * float(np.mean([answer is True for answer in answers]))
        what = "detector at hand" if looked else "no detector"
        yield Row(f"{name}: strangers' box crops called the same, {what}", share, "%", 2.0)


def quality_signals() -> Iterator[Row]:
    """Yield how well a short embedding, and the centre, tell faces from other pictures: the AUC."""
    folder, models = os.environ.get("FACEREC_TEST_DATA"), os.environ.get("FACEREC_MODELS")
    if not folder or not models:
        remark = "FACEREC_TEST_DATA and FACEREC_MODELS are not set"
        yield Row("AUC of a low norm", None, "", remark=remark)
        return
    bench = pack_bench(find_pack("lfw", Path(folder) / "lfw"))
    rows = np.random.default_rng(3).permutation(len(bench.images))[:COUNT]
    faces = _decoded(bench.images, rows)
    for path in models.split(","):
        model = load(path, shift=(8, 0), calibrated=False)
        of_faces = model.embed(faces)
        centre = fit_face_score(model.model, of_faces, flip=model.flip).centres[0]
        for kind, pictures in _pictures(faces, Path(folder)).items():
            signals = []
            for vectors in (of_faces, model.embed(pictures)):
                lengths = np.linalg.norm(vectors, axis=1)
                signals.append((lengths, -vectors @ centre / lengths))
            for what, ours, theirs in zip(("norm", "centre"), *signals, strict=True):
                higher = (ours[:, None] > theirs).mean() + (ours[:, None] == theirs).mean() / 2
                yield Row(f"{path}: {what}, {kind}", float(higher), "AUC")
