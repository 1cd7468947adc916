"""One form of each name, and the words that stand for no value, against those who write them."""

from __future__ import annotations

import unicodedata

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pandas._libs.parsers import STR_NA_VALUES

from facerec.base.names import is_missing, same_name, same_names

FORMS = ("NFC", "NFD")
OTHERS = ["NA_character_", "NULL", "nil", "n.a.", "n. a.", "-", "?", "\\N"]
OTHERS += ["#DIV/0!", "#REF!", "#NAME?", "#WERT!", "#N/A", "#NV"]


@given(st.text())
def test_both_forms_of_a_text_are_one_name(text: str) -> None:
    composed, decomposed = (same_name(unicodedata.normalize(form, text)) for form in FORMS)
    assert composed == decomposed == same_name(composed) == same_name(text)


def test_arrays_keep_their_shape_and_other_kinds_stay() -> None:
    table = np.array([["Zoe\u0308", "a"], ["", "가"]])
    assert same_names(table).tolist() == [["Zoë", "a"], ["", "가"]]
    numbers = np.arange(3)
    assert same_names(numbers) is numbers and same_names(np.empty(0, np.str_)).shape == (0,)


@pytest.mark.parametrize("text", sorted({*STR_NA_VALUES, *OTHERS}))
def test_what_programs_write_for_missing_is(text: str) -> None:
    assert is_missing(text) and is_missing(text.upper()) and is_missing(f"\u00a0{text}")


@pytest.mark.parametrize("text", ["unknown", "other", "no", "0", "-1", "Nadia", "#1", "!?", "f"])
def test_what_somebody_recorded_is_not_missing(text: str) -> None:
    assert not is_missing(text)
