"""A teacher's embeddings of all training images: made once, kept in a file, read by the loaders.

The teacher sees every picture before the first step. Its raw embeddings lie in one file, an array
``(images, views, T)`` of float16 that any number of processes and runs map into memory; a batch
takes its rows from there while it is loaded. What a file belongs to (the teacher's bytes and
preprocessing, the bytes of the images, the views) is hashed into its folder's name.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import hashlib
import importlib.util
import json
import math
import os
import re
import shutil
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import Dataset

from facerec.backbones import Backbone, Preprocessing
from facerec.embedding.model import EmbeddingModel, load_model
from facerec.errors import FacerecError, ModelError, RecipeError, TrainingError
from facerec.files import exclusive, full_disk_sentence, parse_json, read_file, write_json
from facerec.heads.distillation_loss import DistillationKind
from facerec.limits import Checked, Limits, NonNegative, Probability
from facerec.progress import Progress
from facerec.recipe import to_dict
from facerec.records.augment import Augmentation
from facerec.records.dataset import Batch, BatchLoader, BatchRequest, FaceDataset
from facerec.training.distributed import Processes

FORMAT = 2
ARRAY_FILE = "embeddings.npy"
NOTE_FILE = "teacher.json"
"""Written last: an embedding file without it is not whole."""

_PICTURES_AT_ONCE = 512


@dataclass(frozen=True)
class Distillation(Checked):
    """Learn a teacher's embeddings, beside the margin or instead of it (``margin`` None)."""

    teacher: Path
    """An .onnx file, a run, a bundle or a .safetensors file, of any embedding size."""
    weight: NonNegative = 1.0
    """Factor on the loss."""
    loss: DistillationKind = "cosine"
    """cosine: 1 − the cosine to the teacher's embedding; mse: squared distance, norms included;
    relation: squared difference of the cosines of all pairs of the batch."""
    views: Annotated[int, Limits(0, 10_000)] = 0
    """Fixed augmentations of each image, each embedded by the teacher as the network sees it; epoch
    e shows number e modulo views. 0: the teacher embeds image and mirror image, and whatever else
    augmentation does to one of them leaves its target."""
    mixup: Probability = 0.0
    """Share of the views that are blends of an image and up to half of another one, which shows the
    network far more than the faces that there are (Beyer et al., CVPR 2022); needs views, and no
    margin beside it."""
    preprocessing: Preprocessing | None = None
    """What the teacher's pixels must go through, where an .onnx file does not say so itself."""
    cache: Path = Path("runs/teachers")
    """Folder of the embedding files, which runs with the same teacher and images share."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.mixup and not self.views:
            raise RecipeError(
                "distillation.mixup blends fixed views, and distillation.views is 0; set how many"
            )

    @property
    def pictures(self) -> int:
        """Pictures of each image that the teacher embeds."""
        return self.views or 2


class TeacherTargets:
    """The embeddings in a whole file; workers map the same memory.

    Args:
        folder: holds the array and its note.

    Attributes:
        path: of the array.
        note: what the file belongs to, and ``scale``.
        shape: images, views, dimensions.

    Raises:
        TrainingError: damaged.
    """

    def __init__(self, folder: Path) -> None:
        self.path = folder / ARRAY_FILE
        advice = f"delete {folder} to have it made again"
        try:
            self.note: dict[str, Any] = parse_json(read_file(folder / NOTE_FILE))
            self.shape: tuple[int, int, int] = self._array.shape
            self.scale = float(self.note["scale"])
            whole = self.path.stat().st_size == self.note["bytes"]
        except (OSError, ValueError, TypeError, KeyError) as error:
            raise TrainingError(f"{folder}: cannot be read ({error}); {advice}") from error
        if not whole or self._array.dtype != np.float16 or len(self.shape) != 3:
            raise TrainingError(
                f"{self.path}: not the array of embeddings that {NOTE_FILE} tells of; {advice}"
            )

    @property
    def size(self) -> int:
        """Dimensions of the teacher's embeddings."""
        return self.shape[2]

    @functools.cached_property
    def _array(self) -> NDArray[np.float16]:
        mapped: NDArray[np.float16] = np.load(self.path, mmap_mode="r", allow_pickle=False)
        return mapped

    def __getstate__(self) -> dict[str, Any]:
        # Spawned workers map the file themselves; pickling would copy it.
        return {name: value for name, value in self.__dict__.items() if name != "_array"}

    def rows(self, indices: torch.Tensor, views: torch.Tensor) -> torch.Tensor:
        """Return raw embeddings, float32 ``(B, T)``.

        Args:
            indices: of the images, int64 ``(B,)``.
            views: which of their pictures, int64 ``(B,)``.
        """
        return torch.from_numpy(self._array[indices.numpy(), views.numpy()].astype(np.float32))


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


