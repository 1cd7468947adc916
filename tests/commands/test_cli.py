"""Terminals and files in any encoding, and text in files that would steer a terminal."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from pathlib import Path

import pytest
from helpers.every_command import TRAINING
from helpers.tiny_training import write_training_set
from helpers.toy_packs import make_pack
from rich.table import Table

from facerec.commands.cli import Console

MODELS = ("--device cpu", "--model absent\x1b[31m.onnx")

HELP = "from facerec.commands.main import main; main()"

HOSTILE = "[red]a[/nothing] \x1b[2J\x1b]0;x\x07\r\x9b31m"

PROGRAM = """
import sys
from facerec.commands.main import main
for line in sys.stdin.read().split("\\n"):
    sys.argv = ["facerec", *line.split(" ")]
    status = 0
    try:
        main()
    except SystemExit as end:
        status = end.code or 0
    print("status", status, flush=True)
"""


@pytest.mark.integration
@pytest.mark.parametrize(
    "environment", ["LC_ALL=C PYTHONUTF8=0 PYTHONCOERCECLOCALE=0", "PYTHONIOENCODING=latin-1"]
)
def test_no_command_ends_for_want_of_a_character(environment: str, tmp_path: Path) -> None:
    (tmp_path / "recipe.py").write_text(TRAINING)
    write_training_set(tmp_path / "data")
    pack = make_pack(tmp_path / "[red]\x1b[31mfaces.bin", per_fold=1).name
    lines = ["--help", "train --help", "verify --help", "train recipe.py --device cpu"]
    lines += [f"verify {model} --bench {pack}" for model in MODELS]
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        input="\n".join(lines).encode(),
        capture_output=True,
        cwd=tmp_path,
        env=os.environ | dict(word.split("=") for word in environment.split()),
        timeout=300,
    )
    output = done.stdout.decode("latin-1")
    statuses = [line.split()[1] for line in output.splitlines() if line.startswith("status ")]
    assert statuses == ["0"] * 5 + ["2"], done.stderr.decode("latin-1")
    assert b"Traceback" not in done.stderr and b"\x1b" not in done.stdout + done.stderr
    assert "[red]" in output  # it is no markup


def test_text_is_shown_as_it_is() -> None:
    file = io.StringIO()
    console = Console(file=file, width=200, force_terminal=True, color_system=None)
    table = Table(title=HOSTILE)
    table.add_column(HOSTILE)
    table.add_row(HOSTILE)
    console.print(table)
    console.print(HOSTILE, soft_wrap=True)
    shown = file.getvalue()
    assert shown.count("[red]a[/nothing] ␛[2J␛]0;x") == 4
    assert not any((ord(c) < 32 and c != "\n") or 127 <= ord(c) < 160 for c in shown)


def test_help_that_nobody_reads_to_the_end_is_no_failure() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    try:
        command = [sys.executable, "-c", HELP, "all-pairs", "--help"]
        ended = subprocess.run(command, stdout=writer, stderr=subprocess.PIPE, text=True)
    finally:
        os.close(writer)
    assert (ended.returncode, ended.stderr) == (1, "")
