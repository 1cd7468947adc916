"""Worker processes end with the process that started them."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from facerec.base.errors import FacerecError
from facerec.commands import cli
from facerec.commands.cli import _UNWINDING
from facerec.commands.main import COMMANDS
from facerec.records.processes import process_pool

SCRIPT = """
import signal, sys, time
from concurrent.futures import wait
from pathlib import Path
from facerec.commands.cli import run_command
from facerec.records.processes import process_pool

def ready(folder):
    (Path(folder) / str(__import__("os").getpid())).touch()

def work(folder: Path) -> None:
    with process_pool(2, ready, (folder,)) as pool:
        wait([pool.submit(time.sleep, 600) for _ in range(4)])

if __name__ == "__main__":
    # Where tests run in the background of a shell, Ctrl-C is ignored from the start.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    run_command(work, ["--folder", sys.argv[1]])
"""


def _wait_for(condition: object, seconds: float = 120) -> None:
    deadline = time.monotonic() + seconds
    while not condition():  # type: ignore[operator]
        assert time.monotonic() < deadline
        time.sleep(0.05)


@contextlib.contextmanager
def _begun(folder: Path, script: str, *arguments: object, **how: Any) -> Iterator[Any]:
    """Run a script in a folder."""
    (folder / "script.py").write_text(script)
    command = [sys.executable, "script.py", *map(str, arguments)]
    process = subprocess.Popen(command, cwd=folder, **how)
    try:
        yield process
    finally:
        process.kill()


def _is_running(pid: int) -> bool:
    try:
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


@pytest.mark.integration
@pytest.mark.parametrize(
    ("sent", "status"), [(signal.SIGKILL, -9), (signal.SIGTERM, 143), (signal.SIGINT, 130)]
)
def test_no_worker_outlives_a_signal_to_its_parent(
    tmp_path: Path, sent: signal.Signals, status: int
) -> None:
    folder = tmp_path / "pids"
    folder.mkdir()
    with _begun(tmp_path, SCRIPT, folder) as process:
        _wait_for(lambda: len(list(folder.iterdir())) == 2)
        workers = [int(path.name) for path in folder.iterdir()]
        process.send_signal(sent)
        assert process.wait(60) == status
        _wait_for(lambda: not any(map(_is_running, workers)), 60)


@pytest.mark.integration
def test_ctrl_c_does_not_reach_processes_that_still_import(tmp_path: Path) -> None:
    """A terminal sends it to all of them; each would end with a traceback of its own."""
    early = "if __name__ != '__main__':\n    ready('importing'); time.sleep(1)\n\ndef work("
    script = SCRIPT.replace("def work(", early)
    for name in ("importing", "ready"):
        (tmp_path / name).mkdir()
    with _begun(tmp_path, script, "ready", stderr=subprocess.PIPE) as process:
        _wait_for(lambda: len(list((tmp_path / "importing").iterdir())) == 2)
        for path in (tmp_path / "importing").iterdir():
            os.kill(int(path.name), signal.SIGINT)
        _wait_for(
            lambda: process.poll() is not None or len(list((tmp_path / "ready").iterdir())) == 2
        )
        process.send_signal(signal.SIGINT)
        said = process.communicate(timeout=60)[1]
    assert process.returncode == 130 and said == b""


STUCK = {
    "thread": """
    with ThreadPoolExecutor(1) as pool:
        pool.submit(Path(folder / "pipe").open, "rb").result()
""",
    "library": """
    mutex = ctypes.create_string_buffer(64)
    for _ in range(2):
        ctypes.CDLL(None).pthread_mutex_lock(mutex)
""",
    "end": """
    class Slow:
        def __del__(self, mutex=ctypes.create_string_buffer(64), lock=ctypes.PyDLL(None)):
            for _ in range(2):
                lock.pthread_mutex_lock(mutex)
    sys.modules["slow"] = Slow()
    time.sleep(600)
""",
}
"""Ways in which nothing that Python raises in the main thread ends a process, or not soon."""

STUCK_SCRIPT = """
import ctypes, signal, sys, time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from facerec.commands.cli import run_command

def work(folder: Path) -> None:
    print("begun", flush=True){body}

signal.signal(signal.SIGINT, signal.default_int_handler)
run_command(work, ["--folder", sys.argv[1]])
"""


def _signalled(folder: Path, body: str, sent: signal.Signals) -> int:
    """Run a command, send the signal when its work has begun, and return how it ended."""
    os.mkfifo(folder / "pipe")
    how: dict[str, Any] = {"stdout": subprocess.PIPE, "text": True}
    with _begun(folder, STUCK_SCRIPT.format(body=body), folder, **how) as process:
        assert process.stdout.readline() == "begun\n"
        time.sleep(0.5)
        process.send_signal(sent)
        return int(process.wait(60))


@pytest.mark.integration
@pytest.mark.parametrize("sent", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("way", STUCK)
def test_a_signal_ends_a_command_wherever_it_waits(
    tmp_path: Path, way: str, sent: signal.Signals
) -> None:
    assert _signalled(tmp_path, STUCK[way], sent) == 128 + sent


@pytest.mark.integration
@pytest.mark.parametrize("sent", [signal.SIGTERM, signal.SIGINT])
def test_a_command_that_makes_use_of_a_signal_has_its_time(
    tmp_path: Path, sent: signal.Signals
) -> None:
    """As training has, which writes a checkpoint."""
    body = """
    came = []
    previous = signal.signal({0}, lambda *_: came.append(1))
    while not came:
        time.sleep(0.01)
    time.sleep(_UNWINDING + 1)
    signal.signal({0}, previous)
    sys.exit(7)
""".format(int(sent)).replace("_UNWINDING", str(_UNWINDING))
    assert _signalled(tmp_path, body, sent) == 7


def test_every_command_ends_by_the_same_rule() -> None:
    for name in COMMANDS:
        source = Path(cli.__file__).with_name(f"{name.replace('-', '_')}.py").read_text()
        assert re.search(r"^main = partial\(run_command, |^    run_command\(", source, re.M), name


def _fail(path: Path, mark: bool) -> None:
    if mark:
        time.sleep(0.5)
        path.touch()
    else:
        raise FacerecError("a bad image")


def test_a_sentence_lets_work_under_way_end(tmp_path: Path) -> None:
    mark = tmp_path / "done"
    with pytest.raises(FacerecError, match="bad image"), process_pool(2, int) as pool:
        pool.submit(_fail, mark, True)
        pool.submit(_fail, mark, False).result()
    assert mark.exists()


def test_a_process_that_dies_is_a_sentence() -> None:
    """As one is that the system ends for want of memory."""
    with pytest.raises(FacerecError, match=r"2 processes .* died"), process_pool(2, int) as pool:
        pool.submit(os._exit, 1).result()
