"""``facerec embed``: a model and images → an embeddings file."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import tyro
from numpy.typing import NDArray

from facerec.commands.benches import open_benches
from facerec.commands.cli import Console, run_command
from facerec.commands.models import print_model, print_notes
from facerec.commands.networks import Network
from facerec.embedding.align import Aligner, parse_align
from facerec.errors import DatasetError, FacerecError
from facerec.files import check_file_name, exclusive
from facerec.progress import section
from facerec.records.images import FolderImages, ImageSource, PackImages
from facerec.report.progress import progress_bar

if TYPE_CHECKING:
    from facerec.embedding.extraction import Embeddings
    from facerec.embedding.model import EmbeddingModel
    from facerec.training.distributed import Processes

_WAIT_MINUTES = 7 * 24 * 60.0
"""How long a rank waits at the end for a slower one."""

_SHOWN_FAILURES = 10


@dataclass(frozen=True, kw_only=True)
class Job(Network):
    """What is to be embedded."""

    model: Path
    """A run folder, a bundle, a .safetensors or .onnx file."""
    out: Path
    """The .npz file to write; parts gather in OUT.parts/ until it is complete."""
    records: Path | None = None
    """A record file, its folder, a folder of subject/image.jpg, or WebDataset shards: a .tar, a
    folder of such, or 'shards-{000..009}.tar' in quotes."""
    images: Path | None = None
    """A folder with JPEG, PNG, WebP, BMP and TIFF files at any depth; ids are paths in it, and its
    first folders are taken for subjects."""
    bench: str | None = None
    """A name (lfw, cfp_fp, agedb_30, …; ijbb, ijbc, tinyface) or a pack (.bin, .npz)."""
    data: Path | None = None
    """Folder of the bench; then FACEREC_DATA and data/ are looked at."""
    flip: bool = True
    """Sum the raw embeddings of each image and its mirror image."""
    align: str | None = None
    """Find the face in photos of any size: a .csv of points (image_id,x1,y1,…,x5,y5), insightface,
    or a YuNet .onnx file. A photo without a face is a failure to acquire."""
    align_threshold: float | None = None
    """Least score of a face that the detector of --align may find, 0 to 1; default 0.6 for YuNet,
    0.5 for insightface."""
    on_error: Literal["error", "skip"] = "error"
    """What an image that does not decode does: error ends the command, skip makes it a failure to
    acquire."""


@dataclass(frozen=True, eq=False)
class Source:
    """Images to embed, and what is known of them."""

    images: ImageSource
    description: dict[str, Any]
    """For the note, as JSON types."""
    subjects: Callable[[], NDArray[np.str_] | None]
    """Reads who is on each image, ``(N,)``, empty where unknown; None if nobody is known."""
    aligner: Aligner | None = None
    """From points that come with the images; another one may be asked for."""


def embed(job: tyro.conf.OmitArgPrefixes[Job]) -> None:
    """Embed the images of a record file, a folder or a bench into an .npz file.

    The file holds raw embeddings, norms, image ids, subjects where known, failures to acquire, and
    a note of how it was made. A stopped command goes on where it was when it is run again. Several
    GPUs or machines: torchrun --nproc-per-node 8 tools/embed.py …; the file is the same.

    Args:
        job: what is to be embedded.
    """
    from facerec.embedding.extraction import describe_embedding, embed_images
    from facerec.embedding.parts import EmbeddingsWriter

    check_file_name(job.out, DatasetError)
    with _ranks() as ranks, contextlib.ExitStack() as claims:
        if ranks.world_size > 1:
            from facerec.devices import choose_device

            device = str(choose_device(job.device, int(os.environ.get("LOCAL_RANK", "0"))))
            job = replace(job, device=device)
        console = Console(quiet=not ranks.is_main, highlight=False)
        say = partial(console.print, soft_wrap=True)
        model: EmbeddingModel = job.load(job.model)
        source = open_source(
            records=job.records,
            images=job.images,
            bench=job.bench,
            data=job.data,
            on_error=job.on_error,
        )
        aligner = parse_align(job.align, job.align_threshold) or source.aligner
        note = describe_embedding(model, flip=job.flip, align=aligner, batch_size=job.batch_size)
        note["source"] = source.description
        writer = EmbeddingsWriter(job.out, source.images.ids, note)
        print_model(model, job.flip, aligner, console)
        say(f"images {source.description['path']}: {len(source.images):,}")
        print_notes(source.images.notes, console)

        def begin() -> list[int]:
            claims.enter_context(exclusive(writer.folder, DatasetError))
            writer.subjects = source.subjects()
            return writer.begin()

        def size(chunks: Sequence[int]) -> int:
            return sum(len(writer.rows(chunk)) for chunk in chunks)

        missing: list[int] = ranks.on_main(begin)
        first, last = (
            len(missing) * rank // ranks.world_size for rank in (ranks.rank, ranks.rank + 1)
        )
        own = missing[first:last]  # the main rank joins everybody's
        done, total = 0, size(own)
        if kept := len(source.images) - size(missing):
            say(f"going on: {kept:,} images are embedded already")
        try:
            with progress_bar(console, "images") as progress:
                for chunk in own:
                    rows = writer.rows(chunk)
                    embeddings = embed_images(
                        model,
                        source.images,
                        flip=job.flip,
                        align=aligner,
                        batch_size=job.batch_size,
                        on_error=job.on_error,
                        indices=rows,
                        progress=section(progress, "embedding", done, total),
                    )
                    writer.write(chunk, embeddings)
                    done += len(rows)
        except BaseException:
            if ranks.is_main and (kept := writer.abandon()):
                say(
                    f"{kept:,} images are kept in {writer.folder}; the same command goes on from "
                    "there"
                )
            raise
        try:
            ranks.barrier()
        except RuntimeError as problem:
            raise FacerecError(f"{job.out}: another process stopped early, see there") from problem
        ranks.on_main(lambda: print_summary(writer.finish(), writer.path, say))


class _Alone:
    """The one process of a command that torchrun did not start, see `Processes`."""

    rank, world_size, is_main = 0, 1, True

    def on_main(self, function: Callable[[], Any]) -> Any:
        return function()

    def barrier(self) -> None:
        pass


def _ranks() -> contextlib.AbstractContextManager[Processes | _Alone]:
    """Return this process among those that torchrun started; alone it needs no torch."""
    if int(os.environ.get("WORLD_SIZE", "1")) == 1:
        return contextlib.nullcontext(_Alone())
    from facerec.training.distributed import launched

    return launched("cpu", timeout_minutes=_WAIT_MINUTES)


def open_source(
    *,
    records: Path | None = None,
    images: Path | None = None,
    bench: str | None = None,
    data: Path | None = None,
    on_error: Literal["error", "skip"] = "error",
) -> Source:
    """Open the record file, folder or bench that the flags name.

    Raises:
        FacerecError: not exactly one is named, or it cannot be read.
    """
    from facerec.records.tar_shards import TarImages
    from facerec.records.training_set import Data, open_images

    if sum(choice is not None for choice in (records, images, bench)) != 1:
        raise DatasetError("name the images with exactly one of --records, --images and --bench")
    if records is not None:
        faces = open_images(records, Data(records, on_error=on_error))
        kind = "webdataset" if isinstance(faces, TarImages) else "records"

        def subjects() -> NDArray[np.str_] | None:
            return faces.label_names() if faces.num_classes else None

        return Source(faces, {"kind": kind, "path": str(records)}, subjects)
    if images is not None:
        folder = FolderImages(images)
        return Source(folder, {"kind": "images", "path": str(images)}, folder.first_folders)
    assert bench is not None
    return _bench(bench, data)


def _bench(name: str, data: Path | None) -> Source:
    from facerec.verification.bench import INFERRED, folders_of
    from facerec.verification.templates import TemplateBench

    (bench,) = open_benches([name], data=data)
    images = bench.images
    if isinstance(bench, TemplateBench):
        # Persons are those of templates, which may share images.
        return Source(images, {"kind": "bench", **bench.source}, lambda: None, bench.aligner())
    numbers = bench.pairs.subjects
    subjects = None if numbers is None else numbers.astype(np.str_)
    if isinstance(images, PackImages) and bench.subjects_from != INFERRED:
        # Names are better than numbers where they do not contradict the labels.
        names = folders_of(images.ids) if images.subjects is None else images.subjects
        subjects = subjects if names is None else names
    description = {"kind": "bench", **bench.source, "subjects_from": bench.subjects_from}
    return Source(images, description, lambda: subjects)


def print_summary(written: Embeddings, path: Path, say: Callable[[str], None]) -> None:
    """Print counts, failures and norms."""
    count, failed = len(written.norms), len(written.failures)
    say(f"{count - failed:,} of {count:,} images embedded, {failed:,} failures to acquire")
    for why in list(written.failures.values())[:_SHOWN_FAILURES]:
        say(f"  not acquired: {why}")
    if failed > _SHOWN_FAILURES:
        say(f"  … and {failed - _SHOWN_FAILURES:,} more, all listed in the file")
    acquired = np.isfinite(written.norms)
    if acquired.any():
        subjects = None if written.subjects is None else written.subjects[acquired]
        say(_norms(written.norms[acquired].astype(np.float64), subjects))
    say(f"embeddings: {path}")


def _norms(norms: NDArray[np.float64], subjects: NDArray[np.str_] | None) -> str:
    from facerec.verification.uncertainty import mean_interval

    basis, clusters = f"{len(norms):,} images", np.arange(len(norms))
    if subjects is not None and (subjects != "").all():
        clusters = np.unique(subjects, return_inverse=True)[1]
        basis += f" of {clusters.max() + 1:,} subjects"
    mean, std = float(norms.mean()), float(norms.std())
    interval = mean_interval(norms, clusters)
    bounds = f" [{interval.low:.4g}, {interval.high:.4g}]" if np.isfinite(interval.low) else ""
    cv = f"CV {std / mean:.4f}, " if mean else ""
    return f"mean norm {mean:.4g}{bounds} ({basis}), {cv}std {std:.4g}"


main = partial(run_command, embed)
