"""The errors that facerec raises: one sentence each, naming the place and what to do.

Commands print the sentence and exit with status 2; ``--debug`` shows the traceback.
"""


class FacerecError(Exception):
    """Base of all errors that a user can cause and mend."""


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
