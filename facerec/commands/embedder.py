"""How commands come by embeddings: images and a model, or a file that has them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from facerec.commands.cli import Console, print_first
from facerec.embedding.align import Aligner, Detector, alignment_words, parse_align
from facerec.errors import DatasetError
from facerec.limits import Count, Flags
from facerec.records.images import FolderImages, ImageSource
from facerec.report.progress import progress_bar
from facerec.report.words import counted

if TYPE_CHECKING:
    from facerec.backbones import Preprocessing
    from facerec.embedding.extraction import Embeddings
    from facerec.embedding.model import EmbeddingModel
    from facerec.embedding.score_calibration import ScoreCalibration
    from facerec.galleries.space import Space


@dataclass(frozen=True)
class Embedder(Flags):
    """How images become embeddings; embeddings files need none of it."""

    model: Path | None = None
    """A run folder, a bundle, a .safetensors or .onnx file, or hf://OWNER/NAME@REVISION; needed for
    images."""
    flip: bool = True
    """Add the embeddings of each image and of its mirror image; a gallery keeps to its own
    setting."""
    align: str | None = None
    """How to find the face in photos of any size: insightface, a YuNet .onnx file, or a .csv file
    of five points of each image in pixels (image_id,x1,y1,…,x5,y5). Photos without a face are
    counted as failures to acquire."""
    align_threshold: float | None = None
    """Lowest score of a face that the detector of --align may find, from 0 to 1; by default 0.6 for
    YuNet and 0.5 for insightface."""
    on_error: Literal["error", "skip"] = "error"
    """What to do with an image that cannot be decoded: error ends the command, skip counts and
    lists it as a failure to acquire."""
    channels: Literal["rgb", "bgr"] | None = None
    """Channel order that a model from elsewhere expects; by default rgb."""
    mean: float | None = None
    """Number to subtract from pixel values (0 to 255) for such a model; by default 127.5."""
    std: float | None = None
    """Number to divide the result by; by default 127.5."""
    device: str = "auto"
    """Where to compute: auto, cpu, cuda, cuda:1 or mps."""
    batch_size: Count = 64
    """Images that the network computes at once."""

    def load(self, model: Path | None) -> EmbeddingModel:
        """Load a run folder, a bundle, an .onnx file or a file of weights.

        Raises:
            FacerecError: none is named, it cannot be read, or the device is not there.
        """
        from facerec.embedding.model import load_model

        if model is None:
            raise DatasetError(
                "images must be embedded; name a model with --model, or give a file of embeddings "
                "(.npz, .parquet)"
            )
        return load_model(
            model,
            device=self.device,
            batch_size=self.batch_size,
            channels=self.channels,
            mean=self.mean,
            std=self.std,
        )

    @cached_property
    def network(self) -> EmbeddingModel:
        """The model, loaded when it is first needed."""
        return self.load(self.model)

    def calibration(self, flip: bool) -> ScoreCalibration | None:
        """Return what a cosine of the model is worth; None where that, or the model, is unknown."""
        from facerec.embedding.recognizer import FaceRecognizer

        if "network" not in vars(self):
            return None
        return FaceRecognizer(self.network, flip=flip).calibration

    @cached_property
    def aligner(self) -> Aligner | None:
        """What finds faces; None where images are aligned."""
        return parse_align(self.align, self.align_threshold)

    def refuse_unused(self) -> None:
        """Refuse a flag that says how a model embeds, where none does."""
        for name in ("flip", "align", "align_threshold", "channels", "mean", "std"):
            value = getattr(self, name)
            if value is not None and value is not True:
                flag = name.replace("flip", "no-flip").replace("_", "-")
                raise DatasetError(
                    f"--{flag} says how a model embeds images, and none does here; leave it out"
                )

    def embed(
        self,
        path: Path,
        images: ImageSource,
        console: Console,
        aligner: Aligner | None = None,
        space: Space | None = None,
        every_face: bool = False,
    ) -> Embeddings:
        """Return the embeddings of images.

        Args:
            path: of the images.
            images: from there.
            console: where is said what is embedded, and by which model.
            aligner: finds the faces unless a flag names another.
            space: a model that does not embed into it is refused before it embeds anything.
            every_face: where a detector finds faces, each has a row, see `EveryFace`.

        Raises:
            FacerecError: another model, or an image that cannot be read.
        """
        from facerec.embedding.extraction import embed_images
        from facerec.embedding.photo_faces import EveryFace
        from facerec.galleries.space import Space

        aligner = self.aligner or aligner
        flip = self.flip and (space is None or bool(space.flip))
        if "network" not in vars(self):
            print_model(self.network, flip, aligner, console)
        print_images(path, images, console)
        if space is not None:
            none = embed_images(self.network, images, flip=flip, align=aligner, indices=[])
            space.check(Space.of(none), str(path))
        with progress_bar(console, "images") as progress:
            if every_face and isinstance(aligner, Detector):
                images = aligner = EveryFace(images, aligner, self.batch_size, progress)
            found = embed_images(
                self.network,
                images,
                flip=flip,
                align=aligner,
                batch_size=self.batch_size,
                on_error=self.on_error,
                progress=progress,
            )
        print_several(found, console)
        return found

    def read(
        self, path: Path, console: Console, space: Space | None = None, every_face: bool = False
    ) -> Embeddings:
        """Return the embeddings of a folder's images or of one photo, or those of a file.

        The first folders of a folder are subjects, unless every face has a row.
        """
        from facerec.embedding.file import is_embeddings, read_embeddings

        if is_embeddings(path):
            self.refuse_unused()
            embeddings = read_embeddings(path)
            print_embeddings(path, embeddings, console)
            return embeddings
        if not path.exists():
            raise DatasetError(f"{path}: there is no such file or folder; check the path")
        photo = path.resolve()  # one photo may be a link to it
        source = FolderImages(*((photo.parent, [photo.name]) if photo.is_file() else (path,)))
        embeddings = self.embed(path, source, console, space=space, every_face=every_face)
        return embeddings if every_face else replace(embeddings, subjects=source.first_folders())


DEFAULT = Embedder()
LENIENT = Embedder(on_error="skip")


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
    if isinstance(model, dict) and isinstance(known, dict):  # may hold anything
        views = {None: "flip unknown", True: "with flip", False: "no flip"}[embeddings.flip]
        channels, mean, std = (str(known.get(name)) for name in ("channels", "mean", "std"))
        words = f"{model.get('name')}, {channels.upper()}, (pixel − {mean}) / {std}, {views}"
    console.print(f"embeddings {path}: {words}", soft_wrap=True)
    print_several(embeddings, console)


def print_several(embeddings: Embeddings, console: Console) -> None:
    """Name photos with several faces, of which one was taken, and count them."""
    if several := [*embeddings.several.values()]:
        count = counted(len(several), "photo shows", "photos show")
        console.print(f"note: {count} several faces:", style="yellow")
        print_first(several, "embed_images returns all of them", console)


def print_images(path: object, images: ImageSource, console: Console) -> None:
    """Say how many images are at a path, and what was found on opening them."""
    console.print(f"images {path}: {len(images):,}", soft_wrap=True)
    print_notes(images.notes, console)


def print_notes(notes: Sequence[str], console: Console) -> None:
    """Say what a user should know."""
    for note in notes:
        console.print(f"note: {note}", style="yellow", soft_wrap=True)


def print_model(model: EmbeddingModel, flip: bool, align: Aligner | None, console: Console) -> None:
    """Say which model it is, what it is fed, why, and what of that is assumed."""
    height, width = model.image_size
    views = "image and mirror image summed" if flip else "image alone, no flip"
    lines = [
        f"model {model.hub or model.path}",
        f"input {width}×{height} {preprocessing_words(model.preprocessing)}; {views}",
        *(f"  evidence: {sentence}" for sentence in model.evidence[: None if model.assumed else 1]),
        *(() if align is None else (alignment_words(align.describe()),)),
    ]
    for line in lines:
        console.print(line, soft_wrap=True)
    if model.assumed:
        console.print(
            f"  assumed: {', '.join(model.assumed)}; a wrong one raises no error and costs "
            "accuracy: facerec verify --try-preprocessing compares the likely ones",
            style="yellow",
            soft_wrap=True,
        )
