"""Help of every command on a terminal of 80 columns."""

from __future__ import annotations

import dataclasses
import importlib
import re

import pytest
from pytest import CaptureFixture, MonkeyPatch

from facerec.base.recipe import load_recipe
from facerec.commands.main import COMMANDS
from facerec.training import Recipe

OPTION = re.compile(r"^  (-{1,2}\w.*?|\[?[A-Z]+\]?)(?:  +(.*?))? *$")
"""A flag or a positional, and the beginning of what is said of it where that fits beside it."""


def read_help(
    capsys: CaptureFixture, monkeypatch: MonkeyPatch, command: str, *arguments: str
) -> tuple[str, dict[str, str]]:
    """Return a command's help at 80 columns, and what it says of each flag and positional."""
    monkeypatch.setenv("COLUMNS", "80")
    with pytest.raises(SystemExit) as end:
        importlib.import_module(f"facerec.commands.{command.replace('-', '_')}").main(arguments)
    assert end.value.code == 0
    text = capsys.readouterr().out
    said: list[tuple[str, list[str]]] = []
    for line in text.splitlines():
        if found := OPTION.match(line):
            said.append((found[1], [found[2] or ""]))
        elif said and line.startswith("    "):
            said[-1][1].append(line.strip())
    return text, {flag: " ".join(words).strip() for flag, words in said}


@pytest.mark.parametrize("command", COMMANDS)
def test_help_is_of_sentences_that_fit(
    command: str, capsys: CaptureFixture, monkeypatch: MonkeyPatch
) -> None:
    text, options = read_help(capsys, monkeypatch, command, "--help-all")
    assert f"\nusage: facerec {command} " in text
    assert [line for line in text.splitlines() if len(line) > 80] == []
    assert len(options) >= 2
    for option, words in options.items():
        assert "None" not in option and "(default: None)" not in words, option
        assert option == "-h, --help" or re.match("[A-Z0-9]", words), (option, words)
        assert len(re.findall(r"\bdefaults?\b", words)) <= 1, (option, words)


def test_help_of_train_shows_what_people_change_and_all_of_it_when_asked(
    capsys: CaptureFixture, monkeypatch: MonkeyPatch
) -> None:
    _, few = read_help(capsys, monkeypatch, "train", "arcface_sec_r50", "--help")
    _, every = read_help(capsys, monkeypatch, "train", "arcface_sec_r50", "--help-all")
    assert 15 <= len(few) <= 22 and few.items() <= every.items()
    assert {"--data.path PATH", "--optimizer.lr FLOAT", "--regularizer.weight FLOAT"} <= few.keys()

    def leaves(part: object, prefix: str) -> set[str]:
        if not dataclasses.is_dataclass(part):
            return {"--" + prefix[:-1].replace("_", "-")}
        names = [field.name for field in dataclasses.fields(part)]
        return set().union(*(leaves(getattr(part, name), f"{prefix}{name}.") for name in names))

    flags = {option.split()[0].rstrip(",") for option in every}
    whole = {"--data.also", "--distillation"}  # parts that this recipe does not have
    assert leaves(load_recipe("arcface_sec_r50", Recipe), "") <= flags | whole
