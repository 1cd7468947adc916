"""MATLAB files of versions 4 to 7, read in another process.

SciPy reads outside its memory on some damaged files, which ends the process that does it.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from facerec.errors import DatasetError
from facerec.verification.protocols.lists import read_content

MAX_MAT_BYTES = 64 << 20
"""Largest file that is read; lists of images have a few megabytes at most."""

_PROGRAM = """
import io, json, sys
import numpy as np
from scipy.io import loadmat
from scipy.io.matlab import mat_struct
try:
    import resource
    resource.setrlimit(resource.RLIMIT_AS, (4 << 30, 4 << 30))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
except (ImportError, ValueError):
    pass
def plain(value):
    if isinstance(value, mat_struct):
        return {name: plain(getattr(value, name)) for name in value._fieldnames}
    if isinstance(value, np.ndarray) and value.dtype == object and value.ndim:
        return [plain(part) for part in value]
    return plain(value.tolist()) if isinstance(value, (np.ndarray, np.generic)) else value
names = sys.argv[1:]
try:
    content = io.BytesIO(sys.stdin.buffer.read())
    found = loadmat(content, variable_names=names, squeeze_me=True, struct_as_record=False)
    print(json.dumps({name: plain(found[name]) for name in names}))
except Exception as problem:
    sys.exit(ascii(f"{type(problem).__name__}: {problem}"[:200])[1:-1])
"""


def read_mat(path: Path, names: Sequence[str]) -> dict[str, Any]:
    """Read variables as lists, dictionaries (of structures), text and numbers.

    Dimensions of length one are left out, so a list of one element comes as that element; see
    `many`. Another process reads, with bounded memory and time.

    Raises:
        DatasetError: it cannot be read, is no such file, or lacks a variable.
    """
    content = read_content(path)
    if len(content) > MAX_MAT_BYTES:
        raise DatasetError(
            f"{path}: {len(content):,} bytes are more than a list of images may have "
            f"({MAX_MAT_BYTES:,}); check that this is the right file"
        )
    try:
        done = subprocess.run(
            [sys.executable, "-I", "-c", _PROGRAM, *names],
            input=content,
            capture_output=True,
            timeout=300,
            check=True,
            # Every thread would take of the memory that the process may have.
            env={**os.environ, "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"},
        )
        return dict(json.loads(done.stdout))
    except (subprocess.SubprocessError, ValueError, RecursionError) as problem:
        lines = (getattr(problem, "stderr", None) or b"").decode(errors="replace").split("\n")
        said = next((line for line in reversed(lines) if line.strip()), "")
        raise DatasetError(
            f"{path}: no sound MATLAB file of version 4 to 7 that holds {', '.join(names)} "
            f"({said[:200] or 'its reader ended without a word'}); get the file again, or save it "
            "by MATLAB's save -v7"
        ) from problem


def many(value: Any) -> list[Any]:
    """Return the elements of an array; one alone comes without the array around it."""
    return value if isinstance(value, list) else [value]
