"""What all commands share: parsing by tyro, errors as one sentence, exit status 2."""

from __future__ import annotations

import contextlib
import functools
import io
import multiprocessing
import os
import re
import shlex
import signal
import sys
import threading
import traceback
import warnings
import zlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import is_dataclass, replace
from pathlib import Path
from typing import Any

import tyro
from rich import console as rich_console
from rich.segment import Segment

from facerec.base.errors import FacerecError, RecipeError, printable
from facerec.base.files import check_place, check_regular
from facerec.base.limits import check_flags
from facerec.commands.help_texts import HELP, about, describe, help_rules
from facerec.statistics.operating_points import parse_rate

_FILES = ("csv", "export", "failures", "json", "page", "plot", "roc")
"""Flags that name files to write, in every command that has them."""

_DEBUG = "--debug"
"""Anywhere on the command line of the process it shows the traceback of an error too."""

_UNWINDING = 2.0
"""Seconds from a signal that is to end a command until it ends however far it has come."""

# A forked process would tell its parent of its own signals.
os.register_at_fork(after_in_child=lambda: signal.set_wakeup_fd(-1))


class Console(rich_console.Console):
    """A terminal that shows text as it is: no markup, colour of its own, or control character.

    Nor does it break lines: whoever copies a path or a command gets all of it.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(markup=False, emoji=False, highlight=False, soft_wrap=True, **options)

    def render(
        self,
        renderable: rich_console.RenderableType,
        options: rich_console.ConsoleOptions | None = None,
    ) -> Iterable[Segment]:
        """Render to segments; those of rich's own control stay."""
        for segment in super().render(renderable, options):
            clean = segment.control or segment.text.isprintable()
            yield segment if clean else Segment(printable(segment.text), segment.style)


def print_first(lines: Sequence[str], elsewhere: str, console: Console, most: int = 10) -> None:
    """Print the first of many lines, and where the others are."""
    for line in lines[:most]:
        console.print(f"  {line}", style="yellow")
    if len(lines) > most:
        more = f"; {elsewhere}" if elsewhere else ""
        console.print(f"  … and {len(lines) - most:,} more{more}")


def replace_what_cannot_be_encoded() -> None:
    """Let stdout and stderr in ASCII or Latin-1 show ``?`` for characters that they lack."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")


def run_command(
    function: Callable[..., object], argv: Sequence[str] | None = None, shown: Collection[str] = ()
) -> None:
    """Parse ``argv`` against the signature of ``function`` and call it.

    A ``FacerecError``, or a flag's value that its dataclass refuses, is printed as its sentence and
    ends the process with status 2; ``--debug`` shows the traceback too. Ctrl-C ends with status
    130, SIGTERM with 143, after what was begun is cleared away.

    Args:
        function: its parameters are the flags, its docstring is the help text.
        argv: arguments without the program's name; ``None`` takes ``sys.argv``.
        shown: of the recipe that stands before ``argv``, the fields that help shows, see
            `help_rules`; others are left to --help-all.
    """
    replace_what_cannot_be_encoded()
    # Pillow's quote the files of strangers; what matters of a file is said by facerec.
    warnings.filterwarnings("ignore", module=r"PIL\.")
    arguments = words_of(argv)
    # How the user called us: ``facerec verify``, or a file under ``tools/``.
    script, name = Path(sys.argv[0]).name, function.__name__.replace("_", "-")
    by_file = script.endswith(".py") and script != "__main__.py"
    program = (script if by_file else f"facerec {name}") + " RECIPE" * bool(shown)
    helps = not HELP.isdisjoint(arguments)
    given = ["--help" if word == "--help-all" else word for word in arguments]

    @functools.wraps(function)
    def parsed(*args: Any, **flags: Any) -> Callable[[], object]:
        check_flags(function, flags)
        flags = {name: followed(name, value) for name, value in flags.items()}
        check_written(flags)
        return functools.partial(function, *args, **flags)

    describe(parsed, helps)
    markers = [tyro.conf.PositionalMetavarFromFieldName, tyro.conf.AvoidSubcommands]
    markers += [tyro.conf.DisallowNone] * helps
    with exit_on_error(), _exit_on_signals():
        try:
            # Of the processes of a machine one explains wrong flags and gives help.
            speaks = os.environ.get("LOCAL_RANK", "0") == "0"
            if helps and speaks:
                print(about(function), end="\n\n")
            run = tyro.cli(
                parsed,
                args=given,
                prog=program,
                description="",
                console_outputs=speaks,
                registry=help_rules(helps, () if "--help-all" in arguments else shown),
                config=markers,
            )
        except ValueError as error:
            raise RecipeError(str(error)) from error
        except BrokenPipeError:
            # Who reads the help has left, as head does; what is not written yet goes nowhere.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            raise SystemExit(1) from None
        run()


def words_of(argv: Sequence[str] | None) -> list[str]:
    """Return a command's words without ``--debug``; ``None`` takes those of the process."""
    return [word for word in (sys.argv[1:] if argv is None else argv) if word != _DEBUG]