def distillation_warnings(
    config: Distillation, backbone: Backbone, targets: TeacherTargets
) -> list[str]:
    """Return one sentence for each doubtful choice of student and teacher."""
    sentences = []
    if assumed := targets.note.get("assumed"):
        sentences.append(
            f"{config.teacher} does not say which {', '.join(assumed)} its pixels need, so usual "
            "values are taken; give them as distillation.preprocessing if you know better"
        )
    direct = config.loss != "relation" and backbone.embedding_size == targets.size
    if direct and backbone.embedding_bn == "frozen_gamma":
        sentences.append(
            "the last BatchNorm (embedding_bn='frozen_gamma') gives all dimensions of an embedding "
            "the same spread, which the teacher's do not have; choose embedding_bn='affine'"
        )
    return sentences


def teacher_targets(
    config: Distillation,
    dataset: FaceDataset,
    processes: Processes,
    *,
    workers: int = 0,
    progress: Progress | None = None,
) -> TeacherTargets:
    """Open the teacher's embeddings of a data set, or make them; all ranks share the work.

    Args:
        config: the teacher and the views.
        dataset: the images, with their augmentation.
        processes: this rank among its peers, which all see the same files.
        workers: processes per rank that decode.
        progress: called with the images read, and the pictures that this rank has done.

    Raises:
        ModelError: the teacher cannot be read, takes images of another size, or gives embeddings
            that are not finite or zero.
        FacerecError: an image is damaged, or the file cannot be written.
    """
    teacher = _open_teacher(config, dataset, processes)
    facts = {
        "format": FORMAT,
        "teacher": teacher.sha256,
        "preprocessing": to_dict(teacher.preprocessing),
        "data": processes.on_main(lambda: _sha256_of_images(dataset, progress)),
        "images": len(dataset),
        "image_size": list(dataset.image_size),
        "views": config.views,
        "augmentation": to_dict(dataset.augmentation) if config.views else None,
        **({"mixup": config.mixup} if config.mixup else {}),
    }
    key = hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()
    name = re.sub(r"[^A-Za-z0-9_.-]+", "_", teacher.name).strip(".") or "teacher"
    folder, shape = Path(config.cache) / f"{name}-{key[:12]}", (len(dataset), config.pictures)
    with contextlib.ExitStack() as stack:

        def prepare() -> bool:
            if folder.exists():
                return False
            stack.enter_context(exclusive(folder, TrainingError))
            return not folder.exists()  # somebody else may just have finished

        if processes.on_main(prepare):
            hidden = folder.with_name(f".{folder.name}.part")
            try:
                processes.on_main(lambda: _begin(hidden, (*shape, teacher.embedding_size)))
                _look(hidden, teacher, _Pictures(dataset, config), processes, workers, progress)
                processes.on_main(lambda: _finish(hidden, folder, teacher, facts))
            except BaseException:
                if processes.is_main:
                    shutil.rmtree(hidden, ignore_errors=True)
                raise
    targets = TeacherTargets(folder)
    if any(targets.note.get(name) != value for name, value in facts.items()):
        raise TrainingError(
            f"{folder}: its {NOTE_FILE} tells of another teacher or other images than those of "
            "this run; delete the folder to have the embeddings made again"
        )
    return targets


def _sha256_of_images(dataset: FaceDataset, progress: Progress | None) -> str:
    """Hash the bytes of all images in their order, whatever their names and wherever they lie."""
    digest = hashlib.sha256()
    for i in range(len(dataset)):
        try:
            image = hashlib.sha256(dataset.encoded(i)).digest()
        except FacerecError:
            if dataset.on_error == "error":
                raise
            image = b"damaged"
        digest.update(image)
        if progress is not None and (i + 1) % 1000 == 0:
            progress("reading images, whose teacher's embeddings may be there", i + 1, len(dataset))
    return digest.hexdigest()


