"""The embeddings file: an ``.npz`` that is never pickled, written whole or part by part.

The same goes into a Parquet table, and many such tables, or shards, are read as one file.

Arrays: ``vectors`` float32 ``(N, D)``, ``norms`` float32 ``(N,)``, ``ids`` text ``(N,)``,
``failure_rows`` int64 and ``failure_reasons`` text ``(F,)``, ``note`` (one text of JSON), and where
subjects are known ``subjects`` text ``(N,)``. Vectors and norms are NaN in the rows of failures to
acquire and nowhere else. Embeddings are personal data, so only the owner may read the file.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import zipfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from facerec.embedding.check import check_embeddings, ids_of
from facerec.embedding.extraction import Embeddings
from facerec.embedding.note import parse_note
from facerec.embedding.parquet import parquet_chunks, parquet_rows, write_parquet
from facerec.embedding.shards import (
    MANIFEST,
    is_shards,
    join_chunks,
    list_shards,
    read_shards,
    shard_chunks,
    shards_sha256,
)
from facerec.embedding.table import IDS, SUBJECTS, VECTORS, has_embeddings, read_table
from facerec.errors import DatasetError
from facerec.files import (
    atomic_path,
    fsync_directory,
    full_disk_sentence,
    parse_json,
    read_file,
    sha256,
    write_json,
)
from facerec.large_arrays import as_type
from facerec.names import same_names
from facerec.npz import ArchiveError, read_arrays
from facerec.recipe import differences
from facerec.records.images import check_unique

FORMAT = 1
MAX_BYTES = 64 << 30
"""Largest total size of the arrays in a file that is read."""

BATCHES_PER_CHUNK = 8
"""Batches after which a chunk is safe on the disk: what a kill costs at most, in each process."""

_OWN = ("vectors", "norms", "ids", "failure_rows", "failure_reasons", "note")
_BLOCK = 1 << 14

Array = npt.NDArray[Any]


def write_embeddings(path: str | Path, embeddings: Embeddings) -> None:
    """Write an embeddings file, whole or not at all; the same content gives the same bytes.

    Args:
        path: ``.npz``, or ``.parquet`` for databases and as a shard of many.
        embeddings: with ids.

    Raises:
        DatasetError: embeddings without ids or that contradict themselves, a name with another
            ending, or a file that cannot be written.
        MissingExtraError: a Parquet file without pyarrow.
    """
    path = Path(path)
    parquet = path.suffix.lower() == ".parquet"
    if not parquet:
        path = _npz(path)
    check_embeddings(path, embeddings)
    with atomic_path(path, DatasetError, private=True) as temporary:
        if parquet:
            write_parquet(temporary, embeddings)
        else:
            _write(temporary, embeddings, [embeddings])


def is_embeddings(path: str | Path) -> bool:
    """Tell embeddings from models and scores by the file's name, and a CSV by its first line.

    A folder with Parquet files in it, or a pattern of their names, is an embeddings file too.
    """
    path = Path(path)
    suffix = path.suffix.lower()
    return (
        suffix in (".npz", ".parquet")
        or (suffix == ".csv" and has_embeddings(path))
        or is_shards(path)
    )


def read_embeddings(path: str | Path, numbered: bool = False) -> Embeddings:
    """Read an embeddings file without running anything that it may contain.

    Vectors of more than some MiB lie on the disk, see `facerec.large_arrays`.

    A plain ``.npz`` of others is taken too: ``vectors``, ``embeddings`` or ``features`` ``(N, D)``,
    and ``ids``, ``names``, ``image_id`` or ``images`` ``(N,)``, perhaps ``subjects`` or ``labels``.
    Its norms are computed, its rows that are not finite are failures to acquire, and its flip mode
    is unknown. Half and double precision become float32; ``note["stored_dtype"]`` then says what it
    was. So are ``.csv`` and ``.parquet`` tables, see `facerec.embedding.table`, and shards of the
    latter: a folder, ``DIR/*.parquet`` or ``DIR/part-{000..009}.parquet``, see
    `facerec.embedding.shards`.

    Args:
        path: of the file.
        numbered: one file of others without ids is taken too; its images are named 0, 1, …

    Raises:
        DatasetError: the file is missing, damaged, pickled, too large, or contradicts itself.
        MissingExtraError: a Parquet file without pyarrow.
    """
    path = Path(path)
    if is_shards(path):
        return read_shards(path)
    suffix = path.suffix.lower()
    if suffix == ".parquet":
        embeddings = join_chunks(str(path), parquet_rows(path), parquet_chunks(path, numbered))
    elif suffix == ".csv":
        embeddings = read_table(path, numbered)
    else:
        arrays = _load(path, numbered)
        embeddings = _own(path, arrays) if "note" in arrays else _foreign(path, arrays)
    check_embeddings(path, embeddings)
    return embeddings


def embedding_chunks(path: str | Path) -> Iterator[Embeddings]:
    """Yield an embeddings file chunk by chunk, for whoever need not hold all of it.

    Shards and Parquet tables come some thousand images at a time, other files whole. Failures are
    numbered within their chunk. An image that two shards have is refused when all have been taken.

    Raises:
        DatasetError: as `read_embeddings`.
        MissingExtraError: a Parquet file without pyarrow.
    """
    path = Path(path)
    if is_shards(path) or path.suffix.lower() == ".parquet":
        yield from shard_chunks(path)
    else:
        yield read_embeddings(path)


def embeddings_files(path: str | Path) -> list[Path]:
    """Return the files that an embeddings file consists of: itself, or shards and manifest.

    Raises:
        DatasetError: a shard is missing.
    """
    path = Path(path)
    if not is_shards(path):
        return [path]
    manifest = path / MANIFEST
    return [*list_shards(path), *([manifest] if manifest.is_file() else [])]


def embeddings_sha256(path: str | Path) -> str:
    """Return the SHA-256 of an embeddings file; of shards, one from their names and hashes.

    Raises:
        DatasetError: a shard is missing.
    """
    path = Path(path)
    if not is_shards(path):
        return sha256(path)
    shards = list_shards(path)
    return shards_sha256(shards, [sha256(shard) for shard in shards])


@dataclass(frozen=True, eq=False)
class Written:
    """What a summary needs of an embeddings file that may be too large to read again."""

    path: Path
    norms: npt.NDArray[np.float32]
    """``(N,)``, NaN in the rows of failures."""
    failures: Mapping[int, str]
    """Row → why."""


class EmbeddingsWriter:
    """Writes an embeddings file part by part, so that a killed job goes on where it stopped.

    Parts are embeddings files of their own in the folder ``OUT.npz.parts`` beside the target; any
    process may write any part. At the end they are joined one at a time, and the folder goes.
    Parts have fixed boundaries, so a file does not depend on who wrote what and when.

    Args:
        path: the file, ending in ``.npz``.
        ids: id of each image, ``(N,)``, unique.
        note: see `describe_embedding`, perhaps with more fields. Parts of a job with another note
            (but for names and paths) or other ids are refused.
        subjects: see `Embeddings`.

    Raises:
        DatasetError: no image, ids that repeat, or a name that does not end in ``.npz``.
    """

    def __init__(
        self,
        path: str | Path,
        ids: npt.NDArray[np.str_],
        note: Mapping[str, Any],
        *,
        subjects: npt.NDArray[np.str_] | None = None,
    ) -> None:
        self.path = _npz(path)
        if not len(ids):
            raise DatasetError(f"{self.path}: there is no image to embed; check the source")
        ids = same_names(ids)
        check_unique(ids, str(self.path))
        self.ids, self.note, self.subjects = ids, dict(note), subjects
        self.folder = self.path.with_name(f"{self.path.name}.parts")
        self._rows_per_chunk = BATCHES_PER_CHUNK * int(self.note["batch_size"])

    def begin(self) -> list[int]:
        """Make the folder of parts, or go on with the one that is there; return missing parts.

        Raises:
            DatasetError: the folder holds parts of another job, or cannot be written.
        """
        job = {**job_identity(self.note), "images": len(self.ids), "ids": _fingerprint(self.ids)}
        file = self.folder / "job.json"
        if file.is_file():
            self._compare(file, job)
        else:
            self._make_folder()
            write_json(file, job)
        return self.missing()

    def missing(self) -> list[int]:
        """Return the numbers of the parts that are not written yet."""
        numbers = range(-(-len(self.ids) // self._rows_per_chunk))
        return [number for number in numbers if not self._file(number).is_file()]

    def rows(self, number: int) -> npt.NDArray[np.int64]:
        """Return the rows of part ``number``, ascending; whole batches but for the last one."""
        start = number * self._rows_per_chunk
        return np.arange(start, min(start + self._rows_per_chunk, len(self.ids)))

    def write(self, number: int, embeddings: Embeddings) -> None:
        """Write part ``number``, whole or not at all.

        Raises:
            DatasetError: embeddings of other images, or a file that cannot be written.
        """
        self._check_ids(number, embeddings)
        write_embeddings(self._file(number), embeddings)

    def finish(self) -> Written:
        """Join the parts into the file, and remove them.

        Raises:
            DatasetError: parts are missing or damaged, or the file cannot be written.
        """
        if missing := self.missing():
            raise DatasetError(
                f"{self.folder}: {len(missing)} parts are missing, the first is number "
                f"{missing[0]}; all processes must see the same folder, run the same command again"
            )
        first = read_embeddings(self._file(0))
        whole = replace(first, ids=self.ids, subjects=self.subjects, note=self.note)
        # Beside the parts, so that a kill leaves nothing that the next run would not clear away.
        joined = self.folder / "joined.npz"
        with atomic_path(joined, DatasetError, private=True) as temporary:
            norms, failures = _write(temporary, whole, self._chunks())
        try:
            joined.replace(self.path)
            fsync_directory(self.path.parent)
            shutil.rmtree(self.folder)
        except OSError as problem:
            raise DatasetError(full_disk_sentence(self.path, problem)) from problem
        return Written(self.path, norms, failures)

    def abandon(self) -> int:
        """Remove the folder if no part is written; return the number of images in written parts."""
        missing = self.missing()
        kept = len(self.ids) - sum(len(self.rows(number)) for number in missing)
        if not kept:
            shutil.rmtree(self.folder, ignore_errors=True)
        return kept

    def _file(self, number: int) -> Path:
        return self.folder / f"part-{number:06d}.npz"

    def _chunks(self) -> Iterator[Embeddings]:
        number = 0
        while len(self.rows(number)):
            embeddings = read_embeddings(self._file(number))
            self._check_ids(number, embeddings)
            yield embeddings
            number += 1

    def _make_folder(self) -> None:
        try:
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            # A kill while job.json was written leaves a hidden file at most.
            strangers = [path for path in self.folder.iterdir() if path.name[0] != "."]
        except OSError as problem:
            raise DatasetError(full_disk_sentence(self.folder, problem)) from problem
        if strangers:
            raise DatasetError(
                f"{self.folder}: holds {strangers[0].name} but no parts of embeddings; choose "
                "another output file or move the folder away"
            )

    def _check_ids(self, number: int, embeddings: Embeddings) -> None:
        if not np.array_equal(ids_of(self._file(number), embeddings), self.ids[self.rows(number)]):
            raise DatasetError(
                f"{self._file(number)}: holds other images than it should; remove {self.folder} "
                "and run the same command again"
            )

    def _compare(self, file: Path, job: dict[str, Any]) -> None:
        try:
            before = parse_json(read_file(file))
        except (OSError, ValueError) as problem:
            raise DatasetError(
                f"{file}: cannot be read ({problem}); remove {self.folder} and run the same "
                "command again"
            ) from problem
        if changed := differences(before, job):
            shown = ", ".join(
                f"{name} ({_shown(before, name)} there, {_shown(job, name)} now)"
                for name in changed[:4]
            )
            raise DatasetError(
                f"{self.folder}: holds parts of a job that differs in {shown}; run that command "
                "again, choose another output file, or remove the folder"
            )


def _npz(path: str | Path) -> Path:
    path = Path(path)
    if path.suffix != ".npz":
        raise DatasetError(f"{path}: an embeddings file has a name that ends in .npz; rename it")
    return path


def _write(
    path: Path, whole: Embeddings, chunks: Iterable[Embeddings]
) -> tuple[npt.NDArray[np.float32], dict[int, str]]:
    """Write the archive, holding the vectors of one chunk at a time.

    Args:
        path: an existing file, overwritten.
        whole: gives dimensions, ids, subjects, flip and note.
        chunks: give vectors, norms and failures, in order.

    Returns:
        Norms and failures of all rows.
    """
    ids = ids_of(path, whole)
    norms: list[npt.NDArray[np.float32]] = []
    failures: dict[int, str] = {}

    def vectors() -> Iterator[Array]:
        done = 0
        for chunk in chunks:
            failures.update((done + row, why) for row, why in sorted(chunk.failures.items()))
            norms.append(chunk.norms)
            done += len(chunk.norms)
            yield chunk.vectors

    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as archive:
        shape = len(ids), whole.vectors.shape[1]
        _write_array(archive, "vectors", np.dtype(np.float32), shape, vectors())
        arrays = {
            "norms": np.concatenate(norms),
            "ids": ids,
            "failure_rows": np.array(list(failures), np.int64),
            "failure_reasons": np.array(list(failures.values()), np.str_),
            "note": np.array(_note_text(whole)),
            **({} if whole.subjects is None else {"subjects": whole.subjects}),
        }
        for name, array in arrays.items():
            _write_array(archive, name, array.dtype, array.shape, [np.atleast_1d(array)])
    return arrays["norms"], failures


def _write_array(
    archive: zipfile.ZipFile,
    name: str,
    dtype: np.dtype[Any],
    shape: tuple[int, ...],
    blocks: Iterable[Array],
) -> None:
    """Write an array as one ``.npy`` member, some rows at a time."""
    # A ZipInfo of our own has a fixed date, so that equal content gives equal bytes.
    with archive.open(zipfile.ZipInfo(f"{name}.npy"), "w", force_zip64=True) as member:
        descr = np.lib.format.dtype_to_descr(dtype)
        header = {"descr": descr, "fortran_order": False, "shape": shape}
        np.lib.format.write_array_header_1_0(member, header)
        for block in blocks:
            for start in range(0, len(block), _BLOCK):
                member.write(block[start : start + _BLOCK].tobytes())


def _note_text(embeddings: Embeddings) -> str:
    note = {**embeddings.note, "format": FORMAT, "flip": embeddings.flip}
    return json.dumps(note, ensure_ascii=False, allow_nan=False)


def _load(path: Path, numbered: bool) -> dict[str, Array]:
    """Read the arrays of known names, after their headers have been held against their sizes."""
    names = {*_OWN, *VECTORS, *IDS, *SUBJECTS}
    try:
        arrays, members = read_arrays(path, path.stat().st_size, names, MAX_BYTES)
    except OSError as problem:
        raise DatasetError(
            f"{path}: the embeddings file cannot be read ({problem.strerror or problem}); give "
            "a file of facerec embed"
        ) from problem
    except ArchiveError as problem:
        raise DatasetError(
            f"{path}: not a whole .npz file ({problem}); make it again with facerec embed"
        ) from problem
    wanted = _OWN if "note" in arrays else (VECTORS,) if numbered else (VECTORS, IDS)
    for choice in wanted:
        options = (choice,) if isinstance(choice, str) else choice
        if not any(name in arrays for name in options):
            if "templates" in members:
                raise DatasetError(
                    f"{path}: this is a gallery; facerec enroll --gallery {path} --export "
                    f"{path.with_suffix('.parquet')} makes embeddings of its templates"
                )
            listed = ", ".join(sorted(members)[:10])[:200] or "nothing"
            raise DatasetError(
                f"{path}: the array {' or '.join(options)} is missing (there is {listed}); make "
                "the file again with facerec embed"
            )
    return arrays


def _own(path: Path, arrays: Mapping[str, Array]) -> Embeddings:
    note = parse_note(path, str(arrays["note"][()]), FORMAT)
    rows, reasons = arrays["failure_rows"], arrays["failure_reasons"]
    kinds = rows.dtype.kind + reasons.dtype.kind
    if rows.ndim != 1 or rows.shape != reasons.shape or kinds != "iU":
        raise DatasetError(
            f"{path}: failure_rows {rows.dtype} {rows.shape} and failure_reasons {reasons.dtype} "
            f"{reasons.shape} are not numbers and texts of one length; make the file again"
        )
    return _widened(
        path,
        Embeddings(
            arrays["vectors"],
            arrays["norms"],
            note["flip"],
            ids=arrays["ids"],
            subjects=arrays.get("subjects"),
            failures=dict(zip(rows.tolist(), reasons.tolist(), strict=True)),
            note=note,
        ),
    )


def _foreign(path: Path, arrays: Mapping[str, Array]) -> Embeddings:
    vectors = next(arrays[name] for name in VECTORS if name in arrays)
    ids = next((arrays[name] for name in IDS if name in arrays), None)
    subjects = next((arrays[name] for name in SUBJECTS if name in arrays), None)
    if vectors.ndim != 2 or vectors.dtype.kind != "f":
        raise DatasetError(
            f"{path}: embeddings are real numbers of shape (N, D), found {vectors.dtype} "
            f"{vectors.shape}"
        )
    for noun, names in (("id", ids), ("label", subjects)):
        if names is None or (names.dtype.kind in "USiu" and names.shape == (len(vectors),)):
            continue
        raise DatasetError(
            f"{path}: {len(vectors):,} embeddings need one {noun} each, a text or a whole number, "
            f"found {names.dtype} of shape {names.shape}; mend the array"
        )
    widened = _widened(
        path,
        Embeddings(
            vectors,
            np.empty(0, np.float32),
            None,
            ids=_text(np.arange(len(vectors)) if ids is None else ids),
            subjects=None if subjects is None else _text(subjects),
            note={"flip": None, "source": {"path": str(path), "format": "npz of others"}},
        ),
    )
    matrix = widened.vectors
    norms = np.empty(len(matrix), np.float32)
    with np.errstate(all="ignore"):
        for start in range(0, len(matrix), _BLOCK):
            norms[start : start + _BLOCK] = np.linalg.norm(matrix[start : start + _BLOCK], axis=1)
    failed = np.flatnonzero(~np.isfinite(norms))
    matrix[failed] = np.nan
    norms[failed] = np.nan
    why = f"{path}: its embedding is not finite"
    return replace(widened, norms=norms, failures=dict.fromkeys(failed.tolist(), why))


def _text(array: Array) -> Array:
    """Return names as text, where others stored bytes or numbers."""
    if array.dtype.kind == "S":
        return np.char.decode(array, "utf-8", "replace")
    return array.astype(np.str_) if array.dtype.kind in "iu" else array


def _widened(path: Path, embeddings: Embeddings) -> Embeddings:
    """Make everything float32, and say in the note what it was."""
    stored = embeddings.vectors.dtype
    if stored == np.float32 or stored.kind != "f":
        return embeddings
    with np.errstate(over="ignore"):  # what overflows is caught as not finite
        return replace(
            embeddings,
            vectors=as_type(embeddings.vectors, np.float32),
            norms=embeddings.norms.astype(np.float32),
            note={**embeddings.note, "stored_dtype": stored.name},
        )


def job_identity(note: Mapping[str, Any]) -> dict[str, Any]:
    """Return what makes a job the same job: a note without names, paths and device numbers."""
    kept = {name: value for name, value in note.items() if name not in ("name", "path")}
    return {
        name: job_identity(value)
        if isinstance(value, Mapping)
        else str(value).split(":")[0]
        if name == "device"
        else value
        for name, value in kept.items()
    }


def _fingerprint(ids: npt.NDArray[np.str_]) -> str:
    digest = hashlib.sha256()
    for name in ids.tolist():
        digest.update(os.fsencode(name) + b"\0")
    return digest.hexdigest()


def _shown(tree: Any, dotted: str) -> str:
    for name in dotted.split("."):
        tree = tree.get(name) if isinstance(tree, dict) else None
    return str(tree)[:40]
