"""Training images in Parquet tables, as Hugging Face's `datasets` writes them: `image` and `label`.

Parquet has no way to a single image, so all are copied once into a file without a name, which ends
with the command (`facerec.base.large_arrays`); a set of many millions becomes records first.
"""

from __future__ import annotations

import functools
import hashlib
import json
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from facerec.base.errors import DatasetError
from facerec.base.large_arrays import scratch_folder
from facerec.base.progress import Progress
from facerec.records.images import ImageSource, text_array
from facerec.records.shards import PARQUET, reading_parquet, shard_paths
from facerec.records.tar_shards import IMAGE, LABEL_KEYS

_ROWS = 256


class TableImages(ImageSource):
    """The images of Parquet tables, in the order of their rows, named ``label/row``.

    Labels that are numbers are the classes, which the metadata may name; else they are names, and
    numbered in their order. A label that is missing, or -1, is the class -1.
    """

    def __init__(self, path: Path, progress: Progress | None = None) -> None:
        """Read the tables.

        Args:
            path: a ``.parquet``, the folder of some, or a pattern such as ``data/train-*.parquet``.
            progress: called with the tables done.

        Raises:
            DatasetError: no such table, one that is damaged or without a column of images or
                labels, several splits, or an image that is not in the table.
            MissingExtraError: pyarrow is not installed.
        """
        self.path, shards = path, shard_paths(path, PARQUET)
        splits = sorted({shard.stem.split("-0")[0] for shard in shards})
        if not shards or len(splits) > 1:
            raise DatasetError(
                f"{path}: there is no table, or of several splits ({', '.join(splits)[:200]}); "
                f"name one, as '{path / (splits or ['train'])[0]}-*.parquet'"
            )
        sizes, labels = list[int](), list[Any]()
        names: list[str] | None = None
        with tempfile.TemporaryFile(dir=scratch_folder()) as copy:
            for number, shard in enumerate(shards, start=1):
                with reading_parquet(shard):
                    import pyarrow.parquet as pq

                    with pq.ParquetFile(shard) as table:
                        label = _label_column(shard, table.schema_arrow.names)
                        names = _class_names(table.schema_arrow.metadata or {}, label) or names
                        for batch in table.iter_batches(_ROWS, columns=[IMAGE, label]):
                            for row in batch.to_pylist():
                                cell = row[IMAGE]
                                data = cell.get("bytes") if isinstance(cell, dict) else cell
                                if not isinstance(data, bytes):
                                    raise DatasetError(
                                        f"{shard}, row {len(sizes)}: the image itself is not in "
                                        "the table; datasets writes it with push_to_hub, or with "
                                        "to_parquet after map(datasets.table.embed_table_storage, "
                                        "batched=True) in its format arrow"
                                    )
                                sizes.append(copy.write(data))
                                labels.append(row[label])
                if progress is not None:
                    progress("reading tables", number, len(shards))
            if not sum(sizes):
                raise DatasetError(f"{path}: there is no image in it; check the file")
            copy.flush()
            self._data = np.memmap(copy, np.uint8, "r")
        self._ends = np.cumsum([0, *sizes])
        numbers = all(isinstance(each, int) for each in labels if each is not None)
        absent = (None, -1) if numbers else (None,)
        texts = ["" if each in absent else str(each) for each in labels]
        self.number_classes(texts, numbers, names)

    def __len__(self) -> int:
        return len(self._ends) - 1

    def where(self, i: int) -> str:
        """Name the table and the row of image ``i``, counted through all tables."""
        return f"{self.path}, row {i}"

    @functools.cached_property
    def ids(self) -> NDArray[np.str_]:  # type: ignore[override]
        """The name, or number, of the class of each image, and its row."""
        names = [*self.names_of_classes(), "-1"]
        rows = enumerate(self.labels.tolist())
        return text_array([f"{names[k].replace('/', '_')}/{i}" for i, k in rows], str(self.path))

    def encoded(self, i: int) -> bytes:
        """Return the encoded image ``i``, which needs no label."""
        return self._data[self._ends[i] : self._ends[i + 1]].tobytes()

    def names_sha256(self) -> str:
        """Return a hash of the classes and of the size of every image, in their order."""
        names = "\0".join(self.class_names or []).encode(errors="surrogateescape")
        return hashlib.sha256(names + self.labels.tobytes() + self._ends.tobytes()).hexdigest()


def _label_column(path: Path, columns: list[str]) -> str:
    label = next((name for name in LABEL_KEYS if name in columns), None)
    if label is None or IMAGE not in columns:
        raise DatasetError(
            f"{path}: a table of training images has the columns {IMAGE} and {LABEL_KEYS[0]}, "
            f"found {', '.join(columns[:8])[:200]}; rename them, or name a table that has both"
        )
    return label


def _class_names(metadata: dict[bytes, bytes], label: str) -> list[str] | None:
    """Return the names that the features of Hugging Face give the classes, if they do."""
    try:
        features = json.loads(metadata[b"huggingface"])["info"]["features"]
        return [str(name) for name in features[label]["names"]]
    except (KeyError, TypeError, ValueError):
        return None
