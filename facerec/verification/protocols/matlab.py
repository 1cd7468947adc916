"""MATLAB files of versions 4 to 7, read in another process.

SciPy reads outside its memory on some damaged files, which ends the process that does it.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from facerec.base.errors import DatasetError
from facerec.base.files import read_file, reading
from facerec.embedding.trial import run_apart

MAX_MAT_BYTES = 64 << 20
"""Largest file that is read; lists of images have a few megabytes at most."""

_PROGRAM = """
import io, json, os
# Every thread would take of the memory that the process may have.
os.environ.update(OPENBLAS_NUM_THREADS="1", OMP_NUM_THREADS="1")
from scipy.io import loadmat
try:
    import resource
    resource.setrlimit(resource.RLIMIT_AS, (4 << 30, 4 << 30))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
except (ImportError, ValueError):
    pass
def plain(value):
    fields = getattr(value, "_fieldnames", None)
    return value.tolist() if fields is None else {name: getattr(value, name) for name in fields}
names = sys.argv[1:]
try:
    content = io.BytesIO(sys.stdin.buffer.read())
    found = loadmat(content, variable_names=names, squeeze_me=True, struct_as_record=False)
    text = json.dumps({name: found[name] for name in names}, default=plain, ensure_ascii=False)
    sys.stdout.buffer.write(text.encode())  # refuses halves of characters
except Exception as problem:
    sys.exit(ascii(f"{type(problem).__name__}: {problem}"[:200])[1:-1])
"""


def read_mat(path: Path, names: Sequence[str]) -> dict[str, Any]:
    """Read variables as lists, dictionaries (of structures), text and numbers.

    Dimensions of length one are left out, so a list of one element comes as that element; see
    `many`. Another process reads, with bounded memory and time.

    Raises:
        FacerecError: it cannot be read, is no such file, or lacks a variable.
    """
    with reading(path, DatasetError, "check that this is the right file"):
        content = read_file(path, MAX_MAT_BYTES)
    return dict(json.loads(run_apart(str(path), "SciPy", _PROGRAM, content, *names)))


def many(value: Any) -> list[Any]:
    """Return the elements of an array; one alone comes without the array around it."""
    return value if isinstance(value, list) else [value]
