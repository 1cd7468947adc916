"""Embeddings in Parquet tables, of facerec and of others; needs the extra ``parquet``.

One row an image: ``image_id``, then a list ``embedding``, or ``e0`` … ``eD-1``, and perhaps
``subject_id``, or the other names of `facerec.embedding.check`. Other columns are passed over. A
table that facerec wrote has a note of how it was made in its metadata, and the columns ``norm`` and
``failure``. Many tables, the shards, are read as one file: a folder, ``DIR/part-*.parquet`` or
``DIR/part-{000..009}.parquet``.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from facerec.embedding.check import (
    FORMAT,
    ID,
    LIST,
    MAX_BYTES,
    SUBJECT,
    assembled,
    check_notes,
    columns_of,
    parse_note,
)
from facerec.embedding.extraction import Embeddings
from facerec.errors import DatasetError, MissingExtraError
from facerec.files import check_regular, parse_json, read_file
from facerec.large_arrays import empty
from facerec.records.images import text_array
from facerec.shards import is_pattern, shard_paths

SUFFIX = ".parquet"
JOB_FILE = "job.json"
"""Stands in a folder as long as a job that writes shards into it has not ended."""

NOTE_KEY = b"facerec"
"""The entry of the table's metadata that holds the note, as JSON."""

_BATCH = 1 << 14

Matrix = npt.NDArray[np.float32]


def is_shards(path: Path) -> bool:
    """Tell whether a path stands for shards: a folder with some in it, braces, or stars."""
    if path.suffix.lower() == SUFFIX and is_pattern(path):
        return True
    return path.is_dir() and any(path.glob(f"[!.]*{SUFFIX}"))


def list_shards(path: Path) -> list[Path]:
    """Return the files that a path stands for, in their order: itself, or shards.

    Raises:
        DatasetError: there is none, one that braces name is missing, or their job has not ended.
    """
    if (path / JOB_FILE).exists():
        raise DatasetError(
            f"{path}: the job that writes its shards has not ended ({JOB_FILE} is there); run it "
            f"again, or name the shards, as in {path / ('*' + SUFFIX)}"
        )
    shards = shard_paths(path, SUFFIX)
    if (ended := path / f".{JOB_FILE}").is_file():
        there = {shard.name for shard in shards}
        if lost := [name for name in parse_json(read_file(ended))["shards"] if name not in there]:
            raise DatasetError(
                f"{path}: {len(lost)} of its shards are missing, the first is {lost[0]}; run the "
                "job that writes them again"
            )
    if not shards:
        raise DatasetError(f"{path}: there is no such file, or no {SUFFIX} file in it")
    return shards


def read_parquet(path: Path, numbered: bool = False) -> Embeddings:
    """Read a table, or all shards that a path stands for as one.

    Vectors of more than some MiB lie on the disk, see `facerec.large_arrays`; some thousand rows at
    a time are in memory.

    Args:
        path: the file, a folder of them, or a pattern.
        numbered: a table without ids is taken too; its images are named 0, 1, …

    Raises:
        DatasetError: no whole table, another layout, or a shard that is missing or was made by
            another model or otherwise than the first.
        MissingExtraError: pyarrow is not installed.
    """
    shards = list_shards(path)
    total = sum(map(_count, shards))
    vectors: Matrix | None = None
    norms = np.full(total, np.nan, np.float32)
    ids: list[str] = []
    subjects: list[str] = []
    reasons: dict[int, str] = {}
    note: dict[str, Any] = {}
    for shard in shards:
        with reading_parquet(shard), _opened(shard) as file:
            text = (file.schema_arrow.metadata or {}).get(NOTE_KEY)
            others: dict[str, Any] = {
                "flip": None,
                "source": {"path": str(path), "format": "parquet"},
            }
            own = others if text is None else parse_note(shard, text)
            check_notes(note, own, f"{shards[0]} and {shard}")
            note = own
            size = note.pop("dimensions", None)
            image, subject, values = columns_of(shard, file.schema_arrow.names, numbered)
            more = ["norm", "failure"] if text is not None else []
            columns = [name for name in (image, subject, *values, *more) if name]
            for batch in file.iter_batches(batch_size=_BATCH, columns=columns):
                start = len(ids)
                rows = slice(start, start + batch.num_rows)
                present, found = _vectors(shard, batch, values)
                if vectors is None and (found.size or size):
                    vectors = _allocate(path, total, size or found.shape[1])
                if vectors is not None and found.size:
                    vectors[rows][present] = found
                if more:
                    norms[rows] = batch.column("norm").to_numpy(zero_copy_only=False)
                    reasons |= {
                        start + row: why
                        for row, why in enumerate(batch.column("failure").to_pylist())
                        if why is not None
                    }
                ids += _texts(batch, image) or map(str, range(rows.start, rows.stop))
                subjects += _texts(batch, subject) or [""] * batch.num_rows
            if vectors is None and size:
                vectors = _allocate(path, total, size)
    if vectors is None:
        raise DatasetError(f"{path}: there are no embeddings in it; check the file")
    return assembled(
        path,
        vectors,
        text_array(ids, str(path)),
        text_array(subjects, str(path)) if any(subjects) else None,
        note if len(shards) == 1 else {**note, "shards": len(shards)},
        norms,
        reasons,
    )


