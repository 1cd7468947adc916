"""Embeddings in Parquet tables, of facerec and of others; needs the extra ``parquet``.

The columns are those of `facerec.embedding.table`. A table that facerec wrote has a note of how it
was made in its metadata, and the columns ``norm`` and ``failure`` beside the embeddings.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from facerec.embedding.extraction import Embeddings
from facerec.embedding.note import parse_note
from facerec.embedding.table import ID, LIST, SUBJECT, Columns, embedding_columns
from facerec.errors import DatasetError, MissingExtraError
from facerec.files import check_regular
from facerec.records.images import text_array

FORMAT = 1

MAX_BYTES = 64 << 30
"""Of the columns of a file, before compression."""

NOTE_KEY = b"facerec"
"""The entry of the table's metadata that holds the note, as JSON."""

_NORM, _FAILURE = "norm", "failure"


def parquet_chunks(path: Path, numbered: bool = False) -> Iterator[Embeddings]:
    """Yield the embeddings of a Parquet table some thousand rows at a time.

    Failures are numbered within their chunk. A table that facerec wrote has its note, and so its
    norms, flip mode and reasons of failures; of other tables norms are computed.

    Args:
        path: the file.
        numbered: a table without ids is taken too; its rows are named 0, 1, …

    Raises:
        DatasetError: as `read_table`, but for an id in two chunks.
        MissingExtraError: pyarrow is not installed.
    """
    pa, pq = _pyarrow(path)
    # A buffer, as else a whole row group is read at once, which may be a whole file.
    with reading_parquet(path), pq.ParquetFile(path, buffer_size=1 << 20) as file:
        schema, metadata = file.schema_arrow, file.metadata
        header = list(schema.names)
        columns = embedding_columns(path, header, numbered)
        note = _own_note(path, (schema.metadata or {}).get(NOTE_KEY))
        wanted = columns.all
        if note is not None:
            wanted += [_NORM, _FAILURE]
            if missing := [name for name in wanted if name not in header]:
                raise DatasetError(
                    f"{path}: the column {missing[0]} is missing in a table with a note of "
                    "facerec; make it again"
                )
        for name in columns.values:
            _check_type(pa, path, name, schema.field(name).type, columns.listed)
        size = sum(
            metadata.row_group(group).total_byte_size for group in range(metadata.num_row_groups)
        )
        if size > MAX_BYTES:
            raise DatasetError(f"{path}: {size:,} bytes, at most {MAX_BYTES:,} are read")
        yield from _sized_chunks(
            path,
            (
                _read_chunk(pa, path, batch, columns, note)
                for batch in file.iter_batches(batch_size=1 << 14, columns=wanted)
            ),
            None if note is None else note[1],
        )


def parquet_rows(path: Path) -> int:
    """Return how many rows a Parquet table says it has, from its last bytes alone.

    Raises:
        DatasetError: no whole Parquet file.
        MissingExtraError: pyarrow is not installed.
    """
    _, pq = _pyarrow(path)
    with reading_parquet(path), pq.ParquetFile(path) as file:
        return int(file.metadata.num_rows)


def parquet_ids(path: Path) -> npt.NDArray[np.str_]:
    """Return the ids of a Parquet table, ``(N,)``, without reading its embeddings.

    Raises:
        DatasetError: no whole Parquet file, or it has no ids.
        MissingExtraError: pyarrow is not installed.
    """
    _, pq = _pyarrow(path)
    with reading_parquet(path), pq.ParquetFile(path) as file:
        name = embedding_columns(path, list(file.schema_arrow.names)).image
        return _text_column(file.read(columns=[name]).column(name))


