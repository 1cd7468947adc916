"""A teacher's embeddings of all training images: made once, kept in a file, read by the loaders.

The teacher sees every picture before the first step. Its raw embeddings lie in one file, an array
``(images, views, T)`` of float16 that any number of processes and runs map into memory; a batch
takes its rows from there while it is loaded. What a file belongs to (the teacher's bytes and
preprocessing, the bytes of the images, the views) is hashed into its folder's name.
"""

from __future__ import annotations

import contextlib
import copy
import hashlib
import os
import re
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import Dataset

from facerec.backbones import Preprocessing
from facerec.base.errors import FacerecError, ModelError, TrainingError
from facerec.base.files import (
    NOTE,
    atomic_folder,
    check_regular,
    full_disk_sentence,
    open_file,
    parse_json,
    read_file,
    reading,
    write_json,
)
from facerec.base.limits import Checked, Limits, NonNegative, Probability
from facerec.base.progress import Progress
from facerec.base.recipe import digest, to_dict
from facerec.embedding.loading import load_model
from facerec.embedding.model import EmbeddingModel
from facerec.heads.distillation_loss import DistillationKind
from facerec.records.augment import Augmentation
from facerec.records.dataset import Batch, BatchLoader, BatchRequest, FaceDataset
from facerec.training.distributed import Processes

FORMAT = 2
ARRAY_FILE = "embeddings.npy"
NOTE_FILE = "teacher.json"
_PICTURES_AT_ONCE = 512


@dataclass(frozen=True)
class Distillation(Checked):
    """Learn a teacher's embeddings, beside the margin or instead of it (``margin`` None)."""

    teacher: Path
    """An .onnx file, a run, a bundle or a .safetensors file, of any embedding size."""
    weight: NonNegative = 1.0
    """Factor on the loss."""
    loss: DistillationKind = "cosine"
    """Distance to the teacher: cosine is 1 − the cosine to its embedding; mse the squared distance,
    norms included; relation the squared difference of the cosines of all pairs of the batch."""
    views: Annotated[int, Limits(0, 10_000)] = 0
    """Fixed augmentations of each image, each embedded by the teacher as the network sees it; epoch
    e shows number e modulo views. 0: the teacher embeds image and mirror image, and whatever else
    augmentation does to one of them leaves its target."""
    mixup: Probability = 0.0
    """Share of the views that are blends of an image and up to half of another one, which shows the
    network far more than the faces that there are (Beyer et al., CVPR 2022); needs views, and no
    margin beside it."""
    preprocessing: Preprocessing | None = None
    """Preprocessing of the teacher, where an .onnx file does not say so itself."""
    cache: Path = Path("runs/teachers")
    """Folder of the embedding files, which runs with the same teacher and images share."""


class TeacherTargets:
    """The embeddings in a whole file; workers map the same memory.

    Args:
        folder: holds the array and its note.

    Attributes:
        path: of the array.
        note: what the file belongs to, and ``scale``.
        size: dimensions of the teacher's embeddings.

    Raises:
        TrainingError: damaged.
    """

    def __init__(self, folder: Path) -> None:
        self.path = folder / ARRAY_FILE
        advice = f"delete {folder} to have it made again"
        with reading(folder, TrainingError, advice, Exception):
            self.note: dict[str, Any] = parse_json(read_file(folder / NOTE_FILE, NOTE))
            check_regular(self.path)
            self.scale = float(self.note["scale"])
            _, _, self.size = self._mapped().shape

    def _mapped(self) -> NDArray[np.float16]:
        """Map the file anew, as what a spawned worker gets would be a copy of it."""
        mapped: NDArray[np.float16] = np.load(self.path, mmap_mode="r", allow_pickle=False)
        return mapped

    def rows(self, indices: torch.Tensor, views: torch.Tensor) -> torch.Tensor:
        """Return raw embeddings, float32 ``(B, T)``.

        Args:
            indices: of the images, int64 ``(B,)``.
            views: which of their pictures, int64 ``(B,)``.
        """
        return torch.from_numpy(self._mapped()[indices.numpy(), views.numpy()].astype(np.float32))


class TaughtDataset(Dataset):
    """Batches of a data set with the teacher's targets.

    Args:
        dataset: the images; gets the views of the recipe.
        config: says which views.
        targets: of the same images.
    """

    def __init__(self, dataset: FaceDataset, config: Distillation, targets: TeacherTargets) -> None:
        self.dataset, self.targets = dataset, targets
        dataset.views, dataset.mixup = config.views, config.mixup

    def __getitems__(self, request: BatchRequest) -> Batch:
        """Return the augmented images of a request; see `FaceDataset.__getitems__`."""
        batch = self.dataset.__getitems__(request)
        assert batch.views is not None
        batch.targets = self.targets.rows(batch.indices, batch.views)
        return batch


