"""The errors that facerec raises: one sentence each, naming the place and what to do.

Commands print the sentence and exit with status 2; ``--debug`` shows the traceback.
"""

from __future__ import annotations

import unicodedata

MAX_SENTENCE = 1500
"""Longest sentence of an error; of a longer one the middle is left out."""

_UNSEEN = ("Cc", "Cf", "Cs", "Zl", "Zp")
"""Categories of characters that steer, that nobody sees, that end a line, and halves."""


def printable(text: str) -> str:
    """Return ``text`` with a picture in place of each character that would steer a terminal.

    Names, paths and fields come from files that others wrote. Tabs, ends of lines and what joins
    letters of some scripts stay.
    """
    return text if text.isprintable() else "".join(map(_picture, text))


def _picture(sign: str) -> str:
    code = ord(sign)
    if sign in "\t\n\u200c\u200d" or unicodedata.category(sign) not in _UNSEEN:
        return sign
    return chr(0x2421 if code == 0x7F else 0x2400 + code) if code < 0x80 else "\ufffd"


def message_line(error: BaseException) -> str:
    """Return the first line of an error's message, or its type if it has none."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


def fault(error: Exception) -> str:
    """Return what an error that arose in reading a file says of it, for people."""
    return f"no {error}" if isinstance(error, KeyError) else message_line(error)


class FacerecError(Exception):
    """Base of all errors that a user can cause and mend.

    The sentence may quote what a file holds; it is made one line of at most ``MAX_SENTENCE``
    `printable` characters.
    """

    def __init__(self, sentence: object = "") -> None:
        text = printable(str(sentence).replace("\n", " ").replace("\t", " "))
        if len(text) > MAX_SENTENCE:
            text = f"{text[: MAX_SENTENCE - 501]}…{text[-500:]}"  # the end says what to do
        super().__init__(text)


class RecordError(FacerecError):
    """A record file, its index, or one record in it is damaged or inconsistent."""


class ImageError(FacerecError):
    """An encoded image does not decode, or has the wrong size or type."""


class DatasetError(FacerecError):
    """A data set as a whole cannot be used: empty, labels out of range, folders missing."""


class PackError(FacerecError):
    """A verification pack (``.bin``) is unsafe, malformed or missing."""


class MetricError(FacerecError):
    """Scores or labels from which a figure cannot be computed."""


class RecipeError(FacerecError):
    """A recipe file or an override of one of its fields is wrong."""


class ModelError(FacerecError):
    """Backbone weights are missing or belong to another architecture."""


class CheckpointError(FacerecError):
    """A checkpoint is missing, incomplete, or belongs to another run."""


class TrainingError(FacerecError):
    """Training cannot go on: a loss that is not finite, a label out of range."""


class DeviceError(FacerecError):
    """The device to compute on is not there."""


class MissingExtraError(FacerecError):
    """An optional package is needed; the sentence names the extra to install."""


class ExportError(FacerecError):
    """A model could not be exported, or what was written did not pass its checks."""


class ComparisonError(FacerecError):
    """A comparison of losses that cannot be run, resumed or read."""
