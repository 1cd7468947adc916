"""What is one name, and which words stand for no value: the rules of every join and every table."""

from __future__ import annotations

import unicodedata
from typing import Any

import numpy as np
from numpy.typing import NDArray

_WORDS = """
none null <null> (null) nil \\n missing nat nan -nan +nan 1.#ind -1.#ind 1.#qnan -1.#qnan
na <na> n/a n.a. n.a #na #nv #n/a na_character_ na_integer_ na_real_
. .. ? - -- --- – —
#div/0! #value! #ref! #name? #num! #null!
"""

MISSING = frozenset(("", "n. a.", "#n/a n/a", *_WORDS.split()))
"""What pandas, R, Excel, Python, SQL, Stata and people write where nothing is recorded."""


def same_name(text: str) -> str:
    """Return the form in which a name is compared: composed (NFC), in the capitals that it has.

    "é" is one character in most texts and two in names that a Mac has written.
    """
    return text if text.isascii() else unicodedata.normalize("NFC", text)


def same_names(texts: NDArray[Any]) -> NDArray[Any]:
    """Return an array of text in which each is as `same_name` has it; other arrays as they are."""
    # Whatever can be composed has a letter from U+0300 on, which few arrays have.
    if texts.dtype.kind != "U" or np.ascontiguousarray(texts).view("u4").max(initial=0) < 0x300:
        return texts
    names = [same_name(text) for text in texts.reshape(-1).tolist()]
    return np.array(names, np.str_).reshape(texts.shape)


def is_missing(text: str) -> bool:
    """Return whether a field of a group, an attribute or a number says that nothing is recorded.

    Blanks around it and capitals do not count; the errors of spreadsheets in other languages, as
    ``#WERT!``, are no values either. "unknown" is an answer that somebody recorded. Not for names
    of people and images: None and Na are names, and of these only an empty field is missing.
    """
    word = text.strip().casefold()
    return word in MISSING or (word[0] == "#" and word[-1] in "!?")
