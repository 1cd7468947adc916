"""Embeddings in Parquet tables, of facerec and of others; needs the extra ``parquet``.

One row an image: ``image_id``, then a list ``embedding``, or ``e0`` … ``eD-1``, and perhaps
``subject_id``, or the other names below. Other columns are passed over. A row without an embedding
is a failure to acquire. A table that facerec wrote has a note of how it was made in its metadata,
and the columns ``norm`` and ``failure``.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from facerec.embedding.check import parse_note
from facerec.embedding.extraction import Embeddings
from facerec.embedding.shards import list_shards, read_manifest
from facerec.errors import DatasetError, MissingExtraError
from facerec.files import check_regular
from facerec.large_arrays import empty
from facerec.records.images import text_array

FORMAT = 1

MAX_BYTES = 64 << 30
"""Of the embeddings of all tables that are read as one."""

NOTE_KEY = b"facerec"
"""The entry of the table's metadata that holds the note, as JSON."""

ID, SUBJECT, LIST = "image_id", "subject_id", "embedding"
IDS = (ID, "ids", "names", "images")
SUBJECTS = (SUBJECT, "subjects", "labels")
VECTORS = (LIST, "embeddings", "vectors", "features")
"""Names of columns, and of arrays in an ``.npz`` of others; the first that is there counts."""

_BATCH = 1 << 14
_TERMS = ("sha256", "preprocessing")
"""What must be the same of two models whose embeddings may be compared."""

Matrix = npt.NDArray[np.float32]


