"""A few hundred damaged files of every kind; `make fuzz` reads many more."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest
from fuzzer import Finding, fuzz, make_corpus, report
from kinds import KINDS
from mutations import mutate


@pytest.mark.integration
def test_damaged_files_end_in_sentences(tmp_path: Path) -> None:
    findings = fuzz(400, seed=0, out=tmp_path, workers=1)
    assert not findings, "\n".join(report(findings, seed=0))


@pytest.mark.integration
def test_faults_of_every_sort_are_found(tmp_path: Path) -> None:
    faults = [name for name in KINDS if name.startswith("fault-")]
    begun: list[int] = []
    findings = fuzz(
        1,
        seed=0,
        out=tmp_path,
        workers=1,
        names=faults,
        advance=begun.append,
        patience=8,
        memory=100 << 20,
    )
    assert sum(begun) == len(faults) == 6
    assert {finding.kind.removeprefix("fault-"): finding.problem for finding in findings} == {
        "crash": "crash",
        "hang": "hang",
        "memory": "memory",
        "traceback": "traceback",
        "message": "message",
        "length": "message",
    }
    # The damaged files are there to be looked at, and the report says how to come back to them.
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(f"{n}-0-0" for n in faults)
    words = "\n".join(report(findings, seed=0))
    assert "SIGABRT" in words and "ZeroDivisionError" in words and "\x1b" not in words
    assert "tests/fuzz/fuzzer.py --kinds fault-crash --seed 0 --case 0" in words


@pytest.mark.parametrize("name", ["pack-npz", "pth", "thresholds", "png", "pairs"])
def test_a_case_follows_from_kind_seed_and_number(tmp_path: Path, name: str) -> None:
    make_corpus(tmp_path, [name])
    targets = sorted(path for glob in KINDS[name].targets for path in (tmp_path / name).glob(glob))
    content = targets[0].read_bytes()

    def damaged(seed: int) -> bytes:
        return mutate(content, Random(f"{name} {seed} 3"), KINDS[name].mutators)

    assert damaged(1) == damaged(1)
    assert len({content, *map(damaged, range(8))}) > 6


def test_one_cause_is_reported_once() -> None:
    found = [Finding("idx", i, "traceback", f"ValueError {i}", "layout.py:3") for i in range(5)]
    lines = list(report([*found, Finding("idx", 9, "hang", "", "x.py:1")], seed=2))
    assert [line.split(":")[0] for line in lines].count("idx") == 2
    assert "5 times" in lines[0] and "--seed 2 --case 0" in lines[2]
