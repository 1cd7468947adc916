"""How commands come by embeddings: images and a model, or a file that has them."""

from __future__ import annotations

import contextlib
import io
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import numpy as np
import tyro

from facerec.backbones.preprocessing import PerChannel, Preprocessing, numbers_words
from facerec.base.errors import DatasetError, FacerecError, RecipeError
from facerec.base.limits import Count, Flags, Probability
from facerec.base.recipe import from_dict
from facerec.commands.cli import Console, called_columns, print_first
from facerec.embedding.align import (
    INSIGHTFACE_PACK,
    MISPLACED,
    Aligner,
    Detector,
    alignment_words,
    detector_at_hand,
    displacement,
    face_template,
    parse_align,
)
from facerec.records.images import FolderImages, ImageSource
from facerec.records.other_kinds import other_kind
from facerec.report.progress import progress_bar
from facerec.report.words import counted

if TYPE_CHECKING:
    from facerec.embedding.calibration import ScoreCalibration
    from facerec.embedding.extraction import Embeddings
    from facerec.embedding.model import EmbeddingModel
    from facerec.embedding.space import Space

CROPS = 32
"""Crops of a set that a detector looks at, where one is at hand."""

MOST_MISPLACED = 0.2
"""Share of them that may show no face where the network expects it, before a line says so."""


def _per_channel(text: str) -> PerChannel:
    numbers = [float(each) for each in text.split(",")]
    if len(numbers) not in (1, 3):
        raise ValueError("one number, or three with commas between")
    return numbers[0] if len(numbers) == 1 else (numbers[0], numbers[1], numbers[2])


Pixels = Annotated[
    float | tuple[float, float, float] | None,
    tyro.constructors.PrimitiveConstructorSpec[Any](
        nargs=1,
        metavar="FLOAT[,FLOAT,FLOAT]",
        instance_from_str=lambda words: _per_channel(words[0]),
        is_instance=lambda value: value is None or isinstance(value, (float, int, tuple)),
        str_from_instance=lambda value: ["None" if value is None else numbers_words(value)],
    ),
]


@dataclass(frozen=True)
class ModelFlags(Flags):
    """How a model is loaded, in every command that loads one.

    What its calibration (MODEL.facerec.json, by facerec calibrate) says need not be said again, and
    what contradicts it is refused.
    """

    no_flip: tyro.conf.FlagCreatePairsOff[bool] = False
    """Embed each image alone. By default the embeddings of it and of its mirror image are added,
    which takes twice the time, unless the calibration or the gallery has them alone."""
    channels: Literal["rgb", "bgr"] | None = None
    """Channel order that a model from elsewhere expects; by default rgb."""
    mean: Pixels = None
    """What is subtracted from pixel values (0 to 255) for such a model, one number or three for its
    channels, as 123.675,116.28,103.53; by default 127.5."""
    std: Pixels = None
    """What the result is divided by, as --mean; by default 127.5."""
    shift: tuple[int, int] | None = None
    """Pixels by which every crop is moved to the right and down, so that its face lies where the
    network expects it; by default as the calibration has it, else 0 0."""
    device: str = "auto"
    """Where to compute: auto, cpu, cuda, cuda:1 or mps."""
    engine: Literal["auto", "onnxruntime", "openvino"] = "onnxruntime"
    """What computes an .onnx file; auto times both, which takes some seconds, and is for networks
    that are large and pictures that are many."""
    precision: Literal["fp32", "bf16"] = "fp32"
    """Numbers to compute in; bf16 is faster on processors that have it, in OpenVINO or with
    .safetensors."""
    variant: str | None = None
    """One of a bundle's variants, for example int8."""

    def load_model(self, model: Path, **options: Any) -> EmbeddingModel:
        """Load a run folder, a bundle, an .onnx file or a file of weights.

        Args:
            model: which.
            options: further ones of `facerec.embedding.loading.load_model`.

        Raises:
            FacerecError: it cannot be read, or the device is not there.
        """
        from facerec.embedding.loading import load_model

        given = {each.name: getattr(self, each.name) for each in fields(ModelFlags)}
        del given["no_flip"]
        return load_model(model, **given, **options)

    @property
    def flip(self) -> bool | None:
        """Whether mirror images are asked for; None where nothing is."""
        return False if self.no_flip else None


