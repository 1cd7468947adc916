"""Reads thousands of damaged files of every kind; whatever is no plain sentence is a finding.

    python tests/fuzz/fuzzer.py                      # 100,000 cases, seed 0
    python tests/fuzz/fuzzer.py --kinds pth mat      # these kinds alone
    python tests/fuzz/fuzzer.py --kinds pth --case 4711 --debug   # one case again, with traceback

Child processes do the reading, so that a crash, a file that is never finished and memory without
bounds are findings too and not the end. A case follows from its kind, number and seed alone.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import dataclasses
import faulthandler
import gc
import json
import math
import os
import queue
import random
import resource
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import traceback
import unicodedata
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

CHUNK = 250
"""Cases that a worker is given at once."""

LONGEST_MESSAGE = 1600
MEMORY = 1 << 30
"""Bytes that a case may add to the largest size that its process has had."""
ADDRESSES = 4 << 30
"""Bytes that a worker may reserve beyond what it had at its start."""
CPU_SECONDS = 10.0
WALL_SECONDS = 60.0


@dataclasses.dataclass(frozen=True)
class Finding:
    """A case that ended neither well nor in a plain sentence."""

    kind: str
    number: int
    problem: str
    """crash, hang, memory, slow, traceback or message."""
    detail: str
    place: str
    """Findings of one kind, problem and place are one."""
    file: str = ""
    """The damaged file, inside the folder of its case."""

    @property
    def group(self) -> tuple[str, str, str]:
        return self.kind, self.problem, self.place


# ---------------------------------------------------------------- in the child


class Worker:
    """Runs cases, and says on ``pipe`` which one it begins before it does."""

    def __init__(self, corpus: Path, scratch: Path, seed: int, memory: int = MEMORY) -> None:
        from kinds import KINDS

        self.kinds, self.memory = KINDS, memory
        self.corpus, self.scratch, self.seed = corpus, scratch, seed
        self.targets: dict[str, dict[str, bytes]] = {}
        self.last: tuple[Path, bytes] | None = None

    def run(self, name: str, number: int, debug: bool = False) -> Finding | None:
        """Damage a file and read it; the damaged file lies in the scratch folder until the next."""
        from facerec.errors import FacerecError

        kind, root, target = self.prepare(name, number)
        before = _largest_size()
        begun = time.process_time()
        try:
            kind.read(root, root / target)
        except FacerecError as error:
            if debug:
                traceback.print_exc()
            finding = _judge(name, number, error)
        except Exception as error:
            if debug:
                traceback.print_exc()
            problem = "memory" if isinstance(error, MemoryError) else "traceback"
            detail = f"{type(error).__name__}: {str(error)[:300]!r}"
            finding = Finding(name, number, problem, detail, _innermost(error))
        else:
            finding = None
        spent, grown = time.process_time() - begun, _largest_size() - before
        if finding is None and grown > self.memory:
            finding = Finding(name, number, "memory", f"{grown >> 20:,} MiB more", "size")
        if finding is None and spent > CPU_SECONDS:
            finding = Finding(name, number, "slow", f"{spent:.0f} s of processor time", "time")
        return finding and dataclasses.replace(finding, file=target)

    def prepare(self, name: str, number: int) -> tuple[Any, Path, str]:
        """Write the damaged file among the valid ones of its kind."""
        from mutations import mutate

        kind, root = self.kinds[name], self.scratch / name
        if self.last is None:
            self.prepare_kind(name)
        else:
            self.last[0].write_bytes(self.last[1])
        generator = random.Random(f"{name} {self.seed} {number}")
        target, content = generator.choice(list(self.targets[name].items()))
        self.last = root / target, content
        (root / target).write_bytes(mutate(content, generator, kind.mutators))
        return kind, root, target

    def prepare_kind(self, name: str) -> None:
        """Write the valid files of a kind; at first also read one, which imports all it needs."""
        if name not in self.targets:
            kind, root = self.kinds[name], self.scratch / name
            shutil.rmtree(root, ignore_errors=True)
            shutil.copytree(self.corpus / name, root)
            found = sorted({path for glob in kind.targets for path in root.glob(glob)})
            self.targets[name] = {str(path.relative_to(root)): path.read_bytes() for path in found}
            kind.read(root, found[0])
        for target, content in self.targets[name].items():
            (self.scratch / name / target).write_bytes(content)
        self.last = None


def _judge(name: str, number: int, error: Exception) -> Finding | None:
    text = str(error)
    odd = sorted({c for c in text if unicodedata.category(c) in ("Cc", "Cs", "Zl", "Zp")})
    if odd:
        detail = f"{text[:300]!r} has {', '.join(f'U+{ord(c):04X}' for c in odd)}"
    elif len(text) >= LONGEST_MESSAGE:
        detail = f"{len(text):,} characters: {text[:300]!r}"
    else:
        return None
    return Finding(name, number, "message", detail, _innermost(error))


def _innermost(error: BaseException) -> str:
    """Return the line of facerec in which an error arose."""
    frames = traceback.extract_tb(error.__traceback__)
    ours = [frame for frame in frames if f"{os.sep}facerec{os.sep}" in frame.filename] or frames
    return f"{Path(ours[-1].filename).name}:{ours[-1].lineno}"


def _largest_size() -> int:
    factor = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * factor


def work(corpus: Path, scratch: Path, seed: int, memory: int) -> None:
    """Serve chunks ``kind start stop`` from the standard input until it ends."""
    pipe = os.dup(1)
    os.dup2(2, 1)  # what readers print is no part of the conversation
    faulthandler.enable()
    # Numbers out of range must be handled, not announced.
    warnings.simplefilter("ignore")
    warnings.filterwarnings("error", category=RuntimeWarning)
    worker = Worker(corpus, scratch, seed, memory)

    def say(*words: object) -> None:
        os.write(pipe, (" ".join(map(str, words)) + "\n").encode())

    def read_cases(name: str, start: int, stop: int) -> None:
        _limit_addresses()
        for number in range(start, stop):
            say("begin", number)
            finding = worker.run(name, number)
            if finding is not None:
                say("finding", json.dumps(dataclasses.asdict(finding)))
                if finding.problem == "memory":
                    return  # the largest size of a process never falls

    say("ready")
    for line in sys.stdin:
        name, start, stop = line.split()
        # A fork has all that was imported, so that the next one after a crash costs nothing.
        worker.prepare_kind(name)
        gc.freeze()  # or collecting would copy the memory of the whole process
        process = os.fork()
        if not process:
            say("process", os.getpid())
            read_cases(name, int(start), int(stop))
            os._exit(0)
        say("end", os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]))


def _limit_addresses() -> None:
    with contextlib.suppress(OSError, ValueError, FileNotFoundError):
        pages = int(Path("/proc/self/statm").read_text().split()[0])
        limit = pages * resource.getpagesize() + ADDRESSES
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))


# ---------------------------------------------------------------- in the parent


class Campaign:
    """Shares the cases among workers, restarts them, and collects what they find."""

    def __init__(
        self,
        seed: int,
        out: Path,
        workers: int,
        advance: Callable[[int], object] = bool,
        tell: Callable[[Finding], object] = bool,
        patience: float = WALL_SECONDS,
        memory: int = MEMORY,
    ) -> None:
        self.seed, self.out, self.workers = seed, out, workers
        self.patience, self.memory = patience, memory
        self.advance, self.tell = advance, tell
        self.chunks: queue.SimpleQueue[tuple[str, int, int]] = queue.SimpleQueue()
        self.findings: list[Finding] = []
        self.saved: collections.Counter[tuple[str, str, str]] = collections.Counter()
        self.lock = threading.Lock()
        self.broken: BaseException | None = None

    def run(self, counts: dict[str, int]) -> list[Finding]:
        """Run cases 0 … n-1 of each kind; return the findings by kind and number."""
        pending = {name: 0 for name in counts}
        while pending:  # one chunk of each kind in turn
            for name, start in list(pending.items()):
                stop = min(start + CHUNK, counts[name])
                if start < stop:
                    self.chunks.put((name, start, stop))
                    pending[name] = stop
                else:
                    del pending[name]
        with tempfile.TemporaryDirectory(prefix="fuzz") as folder:
            corpus = Path(folder) / "corpus"
            make_corpus(corpus, counts)
            threads = [
                threading.Thread(target=self._serve, args=(corpus, Path(folder) / f"worker{i}"))
                for i in range(self.workers)
            ]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        if self.broken is not None:
            raise self.broken
        return sorted(self.findings, key=lambda finding: (finding.kind, finding.number))

    def _serve(self, corpus: Path, scratch: Path) -> None:
        try:
            with Child(corpus, scratch, self.seed, self.memory) as child:
                while self.broken is None:
                    try:
                        name, start, stop = self.chunks.get_nowait()
                    except queue.Empty:
                        return
                    while start < stop:
                        start = 1 + self._feed(child, scratch, name, start, stop)
        except BaseException as problem:
            self.broken = problem

    def _feed(self, child: Child, scratch: Path, name: str, start: int, stop: int) -> int:
        """Give cases to a child; return the last one that was begun."""
        child.send(f"{name} {start} {stop}\n")
        number, hung = start, False
        while True:
            line = child.line(self.patience)
            word, _, rest = (line or "").partition(" ")
            if word == "process":
                process = int(rest)
            elif word == "begin":
                number = int(rest)
                self.advance(1)
            elif word == "finding":
                self._keep(Finding(**json.loads(rest)), scratch)
            elif word == "end":
                if int(rest):
                    self._keep(child.explain(name, number, int(rest), hung), scratch)
                return number
            elif line is None and not hung:
                hung = True
                os.kill(process, signal.SIGABRT)  # faulthandler writes where it is
            else:
                raise RuntimeError(f"a worker ended in {name} {number}: {child.said()}")

    def _keep(self, finding: Finding, scratch: Path) -> None:
        with self.lock:
            self.findings.append(finding)
            self.saved[finding.group] += 1
            if self.saved[finding.group] == 1:
                self.tell(finding)
            if self.saved[finding.group] <= 3:
                place = self.out / f"{finding.kind}-{self.seed}-{finding.number}"
                shutil.rmtree(place, ignore_errors=True)
                place.parent.mkdir(parents=True, exist_ok=True)
                with contextlib.suppress(OSError):
                    shutil.copytree(scratch / finding.kind, place)


class Child:
    """A worker as its parent sees it."""

    def __init__(self, corpus: Path, scratch: Path, seed: int, memory: int) -> None:
        scratch.mkdir(parents=True, exist_ok=True)
        self.log = tempfile.TemporaryFile()  # noqa: SIM115
        self.process = subprocess.Popen(
            [
                sys.executable,
                __file__,
                "--worker",
                str(corpus),
                str(scratch),
                str(seed),
                str(memory),
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.log,
            env={**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"},
        )
        self.buffer = b""
        if self.line(10 * WALL_SECONDS) != "ready":
            self.__exit__()
            raise RuntimeError(f"a worker did not start: {self.said()}")

    def __enter__(self) -> Child:
        return self

    def __exit__(self, *_: object) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.kill()
        self.process.wait()

    def send(self, text: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(text.encode())
        self.process.stdin.flush()

    def line(self, seconds: float) -> str | None:
        """Return the next line; empty where the child has ended, None where it does not answer."""
        assert self.process.stdout is not None
        pipe = self.process.stdout.fileno()
        while b"\n" not in self.buffer:
            if not select.select([pipe], [], [], seconds)[0]:
                return None
            part = os.read(pipe, 1 << 16)
            if not part:
                return ""
            self.buffer += part
        line, _, self.buffer = self.buffer.partition(b"\n")
        return line.decode()

    def explain(self, name: str, number: int, status: int, hung: bool) -> Finding:
        """Word the end of a process that did not come to the end of its cases."""
        said = self.said()
        place = next((part for part in said.split("File ") if "/facerec/" in part), "")
        place = place.partition(" in ")[0].rpartition("/")[2]
        how = signal.Signals(-status).name if status < 0 else f"status {status}"
        problem = "hang" if hung else "crash"
        return Finding(name, number, problem, f"{how}; {said[:600]}", place)

    def said(self) -> str:
        """Return what was written to the standard error since the last call."""
        self.log.seek(0)
        said = self.log.read()
        self.log.seek(0)
        self.log.truncate()
        return " ".join(said[-3000:].decode(errors="replace").split())


def make_corpus(corpus: Path, names: Sequence[str] | dict[str, int]) -> None:
    """Write the valid files of kinds, and see that they are read without complaint."""
    from kinds import KINDS

    for name in names:
        kind, root = KINDS[name], corpus / name
        root.mkdir(parents=True)
        kind.make(root)
        with tempfile.TemporaryDirectory() as copy:
            shutil.copytree(root, copy, dirs_exist_ok=True)
            targets = [path for glob in kind.targets for path in Path(copy).glob(glob)]
            assert targets, f"{name}: nothing matches {kind.targets}"
            for target in targets:
                kind.read(Path(copy), target)


def share(cases: int, names: Sequence[str]) -> dict[str, int]:
    """Divide cases among kinds by their weights, at least one each."""
    from kinds import KINDS

    total = sum(KINDS[name].weight for name in names) or 1
    return {name: max(1, round(cases * KINDS[name].weight / total)) for name in names}


def fuzz(
    cases: int,
    seed: int,
    out: Path,
    workers: int = 2,
    names: Sequence[str] | None = None,
    advance: Callable[[int], object] = bool,
    tell: Callable[[Finding], object] = bool,
    patience: float = WALL_SECONDS,
    memory: int = MEMORY,
) -> list[Finding]:
    """Run about that many cases; files of findings are copied to ``out``.

    Args:
        cases: of all kinds together.
        seed: another one gives other cases.
        out: files of three findings of each cause come here.
        workers: child processes.
        names: of kinds; by default all that can be read here.
        advance: called with the number of further cases.
        tell: called with the first finding of each cause.
        patience: seconds for a case.
        memory: bytes that a case may add to its process.
    """
    from kinds import KINDS

    chosen = names or [name for name, kind in KINDS.items() if kind.available and kind.weight]
    return Campaign(seed, out, workers, advance, tell, patience, memory).run(share(cases, chosen))


def report(findings: Sequence[Finding], seed: int) -> Iterator[str]:
    """Word the findings, those of one cause as one."""
    groups: dict[tuple[str, str, str], list[Finding]] = {}
    for finding in findings:
        groups.setdefault(finding.group, []).append(finding)
    for (kind, problem, place), members in groups.items():
        first = members[0]
        yield f"{kind}: {problem} at {place or 'an unknown place'}, {len(members)} times"
        yield f"    {first.detail}"
        case = f"--kinds {kind} --seed {seed} --case {first.number}"
        yield f"    again: python tests/fuzz/fuzzer.py {case}"


def main(argv: Sequence[str] | None = None) -> int:
    """Run the campaign, or one case again."""
    from kinds import KINDS
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeRemainingColumn

    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--cases", type=int, default=100_000, help="of all kinds together")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--kinds", nargs="+", choices=list(KINDS), help="these alone")
    parser.add_argument("--workers", type=int, default=max(1, min(8, os.cpu_count() or 1)))
    parser.add_argument("--case", type=int, help="run this case of one kind again, right here")
    parser.add_argument("--debug", action="store_true", help="show the traceback of that case")
    parser.add_argument("--out", type=Path, help="folder for the files of findings")
    options = parser.parse_args(argv)
    out = options.out or Path(tempfile.gettempdir()) / "facerec-fuzz"
    if options.case is not None:
        if not options.kinds or len(options.kinds) != 1:
            parser.error("--case needs one of --kinds")
        name = options.kinds[0]
        with tempfile.TemporaryDirectory() as folder:
            make_corpus(Path(folder), [name])
            worker = Worker(Path(folder), out, options.seed)
            finding = worker.run(name, options.case, options.debug)
        print(f"the files are in {out / name}")
        print(finding or "no finding")
        return int(finding is not None)
    skipped = [kind for kind in KINDS.values() if not kind.available]
    for kind in skipped:
        print(f"{kind.name}: left out, {kind.needs} is not installed")
    columns = ("{task.description}", BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    begun = time.monotonic()
    with Progress(*columns) as progress:
        task = progress.add_task("damaged files", total=options.cases)
        step = max(1, options.cases // 20)

        def advance(count: int) -> None:
            progress.advance(task, count)
            done = int(progress.tasks[0].completed)
            if not progress.console.is_terminal and done % step == 0:
                progress.console.print(f"{done:,} of {options.cases:,}", highlight=False)

        def tell(found: Finding) -> None:
            words = f"{found.kind} {found.number}: {found.problem} at {found.place}"
            progress.console.print(words, markup=False, highlight=False)

        findings = fuzz(
            options.cases,
            options.seed,
            out,
            options.workers,
            options.kinds,
            advance=advance,
            tell=tell,
        )
        progress.update(task, completed=options.cases)
    for line in report(findings, options.seed):
        print(line)
    minutes = (time.monotonic() - begun) / 60
    count = len({finding.group for finding in findings})
    where = f"; files in {out}" if findings else ""
    print(f"{options.cases:,} cases in {math.ceil(minutes)} minutes: {count} findings{where}")
    return int(bool(findings))


if __name__ == "__main__":
    if sys.argv[1:2] == ["--worker"]:
        work(Path(sys.argv[2]), Path(sys.argv[3]), *map(int, sys.argv[4:]))
    else:
        sys.exit(main())