def followed(name: str, value: Any) -> Any:
    """Return a flag's value; if it is what is written, and a link, then what that leads to."""
    if is_dataclass(value) and not isinstance(value, type):
        fields = vars(value).items()
        links = {field: end for field, at in fields if (end := followed(field, at)) is not at}
        return replace(value, **links) if links else value
    if name not in (*_FILES, "out", "gallery") or not isinstance(value, Path):
        return value
    return value.resolve() if value.is_symlink() and value.exists() else value


def check_written(flags: Mapping[str, Any]) -> None:
    """Refuse to write a file where none can be, and over one that another flag names.

    Raises:
        FacerecError: a folder stands there, its folder cannot be written, or one flag would replace
            what another names or writes.
        PermissionError: a flag names a device, a pipe or a socket, be it to read or to write.
    """
    paths: dict[str, Path] = {}
    for name, value in flags.items():
        fields = vars(value) if is_dataclass(value) else {name: value}
        paths |= {field: path for field, path in fields.items() if isinstance(path, Path)}
    for given in filter(Path.exists, paths.values()):
        check_regular(given)
    for name, path in paths.items():
        if name not in _FILES and (name != "out" or path.is_dir()):  # a folder in some commands
            continue
        check_place(path, file=name in _FILES)
        for other, given in paths.items():
            if other != name and os.path.realpath(given) == os.path.realpath(path):
                raise FacerecError(
                    f"--{name} {path}: this file is given as {other.replace('_', ' ')} too, and "
                    "would be replaced; choose another name"
                )


def refuse(faults: Mapping[str, object]) -> None:
    """Refuse flags that do not fit together.

    Args:
        faults: sentence → what is true or there if it holds.

    Raises:
        FacerecError: with the first sentence that holds.
    """
    for sentence, holds in faults.items():
        if holds:
            raise FacerecError(sentence)


def listed(values: Iterable[str]) -> tuple[str, ...]:
    """Return names or numbers that spaces or commas part on the command line, each once."""
    names = (name.strip() for value in values for name in value.split(","))
    return tuple(dict.fromkeys(filter(None, names)))


def named_columns(
    values: Collection[str], group: Iterable[str] = ()
) -> tuple[tuple[str, ...], dict[str, str]]:
    """Return columns of groups, and what a table calls other columns, from ``NAME=COLUMN`` each.

    Raises:
        RecipeError: without ``=``, or without any group.
    """
    called = called_columns(values)
    groups = listed((*group, called.pop("group", "")))
    if not groups:
        raise RecipeError("say whose groups to compare: --group and the columns that hold them")
    return groups, called


def called_columns(values: Collection[str]) -> dict[str, str]:
    """Return what a table calls columns, from ``NAME=COLUMN`` each.

    Raises:
        RecipeError: without ``=``.
    """
    if odd := [value for value in values if not re.fullmatch("[^=]+=.+", value)]:
        raise RecipeError(f"--columns takes NAME=COLUMN, as score=similarity, found {odd[0]!r}")
    return dict(value.split("=", 1) for value in values)


