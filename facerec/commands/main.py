"""The one console script: ``facerec COMMAND …``."""

from __future__ import annotations

import importlib
import signal
import sys

import facerec

COMMANDS = {
    "same": "two photos: one person or two?",
    "train": "train a recipe, alone or under torchrun",
    "plan": "memory, network traffic and arithmetic of a recipe's step, before any training",
    "verify": "score a model or embeddings on LFW, CFP, IJB and others, with intervals",
    "calibrate": "what a cosine of a model is worth: likelihood ratios, from people you name",
    "verify-scores": "the same figures from scores alone",
    "embed": "write the raw embeddings of records, a folder or a bench into a file",
    "export-onnx": "one folder that inference services load, with proof that it computes the same",
    "serve": "embeddings, comparisons and a gallery over HTTP",
    "import-weights": "turn a published backbone, .pth or .onnx, into a model file that trains",
    "all-pairs": "score all pairs of an embeddings file, down to FPR 1e-9",
    "overlap": "people who are in two sets at once, as a list to leave out",
    "clean": "wrong labels, people under two labels, mixtures and duplicates in a training set",
    "enroll": "people into a gallery file, and out of it without a trace",
    "identify": "search a gallery, at the threshold that its size needs",
    "convert": "turn any verification set into a pack of images",
    "audit": "embedding norms and error rates by recorded group, as a report",
    "audit-scores": "the same of error rates alone, from the scores of any system",
    "compare": "losses and penalties under equal conditions: search, fresh seeds, one test",
    "make-records": "pack a folder subject/image.jpg into record files, unpack or repair them",
    "demo": "the whole main job on generated faces, in minutes",
}


def run(name: str, arguments: list[str] | None = None) -> None:
    """Import a command and hand it its arguments, by default those of the process.

    Until it has Ctrl-C in hand (`facerec.commands.cli.run_command`), which takes as long as its
    imports, the signal ends the process as it ends other programs: without a traceback.
    """
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
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