def read_parquet(path: Path, numbered: bool = False) -> Embeddings:
    """Read a table, or all shards that a path stands for as one.

    Vectors of more than some MiB lie on the disk, see `facerec.large_arrays`; some thousand rows at
    a time are in memory.

    Args:
        path: the file, a folder of them, or a pattern; see `facerec.embedding.shards`.
        numbered: a table without ids is taken too; its images are named 0, 1, …

    Raises:
        DatasetError: no whole table, another layout, a shard that is missing, has another number of
            images than its manifest says, or was made by another model or otherwise than the first.
        MissingExtraError: pyarrow is not installed.
    """
    shards = list_shards(path)
    manifest = read_manifest(path) if path.is_dir() else None
    counts = list(map(_rows, shards))
    if manifest is not None and counts != list(manifest.shards.values()):
        raise DatasetError(
            f"{path}: its shards hold {counts} images, the manifest says "
            f"{list(manifest.shards.values())}; run the job that writes them again"
        )
    vectors: Matrix | None = None
    texts: dict[str, list[str]] = {"ids": [], "subjects": []}
    norms: list[Matrix] = []
    failures: dict[int, str] = {}
    terms: dict[str, Any] = {}
    note: dict[str, Any] = {}
    for shard in shards:
        with reading_parquet(shard), _opened(shard) as file:
            note = _note(shard, path, file)
            own = _terms(note)
            if changed := [name for name in own if own[name] != terms.get(name, own[name])]:
                raise DatasetError(
                    f"{shard}: its {changed[0]} is not that of {shards[0]}; embeddings made in two "
                    "ways cannot be compared, embed all images with the same model and flags"
                )
            terms = own
            for batch in _batches(shard, file, numbered):
                start, count = sum(map(len, norms)), batch.num_rows
                present, found = _embeddings(shard, batch)
                if found.size:
                    if vectors is None:
                        vectors = _allocate(path, sum(counts), found.shape[1])
                    vectors[start : start + count][present] = found
                norms.append(_norms(batch, present, found))
                texts["ids"] += _column(batch, IDS) or map(str, range(start, start + count))
                texts["subjects"] += _column(batch, SUBJECTS) or [""] * count
                reasons = _column(batch, ("failure",)) or [""] * count
                for row in np.flatnonzero(~present).tolist():
                    failures[start + row] = reasons[row] or f"{shard}, row {row}: no embedding"
    if vectors is None and "dimensions" in note:
        vectors = _allocate(path, sum(counts), int(note["dimensions"]))
    if vectors is None:
        raise DatasetError(f"{path}: there are no embeddings in it; check the file")
    note.pop("dimensions", None)
    known = any(texts["subjects"])
    return Embeddings(
        vectors,
        np.concatenate([np.empty(0, np.float32), *norms]),
        note["flip"],
        ids=text_array(texts["ids"], str(path)),
        subjects=text_array(texts["subjects"], str(path)) if known else None,
        failures=failures,
        note=note if len(shards) == 1 else {**note, "shards": len(shards)},
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
    except OSError as problem:
        raise DatasetError(
            f"{path}: the table cannot be read ({str(problem)[:200]}); check the path"
        ) from problem
    # Damaged files end in errors of many kinds.
    except Exception as problem:
        raise DatasetError(
            f"{path}: no table of embeddings ({type(problem).__name__}: {str(problem)[:200]}); "
            f"it has {ID} and a list {LIST}, or e0, e1, …; write it again"
        ) from problem


def _opened(path: Path) -> Any:
    import pyarrow.parquet as pq

    # A buffer, as else a whole row group is read at once, which may be a whole file.
    return pq.ParquetFile(path, buffer_size=1 << 20)


def _rows(path: Path) -> int:
    with reading_parquet(path), _opened(path) as file:
        return int(file.metadata.num_rows)


def _note(shard: Path, whole: Path, file: Any) -> dict[str, Any]:
    """Return what facerec wrote about a table; of others, where it is from."""
    text = (file.schema_arrow.metadata or {}).get(NOTE_KEY)
    if text is not None:
        return parse_note(shard, text, FORMAT)
    return {"flip": None, "source": {"path": str(whole), "format": "parquet"}}


def _terms(note: dict[str, Any]) -> dict[str, Any]:
    """Return what embeddings must share to be compared, by the words of a message."""
    model = note.get("model")
    model = model if isinstance(model, dict) else {}
    stated = {f"model's {name}": model.get(name) for name in _TERMS}
    return {**stated, "flip": note["flip"], "align": note.get("align")}


def _batches(path: Path, file: Any, numbered: bool) -> Iterator[Any]:
    """Yield some thousand rows at a time of the columns that count."""
    header = list(file.schema_arrow.names)
    numbers = [
        f"e{k}" for k in range(sum(name[:1] == "e" and name[1:].isdigit() for name in header))
    ]
    lists = [name for name in VECTORS if name in header][: 0 if numbers else 1]
    ids = [name for name in IDS if name in header][:1]
    if not (lists or numbers) or not (ids or numbered) or not {*numbers} <= {*header}:
        shown = ", ".join(header[:8])[:200]
        raise DatasetError(
            f"{path}: a table of embeddings has the columns {ID} and {LIST}, or {ID} and e0, e1, "
            f"…, found {shown}"
        )
    subjects = [name for name in SUBJECTS if name in header][:1]
    own = NOTE_KEY in (file.schema_arrow.metadata or {})
    more = [name for name in ("norm", "failure") if own and name in header]
    columns = [*ids, *subjects, *lists, *numbers, *more]
    yield from file.iter_batches(batch_size=_BATCH, columns=columns)


def _embeddings(path: Path, batch: Any) -> tuple[npt.NDArray[np.bool_], Matrix]:
    """Return which rows have an embedding ``(n,)``, and these."""
    import pyarrow.compute as pc

    with np.errstate(over="ignore", invalid="ignore"):  # what overflows is refused later
        name = next((name for name in VECTORS if name in batch.schema.names), None)
        if name is None:
            count = sum(name[1:].isdigit() for name in batch.schema.names)
            columns = (batch.column(f"e{k}") for k in range(count))  # in whatever order they lie
            arrays = [column.to_numpy(zero_copy_only=False) for column in columns]
            vectors = np.stack([array.astype(np.float32) for array in arrays], axis=1)
            present = np.ones(len(vectors), bool)
        else:
            lengths = np.asarray(pc.fill_null(pc.list_value_length(batch.column(name)), 0))
            present = lengths > 0
            sizes = np.unique(lengths[present])
            if len(sizes) > 1:
                raise DatasetError(f"{path}: its embeddings have {sizes[0]} to {sizes[-1]} values")
            numbers = batch.column(name).flatten().to_numpy(zero_copy_only=False)
            vectors = numbers.astype(np.float32).reshape(int(present.sum()), *sizes)
            vectors = vectors.reshape(len(vectors), -1) if len(vectors) else np.empty((0, 0))
    # Nothing but nulls or NaN is how some writers say that there is no embedding.
    some = ~np.isnan(vectors).all(axis=1)
    present[present] = some
    return present, vectors[some].astype(np.float32)


def _norms(batch: Any, present: npt.NDArray[np.bool_], vectors: Matrix) -> Matrix:
    norms = np.full(batch.num_rows, np.nan, np.float32)
    if "norm" in batch.schema.names:
        norms[present] = batch.column("norm").to_numpy(zero_copy_only=False)[present]
    elif len(vectors):
        with np.errstate(over="ignore"):
            norms[present] = np.linalg.norm(vectors, axis=1)
    return norms


def _column(batch: Any, names: tuple[str, ...]) -> list[str]:
    """Return the texts of a column; empty where there is none."""
    name = next((name for name in names if name in batch.schema.names), None)
    values = [] if name is None else batch.column(name).to_pylist()
    return ["" if value is None else str(value) for value in values]


def _allocate(path: Path, rows: int, size: int) -> Matrix:
    if not 0 <= 4 * rows * size <= MAX_BYTES:
        raise DatasetError(f"{path}: {rows:,} embeddings of {size:,} numbers are more than is read")
    vectors: Matrix = empty((rows, size), np.float32)
    vectors[:] = np.nan
    return vectors
