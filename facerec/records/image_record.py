"""The payload of an image record: MXNet's 24-byte header, labels, and the encoded image.

Header: u32 flag, f32 label, u64 id, u64 id2; then ``flag`` float32 labels, then the image
(``apache/mxnet: python/mxnet/recordio.py``, ``IRHeader``, ``pack`` and ``unpack``).
"""

from __future__ import annotations

import struct
from typing import NamedTuple

import numpy as np

from facerec.errors import RecordError

CLASS_LIMIT = 1 << 24
"""Labels are float32, which holds every integer only up to here."""

_HEADER = struct.Struct("<IfQQ")
HEADER_BYTES = _HEADER.size


class ImageRecord(NamedTuple):
    """One image and its labels, as they stand in the file.

    Attributes:
        flag: number of labels in the array; 0 means that ``label`` is the scalar of the header.
        label: the scalar, or float32 ``(flag,)``.
        id: usually the key of the record.
        id2: 0, or a mark of the program that wrote the file.
        image: the encoded image, JPEG or PNG; empty in header and identity records.
    """

    flag: int
    label: float | np.ndarray
    id: int
    id2: int
    image: bytes


def unpack(payload: bytes, where: str) -> ImageRecord:
    """Parse a payload; any flag and any labels are let through.

    Args:
        payload: what the framing returned.
        where: names the record in error messages, as in ``train.rec, key 7, offset 1234``.

    Raises:
        RecordError: the payload is shorter than its header says.
    """
    if len(payload) < HEADER_BYTES:
        raise RecordError(
            f"{where}: {len(payload)} bytes are too few for the {HEADER_BYTES}-byte header of an "
            "image record; this file holds something else, or was damaged"
        )
    flag, scalar, id_, id2 = _HEADER.unpack_from(payload)
    if flag == 0:
        return ImageRecord(0, scalar, id_, id2, payload[HEADER_BYTES:])
    end = HEADER_BYTES + 4 * flag
    if len(payload) < end:
        raise RecordError(
            f"{where}: the header announces {flag:,} labels ({end:,} bytes with the header), but "
            f"the record has {len(payload):,} bytes; it is damaged, or not an image record"
        )
    labels = np.frombuffer(payload, dtype="<f4", count=flag, offset=HEADER_BYTES)
    return ImageRecord(flag, labels.astype(np.float32), id_, id2, payload[end:])


def pack(record: ImageRecord) -> bytes:
    """Return the payload of ``record``; the scalar of the header is 0 where labels follow.

    Raises:
        RecordError: the flag is not the number of labels.
    """
    labels = np.asarray(record.label, dtype="<f4")
    if labels.shape != ((record.flag,) if record.flag else ()):
        raise RecordError(
            f"image record with id {record.id}: flag {record.flag} does not fit labels of shape "
            f"{labels.shape}; the flag counts the labels of an array and is 0 for a plain number"
        )
    scalar, array = (0.0, labels.tobytes()) if record.flag else (float(labels), b"")
    return _HEADER.pack(record.flag, scalar, record.id, record.id2) + array + record.image


def class_of(
    record: ImageRecord,
    where: str,
    num_classes: int | None = None,
    label_index: int | None = None,
) -> int:
    """Return the class of an image: the scalar label, or one of the label array.

    Args:
        record: the image record.
        where: names the record in error messages.
        num_classes: the class must be below it, when known.
        label_index: which label of an array is the class; by default the first, and then arrays
            of three or more are refused, since detection packs begin with other numbers.

    Raises:
        RecordError: the label is no class.
    """
    labels = record.label if isinstance(record.label, np.ndarray) else (record.label,)
    if label_index is None and record.flag >= 3:
        raise RecordError(
            f"{where}: {record.flag} labels, as in a pack for object detection, so it is not "
            "clear which is the class; name it with label_index"
        )
    index = label_index or 0
    if not 0 <= index < len(labels):
        raise RecordError(
            f"{where}: label_index {index} is outside its {len(labels)} labels; choose from 0, or "
            "leave label_index out"
        )
    value = float(labels[index])
    # NaN fails every comparison, infinity the upper one.
    if not 0 <= value < CLASS_LIMIT or not value.is_integer():
        raise RecordError(
            f"{where}: label {value:.9g} is not a class (integers from 0 to {CLASS_LIMIT - 1:,}); "
            "mend or remove the record"
        )
    if num_classes is not None and value >= num_classes:
        raise RecordError(
            f"{where}: label {value:.0f} is out of range for {num_classes:,} classes; correct the "
            "number of classes (first number in the file `property`) or the record"
        )
    return int(value)
