"""May these embeddings be compared? What made them, and one answer for everybody who asks."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from facerec.base.errors import ModelError, printable
from facerec.embedding.extraction import Embeddings

_MADE_BY = ("model", "preprocessing", "flip")


@dataclass(frozen=True)
class Space:
    """What embeddings have in common that can be compared: model, preprocessing, flip, size.

    Of each of these, two spaces may know

    * the same: they can be compared by it;
    * different things: they are refused, by `compare` as by `check`;
    * nothing, in one of them or both: to measure with them is possible, and `compare` returns a
      sentence on it. A decision on people rests on what is known alike of both: `check` refuses
      what is known of one and not of the other.

    Placement and alignment are no part of it, whatever found the faces: all bring a face to where
    the network expects it, and sets that lie otherwise are moved otherwise to be comparable.
    """

    model: str | None
    """SHA-256 of the model file; None where it is not known."""
    preprocessing: Mapping[str, Any] | None
    """Channels, mean and standard deviation as JSON types; None where it is not known."""
    flip: bool | None
    """Whether mirror images were added; None where it is not known."""
    embedding_size: int
    """Dimensions; 0 where nobody has counted them, which the model tells as well."""
    name: str = field(default="", compare=False)
    """What the model is called, and where it lay, as the file has recorded it."""

    @classmethod
    def of(cls, embeddings: Embeddings) -> Space:
        """Return the space of embeddings, as far as their note tells it."""
        about, size = embeddings.note.get("model"), embeddings.vectors.shape[1]
        return cls.of_model(about, embeddings.flip, size)

    @classmethod
    def of_model(cls, about: Any, flip: bool | None, size: int = 0) -> Space:
        """Return the space into which a model embeds.

        Args:
            about: what `EmbeddingModel.describe` says; of strangers' files anything.
            flip: whether mirror images are added.
            size: dimensions of an embedding.
        """
        about = about if isinstance(about, Mapping) else {}
        # As JSON has it, so that a space is equal to itself from a file.
        preprocessing = json.loads(json.dumps(about.get("preprocessing")))
        name, path = (printable(str(about.get(key) or "")) for key in ("name", "path"))
        called = f"{name or 'unknown'} ({path})" if path else name or "unknown"
        return cls(about.get("sha256"), preprocessing, flip, size, called)

    def compare(self, other: Space, where: str) -> str:
        """Return a sentence on what is not known of two spaces; an empty one if all is.

        Args:
            other: of other embeddings.
            where: names both, as ``a.npz and b.npz``.

        Raises:
            ModelError: they are known to differ.
        """
        unknown = []
        for name in (*_MADE_BY, "embedding_size"):
            mine, theirs = getattr(self, name), getattr(other, name)
            if mine is None or theirs is None:
                unknown.append(name)
            elif mine != theirs and (name in _MADE_BY or 0 not in (mine, theirs)):
                raise ModelError(
                    f"{where} cannot be compared: one is of another {name}, {str(mine)[:120]} of "
                    f"{self.name} and {str(theirs)[:120]} of {other.name}, so their scores mean "
                    "nothing together; embed both with one model that prepares pixels alike, and "
                    "both with --no-flip or without"
                )
        if not unknown:
            return ""
        return (
            f"{where}: whether they were made with the same {', '.join(unknown)} is not known; if "
            "they were not, their scores mean nothing together"
        )

    def check(self, other: Space, where: str, whose: str = "gallery") -> None:
        """Refuse embeddings of another space, and those of which less is known, see `Space`.

        Args:
            other: of the embeddings.
            where: they come from.
            whose: this space is.

        Raises:
            ModelError: they were made otherwise, or that is not known.
        """
        self.compare(other, f"{where} and the {whose}")
        for name in _MADE_BY:
            mine, theirs = getattr(self, name), getattr(other, name)
            if (mine is None) != (theirs is None):
                raise ModelError(
                    f"{where} and the {whose} cannot be compared: the {name} is known of the "
                    f"{whose if theirs is None else 'images'} alone; embed the images with the "
                    f"{whose}'s model ({self.name or 'unknown'}), or enrol everybody anew"
                )

    def contract(self, image_size: tuple[int, int]) -> str | None:
        """Return an id of the space: embeddings with different ids are never comparable.

        A hash of model file, preprocessing, alignment, flip and dimensions. Engine and device are
        not part of it, since they change embeddings by rounding alone. None for a model in memory.

        Args:
            image_size: height and width of the images that the model takes.
        """
        if self.model is None:
            return None
        terms = {
            "alignment": "arcface_112x112",
            "image_size": list(image_size),
            "embedding_size": self.embedding_size,
            **{name: getattr(self, name) for name in _MADE_BY},
        }
        text = json.dumps(terms, sort_keys=True)
        return f"facerec-1-{hashlib.sha256(text.encode()).hexdigest()}"
