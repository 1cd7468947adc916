"""The one console script: ``facerec COMMAND …``."""

from __future__ import annotations

import importlib
import sys

import facerec

COMMANDS = {
    "train": "train a recipe, alone or under torchrun",
    "verify": "score a model on LFW, CFP, AgeDB and other packs, with intervals",
    "make-records": "pack a folder identity/image.jpg into record files",
    "export-folder": "unpack record files into such a folder",
    "synthesize": "generate faces: record files, packs and attributes",
    "demo": "the whole main job on generated faces, in minutes",
}


def main() -> None:
    """Hand the rest of the command line to the command that it names."""
    name = sys.argv[1] if len(sys.argv) > 1 else "--help"
    if name in COMMANDS:
        module = importlib.import_module(f"facerec.commands.{name.replace('-', '_')}")
        module.main(sys.argv[2:])
        return
    width = max(map(len, COMMANDS))
    lines = [f"  {command.ljust(width)}  {text}" for command, text in COMMANDS.items()]
    usage = "\n".join(
        [
            f"facerec {facerec.__version__}: train and verify face embeddings",
            "",
            "usage: facerec COMMAND [--help | …]",
            "",
            *lines,
        ]
    )
    if name in ("--help", "-h"):
        print(usage)
    elif name == "--version":
        print(facerec.__version__)
    else:
        print(f"error: there is no command {name!r}\n\n{usage}", file=sys.stderr)
        raise SystemExit(2)
