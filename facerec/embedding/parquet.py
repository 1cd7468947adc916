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
    Array,
    Called,
    find_columns,
    parse_note,
)
from facerec.embedding.extraction import Embeddings
from facerec.embedding.space import Space
from facerec.records.images import text_array
from facerec.records.shards import is_pattern, reading_parquet, shard_paths

SUFFIX = ".parquet"
JOB_FILE = "job.json"
"""Names the shards of a job that writes them into this folder; hidden when the job has ended."""

SCORE = "face_score"
"""The column of face scores, where the model had a calibration."""

NOTE_KEY = b"facerec"
"""The entry of a table's metadata that holds the note, as JSON."""


def is_shards(path: Path) -> bool:
    """Tell whether a path stands for shards: a folder with some in it, braces, or stars."""
    if path.suffix.lower() == SUFFIX and is_pattern(path):
        return True
    return path.is_dir() and any(path.glob(f"[!.]*{SUFFIX}"))


def list_shards(path: Path) -> list[Path]:
    """Return the files that a path stands for, in their order: itself, or shards.

    Raises:
        DatasetError: there is none, one that braces or an ended job name is missing, or their job
            has not ended.
    """
    shards = shard_paths(path, SUFFIX)
    there = {shard.name for shard in shards}
    for job in filter(Path.is_file, (path / JOB_FILE, path / f".{JOB_FILE}")):
        with reading_parquet(job):
            lost = [name for name in parse_json(read_file(job))["shards"] if name not in there]
        if lost or job.name == JOB_FILE:
            raise DatasetError(
                f"{path}: the job of {job.name} has not ended, or has lost shards since "
                f"({len(lost)} are not there, {str(lost[:1])[:200]}); run it again, or name the "
                f"shards that are there, as in {path / ('*' + SUFFIX)}"
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
    size = start = 0
    tables: list[Any] = []
    note: dict[str, Any] = {}
    space: Space | None = None

    def allocated(size: int) -> npt.NDArray[np.float32]:
        if not 0 <= 4 * total * size <= MAX_BYTES:
            raise DatasetError(f"{path}: {total:,} embeddings of {size:,} numbers cannot be read")
        whole = empty((total, size), np.float32)
        whole[:] = np.nan
        return whole

    for shard in shards:
        with reading_parquet(shard), _opened(shard) as file:
            import pyarrow as pa

            text = (file.schema_arrow.metadata or {}).get(NOTE_KEY)
            own = parse_note(path if text is None else shard, text)
            size = int(own.pop("dimensions", size))
            made = Space.of_model(own.get("model"), own["flip"], size)
            (space or made).compare(made, f"{shards[0]} and {shard}")
            note, space = own, made
            names = file.schema_arrow.names
            given = columns if text is None else {}
            image, subject, listed = find_columns(shard, names, given, ("vector", "id"))
            called = {"id": image} if subject is None else {"id": image, "subject": subject}
            if text is not None:
                called |= {name: name for name in ("norm", "failure", SCORE) if name in names}
            kinds = dict.fromkeys(("id", "subject", "failure"), pa.string())
            schema = pa.schema(kinds | dict.fromkeys(("norm", SCORE), pa.float32()))
            known = file.read(columns=[*called.values()]).select([*called.values()])
            wanted = pa.schema([schema.field(name) for name in called])
            tables.append(known.rename_columns([*called]).cast(wanted))
            for batch in file.iter_batches(batch_size=BLOCK, columns=[listed]):
                present, found = _rows(batch.column(0))
                if len(found):
                    vectors = allocated(found.shape[1]) if vectors is None else vectors
                    vectors[start : start + batch.num_rows][present] = found
                start += batch.num_rows
    whole = pa.concat_tables([schema.empty_table(), *tables], promote_options="default").to_pandas()
    ids, people = (whole[name].fillna("").tolist() for name in ("id", "subject"))
    scored = all(SCORE in table.column_names for table in tables)
    return Embeddings(
        allocated(size) if vectors is None else vectors,
        whole["norm"].to_numpy(np.float32, copy=True),
        note["flip"],
        ids=text_array(ids, str(path)),
        subjects=text_array(people, str(path)) if any(people) else None,
        failures=whole["failure"].dropna().to_dict(),
        face_scores=whole[SCORE].to_numpy(np.float32) if scored else None,
        note=note if len(shards) == 1 else {**note, "shards": len(shards)},
    )


def _rows(column: Any) -> tuple[Array, Array]:
    """Return which rows of a column of lists have an embedding ``(n,)``, and these."""
    import pyarrow.compute as pc

    present = np.asarray(pc.fill_null(pc.list_value_length(column), 0)) > 0
    with np.errstate(over="ignore", invalid="ignore"):  # what overflows is no embedding
        numbers = column.flatten().to_numpy(zero_copy_only=False).astype(np.float32)
    return present, numbers.reshape(present.sum(), -1 if present.any() else 0)


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
    with reading_parquet(path, "written"):
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
