"""Images for `facerec enroll` and `facerec identify`: photos and a model, or embeddings."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from facerec.commands.all_pairs import read_members
from facerec.commands.models import print_embeddings, print_model, print_notes
from facerec.commands.networks import Network, refuse_network_flags
from facerec.embedding.align import parse_align
from facerec.errors import DatasetError
from facerec.records.images import FolderImages
from facerec.report.progress import progress_bar

if TYPE_CHECKING:
    from facerec.embedding.extraction import Embeddings
    from facerec.galleries.space import Space


@dataclass(frozen=True)
class Embedder(Network):
    """How images become embeddings; embeddings files need none of it."""

    model: Path | None = None
    """A run folder, a bundle, a .safetensors, .pth or .onnx file; needed for images."""
    align: str | None = None
    """Find the face in photos of any size: a .csv of points, insightface, or a YuNet .onnx file."""
    align_threshold: float | None = None
    """Least score of a face that the detector may find, 0 to 1."""

    def read(
        self,
        images: Path,
        flip: bool,
        subjects: Path | None,
        console: Console,
        space: Space | None = None,
    ) -> Embeddings:
        """Return the embeddings of a folder's images or of one photo, or those of a file.

        The first folders of a folder are subjects, where no table of ``subjects`` is given. A model
        that does not embed into ``space`` is refused before it embeds anything.

        Raises:
            FacerecError: no model for a folder, another model, or what cannot be read.
        """
        from facerec.embedding.extraction import embed_images
        from facerec.embedding.file import is_embeddings, read_embeddings
        from facerec.galleries.space import Space

        if is_embeddings(images):
            if self.model is None:
                refuse_network_flags(self, True, self.align, self.align_threshold)
            embeddings = read_embeddings(images)
            print_embeddings(images, embeddings, console)
        elif not images.exists():
            raise DatasetError(f"{images}: there is no such file or folder; check the path")
        elif self.model is None:
            raise DatasetError(
                f"{images}: images must be embedded; name a model with --model, or give a file of "
                "embeddings (.npz, .parquet)"
            )
        else:
            source = open_images(images)
            model = self.load(self.model)
            aligner = parse_align(self.align, self.align_threshold)
            print_model(model, flip, aligner, console)
            console.print(f"images {images}: {len(source):,}")
            print_notes(source.notes, console)
            if space is not None:
                none = embed_images(model, source, flip=flip, align=aligner, indices=[])
                space.check(Space.of(none), str(images))
            with progress_bar(console, "images") as progress:
                embeddings = embed_images(
                    model,
                    source,
                    flip=flip,
                    align=aligner,
                    batch_size=self.batch_size,
                    on_error="skip",
                    progress=progress,
                )
            embeddings = replace(embeddings, subjects=source.first_folders())
        if subjects is not None:
            assert embeddings.ids is not None
            embeddings = replace(
                embeddings, subjects=read_members(subjects, embeddings.ids, None)[0]
            )
        return embeddings


def open_images(path: Path) -> FolderImages:
    """Return the images of a folder, or one photo, which may be a link to it.

    Raises:
        DatasetError: there is no image, or the folder cannot be read.
    """
    if not path.is_file():
        return FolderImages(path)
    photo = path.resolve()
    return FolderImages(photo.parent, [photo.name])


DEFAULT = Embedder()
