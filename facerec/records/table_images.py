"""Training images in Parquet tables, as Hugging Face's `datasets` writes them: `image` and `label`.

Parquet has no way to a single image, so all are copied once into a file without a name, which ends
with the command (`facerec.base.large_arrays`); a set of many millions becomes records first.
"""

from __future__ import annotations

import hashlib
import json
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from facerec.base.errors import DatasetError
from facerec.base.large_arrays import scratch_folder
from facerec.base.progress import Progress
from facerec.records.images import LabelledImages
from facerec.records.recordio import CLASS_LIMIT
from facerec.records.shards import is_pattern, reading_parquet, shard_paths
from facerec.records.tar_shards import IMAGE, LABEL_KEYS

SUFFIX = ".parquet"

_ROWS = 256


def is_tables(path: Path) -> bool:
    """Tell whether a path stands for Parquet tables: a file, a pattern, or a folder of only such.

    A folder with records or folders in it is none.
    """
    if path.suffix.lower() == SUFFIX:
        return path.is_file() or is_pattern(path)
    entries = [entry for entry in path.iterdir() if entry.name[0] != "."] if path.is_dir() else []
    others = any(entry.is_dir() or entry.suffix == ".rec" for entry in entries)
    return not others and any(entry.suffix.lower() == SUFFIX for entry in entries)


class TableImages(LabelledImages):
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
        self.path, shards = path, shard_paths(path, SUFFIX)
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
                            for cell in batch.column(IMAGE).to_pylist():
                                data = cell.get("bytes") if isinstance(cell, dict) else cell
                                if not isinstance(data, bytes):
                                    raise DatasetError(
                                        f"{shard}, row {len(sizes)}: the image itself is not in "
                                        "the table; save it with the bytes of the images"
                                    )
                                sizes.append(copy.write(data))
                            labels += batch.column(label).to_pylist()
                if progress is not None:
                    progress("reading tables", number, len(shards))
            if not sum(sizes):
                raise DatasetError(f"{path}: there is no image in it; check the file")
            copy.flush()
            self._data = np.memmap(copy, np.uint8, "r")
        self._ends = np.cumsum([0, *sizes])
        if not all(isinstance(each, int) for each in labels if each is not None):
            names = sorted({str(each) for each in labels if each is not None})
            numbers = {name: number for number, name in enumerate(names)}
            labels = [None if each is None else numbers[str(each)] for each in labels]
        self._classes = np.array([-1 if each is None else each for each in labels], np.int64)
        self.num_classes = len(names or range(self._classes.max() + 1))
        wrong = (self._classes < -1) | (self._classes >= min(self.num_classes, CLASS_LIMIT))
        if wrong.any() or self._classes.max() < 0:
            row = int(wrong.argmax())
            raise DatasetError(
                f"{self.where(row)}: its label {labels[row]} is no class (from 0 to "
                f"{self.num_classes - 1:,}); number people from 0, or give them names"
            )
        self.class_names = names

    def __len__(self) -> int:
        return len(self._classes)

    def where(self, i: int) -> str:
        """Name the table and the row of image ``i``, counted through all tables."""
        return f"{self.path}, row {i}"

    def name(self, i: int) -> str:
        """Return the name, or number, of the class, and the row."""
        label = self._classes.item(i)
        known = self.class_names[label] if self.class_names and label >= 0 else str(label)
        return f"{known.replace('/', '_')}/{i}"

    def sample(self, i: int) -> tuple[bytes, int]:
        """See `LabelledImages.sample`; an image without a label is refused."""
        if (label := self._classes.item(i)) < 0:
            raise DatasetError(f"{self.where(i)}: it has no label; add it, or leave the row out")
        return self._data[self._ends[i] : self._ends[i + 1]].tobytes(), label

    def names_sha256(self) -> str:
        """Return a hash of the classes and of the size of every image, in their order."""
        digest = hashlib.sha256("\0".join(self.class_names or []).encode(errors="surrogateescape"))
        for array in (self._classes, self._ends):
            digest.update(array.tobytes())
        return digest.hexdigest()


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
