"""Trials of strangers' files in a process of their own, which may crash or never end."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

from facerec.base.errors import ModelError

TRIAL_SECONDS = 120
"""Within which a library must have loaded a file and embedded one image."""

_BEGIN = """
import sys
sys.path[:] = [path for path in sys.path if path]  # nothing from the working directory
sys.modules["openvino_telemetry"] = None
"""


def run_apart(where: str, library: str, code: str, content: bytes, *arguments: str) -> bytes:
    """Run code on a file's bytes in another process of Python; return what it prints.

    Args:
        where: names the file in messages.
        library: what runs there, for messages.
        code: reads the file from standard input and ``sys.argv[1:]``; imports no facerec, whose
            parts take longer to load than all else.
        content: the file.
        arguments: for the code.

    Raises:
        ModelError: it failed, crashed or took longer than `TRIAL_SECONDS`.
    """
    command = [sys.executable, "-c", _BEGIN + code, *arguments]
    how: dict[str, Any] = {"capture_output": True, "timeout": TRIAL_SECONDS, "check": False}
    try:
        run = subprocess.run(command, input=content, **how)
        if run.returncode == 0:
            return run.stdout
        problem = run.stderr.decode(errors="replace").strip().rpartition("\n")[2][:300]
        if run.returncode < 0:
            problem = f"its process ended by signal {-run.returncode}"
    except subprocess.TimeoutExpired:
        problem = f"no embedding after {TRIAL_SECONDS} seconds"
    raise ModelError(f"{where}: {library} cannot load it ({problem})")