def write_parquet(path: Path, embeddings: Embeddings) -> None:
    """Write embeddings as a table that says how they were made, for `write_embeddings`.

    Columns: ``image_id``, ``subject_id`` where subjects are known, ``embedding`` (a list of D
    float32; null for a failure to acquire), ``norm``, ``failure``; the note is in the metadata.

    Args:
        path: an existing file, overwritten.
        embeddings: checked already.

    Raises:
        DatasetError: an id or a subject that is no text of Unicode.
        MissingExtraError: pyarrow is not installed.
    """
    with reading_parquet(path):
        import pyarrow as pa
        import pyarrow.parquet as pq
    assert embeddings.ids is not None  # its writer sees to that
    count, size = embeddings.vectors.shape
    failed = np.zeros(count, bool)
    failed[list(embeddings.failures)] = True
    # Lists of a fixed size of which some are null cannot be read back before pyarrow 26.
    vectors = pa.LargeListArray.from_arrays(
        np.concatenate([[0], np.cumsum(np.where(failed, 0, size))]).astype(np.int64),
        pa.array(embeddings.vectors[~failed].reshape(-1)),
        mask=pa.array(failed),
    )
    note = {**embeddings.note, "format": FORMAT, "flip": embeddings.flip, "dimensions": size}
    texts = {ID: embeddings.ids}
    if embeddings.subjects is not None:
        texts[SUBJECT] = embeddings.subjects
    try:
        columns = {name: pa.array(text.tolist(), pa.string()) for name, text in texts.items()}
    except UnicodeEncodeError as problem:
        raise DatasetError(
            f"{path}: {str(problem.object)[:80]!r} is no text of Unicode, which Parquet needs; "
            "rename the image, or write an .npz file"
        ) from problem
    columns[LIST] = vectors
    columns["norm"] = pa.array(embeddings.norms, mask=failed)
    reasons = [embeddings.failures.get(row) for row in range(count)]
    columns["failure"] = pa.array(reasons, pa.string())
    metadata = {NOTE_KEY: json.dumps(note, ensure_ascii=False, allow_nan=False)}
    table = pa.table(columns).replace_schema_metadata(metadata)
    # Numbers hardly compress, and a dictionary of them is larger than they are.
    pq.write_table(table, path, compression="zstd", use_dictionary=False, store_schema=True)


@contextlib.contextmanager
def reading_parquet(path: Path) -> Iterator[None]:
    """Word what goes wrong while a table is read.

    Raises:
        DatasetError: anything did.
        MissingExtraError: pyarrow is not installed.
    """
    try:
        if path.exists():
            check_regular(path)
        yield
    except DatasetError:
        raise
    except ImportError as problem:
        raise MissingExtraError(
            f"{path}: Parquet needs pyarrow; run: pip install 'facerec[parquet]'"
        ) from problem
    # Damaged files end in errors of many kinds.
    except Exception as problem:
        raise DatasetError(
            f"{path}: the table cannot be read ({type(problem).__name__}: {str(problem)[:200]}); "
            "check the file, or write it again"
        ) from problem


def _opened(path: Path) -> Any:
    import pyarrow.parquet as pq

    # A buffer, as else a whole row group is read at once, which may be a whole file.
    return pq.ParquetFile(path, buffer_size=1 << 20)


def _count(path: Path) -> int:
    with reading_parquet(path), _opened(path) as file:
        return int(file.metadata.num_rows)


def _vectors(path: Path, batch: Any, values: list[str]) -> tuple[npt.NDArray[np.bool_], Matrix]:
    """Return which rows have an embedding ``(n,)``, and these."""
    import pyarrow as pa
    import pyarrow.compute as pc

    with np.errstate(over="ignore", invalid="ignore"):  # what overflows is no embedding
        if not pa.types.is_primitive(batch.column(values[0]).type):
            (column,) = map(batch.column, values)
            lengths = np.asarray(pc.fill_null(pc.list_value_length(column), 0))
            present = lengths > 0
            sizes = np.unique(lengths[present])
            if len(sizes) > 1:
                raise DatasetError(f"{path}: its embeddings have {sizes[0]} to {sizes[-1]} values")
            numbers = column.flatten().to_numpy(zero_copy_only=False).astype(np.float32)
            return present, numbers.reshape(int(present.sum()), *sizes)
        arrays = [batch.column(name).to_numpy(zero_copy_only=False) for name in values]
        vectors = np.stack([array.astype(np.float32) for array in arrays], axis=1)
        return np.ones(len(vectors), bool), vectors


def _texts(batch: Any, name: str | None) -> list[str]:
    """Return the texts of a column; empty where there is none."""
    values = [] if name is None else batch.column(name).to_pylist()
    return ["" if value is None else str(value) for value in values]


def _allocate(path: Path, rows: int, size: int) -> Matrix:
    if not 0 <= 4 * rows * size <= MAX_BYTES:
        raise DatasetError(f"{path}: {rows:,} embeddings of {size:,} numbers are more than is read")
    vectors: Matrix = empty((rows, size), np.float32)
    vectors[:] = np.nan
    return vectors
