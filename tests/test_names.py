"""One form of each name, and the words that stand for no value, against those who write them."""

from __future__ import annotations

import unicodedata

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from facerec.names import is_missing, same_name, same_names

FORMS = ("NFC", "NFD")


@given(st.text())
def test_both_forms_of_a_text_are_one_name(text: str) -> None:
    composed, decomposed = (same_name(unicodedata.normalize(form, text)) for form in FORMS)
    assert composed == decomposed == same_name(composed) == same_name(text)


def test_arrays_keep_their_shape_and_other_kinds_stay() -> None:
    table = np.array([["Zoe\u0308", "a"], ["", "가"]])
    assert same_names(table).tolist() == [["Zoë", "a"], ["", "가"]]
    numbers = np.arange(3)
    assert same_names(numbers) is numbers and same_names(np.empty(0, np.str_)).shape == (0,)


def test_what_pandas_reads_as_missing_is() -> None:
    from pandas._libs.parsers import STR_NA_VALUES

    assert all(map(is_missing, STR_NA_VALUES))


@pytest.mark.parametrize("text", ["NA_character_", "NULL", "nil", "n.a.", "n. a.", "-", "?", "\\N"])
def test_what_others_write_for_missing_is(text: str) -> None:
    assert is_missing(text) and is_missing(text.upper()) and is_missing(f"\u00a0{text}")


@pytest.mark.parametrize("text", ["#DIV/0!", "#REF!", "#NAME?", "#WERT!", "#N/A", "#NV"])
def test_errors_of_a_spreadsheet_are_missing(text: str) -> None:
    assert is_missing(text)


@pytest.mark.parametrize("text", ["unknown", "other", "no", "0", "-1", "Nadia", "#1", "!?", "f"])
def test_what_somebody_recorded_is_not_missing(text: str) -> None:
    assert not is_missing(text)
