"""``facerec same``: two photos, one answer."""

from __future__ import annotations

from dataclasses import asdict
from functools import partial
from pathlib import Path

import tyro

from facerec.base.errors import FacerecError
from facerec.base.files import json_bytes
from facerec.base.limits import Cosine, Count
from facerec.commands.cli import Console, run_command
from facerec.commands.embedder import PLAIN, ModelFlags, print_notes


def same(
    photo: tyro.conf.Positional[Path],
    other: tyro.conf.Positional[Path],
    model: Path | None = None,
    threshold: Cosine | None = None,
    fpr: str | None = None,
    bench: str | None = None,
    detector: str | None = None,
    face: tuple[Count, Count] = (1, 1),
    unchecked: bool = False,
    json: bool = False,
    network: tyro.conf.OmitArgPrefixes[ModelFlags] = PLAIN,
) -> None:
    """Tell whether two photos show one person.

    Photos of 112×112 pixels (the model's size) are taken as aligned faces; in others the face is
    found, by YuNet or insightface. The answer is the cosine of the two embeddings (−1 to 1), the
    threshold that decides, and where that comes from; all that is in the model's calibration, which
    facerec calibrate leaves beside it. With it the answer also says how much better one person
    explains the two photos than two people do, and how often strangers look as alike. A picture
    that does not look like the faces of the calibration gets no decision.

    Args:
        photo: a photo.
        other: another photo.
        model: a run, a bundle, .safetensors, .onnx or hf://OWNER/NAME; by default the newest run
            under runs/.
        threshold: cosine (−1 to 1) from which on two faces are taken for one person.
        fpr: in place of --threshold: share of pairs of different people that may be taken for one
            person; by default 1e-3, or the lowest that the model knows.
        bench: verification set that the threshold comes from, where the model knows several.
        detector: what finds faces: a YuNet .onnx file, or insightface; by default the one that
            FACEREC_DETECTOR names, a YuNet file beside the model, or insightface where it is
            installed.
        face: which face of each photo is meant, counted from the largest on.
        unchecked: decide on any picture.
        json: print the answer as JSON.
        network: how the model is loaded.
    """
    from facerec.embedding.loading import newest_run
    from facerec.embedding.recognizer import FaceRecognizer

    if threshold is not None and (fpr, bench) != (None, None):
        raise FacerecError("--fpr and --bench choose a threshold, and one is given; leave them out")
    path = model or newest_run()
    recognizer = FaceRecognizer(
        network.load_model(path), flip=network.flip, detector=detector, unchecked=unchecked
    )
    answer = recognizer.verify(str(photo), str(other), threshold, fpr=fpr, bench=bench, faces=face)
    notes = [*answer.notes]
    if recognizer.face_limits is None:
        notes.append(
            "not looked at whether these pictures are faces; facerec calibrate finds the limits"
        )
    if assumed := ", ".join(recognizer.model.assumed):
        notes.append(f"the model does not say its {assumed}, which are assumed")
    console = Console(soft_wrap=True, highlight=False)
    if json:
        found = {**asdict(answer), "notes": notes, "model": recognizer.describe()}
        console.print(json_bytes(found).decode(), end="")
        return
    console.print(str(answer), style="bold")
    if answer.evidence is not None:
        console.print(str(answer.evidence))
    print_notes(notes, console)


main = partial(run_command, same)
