"""``facerec embed``: a model and images → an embeddings file."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import tyro

from facerec.base.errors import DatasetError, FacerecError
from facerec.base.files import check_place, exclusive
from facerec.base.progress import section
from facerec.commands.cli import Console, print_first, run_command
from facerec.commands.embedder import (
    DEFAULT,
    Embedder,
    print_images,
    print_model,
    print_notes,
    print_several,
    unlike_note,
)
from facerec.commands.sources import Kind, open_set
from facerec.report.progress import progress_bar

if TYPE_CHECKING:
    from facerec.embedding.extraction import Embeddings
    from facerec.training.distributed import Processes

_WAIT_MINUTES = 7 * 24 * 60.0
"""How long a rank waits at the end for a slower one."""


def embed(
    out: Path,
    records: Path | None = None,
    images: Path | None = None,
    bench: str | None = None,
    data: Path | None = None,
    embedder: tyro.conf.OmitArgPrefixes[Embedder] = DEFAULT,
) -> None:
    """Embed the images of a record file, a folder or a bench into an .npz file.

    The file holds raw embeddings, norms, image ids, subjects where known, failures to acquire, face
    scores where the model has a calibration, and a note of how it was made. A stopped command goes
    on where it was when it is run again. Several GPUs or machines: torchrun --nproc-per-node 8 -m
    facerec embed …; the file is the same.

    Args:
        out: the .npz file to write; until it is complete, its parts are kept in OUT.parts/.
        records: a record file (.rec), its folder, a folder of subject/image.jpg, or WebDataset
            shards: a .tar, a folder of such, or 'shards-{000..009}.tar' in quotes.
        images: a folder of JPEG, PNG, WebP, BMP and TIFF files at any depth; ids are their paths in
            it, and its first folders are taken for subjects.
        bench: a verification set: its name (lfw, cfp_fp, agedb_30, …; ijbb, ijbc, tinyface) or its
            pack (.bin, .npz).
        data: folder to look for the verification set in, before FACEREC_DATA and data/.
        embedder: how images become embeddings.
    """
    from facerec.embedding.extraction import describe_embedding, embed_images
    from facerec.embedding.parts import EmbeddingsWriter

    check_place(out, file=True)
    choices: dict[Kind, Any] = {"records": records, "images": images, "bench": bench}
    named = [(kind, path) for kind, path in choices.items() if path is not None]
    if embedder.columns:
        raise DatasetError("--columns are those of embeddings, and none are read here")
    if len(named) != 1:
        raise DatasetError("name the images with exactly one of --records, --images and --bench")
    with _ranks() as ranks, contextlib.ExitStack() as claims:
        if ranks.world_size > 1:
            from facerec.base.devices import choose_device

            device = str(choose_device(embedder.device, int(os.environ.get("LOCAL_RANK", "0"))))
            embedder = replace(embedder, device=device)
        console = Console(quiet=not ranks.is_main)
        model = embedder.network
        source = open_set(*named[0], data, embedder.on_error)
        given: dict[str, Any] = {
            "flip": model.flip_mode(embedder.flip),
            "align": embedder.aligner or source.aligner,
            "batch_size": embedder.batch_size,
        }
        note = {**describe_embedding(model, **given), "source": source.description}
        writer = EmbeddingsWriter(out, source.images.ids, note)
        print_model(model, given["flip"], given["align"], console)
        print_images(source.description["path"], source.images, model, given["align"], console)

        def begin() -> list[int]:
            claims.enter_context(exclusive(writer.folder))
            writer.subjects = source.subjects()
            return writer.begin()

        def size(chunks: Sequence[int]) -> int:
            return sum(len(writer.rows[chunk]) for chunk in chunks)

        missing: list[int] = ranks.on_main(begin)
        # The main rank joins everybody's.
        own: list[int] = np.array_split(missing, ranks.world_size)[ranks.rank].astype(int).tolist()
        done, total = 0, size(own)
        if kept := len(source.images) - size(missing):
            console.print(f"going on: {kept:,} images are embedded already")
        try:
            with progress_bar(console, "images") as progress:
                for chunk in own:
                    rows = writer.rows[chunk]
                    embeddings = embed_images(
                        model,
                        source.images,
                        **given,
                        on_error=embedder.on_error,
                        indices=rows,
                        progress=section(progress, "embedding", done, total),
                    )
                    writer.write(chunk, embeddings)
                    done += len(rows)
        except BaseException:
            if ranks.is_main and (kept := writer.abandon()):
                console.print(
                    f"{kept:,} images are kept in {writer.folder}; the same command goes on from "
                    "there"
                )
            raise
        try:
            ranks.barrier()
        except RuntimeError as problem:
            raise FacerecError(f"{out}: another process stopped early, see there") from problem
        ranks.on_main(lambda: print_summary(writer.finish(), out, console))


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


def print_summary(written: Embeddings, path: Path, console: Console) -> None:
    """Print counts, failures, and what does not look like faces that lie as expected."""
    from facerec.embedding.placement import alike_note

    count, failed = len(written.norms), len(written.failures)
    console.print(
        f"{count - failed:,} of {count:,} images embedded, {failed:,} failures to acquire"
    )
    failures = [f"not acquired: {why}" for why in written.failures.values()]
    print_first(failures, "the file lists all", console)
    unlike = unlike_note(written, "marked in the file")
    print_notes([unlike, alike_note(written, written.subjects)], console)
    print_several(written, console)
    console.print(f"embeddings: {path}")


main = partial(run_command, embed)