def write_parquet(path: Path, embeddings: Embeddings) -> None:
    """Write embeddings as a Parquet table that says how they were made, for `write_embeddings`.

    Columns: ``image_id``, ``subject_id`` where subjects are known, ``embedding`` (a list of D
    float32; null for a failure to acquire), ``norm``, ``failure``; the note is in the metadata.

    Args:
        path: an existing file, overwritten.
        embeddings: checked already.

    Raises:
        DatasetError: an id or a subject that is no text of Unicode.
        MissingExtraError: pyarrow is not installed.
    """
    pa, pq = _pyarrow(path)
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
    columns = {ID: _texts(pa, path, embeddings.ids)}
    if embeddings.subjects is not None:
        columns[SUBJECT] = _texts(pa, path, embeddings.subjects)
    columns[LIST] = vectors
    columns[_NORM] = pa.array(embeddings.norms, mask=failed)
    columns[_FAILURE] = pa.array(
        [embeddings.failures.get(row) for row in range(count)], pa.string()
    )
    table = pa.table(columns).replace_schema_metadata(
        {NOTE_KEY: json.dumps(note, ensure_ascii=False, allow_nan=False)}
    )
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
    except OSError as problem:
        raise DatasetError(
            f"{path}: the table cannot be read ({str(problem)[:200]}); check the path"
        ) from problem
    # Damaged files end in errors of many kinds.
    except Exception as problem:
        raise DatasetError(
            f"{path}: no whole Parquet file ({type(problem).__name__}: {str(problem)[:200]}); "
            "write it again"
        ) from problem


def _pyarrow(path: Path) -> tuple[Any, Any]:
    with reading_parquet(path):
        import pyarrow as pa
        import pyarrow.parquet as pq
    return pa, pq


def _texts(pa: Any, path: Path, texts: npt.NDArray[np.str_]) -> Any:
    try:
        return pa.array(texts.tolist(), pa.string())
    except UnicodeEncodeError as problem:
        raise DatasetError(
            f"{path}: {str(problem.object)[:80]!r} is no text of Unicode, which Parquet needs; "
            "rename the image, or write an .npz file"
        ) from problem


def _own_note(path: Path, text: bytes | None) -> tuple[dict[str, Any], int] | None:
    """Return the note of a table that facerec wrote, and its dimensions; None for others.

    Raises:
        DatasetError: it is damaged, or of another format.
    """
    if text is None:
        return None
    note = parse_note(path, text, FORMAT)
    size = note.pop("dimensions", None)
    if type(size) is not int or not 0 < size <= 1 << 20:
        raise DatasetError(f"{path}: dimensions are {size!r} in its note; make the file again")
    return note, size


def _check_type(pa: Any, path: Path, name: str, kind: Any, listed: bool) -> None:
    if not listed:
        if not _is_real(pa, kind):
            raise DatasetError(f"{path}: the column {name} holds {kind}, not real numbers")
        return
    lists = (pa.types.is_list, pa.types.is_large_list, pa.types.is_fixed_size_list)
    if not any(test(kind) for test in lists) or not _is_real(pa, kind.value_type):
        raise DatasetError(f"{path}: the column {name} holds {kind}, not lists of real numbers")


def _read_chunk(
    pa: Any,
    path: Path,
    batch: Any,
    columns: Columns,
    own: tuple[dict[str, Any], int] | None,
) -> tuple[npt.NDArray[np.bool_], npt.NDArray[np.float32], Embeddings]:
    """Return which rows have an embedding ``(n,)``, their embeddings, and all else of a chunk."""
    if columns.listed:
        present, vectors = _lists(pa, path, batch.column(columns.values[0]))
    else:
        with np.errstate(over="ignore", invalid="ignore"):
            vectors = np.stack(
                [
                    # What is missing becomes NaN, which is refused beside numbers.
                    batch.column(name).to_numpy(zero_copy_only=False).astype(np.float32)
                    for name in columns.values
                ],
                axis=1,
            )
        present = np.asarray(~np.isnan(vectors).all(axis=1))
        vectors = vectors[present]
    count = batch.num_rows
    ids = _text_column(batch.column(columns.image)) if columns.image else None
    subjects = _text_column(batch.column(columns.subject)) if columns.subject else None
    norms = np.full(count, np.nan, np.float32)
    lost = np.flatnonzero(~present).tolist()
    if own is None:
        with np.errstate(over="ignore"):  # what overflows is refused by the check of the file
            norms[present] = np.linalg.norm(vectors, axis=1)
        failures = dict.fromkeys(lost, "")
        note: dict[str, Any] = {"flip": None, "source": {"path": str(path), "format": "parquet"}}
    else:
        norms[present] = batch.column(_NORM).to_numpy(zero_copy_only=False)[present]
        reasons = batch.column(_FAILURE)
        failures = {row: str(reasons[row].as_py() or "") for row in lost}
        note = own[0]
    rest = Embeddings(
        np.empty((0, 0), np.float32),
        norms,
        note["flip"],
        ids=ids,
        subjects=subjects if subjects is not None and (subjects != "").any() else None,
        failures=failures,
        note=note,
    )
    return present, vectors, rest