def exact_rates(values: Iterable[str]) -> tuple[str, ...]:
    """Return rates that spaces or commas part, each once, as they are written.

    Raises:
        MetricError: one that is no rate.
    """
    return tuple({parse_rate(rate): rate for rate in listed(values)}.values())


def command_line() -> str:
    """Return the command line of this process, for the record."""
    name = Path(sys.argv[0]).name.replace("__main__.py", "facerec")  # python -m facerec
    return shlex.join([name, *sys.argv[1:]])


@contextlib.contextmanager
def _exit_on_signals() -> Iterator[None]:
    """Let SIGTERM and Ctrl-C unwind the stack, so that temporary files and workers go.

    Where that takes longer than `_UNWINDING`, as a call into a library or a thread may last, the
    process ends all the same; the next writer sweeps what is left. A command that goes on after a
    signal, as training does to its checkpoint, has a handler of its own and the time it needs.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    process = os.getpid()

    def leave(number: int, frame: object) -> None:
        with contextlib.suppress(OSError):
            if os.getpid() == process:  # pools end their own processes so
                os.write(2, b"stopped by SIGTERM\n")
        raise SystemExit(128 + number)

    came: list[int] = []

    def insist() -> None:
        while number := os.read(told, 1)[0]:
            if signal.getsignal(number) in (leave, signal.default_int_handler):
                timer = threading.Timer(_UNWINDING, os._exit, [128 + number])
                timer.daemon = True
                timer.start()
                came.append(number)

    previous = signal.signal(signal.SIGTERM, leave)
    if signal.getsignal(signal.SIGINT) is signal.SIG_DFL:  # see `facerec.commands.main`
        signal.signal(signal.SIGINT, signal.default_int_handler)
    told, tell = os.pipe()
    os.set_blocking(tell, False)
    # Python's own handlers wait for the main thread to come back from a call into a library.
    wakeup = signal.set_wakeup_fd(tell, warn_on_full_buffer=False)
    watcher = threading.Thread(target=insist, daemon=True)
    watcher.start()
    try:
        yield
    finally:
        signal.set_wakeup_fd(wakeup)
        os.write(tell, b"\0")
        watcher.join()
        os.close(tell)
        os.close(told)
        signal.signal(signal.SIGTERM, previous)
        if came:  # what Python does at its end waits for threads, and may take seconds by itself
            for child in multiprocessing.active_children():
                child.terminate()
            with contextlib.suppress(OSError):
                sys.stdout.flush()
            os._exit(128 + came[0])


@contextlib.contextmanager
def exit_on_error() -> Iterator[None]:
    """Turn a ``FacerecError`` or a lack of rights in the block into one sentence and exit status 2.

    Of the processes that torchrun starts on a machine one prints it.
    """
    try:
        yield
        return
    except KeyboardInterrupt:
        raise SystemExit(130) from None
    except FacerecError as found:
        error = found
    except PermissionError as found:
        if found.filename is None:
            raise
        # Raised wherever a path below a folder without rights is but asked for.
        sentence = f"{found.filename}: {found.strerror}; check it, its rights and its folder's"
        error = FacerecError(sentence)
        error.__cause__ = found
    if _DEBUG in sys.argv:
        traceback.print_exception(error)
    if _first_to_say(str(error)):
        console = Console(stderr=True)
        console.print(f"error: {error}", style="red")
    raise SystemExit(2)


def _first_to_say(sentence: str) -> bool:
    """Tell whether no other process of this torchrun on this machine has printed ``sentence``."""
    file = os.environ.get("TORCHELASTIC_ERROR_FILE")
    if file is None:
        return True
    # One folder for every process, in one for each life of them all.
    said = f"said-{zlib.crc32(sentence.encode(errors='replace')):08x}"
    try:
        (Path(file).parents[1] / said).touch(exist_ok=False)
    except OSError as problem:
        return not isinstance(problem, FileExistsError)
    return True
