"""Embeddings in tables of others: CSV, and Parquet with the extra ``parquet``.

One row an image: ``image_id``, then ``e0`` … ``eD-1``, or one column ``embedding`` with a list, and
perhaps ``subject_id``. Other columns are passed over. A row whose embedding is empty is a failure
to acquire; anything else that is no finite number is refused by its line.
"""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from facerec.embedding.extract import Embeddings
from facerec.errors import DatasetError, MissingExtraError

SUFFIXES = (".csv", ".parquet")

MAX_BYTES = 64 << 30
"""Of the columns of a Parquet file, before compression."""

_ID, _SUBJECT, _LIST = "image_id", "subject_id", "embedding"
_NUMBERED = re.compile(r"e(0|[1-9]\d{0,5})")
_NOTHING = ("", "nan", "null", "none")

_LAYOUT = (
    f"a table of embeddings has the columns {_ID} and e0, e1, …, or {_ID} and {_LIST} with a list"
)

Row = tuple[str, str, str, npt.NDArray[np.float32] | None]
"""Where it is, image id, subject, embedding (None for a failure to acquire)."""


def read_table(path: Path) -> Embeddings:
    """Read a table of embeddings; norms are computed and the flip mode is unknown.

    Raises:
        DatasetError: no such file, another layout, a line with another number of values, or a value
            that is no finite number.
        MissingExtraError: a Parquet file without pyarrow.
    """
    parquet = path.suffix.lower() == ".parquet"
    rows = list(_parquet_rows(path) if parquet else _csv_rows(path))
    if not rows:
        raise DatasetError(f"{path}: there are no embeddings in it; check the file")
    first = next((row for row in rows if row[3] is not None), None)
    if first is None:
        raise DatasetError(f"{path}: no row has an embedding; check the file")
    assert first[3] is not None
    size = len(first[3])
    vectors = np.full((len(rows), size), np.nan, np.float32)
    places: dict[str, str] = {}
    failures: dict[int, str] = {}
    for row, (where, image, _, vector) in enumerate(rows):
        if not image:
            raise DatasetError(f"{where}: {_ID} is empty; name the image, or take the line away")
        if image in places:
            raise DatasetError(
                f"{where}: a second embedding of {image[:80]!r}, the first is at {places[image]}; "
                "keep one of them"
            )
        places[image] = where.rpartition(", ")[2]
        if vector is None:
            failures[row] = f"{where}: it has no embedding"
            continue
        if len(vector) != size:
            raise DatasetError(
                f"{where}: {len(vector)} values where the first embedding has {size}; mend it"
            )
        wrong = np.flatnonzero(~np.isfinite(vector))
        if wrong.size:
            raise DatasetError(
                f"{where}: value {wrong[0]} of the embedding is no finite number (of float32); "
                "mend it, or leave all values of an image without a face empty"
            )
        vectors[row] = vector
    subjects = np.array([row[2] for row in rows], np.str_)
    with np.errstate(over="ignore"):  # what overflows is refused by the check of the file
        norms = np.linalg.norm(vectors, axis=1)
    return Embeddings(
        vectors,
        norms,
        None,
        ids=np.array([row[1] for row in rows], np.str_),
        subjects=subjects if (subjects != "").any() else None,
        failures=failures,
        note={"flip": None, "source": {"path": str(path), "format": path.suffix.lower()[1:]}},
    )


def has_embeddings(path: Path) -> bool:
    """Tell whether the first line of a CSV file is that of a table of embeddings."""
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            header = next(csv.reader([file.readline(1 << 22)]), [])
    except (OSError, UnicodeDecodeError, csv.Error):
        return False
    names = {name.strip() for name in header}
    return _ID in names and bool({_LIST, "e0"} & names)


def _columns(path: Path, header: Sequence[str]) -> list[int]:
    """Return the places of e0, e1, …, or the one of the lists.

    Raises:
        DatasetError: neither, both, a gap, or a name that occurs twice.
    """
    doubled = sorted({name for name in header if name and header.count(name) > 1})
    if doubled:
        raise DatasetError(
            f"{path}, line 1: the column {doubled[0][:60]!r} occurs twice; rename it"
        )
    numbers = {
        int(found[1]): i for i, name in enumerate(header) if (found := _NUMBERED.fullmatch(name))
    }
    shown = ", ".join(header[:8])[:200] + (", …" if len(header) > 8 else "")
    if _ID not in header or bool(numbers) == (_LIST in header):
        raise DatasetError(f"{path}, line 1: {_LAYOUT}, found {shown or 'nothing'}")
    if _LIST in header:
        return [header.index(_LIST)]
    missing = next((k for k in range(len(numbers)) if k not in numbers), None)
    if missing is not None:
        raise DatasetError(
            f"{path}, line 1: the column e{missing} is missing, but there is e{max(numbers)}; "
            f"{_LAYOUT}"
        )
    return [numbers[k] for k in range(len(numbers))]


