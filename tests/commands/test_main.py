"""The console script: it knows its commands, hands over arguments, and words every error."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import facerec
from facerec.base.errors import DatasetError, FacerecError
from facerec.base.files import write_json
from facerec.commands.cli import check_written, followed, run_command
from facerec.commands.main import COMMANDS, main

TOOLS = Path(facerec.__file__).parent.parent / "tools"


def call(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    """Run the console script; return its exit status."""
    monkeypatch.setattr(sys, "argv", ["facerec", *arguments])
    try:
        main()
    except SystemExit as exit_:
        return int(exit_.code or 0)
    return 0


@pytest.mark.parametrize("arguments", [[], ["--help"], ["-h"]])
def test_usage_lists_every_command(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], arguments: list[str]
) -> None:
    assert call(monkeypatch, *arguments) == 0
    text = capsys.readouterr().out
    assert "usage: facerec COMMAND" in text
    for name, purpose in COMMANDS.items():
        assert f"  {name} " in text and purpose in text


@pytest.mark.parametrize(
    ("name", "near"),
    [("trian", "train"), ("verify_scores", "verify-scores"), ("TRAIN", "train"), ("--rsume", "")],
)
def test_unknown_commands_get_the_list(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], name: str, near: str
) -> None:
    assert call(monkeypatch, name) == 2
    captured = capsys.readouterr()
    said = captured.err.partition("\n")[0]
    assert said.startswith(f"error: there is no command {name!r}")
    assert near in said
    assert all(f"  {known} " in captured.err for known in COMMANDS)
    assert captured.out == ""


@pytest.mark.parametrize(
    "arguments", [[TOOLS / "train.py"], ["-c", "from facerec.commands.main import main; main()"]]
)
def test_ctrl_c_while_a_command_is_imported_shows_no_traceback(
    tmp_path: Path, arguments: list[str | Path]
) -> None:
    # Stands for any import, and is where it always meets the signal.
    (tmp_path / "tyro.py").write_text("import os, signal; os.kill(os.getpid(), signal.SIGINT)")
    run = subprocess.run(
        [sys.executable, *arguments, "train"],
        env={**os.environ, "PYTHONPATH": f"{tmp_path}:{TOOLS.parent}"},
        capture_output=True,
        text=True,
        # A shell in the background, where tests may run, has its children ignore the signal.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    assert (run.returncode, run.stdout, run.stderr) == (-signal.SIGINT, "", "")


def test_usage_needs_no_torch() -> None:
    """The list of commands and the version come at once."""
    code = "import sys; sys.argv = ['facerec', '--help']; from facerec.commands.main import main; "
    code += "main(); print('torch' in sys.modules)"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.splitlines()[-1] == "False"


# ---------------------------------------------------------------- what all commands share


def greet(name: str = "you", times: int = 1) -> None:
    """Greet somebody.

    Args:
        name: who it is.
        times: how often.
    """
    if name == "nobody":
        raise DatasetError("[bold]people[/bold]/nobody: no such person; name another")
    if name == "interrupt":
        raise KeyboardInterrupt
    print(f"hello {name} " * int(times))


def test_an_error_is_its_sentence_alone(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match=r"^2$"):
        run_command(greet, ["--name", "nobody"])
    # Nothing in it is taken for markup.
    sentence = "error: [bold]people[/bold]/nobody: no such person; name another\n"
    assert capsys.readouterr().err == sentence
    with pytest.raises(SystemExit, match=r"^2$"):
        monkeypatch.setattr(sys, "argv", ["facerec", "--debug", "--name", "nobody"])
        run_command(greet)
    text = capsys.readouterr().err
    assert "Traceback" in text and "DatasetError" in text and text.endswith(sentence)


def test_a_link_that_the_user_names_is_followed(tmp_path: Path) -> None:
    def note(out: Path) -> None:
        write_json(out, [])

    (tmp_path / "there").touch()
    (tmp_path / "link").symlink_to("there")
    run_command(note, ["--out", str(tmp_path / "link")])
    assert (tmp_path / "link").is_symlink() and (tmp_path / "there").read_text() == "[]\n"


def test_ctrl_c_ends_with_130(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match=r"^130$"):
        run_command(greet, ["--name", "interrupt"])
    assert "Traceback" not in capsys.readouterr().err


@pytest.mark.parametrize(
    ("flags", "other"),
    [
        ({"json": Path("./a.csv"), "embeddings": Path("a.csv")}, "embeddings"),
        ({"out": Path("b.csv"), "given_first": Path("a.csv")}, "given first"),
        ({"json": Path("a.csv"), "out": Path("a.csv")}, "out"),
        ({"out": Path("new.csv"), "scores": Path("./new.csv")}, "scores"),
    ],
)
def test_no_file_is_written_over_one_that_is_named_too(
    flags: dict[str, Path], other: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("a.csv").touch()
    Path("b.csv").symlink_to("a.csv")
    with pytest.raises(FacerecError, match=rf"(a|b|new)\.csv: .*{other}"):
        check_written({name: followed(name, path) for name, path in flags.items()})
    for name in ("out", "json"):
        with pytest.raises(FacerecError, match=r"x: .*a\.csv is no folder"):
            check_written({name: Path("a.csv/x")})
    Path("c.csv").touch()
    check_written({"embeddings": Path("a.csv"), "json": Path("c.csv"), "out": Path("new.csv")})
    check_written({"embeddings": Path("a.csv"), "baseline": Path("a.csv")})  # both are read
