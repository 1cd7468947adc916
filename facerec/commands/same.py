"""``facerec same``: two photos, one answer."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import tyro

from facerec.base.errors import FacerecError
from facerec.base.files import json_bytes
from facerec.base.limits import Cosine, Count
from facerec.commands.cli import Console, run_command
from facerec.commands.embedder import ModelFlags, print_notes

if TYPE_CHECKING:
    from facerec.embedding.recognizer import FaceRecognizer


@dataclass(frozen=True)
class Runtime(ModelFlags):
    """How the model is loaded, and what finds faces."""

    detector: str | None = None
    """What finds faces in photos that are no aligned crops: a YuNet .onnx file, or insightface; by
    default the one that FACEREC_DETECTOR names, a YuNet file beside the model, or insightface where
    it is installed."""
    unchecked: bool = False
    """Decide on any picture, also on those that do not look like the faces that the model was
    calibrated on."""

    def recognizer(self, model: Path, flip: bool | None = None, **options: Any) -> FaceRecognizer:
        """Return a model with its detector; ``flip`` holds where no flag says otherwise."""
        from facerec.embedding.recognizer import FaceRecognizer

        return FaceRecognizer(
            self.load_model(model, **options),
            flip=flip if self.flip is None else self.flip,
            detector=self.detector,
            unchecked=self.unchecked,
        )


FOUND = Runtime()


def same(
    photo: tyro.conf.Positional[Path],
    other: tyro.conf.Positional[Path],
    model: Path | None = None,
    threshold: Cosine | None = None,
    fpr: str | None = None,
    bench: str | None = None,
    face: tuple[Count, Count] = (1, 1),
    json: bool = False,
    network: tyro.conf.OmitArgPrefixes[Runtime] = FOUND,
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
        face: which face of each photo is meant, counted from the largest on.
        json: print the answer as JSON.
        network: how the model is loaded, and what finds faces.
    """
    from facerec.embedding.loading import newest_run

    if threshold is not None and (fpr, bench) != (None, None):
        raise FacerecError("--fpr and --bench choose a threshold, and one is given; leave them out")
    recognizer = network.recognizer(model or newest_run())
    answer = recognizer.verify(str(photo), str(other), threshold, fpr=fpr, bench=bench, faces=face)
    notes = [*answer.notes]
    if recognizer.face_limits is None:
        notes.append(
            "not looked at whether these pictures are faces; facerec calibrate finds the limits"
        )
    if assumed := ", ".join(recognizer.model.assumed):
        notes.append(f"the model does not say its {assumed}, which are assumed")
    console = Console()
    if json:
        found = {**asdict(answer), "notes": notes, "model": recognizer.describe()}
        console.print(json_bytes(found).decode(), end="")
        return
    console.print(str(answer), style="bold")
    if answer.evidence is not None:
        console.print(str(answer.evidence))
    print_notes(notes, console)


main = partial(run_command, same)
