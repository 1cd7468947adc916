"""Models on the Hugging Face Hub, ``hf://OWNER/NAME@REVISION``; what has no such name stays there.

The library that talks to the Hub, its cache and its rules for tokens are huggingface_hub's own.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import facerec
from facerec.base.errors import ModelError
from facerec.base.libraries import needed
from facerec.embedding.bundle import (
    MODEL_FILE,
    NOTE_FILE,
    ONNX_FILE,
    SUMS_FILE,
    VARIANTS_FOLDER,
)

PATTERNS = [NOTE_FILE, SUMS_FILE, ONNX_FILE, f"{VARIANTS_FOLDER}/*.onnx", "triton/*"]
"""What belongs to a bundle; of a repository nothing else is fetched but ``model.safetensors``."""

MAX_BYTES = 2**32
"""Of all that is fetched of a repository."""

FETCH_SECONDS = 2 * 3600
"""Within which all of it must have arrived."""

_FETCH = """
import json, re, resource, sys
sys.path[:] = [path for path in sys.path if path]  # nothing from the working directory
from huggingface_hub import file_download, snapshot_download
most, given = json.loads(sys.argv[1])
resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))
normal = file_download._normalize_etag
def blob(tag):  # which names a file of the cache
    name = normal(tag)
    if re.fullmatch("[0-9a-f]{40,64}", name or "") is None:
        raise ValueError("a file there has a name that is no hash")
    return name
file_download._normalize_etag = blob
try:
    print(snapshot_download(**given))
except Exception as error:
    sys.exit(print(str(error).strip().partition("\\n")[0] or type(error).__name__) or 1)
"""
"""Fetches a snapshot, in a process that can be ended: a server may send for ever."""

_PART = r"[A-Za-z0-9_][\w.-]*"
REPOSITORY = re.compile(rf"{_PART}/{_PART}", re.ASCII)
_NAME = re.compile(rf"hf:/{{1,2}}({_PART}/{_PART})(?:@({_PART}(?:/{_PART})*))?", re.ASCII)


def is_hub_name(path: str | Path) -> bool:
    """Tell whether a model is named on the Hub; a `Path` has one slash of the two left."""
    return str(path).startswith("hf:/")


def parse_hub_name(name: str | Path) -> tuple[str, str | None]:
    """Return ``OWNER/NAME`` and the revision, None where it is left open.

    Raises:
        ModelError: the name is malformed.
    """
    match = _NAME.fullmatch(str(name))
    if match is None:
        raise ModelError(
            f"hf://{str(name)[4:].lstrip('/')}: no name on the Hugging Face Hub; give "
            "hf://OWNER/NAME or hf://OWNER/NAME@REVISION, with a branch, a tag or a commit"
        )
    return match[1], match[2]


def hub_library() -> ModuleType:
    """Return huggingface_hub.

    Raises:
        MissingExtraError: it is not installed.
    """
    with needed("'facerec[hub]'", "the Hub"):
        import huggingface_hub
    return huggingface_hub


def fetch_model(name: str | Path) -> tuple[Path, str]:
    """Return the folder of a model in the Hub's cache, which is filled where it has to be.

    Without a network, or if the Hub refuses, the cache alone has to do.

    Returns:
        The folder, named after the commit, and ``hf://OWNER/NAME@COMMIT``.

    Raises:
        ModelError: malformed, neither on the Hub nor in the cache, too large, or late.
        MissingExtraError: huggingface_hub is not installed.
    """
    repository, revision = parse_hub_name(name)
    called = f"hf://{repository}" + (f"@{revision}" if revision else "")
    hub = hub_library()
    api = hub.HfApi(library_name="facerec", library_version=facerec.__version__)
    wanted = [*PATTERNS, MODEL_FILE]
    size, sizes, problem = 0, dict[str, int](), None
    try:
        there = api.model_info(repository, revision=revision, files_metadata=True)
        sizes = {file.rfilename: file.size or 0 for file in there.siblings}
        paths = hub.utils.filter_repo_objects(sizes, allow_patterns=wanted)
        size = sum(sizes[path] for path in paths)
    except Exception as error:  # that of whichever HTTP library this release has
        problem = error
    if size > MAX_BYTES:
        raise ModelError(f"{called}: {size:,} bytes, and {MAX_BYTES:,} at most are fetched")
    options = {"repo_id": repository, "revision": revision, "allow_patterns": wanted}
    try:
        if problem is None:
            # What the library keeps beside the files is small.
            folder = _fetch(json.dumps([size + (1 << 20), options]))
        else:
            folder = Path(api.snapshot_download(**options, local_files_only=True))
    except Exception as error:  # as above
        said = " ".join(str(problem or error).split())[:300]
        raise ModelError(
            f"{called}: not in the cache, and not to be had of the Hub ({said}); check the name, "
            "log in by hf auth login, connect, or fill the cache where there is a network"
        ) from problem or error
    return folder, f"hf://{repository}@{folder.name}"


def _fetch(given: str) -> Path:
    """Return the folder of a snapshot that a process of its own has fetched.

    Raises:
        OSError: it did not come, or not in time.
    """
    command = [sys.executable, "-c", _FETCH, given]
    try:
        run = subprocess.run(
            command, stdout=subprocess.PIPE, timeout=FETCH_SECONDS, check=False, text=True
        )
    except subprocess.TimeoutExpired as late:
        raise OSError(f"not here after {FETCH_SECONDS:,} seconds") from late
    if run.returncode:
        raise OSError(run.stdout.strip() or f"its process ended with {run.returncode}")
    return Path(run.stdout.strip().splitlines()[-1])