@dataclass(frozen=True)
class Embedder(ModelFlags):
    """How images become embeddings; embeddings files need none of it."""

    model: Path | None = None
    """A run folder, a bundle, a .safetensors or .onnx file, or hf://OWNER/NAME@REVISION; needed for
    images."""
    align: str | None = None
    """How to find the face in photos of any size: insightface, a YuNet .onnx file, or a .csv file
    of five points of each image in pixels (image_id,x1,y1,…,x5,y5): the eyes, the nose and the
    corners of the mouth, the viewer's left before the right. Photos without a face are counted as
    failures to acquire."""
    align_threshold: Probability | None = None
    """Lowest score of a face that the detector of --align may find, from 0 to 1; by default 0.6 for
    YuNet and 0.5 for insightface."""
    on_error: Literal["error", "skip"] = "error"
    """What to do with an image that cannot be decoded: error ends the command, skip counts and
    lists it as a failure to acquire."""
    batch_size: Count = 64
    """Images that the network computes at once."""
    columns: tuple[str, ...] = ()
    """What a file of embeddings calls its columns, as id=file vector=emb subject=person."""
    unchecked: bool = False
    """Take any picture for a face, also those that do not look like the faces that the model was
    calibrated on."""

    def load(self, model: Path | None, **options: Any) -> EmbeddingModel:
        """Load a model, with the options of `facerec.embedding.loading.load_model`.

        Raises:
            FacerecError: none is named, it cannot be read, or the device is not there.
        """
        if model is None:
            raise DatasetError(
                "images must be embedded; name a model with --model, or give a file of embeddings "
                "(.npz, .parquet)"
            )
        return self.load_model(model, batch_size=self.batch_size, **options)

    @cached_property
    def network(self) -> EmbeddingModel:
        """The model, loaded when it is first needed."""
        return self.load(self.model)

    @property
    def column_names(self) -> dict[str, str]:
        """What files of embeddings call their columns."""
        return called_columns(self.columns)

    @property
    def worth(self) -> ScoreCalibration | None:
        """What a cosine of the model is worth; None where that, or the model, is unknown."""
        known = self.network.calibration if "network" in vars(self) else None
        return None if known is None else known.score_calibration

    @cached_property
    def aligner(self) -> Aligner | None:
        """What finds faces; None where images are aligned."""
        return parse_align(self.align, self.align_threshold)

    def refuse_unused(self) -> None:
        """Refuse a flag that says how a model embeds, where none does."""
        for name in ("no_flip", "align", "align_threshold", "channels", "mean", "std", "shift"):
            if getattr(self, name) not in (None, False):
                raise DatasetError(
                    f"--{name.replace('_', '-')} says how a model embeds images, and none does "
                    "here; leave it out"
                )

    def embed(
        self,
        path: Path,
        images: ImageSource,
        console: Console,
        aligner: Aligner | None = None,
        space: Space | None = None,
        network: EmbeddingModel | None = None,
        every_face: bool = False,
        told: bool = False,
    ) -> Embeddings:
        """Return the embeddings of images.

        Args:
            path: of the images.
            images: from there.
            console: where is said what is embedded, and by which model.
            aligner: finds the faces unless a flag names another.
            space: a model that does not embed into it is refused before it embeds anything.
            network: the model, where it is not to be loaded as the flags say.
            every_face: where a detector finds faces, each has a row, see `EveryFace`.
            told: what model it is has been said already.

        Raises:
            FacerecError: another model, or an image that cannot be read.
        """
        from facerec.embedding.extraction import constant, embed_images
        from facerec.embedding.photo_faces import EveryFace
        from facerec.embedding.space import Space

        aligner = self.aligner or aligner
        told = told or "network" in vars(self)
        network = network or self.network
        flip = network.flip_mode(self.flip if space is None else bool(space.flip))
        if not told:
            print_model(network, flip, aligner, console)
        print_images(path, images, network, aligner, console)
        if space is not None:
            made = Space.of_model(network.describe(), flip, network.embedding_size)
            space.check(made, str(path))
        with progress_bar(console, "images") as progress:
            if every_face and isinstance(aligner, Detector):
                images = EveryFace(images, aligner, self.batch_size, progress)
                aligner = images.aligner
            found = embed_images(
                network,
                images,
                flip=flip,
                align=aligner,
                batch_size=self.batch_size,
                on_error=self.on_error,
                progress=progress,
            )
        print_several(found, console)
        print_notes([constant(found) or ""], console)
        return found

    def known(self, embeddings: Embeddings, console: Console) -> Embeddings:
        """Return embeddings without those of pictures that the model does not know as faces."""
        what = "taken all the same" if self.unchecked else "left out"
        print_notes([unlike_note(embeddings, what)], console)
        return embeddings if self.unchecked else embeddings.without_unlike()

    def read(
        self, path: Path, console: Console, space: Space | None = None, every_face: bool = False
    ) -> Embeddings:
        """Return the embeddings of a folder's images or of one photo, or those of a file.

        The first folders of a folder are subjects, unless every face has a row.
        """
        from facerec.embedding.file import is_embeddings

        if is_embeddings(path):
            self.refuse_unused()
            return self.known(read_stored(path, self.column_names, console), console)
        photo = path.resolve()  # one photo may be a link to it
        one = photo.is_file() and not other_kind(path)
        source = FolderImages(*((photo.parent, [photo.name]) if one else (path,)))
        embeddings = self.embed(path, source, console, space=space, every_face=every_face)
        if not every_face:
            embeddings = replace(embeddings, subjects=source.label_names())
        return self.known(embeddings, console)


