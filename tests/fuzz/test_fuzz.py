"""Damaged files of every kind, each of which must end well or in one plain sentence.

``make fuzz`` reads thousands of each, `make test-all` some. Hypothesis shrinks what it finds to the
smallest damage, and remembers it.
"""

from __future__ import annotations

import contextlib
import io
import json
import resource
import signal
import struct
import unicodedata
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from helpers.examples import examples
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from facerec.base.errors import FacerecError
from tests.fuzz.kinds import KINDS, Kind

pytestmark = pytest.mark.integration

LONGEST_MESSAGE = 1600
MEMORY = 1 << 20
"""KiB that a case may add to the largest size that its process has had."""
SECONDS = 20

NUMBERS = ("0", "-1", "1e999", "nan", "inf", "1_000", "0x10", "１２", "²", "9" * 19, "9" * 5000)
TEXTS = ("", " ", "\t", "\0", "\x1b[31mred", "a\rb", "a\u2028c", "\u202egpj", "../../x", "/x",
         "=cmd()", "[bold]x", "y" * 12_000, "\ufeff", "ﬃ")  # fmt: skip
SIZES = (0, 1, 3, 255, 1 << 15, (1 << 29) - 1, 1 << 31, (1 << 32) - 1, (1 << 63) - 1, (1 << 64) - 1)
TOKENS = [text.encode() for text in (*NUMBERS, *TEXTS)]
TOKENS += [struct.pack("<Q", size)[:width] for size in SIZES for width in (2, 4, 8)]
TOKENS += [struct.pack(">Q", size)[-4:] for size in SIZES] + [b"\xff\xfe", b"\xc3\x28", b"\n", b","]

tokens = st.sampled_from(TOKENS) | st.binary(max_size=12)
places = st.floats(0, 1)
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.sampled_from(NUMBERS + TEXTS),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=4,
)
edits = st.tuples(
    st.sampled_from(("flip", "set", "insert", "cut", "repeat", "end")), places, places, tokens
)
damages = st.lists(edits, min_size=1, max_size=3)


def damaged(content: bytes, changes: list[tuple[str, float, float, bytes]]) -> bytes:
    """Apply edits at places that are shares of the content."""
    for how, place, reach, token in changes:
        at = int(place * len(content))
        stop = min(len(content), at + 1 + int(reach**4 * len(content)))
        if how == "flip" and at < len(content):
            content = (
                content[:at] + bytes([content[at] ^ (1 << int(reach * 7))]) + content[at + 1 :]
            )
        elif how == "set":
            content = content[:at] + token + content[at + len(token) :]
        elif how == "insert":
            content = content[:at] + token + content[at:]
        elif how == "cut":
            content = content[:at] + content[stop:]
        elif how == "repeat":
            times = min(1 + len(token), 1 + 2**20 // max(1, stop - at))  # memory has an end
            content = content[:stop] + content[at:stop] * times + content[stop:]
        elif how == "end":
            content = content[:at]
    return content


def damaged_text(content: bytes, place: float, token: bytes) -> bytes:
    """Put a token in the place of one field."""
    fields = content.replace(b"\t", b",").split(b",")
    at = len(b",".join(fields[: int(place * len(fields))]))
    ends = [i for i in range(at + 1, len(content)) if content[i : i + 1] in b"\t\n, "]
    return content[:at] + token + content[ends[0] if ends else len(content) :]


def damaged_json(content: bytes, place: float, value: Any) -> bytes:
    """Put a value in the place of another one in the tree."""
    tree = {"": json.loads(content)}
    spots: list[tuple[Any, Any]] = []
    waiting: list[Any] = [tree]
    while waiting:
        node = waiting.pop()
        entries = list(node.items()) if isinstance(node, dict) else list(enumerate(node))
        spots += [(node, key) for key, _ in entries]
        waiting += [child for _, child in entries if isinstance(child, (dict, list))]
    node, key = spots[int(place * (len(spots) - 1))]
    node[key] = value
    return json.dumps(tree[""]).encode()


def damaged_member(content: bytes, place: float, changes: list[Any]) -> bytes:
    """Damage one member of an archive, whose check sums are right afterwards."""
    buffer = io.BytesIO()
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as source, zipfile.ZipFile(buffer, "w") as target:
            names = source.namelist()
            chosen = names[int(place * (len(names) - 1))]
            for name in names:
                member = source.read(name)
                target.writestr(name, damaged(member, changes) if name == chosen else member)
    except zipfile.BadZipFile:  # a legacy .pth
        return damaged(content, changes)
    return buffer.getvalue()


@st.composite
def cases(draw: st.DrawFn, form: str, content: bytes) -> bytes:
    """Draw a damaged form of a file."""
    if form == "text" and draw(st.booleans()):
        return damaged_text(content, draw(places), draw(tokens))
    if form == "json" and draw(st.integers(0, 3)):
        return damaged_json(content, draw(places), draw(values))
    if form == "zip" and draw(st.booleans()):
        return damaged_member(content, draw(places), draw(damages))
    return damaged(content, draw(damages))


@contextlib.contextmanager
def bounded() -> Iterator[None]:
    """Fail a case that takes long or much memory."""

    def late(*_: object) -> None:
        raise TimeoutError(f"a case took more than {SECONDS} s")

    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    signal.signal(signal.SIGALRM, late)
    signal.alarm(SECONDS)
    try:
        yield
    finally:
        signal.alarm(0)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < MEMORY


def judge(error: FacerecError) -> None:
    """Hold a message against what people can read in a terminal."""
    text = str(error)
    assert 0 < len(text) <= LONGEST_MESSAGE, text[:200]
    seen = text.translate({0x200C: None, 0x200D: None})  # they join letters of some scripts
    odd = [sign for sign in seen if unicodedata.category(sign) in ("Cc", "Cf", "Cs", "Zl", "Zp")]
    assert not odd, ascii(text[:400])


@pytest.mark.parametrize("name", KINDS)
def test_damaged_files_end_well_or_in_a_sentence(name: str, tmp_path: Path) -> None:
    kind: Kind = KINDS[name]
    kind.make(tmp_path)
    targets = sorted(tmp_path.glob(kind.targets))
    assert targets
    for target in targets:
        kind.read(target)
    contents = {target: target.read_bytes() for target in targets}

    @settings(
        max_examples=examples(25),
        deadline=None,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
        report_multiple_bugs=False,
    )
    @given(st.data())
    def read(data: st.DataObject) -> None:
        target = data.draw(st.sampled_from(targets))
        target.write_bytes(data.draw(cases(kind.form, contents[target])))
        try:
            with bounded():
                kind.read(target)
        except FacerecError as error:
            judge(error)
        finally:
            target.write_bytes(contents[target])

    read()
