"""What commands say first: the model, and what it is fed on what evidence."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from facerec.embedding.align import Aligner, alignment_words

if TYPE_CHECKING:
    from facerec.backbones import Preprocessing
    from facerec.embedding.extraction import Embeddings
    from facerec.embedding.model import EmbeddingModel


def preprocessing_words(preprocessing: Preprocessing | None) -> str:
    """Return channels and scaling in a few words; None is a graph that normalises by itself."""
    if preprocessing is None:
        return "inside the graph; RGB pixels 0…255 go in"
    channels = preprocessing.channels.upper()
    mean, std = preprocessing.mean, preprocessing.std
    if (mean, std) == (0, 1):
        return f"{channels}, pixels 0…255 as they are"
    return f"{channels}, (pixel − {mean:g}) / {std:g}"


def print_embeddings(path: Path, embeddings: Embeddings, console: Console) -> None:
    """Say what embeddings on the disk were made of, as far as they say it themselves."""
    model = embeddings.note.get("model")
    known = model.get("preprocessing") if isinstance(model, dict) else None
    words = "how they were made is not known"
    if isinstance(model, dict) and isinstance(known, dict):
        # A file of anybody may hold anything here.
        name, channels, mean, std = (
            str(value)
            for value in (model.get("name"), *map(known.get, ("channels", "mean", "std")))
        )
        views = {None: "flip unknown", True: "with flip", False: "no flip"}[embeddings.flip]
        words = f"{name}, {channels.upper()}, (pixel − {mean}) / {std}, {views}"
    console.print(f"embeddings {path}: {words}", soft_wrap=True, markup=False)


def print_notes(notes: Sequence[str], console: Console) -> None:
    """Say what was found on opening images that a user should know."""
    for note in notes:
        console.print(f"note: {note}", style="yellow", soft_wrap=True, markup=False)


def print_model(model: EmbeddingModel, flip: bool, align: Aligner | None, console: Console) -> None:
    """Say which model it is, what it is fed, why, and what of that is assumed."""

    def say(text: str, style: str = "") -> None:
        console.print(text, style=style, soft_wrap=True, markup=False)

    height, width = model.image_size
    views = "image and mirror image summed" if flip else "image alone, no flip"
    say(f"model {model.path}")
    say(f"input {width}×{height} {preprocessing_words(model.preprocessing)}; {views}")
    for sentence in model.evidence[: None if model.assumed else 1]:
        say(f"  evidence: {sentence}")
    if model.assumed:
        say(
            f"  assumed: {', '.join(model.assumed)}; a wrong one raises no error and costs "
            "accuracy: facerec verify --try-preprocessing compares the likely ones",
            "yellow",
        )
    if align is not None:
        say(alignment_words(align.describe()))
