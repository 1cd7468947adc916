"""What embeddings have in common that can be compared."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from facerec.base.errors import ModelError
from facerec.embedding.extraction import Embeddings
from facerec.embedding.recognizer import FaceRecognizer


@dataclass(frozen=True)
class Space:
    """What embeddings have in common that can be compared: model, preprocessing, flip, size."""

    model: str | None
    """SHA-256 of the model file; None where it is not known."""
    preprocessing: Mapping[str, Any] | None
    """Channels, mean and standard deviation as JSON types; None is not known, or in the graph."""
    flip: bool | None
    """Whether mirror images were added; None where it is not known."""
    embedding_size: int
    name: str = field(default="", compare=False)
    """What the model is called."""

    @classmethod
    def of(cls, source: Embeddings | FaceRecognizer) -> Space:
        """Return the space of an embeddings file or of what embeds."""
        if isinstance(source, FaceRecognizer):
            flip: bool | None = source.flip
            size, about = source.embedding_size, source.model.describe()
        else:
            flip, size = source.flip, source.vectors.shape[1]
            said = source.note.get("model")
            about = said if isinstance(said, dict) else {}
        # As JSON has it, so that a space is equal to itself from a file.
        preprocessing = json.loads(json.dumps(about.get("preprocessing")))
        name = about.get("name")
        return cls(about.get("sha256"), preprocessing, flip, size, str(name or "unknown"))

    def check(self, other: Space, where: str) -> None:
        """Refuse embeddings of another space.

        Args:
            other: of the embeddings.
            where: they come from.

        Raises:
            ModelError: they were made otherwise.
        """
        for name in ("model", "preprocessing", "flip", "embedding_size"):
            mine, theirs = str(getattr(self, name)), str(getattr(other, name))
            if mine != theirs:
                raise ModelError(
                    f"{where}: these embeddings have another {name.replace('_', ' ')} than the "
                    f"gallery, {theirs} in place of {mine}, so they cannot be compared; embed the "
                    "images with the gallery's model, or enrol everybody anew"
                )