def teacher_targets(
    config: Distillation,
    dataset: FaceDataset,
    processes: Processes,
    workers: int,
    progress: Progress | None,
) -> TeacherTargets:
    """Open the teacher's embeddings of a data set, or make them; all ranks share the work.

    Args:
        config: the teacher and the views.
        dataset: the images, with their augmentation.
        processes: this rank among its peers, which all see the same files.
        workers: processes per rank that decode.
        progress: called with the images read, and the pictures that this rank has done.

    Raises:
        ModelError: the teacher cannot be read, or gives embeddings that are not finite or zero.
        FacerecError: it takes images of another size, an image is damaged, or the file cannot be
            written.
    """
    teacher = _open_teacher(config, processes)
    facts = {
        "format": FORMAT,
        "teacher": teacher.sha256,
        "preprocessing": to_dict(teacher.preprocessing),
        "data": processes.on_main(_sha256_of_images, dataset, progress),
        "images": len(dataset),
        "image_size": list(dataset.image_size),
        "views": config.views,
        "augmentation": to_dict(dataset.augmentation) if config.views else None,
        **({"mixup": config.mixup} if config.mixup else {}),
    }
    name = re.sub(r"[^A-Za-z0-9_.-]+", "_", teacher.name).strip(".") or "teacher"
    folder = Path(config.cache) / f"{name}-{digest(facts)[:12]}"
    # Without fixed views the teacher embeds each image as it is, and mirrored.
    shape = len(dataset), config.views or 2, teacher.embedding_size
    with contextlib.ExitStack() as stack:

        def prepare() -> Path | None:
            if folder.exists():
                return None
            temporary = stack.enter_context(atomic_folder(folder))
            _reserve(temporary / ARRAY_FILE, shape)
            return temporary

        if temporary := processes.on_main(prepare):
            pictures = _Pictures(dataset, config)
            squares = _embed(temporary, teacher, pictures, processes, workers, progress)
            # To a mean square of 1 in a dimension.
            facts |= {"scale": (squares or 1) ** -0.5, "assumed": list(teacher.assumed)}
            processes.on_main(write_json, temporary / NOTE_FILE, facts)
        processes.on_main(stack.close)
    return TeacherTargets(folder)


def _sha256_of_images(dataset: FaceDataset, progress: Progress | None) -> str:
    """Hash the bytes of all images in their order, whatever their names and wherever they lie."""
    whole = hashlib.sha256()
    for i in range(len(dataset)):
        try:
            image = hashlib.sha256(dataset.encoded(i)).digest()
        except FacerecError:
            if dataset.on_error == "error":
                raise
            image = b"damaged"
        whole.update(image)
        if progress is not None and (i + 1) % 1000 == 0:
            progress("reading images, whose teacher's embeddings may be there", i + 1, len(dataset))
    return whole.hexdigest()


def _open_teacher(config: Distillation, processes: Processes) -> EmbeddingModel:
    """Load the teacher on this rank's device."""
    asked = {} if config.preprocessing is None else asdict(config.preprocessing)
    try:
        return load_model(config.teacher, device=str(processes.device), **asked)
    except ModelError:  # perhaps an onnxruntime that computes on the CPU alone
        return load_model(config.teacher, **asked)


class _Pictures(Dataset):
    """All pictures that a teacher sees; the epoch of a request is the number of the view."""

    def __init__(self, dataset: FaceDataset, config: Distillation) -> None:
        self.views = [copy.copy(dataset) for _ in range(1 if config.views else 2)]
        for number, view in enumerate(self.views):
            view.views, view.mixup = config.views, config.mixup
            if not config.views:  # as it is, and mirrored
                view.augmentation = Augmentation(flip=float(number))

    def __getitems__(self, request: BatchRequest) -> Batch:
        if len(self.views) == 1:
            return self.views[0].__getitems__(request)
        return self.views[request.epoch].__getitems__(BatchRequest(0, request.indices))

    def where(self, index: int) -> str:
        return self.views[0].where(index)


def _reserve(path: Path, shape: tuple[int, int, int]) -> None:
    """Make an array of full size, for which the disk keeps the room."""
    try:
        np.lib.format.open_memmap(path, "w+", np.float16, shape)
        with open_file(path, "r+b") as file:
            os.posix_fallocate(file.fileno(), 0, path.stat().st_size)
    except OSError as error:
        raise TrainingError(full_disk_sentence(path, error)) from error


def _embed(
    folder: Path,
    teacher: EmbeddingModel,
    pictures: _Pictures,
    processes: Processes,
    workers: int,
    progress: Progress | None,
) -> float:
    """Embed this rank's share of the pictures; an error of any rank is raised on all.

    Rows of images that could not be decoded are NaN, which no batch has.

    Returns:
        The mean square of the numbers of all ranks.
    """
    array = np.load(folder / ARRAY_FILE, mmap_mode="r+")
    count, views, _ = array.shape
    parts = np.array_split(np.arange(count), -(-count * views // _PICTURES_AT_ONCE))
    own = parts[processes.rank :: processes.world_size]
    requests = [BatchRequest(view, rows) for rows in own for view in range(views)]
    outcome: FacerecError | None = None
    done, total, squares, numbers = 0, views * sum(map(len, own)), 0.0, 0
    try:
        batches = BatchLoader(pictures, requests, workers=workers)
        for request, batch in zip(requests, batches, strict=True):
            with np.errstate(over="ignore"):
                vectors = teacher.embed(batch.images.numpy()).astype(np.float16)
            bad = np.flatnonzero(~np.isfinite(vectors).all(1) | ~vectors.any(1))
            if len(bad):
                raise ModelError(
                    f"{teacher.path}: the teacher's embedding of "
                    f"{pictures.where(int(batch.indices[bad[0]]))} is zero or holds NaN, infinity "
                    "or numbers beyond 65,504; look at its preprocessing, or take another teacher"
                )
            decoded = batch.indices.numpy() == request.indices
            vectors[~decoded] = np.nan
            array[request.indices, request.epoch] = vectors
            squares += float(np.square(vectors[decoded].astype(np.float64)).sum())
            numbers += vectors[decoded].size
            done += len(request.indices)
            if progress is not None:
                progress("the teacher looks at the images", done, total)
        array.flush()
    except FacerecError as error:
        outcome = error
    shares = processes.gather_objects((outcome, squares, numbers))
    for failure, _, _ in shares:
        if failure is not None:
            raise failure
    return sum(squares for _, squares, _ in shares) / max(sum(n for _, _, n in shares), 1)