def _csv_rows(path: Path) -> Iterator[Row]:
    line = 1
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            reader = csv.reader(file, strict=True)
            header = [name.strip() for name in next(reader, [])]
            places = _columns(path, header)
            image = header.index(_ID)
            subject = header.index(_SUBJECT) if _SUBJECT in header else None
            for fields in reader:
                line = reader.line_num
                if not fields:
                    continue
                if len(fields) != len(header):
                    raise DatasetError(
                        f"{path}, line {line}: {len(fields)} fields where the first line has "
                        f"{len(header)}; mend the line"
                    )
                where = f"{path}, line {line}"
                vector = _vector([fields[place] for place in places], where, header[places[0]])
                person = "" if subject is None else fields[subject].strip()
                yield where, fields[image].strip(), person, vector
    except OSError as problem:
        raise DatasetError(
            f"{path}: the table cannot be read ({problem.strerror or problem}); check the path"
        ) from problem
    except (UnicodeDecodeError, csv.Error) as problem:
        raise DatasetError(
            f"{path}, after line {line}: no CSV in UTF-8 ({problem}); write it again"
        ) from problem


def _vector(fields: list[str], where: str, column: str) -> npt.NDArray[np.float32] | None:
    """Return the numbers of one line; None if there are none."""
    if all(field.strip().lower() in _NOTHING for field in fields):
        return None
    try:
        values = fields if column != _LIST else _parsed(fields[0])
        numbers = np.array(values, np.float64)
    except (ValueError, TypeError, RecursionError):
        number, field = next(
            ((i, field) for i, field in enumerate(fields) if not _is_number(field)), (0, fields[0])
        )
        name = column if column == _LIST else f"e{number}"
        what = "no list of numbers, as in [0.1, -2]" if column == _LIST else "no number"
        raise DatasetError(f"{where}: {name} is {field[:60]!r}, {what}; mend it") from None
    with np.errstate(over="ignore"):
        return numbers.astype(np.float32)


def _parsed(text: str) -> list[Any]:
    """Return a list as JSON; bool would pass for a number, and so would lists for a matrix."""
    values = json.loads(text)
    if not isinstance(values, list) or any(isinstance(x, bool | list | dict) for x in values):
        raise ValueError("no list of numbers")
    return values


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _parquet_rows(path: Path) -> Iterator[Row]:
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError as problem:
        raise MissingExtraError(
            f"{path}: reading Parquet needs pyarrow; run: pip install 'facerec[parquet]'"
        ) from problem
    try:
        with pq.ParquetFile(path) as file:
            header = list(file.schema_arrow.names)
            places = _columns(path, header)
            wanted = [
                _ID,
                *([_SUBJECT] if _SUBJECT in header else []),
                *(header[i] for i in places),
            ]
            metadata = file.metadata
            size = sum(
                metadata.row_group(group).total_byte_size
                for group in range(metadata.num_row_groups)
            )
            if size > MAX_BYTES:
                raise DatasetError(f"{path}: {size:,} bytes, at most {MAX_BYTES:,} are read")
            row = 0
            for batch in file.iter_batches(batch_size=1 << 14, columns=wanted):
                for image, person, vector in _batch(
                    pa, batch, [header[i] for i in places], path, row
                ):
                    yield f"{path}, row {row}", image, person, vector
                    row += 1
    except DatasetError:
        raise
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


def _batch(
    pa: Any, batch: Any, columns: Sequence[str], path: Path, row: int
) -> Iterator[tuple[str, str, npt.NDArray[np.float32] | None]]:
    """Yield the rows of a batch, which begins at ``row``."""
    images = batch.column(_ID).to_pylist()
    people = batch.column(_SUBJECT).to_pylist() if _SUBJECT in batch.schema.names else []
    if list(columns) == [_LIST]:
        kind = batch.schema.field(_LIST).type
        lists = (pa.types.is_list, pa.types.is_large_list, pa.types.is_fixed_size_list)
        if not any(test(kind) for test in lists) or not _is_real(pa, kind.value_type):
            raise DatasetError(
                f"{path}: the column {_LIST} holds {kind}, not lists of real numbers"
            )
        vectors = batch.column(_LIST).to_pylist()
    else:
        for name in columns:
            if not _is_real(pa, batch.schema.field(name).type):
                raise DatasetError(
                    f"{path}: the column {name} holds {batch.schema.field(name).type}, not real "
                    "numbers"
                )
        vectors = list(zip(*(batch.column(name).to_pylist() for name in columns), strict=True))
    for place, values in enumerate(vectors):
        vector = None
        if values is not None and any(value is not None for value in values):
            # A missing one among others becomes NaN, which is refused.
            with np.errstate(over="ignore"):
                vector = np.array(values, np.float64).astype(np.float32)
        person = people[place] if people else None
        image = images[place]
        yield "" if image is None else str(image), "" if person is None else str(person), vector


def _is_real(pa: Any, kind: Any) -> bool:
    return bool(pa.types.is_floating(kind) or pa.types.is_integer(kind))