DEFAULT = Embedder()
LENIENT = Embedder(on_error="skip")


def preprocessing_words(preprocessing: Preprocessing) -> str:
    """Return channels and scaling in a few words."""
    channels = preprocessing.channels.upper()
    mean, std = preprocessing.mean, preprocessing.std
    if (mean, std) == (0, 1):
        return f"{channels}, pixels 0…255 as they are"
    return f"{channels}, (pixel − {numbers_words(mean)}) / {numbers_words(std)}"


def read_stored(path: Path, columns: Mapping[str, str], console: Console) -> Embeddings:
    """Return embeddings on the disk; say what they were made of, as far as they say it themselves.

    Args:
        path: of their file.
        columns: what it calls its columns.
        console: where that is said.
    """
    from facerec.embedding.file import read_embeddings

    embeddings = read_embeddings(path, columns=columns)
    model: Any = embeddings.note.get("model")
    words = "how they were made is not known"
    with contextlib.suppress(LookupError, TypeError, RecipeError):  # it may hold anything
        pixels = preprocessing_words(from_dict(Preprocessing, model["preprocessing"], str(path)))
        views = {None: "flip unknown", True: "with flip", False: "no flip"}[embeddings.flip]
        words = f"{model['name']}, {pixels}, {views}"
    console.print(f"embeddings {path}: {words}")
    print_several(embeddings, console)
    return embeddings


def print_several(embeddings: Embeddings, console: Console) -> None:
    """Name photos with several faces, of which one was taken, and count them."""
    if several := [*embeddings.several.values()]:
        count = counted(len(several), "photo shows", "photos show")
        console.print(f"note: {count} several faces:", style="yellow")
        print_first(several, "embed_images returns all of them", console)