def _lists(
    pa: Any, path: Path, column: Any
) -> tuple[npt.NDArray[np.bool_], npt.NDArray[np.float32]]:
    """Return which rows have an embedding, and these; a list of another length ends a row."""
    import pyarrow.compute as pc

    lengths = np.asarray(pc.fill_null(pc.list_value_length(column), 0))
    present = lengths > 0
    numbers = column.flatten().to_numpy(zero_copy_only=False)
    sizes = np.unique(lengths[present])
    if len(sizes) > 1:
        raise _Ragged(int(np.flatnonzero(present & (lengths != lengths[present][0]))[0]), lengths)
    size = int(sizes[0]) if len(sizes) else 0
    with np.errstate(over="ignore", invalid="ignore"):
        vectors = numbers.astype(np.float32).reshape(int(present.sum()), size)
    # Lists of nothing but nulls or NaN are how some writers say that there is no embedding.
    some = ~np.isnan(vectors).all(axis=1)
    present[present] = some
    return present, vectors[some]


class _Ragged(Exception):
    """A list has another length than the first one of its chunk."""

    def __init__(self, row: int, lengths: npt.NDArray[Any]) -> None:
        self.row, self.length = row, int(lengths[row])
        self.first = int(lengths[lengths > 0][0])


def _sized_chunks(
    path: Path,
    chunks: Iterator[tuple[npt.NDArray[np.bool_], npt.NDArray[np.float32], Embeddings]],
    size: int | None,
) -> Iterator[Embeddings]:
    """Yield chunks whole, once an embedding has told the dimensions; rows are numbered on the way.

    Raises:
        DatasetError: an embedding of another size, a number that is not finite, an empty id, no
            embedding, or no row.
    """
    start = 0
    waiting: list[tuple[int, Embeddings]] = []
    while True:
        try:
            present, vectors, rest = next(chunks)
        except StopIteration:
            break
        except _Ragged as problem:
            raise DatasetError(
                f"{path}, row {start + problem.row}: {problem.length} values where the first "
                f"embedding has {problem.first}; mend it"
            ) from None
        if rest.ids is None:
            rest = replace(rest, ids=np.arange(start, start + len(present)).astype(np.str_))
        empty = np.flatnonzero(rest.ids == "")
        if empty.size:
            raise DatasetError(
                f"{path}, row {start + int(empty[0])}: {ID} is empty; name the image, or take the "
                "line away"
            )
        rows = np.flatnonzero(present)
        if rows.size:
            size = vectors.shape[1] if size is None else size
            if vectors.shape[1] != size:
                raise DatasetError(
                    f"{path}, row {start + int(rows[0])}: {vectors.shape[1]} values where the "
                    f"first embedding has {size}; mend it"
                )
        finite = np.isfinite(vectors)
        if not finite.all():
            row, value = np.argwhere(~finite)[0].tolist()
            raise DatasetError(
                f"{path}, row {start + int(rows[row])}: value {value} of the embedding is no "
                "finite number (of float32); mend it, or leave the embedding of an image without a "
                "face empty"
            )
        failures = {
            row: why or f"{path}, row {start + row}: it has no embedding"
            for row, why in rest.failures.items()
        }
        rest = replace(rest, failures=failures)
        if size is None:
            waiting.append((len(present), rest))
        else:
            for count, other in waiting:
                yield replace(other, vectors=np.full((count, size), np.nan, np.float32))
            waiting = []
            whole = vectors
            if len(rows) < len(present):
                whole = np.full((len(present), size), np.nan, np.float32)
                if rows.size:
                    whole[rows] = vectors
            yield replace(rest, vectors=whole)
        start += len(present)
    if not start:
        raise DatasetError(f"{path}: there are no embeddings in it; check the file")
    if waiting:
        raise DatasetError(f"{path}: no row has an embedding; check the file")


def _text_column(column: Any) -> npt.NDArray[np.str_]:
    texts = ["" if text is None else str(text) for text in column.to_pylist()]
    return text_array(texts, "the table")


def _is_real(pa: Any, kind: Any) -> bool:
    return bool(pa.types.is_floating(kind) or pa.types.is_integer(kind))
