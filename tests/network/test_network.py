"""Nothing calls home: no name is looked up, no address outside reached, nothing left at home.

Two guards watch a child and all that it starts. One sits in Python and always runs. The other is
strace, which sees what libraries do without Python; where it is missing, that half is left out and
said so. Neither needs a network, nor whether there is one.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

HERE = Path(__file__).parent
REPOSITORY = HERE.parents[1]
sys.path.append(str(HERE / "guard"))

from network_guard import is_here  # noqa: E402

CALLS = "connect,sendto,sendmsg,sendmmsg"

SILENT_ANYWAY = ("CI", "TF_BUILD", "JENKINS_URL", "ORT_DISABLE_TELEMETRY")
"""Variables that would keep a library quiet here and not with a user."""


@dataclass(frozen=True)
class Watched:
    """What a child did."""

    printed: str
    python: str
    """What the guard in Python wrote down."""
    native: list[str] | None
    """Calls of the system that reached outside; None without strace."""
    left: list[str]
    """Files in the child's home folder."""


def watch(folder: Path, *arguments: str, seconds: float, traced: bool = True) -> Watched:
    """Run Python with ``arguments`` under both guards, at home in an empty folder."""
    home, work, fonts = (folder / name for name in ("home", "work", "fonts"))
    for place in (home, work, fonts):
        place.mkdir()
    log, trace = folder / "python.log", folder / "strace.log"
    environment = {
        name: value
        for name, value in os.environ.items()
        if name not in SILENT_ANYWAY and not name.startswith(("XDG_", "ONEDNN_"))
    }
    environment |= {
        "HOME": str(home),
        "NETWORK_LOG": str(log),
        "PYTHONPATH": os.pathsep.join(map(str, (HERE / "guard", REPOSITORY))),
        # Matplotlib keeps a list of this machine's fonts.
        "MPLCONFIGDIR": str(fonts),
        "OMP_NUM_THREADS": "1",
    }
    strace = shutil.which("strace") if traced else None
    tracer = [strace, "-f", "-qq", "-s", "200", "-e", f"trace={CALLS}", "-o", str(trace)]
    if strace is not None and not _can_trace(strace):
        strace = None
    command = [*(tracer if strace else []), sys.executable, *arguments]
    pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    how = {"text": True, "errors": "replace", "timeout": seconds, "check": False}
    run = subprocess.run(command, cwd=work, env=environment, **pipes, **how)
    assert run.returncode == 0, run.stdout[-3000:]
    return Watched(
        run.stdout,
        log.read_text() if log.exists() else "",
        outside_calls(trace.read_text(errors="replace")) if strace else None,
        sorted(str(path.relative_to(home)) for path in home.rglob("*")),
    )


def _can_trace(strace: str) -> bool:
    """Containers may forbid it."""
    return subprocess.run([strace, "-qq", "true"], capture_output=True, check=False).returncode == 0


def outside_calls(trace: str) -> list[str]:
    """Return the lines of strace that reach for another machine, or look its name up.

    Look-ups often go through a server on this machine: port 53, or systemd's socket.
    """
    found = []
    for line in trace.splitlines():
        hosts = re.findall(r'inet_(?:addr\(|pton\(AF_INET6, )"([^"]+)"', line)
        look_up = "htons(53)" in line or "systemd/resolve" in line
        if look_up or any(not is_here(host) for host in hosts):
            found.append(line)
    return found


def check(seen: Watched) -> None:
    assert seen.python == "" and not seen.native and seen.left == []


USE = """
import facerec
import importlib.util
import onnxruntime
if importlib.util.find_spec("openvino"):
    import openvino
others = ("insightface", "optuna", "huggingface_hub", "pytorch_metric_learning")
for package in (*others, "torch.utils.tensorboard"):
    if importlib.util.find_spec(package.split(".")[0]):
        __import__(package)
print("used")
"""


@pytest.mark.integration
def test_libraries_stay_silent_once_facerec_is_imported(tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    seen = watch(tmp_path, "-c", USE, seconds=300)
    assert seen.printed.endswith("used\n")
    check(seen)


@pytest.mark.slow
def test_every_command_and_the_service_stay_silent(tmp_path: Path) -> None:
    for extra in ("openvino", "optuna", "pytorch_metric_learning", "fastapi", "prometheus_client"):
        pytest.importorskip(extra)
    seen = watch(tmp_path, str(HERE.parent / "helpers" / "every_command.py"), seconds=3600)
    assert "## all done" in seen.printed
    check(seen)
    if seen.native is None:
        pytest.skip("strace is missing or forbidden here: libraries' own calls were not seen")


# --- the guards themselves ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "caught"),
    [
        ('connect(7, {sa_family=AF_INET, sin_addr=inet_addr("10.255.255.53")}, 16) = 0', True),
        ('connect(7, {sa_family=AF_INET6, inet_pton(AF_INET6, "2a00::1", &a)}, 28) = 0', True),
        ('connect(7, {sa_family=AF_UNIX, sun_path="/run/systemd/resolve/x"}, 110) = 0', True),
        ('connect(7, {sin_port=htons(53), sin_addr=inet_addr("127.0.0.53")}, 16) = 0', True),
        ('connect(7, {sin_port=htons(80), sin_addr=inet_addr("127.0.0.1")}, 16) = 0', False),
        ('connect(7, {sa_family=AF_INET6, inet_pton(AF_INET6, "::1", &a)}, 28) = 0', False),
        ('connect(7, {sa_family=AF_UNIX, sun_path="/tmp/pymp-x/listener"}, 110) = 0', False),
        ('sendto(7, "hello", 5, 0, NULL, 0) = 5', False),
    ],
)
def test_what_strace_saw_is_read(line: str, caught: bool) -> None:
    assert outside_calls(f"123 {line}\n124 {line}") == [f"{n} {line}" for n in (123, 124)] * caught


@pytest.mark.parametrize(
    "call",
    [
        "socket.getaddrinfo('www.example.com', 443)",
        "socket.gethostbyname('www.example.com')",
        "socket.socket().connect(('192.0.2.1', 443))",
        "socket.socket(type=socket.SOCK_DGRAM).sendto(b'x', ('192.0.2.1', 53))",
        "__import__('urllib.request').request.urlopen('https://www.example.com/')",
        "__import__('subprocess').run([sys.executable, '-c', 'import socket; "
        'socket.getaddrinfo("www.example.com", 443)\'], capture_output=True)',
    ],
)
def test_calls_are_seen(tmp_path: Path, call: str) -> None:
    code = f"import socket, sys\ntry:\n    {call}\nexcept OSError:\n    pass\n"
    seen = watch(tmp_path, "-c", code, seconds=60, traced=False)
    assert "www.example.com" in seen.python or "192.0.2.1" in seen.python


def test_calls_to_this_machine_are_free(tmp_path: Path) -> None:
    code = "import socket; s = socket.create_server(('localhost', 0)); a = s.getsockname(); "
    code += "socket.create_connection(a).close()"
    check(watch(tmp_path, "-c", code, seconds=60))
