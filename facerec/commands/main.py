"""The one console script: ``facerec COMMAND …``."""

from __future__ import annotations

import difflib
import importlib
import os
import signal
import sys

import facerec

COMMANDS = {
    "same": "Do two photos show one person or two?",
    "train": "Train a network by a recipe, alone or under torchrun",
    "plan": "Predict memory, network and arithmetic of a training step",
    "verify": "Score a model on LFW, CFP, IJB and others, with intervals",
    "calibrate": "Learn what a cosine is worth: likelihood ratios, from pairs",
    "verify-scores": "Compute the same figures from a table of scores",
    "embed": "Write the embeddings of images into a file",
    "export-onnx": "Write a folder that inference services load, and check it",
    "serve": "Answer requests for embeddings and comparisons over HTTP",
    "import-weights": "Make a published .pth or .onnx a model that trains",
    "all-pairs": "Score all pairs of an embeddings file, down to FPR 1e-9",
    "overlap": "Find people who are in two sets, to leave them out of one",
    "clean": "Find wrong labels and duplicates in a training set",
    "group": "Group a pile of photos by who is on them",
    "enroll": "Put people into a gallery, or delete them from it",
    "identify": "Search a gallery for the people on photos",
    "translate": "Let a new network search a gallery of the old one",
    "convert": "Turn any verification set into a pack of images",
    "audit": "Compare norms and error rates of groups of people",
    "audit-scores": "Compare error rates of groups, from a table of scores",
    "compare": "Compare losses under equal conditions, with one test",
    "make-records": "Pack a folder of photos into record files, or unpack them",
    "demo": "Do the whole main job on generated faces, in minutes",
}


def _leave(number: int, frame: object) -> None:
    os.write(2, b"stopped by SIGTERM\n")
    os._exit(128 + number)


def run(name: str, arguments: list[str] | None = None) -> None:
    """Import a command and hand it its arguments, by default those of the process.

    Until it has Ctrl-C in hand (`facerec.commands.cli.run_command`), which takes as long as its
    imports, the signal ends the process as it ends other programs: without a traceback.
    """
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        signal.signal(signal.SIGTERM, _leave)
    module = importlib.import_module(f"facerec.commands.{name.replace('-', '_')}")
    module.main(arguments)


def main() -> None:
    """Hand the rest of the command line to the command that it names."""
    arguments = sys.argv[1:]
    name = next((word for word in arguments if word != "--debug"), "--help")
    if name in COMMANDS:
        arguments.remove(name)
        run(name, arguments)
        return
    from facerec.commands.cli import replace_what_cannot_be_encoded

    replace_what_cannot_be_encoded()
    width = max(map(len, COMMANDS))
    lines = [f"  {command.ljust(width)}  {text}" for command, text in COMMANDS.items()]
    about = f"facerec {facerec.__version__}: train, verify and audit face recognition"
    usage = "\n".join([about, "", "usage: facerec COMMAND [--help | …]", "", *lines])
    if name in ("--help", "-h"):
        print(usage)
    elif name == "--version":
        print(facerec.__version__)
    else:
        near = difflib.get_close_matches(name.lower(), COMMANDS, 1)
        meant = f"; did you mean facerec {near[0]}?" if near else ""
        print(f"error: there is no command {name!r}{meant}\n\n{usage}", file=sys.stderr)
        raise SystemExit(2)
