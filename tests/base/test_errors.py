"""The sentences of errors, whatever a file made them quote."""

from __future__ import annotations

import pickle

from hypothesis import given
from hypothesis import strategies as st

from facerec.base.errors import MAX_SENTENCE, DatasetError, FacerecError, ImageError, printable


@given(st.text())
def test_a_sentence_is_one_line_without_control_characters(text: str) -> None:
    sentence = str(DatasetError(f"list.txt, line 3: {text} is no name; mend the line"))
    assert sentence.startswith("list.txt, line 3: ") and sentence.endswith("; mend the line")
    assert not any(ord(c) < 32 or 127 <= ord(c) < 160 for c in sentence)


def test_terminals_are_not_steered() -> None:
    hostile = "\x1b]0;title\x07\x1b[2J\r\x9b31m\u202egpj.exe"
    assert printable(hostile) == "␛]0;title␇␛[2J␍�31m�gpj.exe"
    assert printable("soft\u00adhyphen") == "soft\ufffdhyphen"
    assert (
        printable("Zoë × 测试 \u0645\u200c\u0646 [red]\n\t")
        == "Zoë × 测试 \u0645\u200c\u0646 [red]\n\t"
    )
    assert str(FacerecError("a\nb\r\nc")) == "a b␍ c"
    assert str(FacerecError("a\u2028b\u2029c\udfff")) == "a�b�c�"


def test_long_fields_are_left_out_and_the_advice_stays() -> None:
    sentence = str(ImageError(f"x.jpg: {'9' * 10_000} is too much; leave it out"))
    assert len(sentence) == MAX_SENTENCE
    assert sentence.startswith("x.jpg: 999") and sentence.endswith("is too much; leave it out")
    assert "…" in sentence


def test_errors_cross_processes() -> None:
    for text in ("x: y", "\x1b" * 5000, ""):
        error = DatasetError(text)
        copy = pickle.loads(pickle.dumps(error))
        assert type(copy) is DatasetError and str(copy) == str(error)
