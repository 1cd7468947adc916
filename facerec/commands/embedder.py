"""How commands come by embeddings: photos and a model, or a file that has them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from rich.console import Console

from facerec.commands.all_pairs import read_members
from facerec.commands.models import print_embeddings, print_model, print_notes
from facerec.commands.networks import Network, refuse_network_flags
from facerec.embedding.align import Aligner, parse_align
from facerec.errors import DatasetError
from facerec.records.images import FolderImages, ImageSource
from facerec.report.progress import progress_bar

if TYPE_CHECKING:
    from facerec.embedding.extraction import Embeddings
    from facerec.embedding.model import EmbeddingModel
    from facerec.galleries.space import Space


@dataclass(frozen=True)
class Embedder(Network):
    """How images become embeddings; embeddings files need none of it."""

    model: Path | None = None
    """A run folder, a bundle, a .safetensors or .onnx file; needed for images."""
    align: str | None = None
    """Find the face in photos of any size: a .csv of points, insightface, or a YuNet .onnx file."""
    align_threshold: float | None = None
    """Least score of a face that the detector may find, 0 to 1."""

    @cached_property
    def network(self) -> EmbeddingModel:
        """The model, loaded when it is first needed."""
        assert self.model is not None
        return self.load(self.model)

    def refuse_unused(self, flip: bool = True) -> None:
        """Refuse flags that say how a model embeds, where none is named."""
        if self.model is None:
            refuse_network_flags(self, flip, self.align, self.align_threshold)

    def require(self, path: Path) -> None:
        """Refuse images at a path if there is no model to embed them."""
        if self.model is None:
            raise DatasetError(
                f"{path}: images must be embedded; name a model with --model, or give a file of "
                "embeddings (.npz, .parquet)"
            )

    def embed(
        self,
        path: Path,
        images: ImageSource,
        flip: bool,
        console: Console,
        *,
        on_error: Literal["error", "skip"] = "skip",
        aligner: Aligner | None = None,
        space: Space | None = None,
    ) -> Embeddings:
        """Return the embeddings of images.

        Args:
            path: of the images.
            images: from there.
            flip: add the embeddings of mirror images.
            console: where is said what is embedded, and by which model.
            on_error: what an image that does not decode does.
            aligner: finds the faces unless a flag names another.
            space: a model that does not embed into it is refused before it embeds anything.

        Raises:
            FacerecError: another model, or an image that cannot be read.
        """
        from facerec.embedding.extraction import embed_images
        from facerec.galleries.space import Space

        aligner = parse_align(self.align, self.align_threshold) or aligner
        if "network" not in vars(self):
            print_model(self.network, flip, aligner, console)
        console.print(f"images {path}: {len(images):,}")
        print_notes(images.notes, console)
        if space is not None:
            none = embed_images(self.network, images, flip=flip, align=aligner, indices=[])
            space.check(Space.of(none), str(path))
        with progress_bar(console, "images") as progress:
            return embed_images(
                self.network,
                images,
                flip=flip,
                align=aligner,
                batch_size=self.batch_size,
                on_error=on_error,
                progress=progress,
            )

    def read(
        self,
        images: Path,
        flip: bool,
        subjects: Path | None,
        console: Console,
        space: Space | None = None,
    ) -> Embeddings:
        """Return the embeddings of a folder's images or of one photo, or those of a file.

        The first folders of a folder are subjects, where no table of ``subjects`` is given.
        """
        from facerec.embedding.file import is_embeddings, read_embeddings

        if is_embeddings(images):
            self.refuse_unused()
            embeddings = read_embeddings(images)
            print_embeddings(images, embeddings, console)
        elif not images.exists():
            raise DatasetError(f"{images}: there is no such file or folder; check the path")
        else:
            self.require(images)
            photo = images.resolve()  # one photo may be a link to it
            source = FolderImages(*((photo.parent, [photo.name]) if photo.is_file() else (images,)))
            embeddings = self.embed(images, source, flip, console, space=space)
            embeddings = replace(embeddings, subjects=source.first_folders())
        if subjects is not None:
            assert embeddings.ids is not None
            named = read_members(subjects, embeddings.ids, None)[0]
            embeddings = replace(embeddings, subjects=named)
        return embeddings


DEFAULT = Embedder()
