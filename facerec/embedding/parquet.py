"""Embeddings in Parquet tables, of facerec and of others; needs the extra ``parquet``.

One row an image: ``image_id``, ``embedding`` (a list of D float32, null for a failure to acquire),
``norm``, ``failure``, perhaps ``subject_id`` and ``face_score``, and the note in the metadata.
Tables of others have columns of ids and lists, see `facerec.embedding.check`. Many tables, the
shards, are read as one.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from facerec.base.errors import DatasetError
from facerec.base.files import parse_json, read_file
from facerec.base.large_arrays import empty
from facerec.embedding.check import (
    BLOCK,
    IDS,
    MAX_BYTES,
    SUBJECTS,
    VECTORS,
    Called,
    find_columns,
    missing_column,
    parse_note,
)
from facerec.embedding.extraction import Embeddings
from facerec.embedding.space import Space
from facerec.records.images import text_array
from facerec.records.shards import is_pattern, reading_parquet, shard_paths

SUFFIX = ".parquet"
JOB_FILE = "job.json"
"""Stands in a folder as long as a job that writes shards into it has not ended."""

SCORE = "face_score"
"""The column of face scores, where the model had a calibration."""

NOTE_KEY = b"facerec"
"""The entry of a table's metadata that holds the note, as JSON."""

Array = npt.NDArray[Any]


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
        try:
            lost = [name for name in parse_json(read_file(ended))["shards"] if name not in there]
        except (OSError, ValueError, LookupError, TypeError) as problem:
            raise DatasetError(
                f"{ended}: not what a job leaves ({str(problem)[:200]}); remove it, or run the job "
                "again"
            ) from problem
        if lost:
            raise DatasetError(
                f"{path}: {len(lost)} of its shards are missing, first {str(lost[0])[:200]!r}; "
                "run the job that writes them again"
            )
    if not shards:
        raise DatasetError(f"{path}: there is no such file, or no {SUFFIX} file in it")
    return shards


def read_parquet(path: Path, columns: Called) -> Embeddings:
    """Read a table, or all shards that a path stands for, some thousand rows at a time."""
    shards = list_shards(path)
    total = 0
    for shard in shards:
        with reading_parquet(shard), _opened(shard) as file:
            total += file.metadata.num_rows
    vectors: npt.NDArray[np.float32] | None = None
    size = 0
    ids, subjects, norms, scores = list[str](), list[str](), list[Array](), list[Array]()
    failures: dict[int, str] = {}
    note: dict[str, Any] = {}
    space: Space | None = None

    def allocated(size: int) -> npt.NDArray[np.float32]:
        if size < 1 or not 0 <= 4 * total * size <= MAX_BYTES:
            raise DatasetError(f"{path}: {total:,} embeddings of {size:,} numbers cannot be read")
        whole = empty((total, size), np.float32)
        whole[:] = np.nan
        return whole

    for shard in shards:
        with reading_parquet(shard), _opened(shard) as file:
            text = (file.schema_arrow.metadata or {}).get(NOTE_KEY)
            own = parse_note(path if text is None else shard, text)
            size = int(own.pop("dimensions", size))
            made = Space.of_model(own.get("model"), own["flip"], size)
            (space or made).compare(made, f"{shards[0]} and {shard}")
            note, space = own, made
            names = file.schema_arrow.names
            image, subject, listed = find_columns(shard, names, columns if text is None else {})
            if image is None or listed is None:
                raise missing_column(shard, "vector" if listed is None else "id", names)
            more = [] if text is None else ["norm", "failure"]
            scored = [SCORE] if text is not None and SCORE in names else []
            read = [name for name in (image, subject, listed, *more, *scored) if name]
            for batch in file.iter_batches(batch_size=BLOCK, columns=read):
                rows = range(len(ids), len(ids) + batch.num_rows)
                present, found = _rows(batch.column(listed))
                if len(found):
                    vectors = allocated(found.shape[1]) if vectors is None else vectors
                    vectors[rows.start : rows.stop][present] = found
                known = batch.column("norm") if more else np.full(len(rows), np.nan)
                norms.append(np.asarray(known, np.float32))
                if scored:
                    scores.append(np.asarray(batch.column(SCORE), np.float32))
                reasons = batch.column("failure").to_pylist() if more else []
                failures |= {rows[i]: why for i, why in enumerate(reasons) if why is not None}
                ids += _texts(batch, image)
                subjects += _texts(batch, subject) or [""] * len(rows)
    return Embeddings(
        allocated(size) if vectors is None else vectors,
        np.concatenate(norms or [np.empty(0, np.float32)]),
        note["flip"],
        ids=text_array(ids, str(path)),
        subjects=text_array(subjects, str(path)) if any(subjects) else None,
        failures=failures,
        face_scores=np.concatenate(scores)
        if scores and sum(map(len, scores)) == len(ids)
        else None,
        note=note if len(shards) == 1 else {**note, "shards": len(shards)},
    )


def _rows(column: Any) -> tuple[Array, Array]:
    """Return which rows of a column of lists have an embedding ``(n,)``, and these."""
    import pyarrow.compute as pc

    present = np.asarray(pc.fill_null(pc.list_value_length(column), 0)) > 0
    with np.errstate(over="ignore", invalid="ignore"):  # what overflows is no embedding
        numbers = column.flatten().to_numpy(zero_copy_only=False).astype(np.float32)
    return present, numbers.reshape(present.sum(), -1 if present.any() else 0)


def _texts(batch: Any, name: str | None) -> list[str]:
    """Return the texts of a column; empty where there is none."""
    values = [] if name is None else batch.column(name).to_pylist()
    return ["" if value is None else str(value) for value in values]


def _opened(path: Path) -> Any:
    import pyarrow.parquet as pq

    # A buffer, as else a whole row group is read at once, which may be a whole file.
    return pq.ParquetFile(path, buffer_size=1 << 20)


def write_parquet(path: Path, embeddings: Embeddings, note: Mapping[str, Any]) -> None:
    """Write a table; a name that is no text of Unicode, which Parquet needs, is an error."""
    assert embeddings.ids is not None  # `checked` sees to that
    count, size = embeddings.vectors.shape
    failed = np.zeros(count, bool)
    failed[[*embeddings.failures]] = True
    with reading_parquet(path):
        import pyarrow as pa
        import pyarrow.parquet as pq

        texts = {IDS[0]: embeddings.ids, SUBJECTS[0]: embeddings.subjects}
        columns = {
            name: pa.array(text.tolist(), pa.string())
            for name, text in texts.items()
            if text is not None
        }
        lists = (None if no else row for no, row in zip(failed, embeddings.vectors, strict=True))
        columns[VECTORS[0]] = pa.array(lists, pa.large_list(pa.float32()))
        columns["norm"] = pa.array(embeddings.norms, mask=failed)
        if embeddings.face_scores is not None:
            columns[SCORE] = pa.array(embeddings.face_scores, mask=failed)
        reasons = [embeddings.failures.get(row) for row in range(count)]
        columns["failure"] = pa.array(reasons, pa.string())
        text = json.dumps({**note, "dimensions": size}, ensure_ascii=False, allow_nan=False)
        table = pa.table(columns).replace_schema_metadata({NOTE_KEY: text})
        # Numbers hardly compress, and a dictionary of them is larger than they are.
        pq.write_table(table, path, compression="zstd", use_dictionary=False, store_schema=True)
