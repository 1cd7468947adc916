"""The flags by which every command that embeds images loads its network."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from facerec.commands.cli import refuse_unused
from facerec.limits import Count, Flags

if TYPE_CHECKING:
    from facerec.embedding.model import EmbeddingModel


@dataclass(frozen=True)
class Network(Flags):
    """How a network is loaded, and what a file of others that does not say so wants of pixels."""

    channels: Literal["rgb", "bgr"] | None = None
    """Channel order that a file of others wants; default rgb."""
    mean: float | None = None
    """Subtracted from pixel values, for a file of others; default 127.5."""
    std: float | None = None
    """Divides the result, for a file of others; default 127.5."""
    device: str = "auto"
    """Where to compute: auto, cpu, cuda, cuda:1, mps."""
    batch_size: Count = 64
    """Images that go through the network at once."""

    def load(self, model: str | Path) -> EmbeddingModel:
        """Load a run folder, a bundle, an .onnx file or a file of weights.

        Raises:
            FacerecError: it cannot be read, or the device is not there.
        """
        from facerec.embedding.model import load_model

        return load_model(
            model,
            device=self.device,
            batch_size=self.batch_size,
            channels=self.channels,
            mean=self.mean,
            std=self.std,
        )


NETWORK = Network()


def refuse_network_flags(
    network: Network, flip: bool, align: str | None, align_threshold: float | None
) -> None:
    """Refuse the flags that say how images are embedded, where nothing is embedded.

    Raises:
        FacerecError: one of them was given.
    """
    refuse_unused(
        "says how a model embeds images, and none does here",
        {
            "--no-flip": None if flip else True,
            "--align": align,
            "--align-threshold": align_threshold,
            "--channels": network.channels,
            "--mean": network.mean,
            "--std": network.std,
        },
    )