def _open_teacher(
    config: Distillation, dataset: FaceDataset, processes: Processes
) -> EmbeddingModel:
    """Load the teacher on this rank's device."""
    asked = {} if config.preprocessing is None else asdict(config.preprocessing)
    device = str(processes.device)
    if Path(config.teacher).suffix == ".onnx" and not _computes_on(processes.device):
        device = "cpu"
    teacher = load_model(config.teacher, device=device, **asked)
    if teacher.image_size != dataset.image_size:
        sizes = " and ".join(
            "×".join(map(str, s)) for s in (teacher.image_size, dataset.image_size)
        )
        raise ModelError(
            f"{config.teacher}: teacher and training images must have one size, found {sizes} "
            "pixels; take another teacher"
        )
    return teacher


def _computes_on(device: torch.device) -> bool:
    """Tell whether the onnxruntime that is installed can compute on a GPU."""
    if device.type != "cuda" or importlib.util.find_spec("onnxruntime") is None:
        return False
    import onnxruntime

    return "CUDAExecutionProvider" in onnxruntime.get_available_providers()


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


def _begin(folder: Path, shape: tuple[int, int, int]) -> None:
    """Make an array of full size, for which the disk keeps the room."""
    shutil.rmtree(folder, ignore_errors=True)  # of a process that was killed
    path = folder / ARRAY_FILE
    try:
        folder.mkdir(parents=True)
        np.lib.format.open_memmap(path, "w+", np.float16, shape)
        with path.open("r+b") as file:
            os.posix_fallocate(file.fileno(), 0, path.stat().st_size)
    except OSError as error:
        raise TrainingError(full_disk_sentence(path, error)) from error


def _look(
    folder: Path,
    teacher: EmbeddingModel,
    pictures: _Pictures,
    processes: Processes,
    workers: int,
    progress: Progress | None,
) -> None:
    """Embed this rank's share of the pictures; an error of any rank is raised on all."""
    array = np.load(folder / ARRAY_FILE, mmap_mode="r+")
    count, views, _ = array.shape
    parts = np.array_split(np.arange(count), -(-count * views // _PICTURES_AT_ONCE))
    own = parts[processes.rank :: processes.world_size]
    requests = [BatchRequest(view, rows) for rows in own for view in range(views)]
    outcome: FacerecError | None = None
    done, total = 0, views * sum(map(len, own))
    try:
        batches = BatchLoader(pictures, requests, workers=workers)
        for request, batch in zip(requests, batches, strict=True):
            array[request.indices, request.epoch] = _vectors(teacher, pictures, request, batch)
            done += len(request.indices)
            if progress is not None:
                progress("the teacher looks at the images", done, total)
        array.flush()
    except FacerecError as error:
        outcome = error
    for failure in processes.gather_objects(outcome):
        if failure is not None:
            raise failure


def _vectors(
    teacher: EmbeddingModel, pictures: _Pictures, request: BatchRequest, batch: Batch
) -> NDArray[np.float16]:
    """Embed a batch; rows of images that could not be decoded are NaN, which no batch has."""
    vectors = teacher.embed(batch.images.numpy())
    with np.errstate(over="ignore"):
        stored = vectors.astype(np.float16)
    bad = np.flatnonzero(~np.isfinite(stored).all(1) | ~stored.any(1))
    if len(bad):
        where = pictures.where(int(batch.indices[bad[0]]))
        raise ModelError(
            f"{teacher.path}: the teacher's embedding of {where} is zero or holds NaN, infinity or "
            "numbers beyond 65,504; look at its preprocessing, or take another teacher"
        )
    stored[batch.indices.numpy() != request.indices] = np.nan
    return stored


def _finish(hidden: Path, folder: Path, teacher: EmbeddingModel, facts: dict[str, Any]) -> None:
    """Give the folder its name, with a note on what it holds."""
    array = np.load(hidden / ARRAY_FILE, mmap_mode="r")
    count, total = 0, 0.0
    for start in range(0, len(array), 4096):
        vectors = array[start : start + 4096].astype(np.float64)
        vectors = vectors[~np.isnan(vectors[..., 0])]
        count += len(vectors)
        total += float(np.square(vectors).sum())
    note = {
        **facts,
        "assumed": list(teacher.assumed),
        "path": str(teacher.path),
        "bytes": (hidden / ARRAY_FILE).stat().st_size,
        "pictures": count,
        # To a mean square of 1 in a dimension.
        "scale": 1 / math.sqrt(total / max(count * array.shape[2], 1)),
    }
    write_json(hidden / NOTE_FILE, note)
    hidden.rename(folder)