def print_images(
    path: object,
    images: ImageSource,
    model: EmbeddingModel,
    align: Aligner | None,
    console: Console,
) -> None:
    """Say how many images are at a path, and what was found on opening and looking at them."""
    console.print(f"images {path}: {len(images):,}")
    if not console.quiet:
        print_notes([*images.notes, misplaced_note(model, images, align)], console)


def print_notes(notes: Sequence[str], console: Console) -> None:
    """Say what a user should know; empty sentences are none."""
    for note in filter(None, notes):
        console.print(f"note: {note}", style="yellow")


def print_model(model: EmbeddingModel, flip: bool, align: Aligner | None, console: Console) -> None:
    """Say which model it is, what it is fed, why, and what of that is assumed."""
    (height, width), (right, down), known = model.image_size, model.shift, model.calibration
    moved = f", moved by {right} {down}" if any(model.shift) else ""
    faces = "not looked at which pictures are none (facerec calibrate finds the limits)"
    if known is not None and known.faces is not None:
        faces = f"known by a face score of {known.faces.limit:.1f} or more ({known.source})"
    views = "image and mirror image summed" if flip else "image alone, no flip"
    lines = [
        f"model {model.hub or model.path}",
        f"input {width}×{height} {preprocessing_words(model.preprocessing)}{moved}; {views}",
        f"faces: {faces}",
        *(f"  evidence: {sentence}" for sentence in model.evidence[: None if model.assumed else 1]),
        *(() if align is None else (alignment_words(align.describe()),)),
        *((f"measured: {model.timing}",) if model.timing else ()),
    ]
    for line in lines:
        console.print(line)
    if model.assumed:
        console.print(
            f"  assumed: {', '.join(model.assumed)}; a wrong one raises no error and costs "
            "accuracy: facerec verify --try-preprocessing compares the likely ones",
            style="yellow",
        )
    print_notes(model.notes, console)


def misplaced_note(model: EmbeddingModel, images: ImageSource, align: Aligner | None) -> str:
    """Return a sentence if many crops show no face where the network expects it; else an empty one.

    Only where crops are taken as they come and a detector is on this machine: nothing is
    downloaded, and a detector that cannot be used is none.

    Args:
        model: what embeds.
        images: of the set.
        align: what finds faces in them; None where they are crops.
    """
    from facerec.embedding.extraction import draw_faces

    here = Path("~/.insightface/models", INSIGHTFACE_PACK).expanduser().is_dir()
    if align is not None or (os.environ.get("FACEREC_DETECTOR") == "insightface" and not here):
        return ""
    detector, beside = None, None if model.path is None else model.path.parent
    # What insightface prints goes nowhere.
    with contextlib.suppress(FacerecError), contextlib.redirect_stderr(io.StringIO()):
        face_template(model.image_size)
        detector = detector_at_hand(None, beside)
    if detector is None:
        return ""
    crops, (right, down) = draw_faces(model, images, np.arange(len(images)), CROPS), model.shift
    far = [displacement(detector, crop, (-right, -down)) for crop in crops]
    beside_it = sum(each is not None and each > MISPLACED for each in far)
    wrong = beside_it + far.count(None)
    if wrong <= MOST_MISPLACED * len(far):
        return ""
    return (
        f"a detector looked at {len(far)} crops: {beside_it} have the face more than {MISPLACED:g} "
        f"pixels beside the place where the network expects it, and {far.count(None)} show none; "
        "align the photos (--align), or move the crops (--shift)"
    )


def unlike_note(embeddings: Embeddings, what: str) -> str:
    """Return a sentence on images that do not look like the faces of the calibration, or none."""
    count = int(embeddings.unlike.sum())
    if not count:
        return ""
    return (
        f"{count:,} of {len(embeddings.norms):,} images do not look like the faces that the model "
        f"was calibrated on (face score below {embeddings.face_limit:.1f}): {what}"
    )
