"""What a file is that somebody gives for pictures or for embeddings, and what makes these of it."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path


def other_kind(path: Path) -> str:
    """Return a sentence on a file that is neither; an empty one where its kind is not known.

    ``other_kinds.json`` says how files begin, whatever their names are, and what each kind is.
    """
    known = json.loads(Path(__file__).with_suffix(".json").read_text(encoding="utf-8"))
    head = b""
    with contextlib.suppress(OSError):
        if path.is_file():
            with path.open("rb") as file:
                head = file.read(8)
    begun = (kind for sign, kind in known["signs"].items() if head.hex().startswith(sign))
    suffix = path.suffix.lower()
    kind = suffix if suffix in known["kinds"] else next(begun, "")
    if not head or not kind or (suffix, kind) == (".npz", ".zip"):
        return ""
    text = known["kinds"][kind].replace("PATH", str(path))
    return f"{path}: {text.replace('STEM', str(path.with_suffix('')))}"
