"""The calibration of a model: all that decides beside its weights, as one file beside the model.

``MODEL.facerec.json`` is written by ``facerec calibrate`` alone. It says how pixels are prepared,
which faces the model knows, which cosine decides, and what a cosine is worth as evidence.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray

import facerec
from facerec.backbones.preprocessing import Preprocessing
from facerec.base.errors import FacerecError, ModelError, fault, printable
from facerec.base.files import parse_json, read_file, sha256, write_json
from facerec.base.limits import Checked, Limits, Number, Probability
from facerec.base.recipe import from_dict
from facerec.embedding.evidence import Evidence
from facerec.embedding.onnx_file import OnnxFile
from facerec.embedding.onnx_preprocessing import stated_preprocessing
from facerec.records.non_faces import SPOILT
from facerec.statistics.calibration import LikelihoodRatio, Pairs
from facerec.statistics.intervals import wilson

SCHEMA = "facerec.model_calibration/2"

FAR = -4.5
"""Score below which a picture of a calibration is left out: of 7,701 images of LFW none or one
in networks in use, where nearly all pictures without a face lie lower."""

WEAK = 50
"""Refused pictures of a kind, of 100, below which it is said that the score does not see it."""

_FAULTS = (LookupError, TypeError, ValueError, AttributeError, OverflowError, OSError, FacerecError)
"""How files that somebody else wrote fail to be read."""


@contextlib.contextmanager
def _reading(where: str, mend: str = "run facerec calibrate") -> Iterator[None]:
    """Word what goes wrong while a calibration is read from anybody's file.

    Raises:
        ModelError: anything did.
    """
    try:
        yield
    except _FAULTS as no:
        raise ModelError(
            f"{where}: not a calibration, or a damaged one ({fault(no)}); {mend}"
        ) from no


def _json(known: Any) -> dict[str, Any]:
    """Return the fields of a dataclass as JSON types, which `from_dict` takes back."""

    def plain(items: list[tuple[str, Any]]) -> dict[str, Any]:
        return {k: v.tolist() if isinstance(v, np.ndarray) else v for k, v in items}

    return asdict(known, dict_factory=plain)


@dataclass(frozen=True)
class Threshold(Checked):
    """An operating point of the model, as the file has it (``docs/export.md``)."""

    bench: str
    """Set of people on which it was found."""
    fpr: str
    """Share of different pairs that it accepts at most, as it was asked for."""
    threshold: Annotated[float, Limits(-1.01, 1.01)]
    """Cosine at or above which two faces are taken for the same subject."""
    fpr_realised: Probability
    fpr_interval: tuple[Probability, Probability]
    false_accepts: tuple[Pairs, Pairs]
    """Different pairs that are accepted, and how many there are."""
    tpr: Probability | None
    tpr_interval: tuple[Probability, Probability]
    true_accepts: tuple[Pairs, Pairs]
    """Same pairs that are accepted, and how many there are."""
    reliable: bool
    flip: bool
    """Whether the embeddings were sums over image and mirror image."""
    threshold_interval: tuple[float, float] | None = None

    def __str__(self) -> str:
        return printable(f"FPR {self.fpr} on {self.bench}")


@dataclass(frozen=True, eq=False)
class FaceScore(Checked):
    """How far embeddings are from pictures that are no faces, in standard deviations of faces."""

    centres: NDArray[np.float32]
    """Mean directions of pictures without a face, and of each kind of spoilt faces, ``(K, D)``, of
    length 1."""
    cosines: NDArray[np.float64]
    """Median and standard deviation of faces' cosines to each, as of a normal law, ``(K, 2)``; the
    latter over the centre's weight."""
    limit: Number
    """Score below which a picture is refused."""
    faces: Pairs
    """Faces of the calibration, of which `FALSE_REFUSALS` (`facerec.embedding.face_score`) lie
    below the limit."""
    power: dict[str, tuple[int, int]]
    """Kind of picture → how many were refused, of how many."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if (
            self.centres.ndim != 2
            or self.cosines.shape != (len(self.centres), 2)
            or not (np.abs(np.linalg.norm(self.centres, axis=1) - 1) < 0.01).all()
            or not (np.isfinite(self.cosines).all() and self.cosines[:, 1].min() > 0)
            or not all(0 <= seen <= of for seen, of in self.power.values())
        ):
            raise ValueError("its face score is none")

    def __call__(self, vectors: NDArray[np.floating]) -> NDArray[np.float32]:
        """Return the face scores of raw embeddings ``(N, D)``, float32 ``(N,)``; NaN for NaN."""
        with np.errstate(all="ignore"):
            lengths = np.sqrt(np.einsum("nd,nd->n", vectors, vectors))
            cosines = vectors @ self.centres.T / lengths[:, None]
            away = (self.cosines[:, 0] - cosines) / self.cosines[:, 1]
            return np.asarray(away.min(axis=1), np.float32)

    def far(self, vectors: NDArray[np.floating]) -> NDArray[np.bool_]:
        """Tell which embeddings ``(N, D)`` lie where no face does, whatever the limit is."""
        return np.asarray(self(vectors) < FAR)

    @property
    def words(self) -> str:
        """Say how much the score refuses at least, by kind, and what it does not see."""
        told = [f"{n} of 100 {kind}" for kind, n in self.least.items() if n >= WEAK]
        refuses = f"refuses at least {', '.join(told)}" if told else "refuses few pictures"
        return f"{refuses}; it does not see {self.blind}" if self.blind else refuses

    @property
    def least(self) -> dict[str, int]:
        """How many of 100 pictures of each kind are refused at the least, with 95 % confidence."""
        return {
            kind: int(100 * wilson(*each, confidence=0.9).low) if each[1] else 0
            for kind, each in (dict.fromkeys(SPOILT, (0, 0)) | {**self.power}).items()
        }

    @property
    def blind(self) -> str:
        """The kinds of pictures of which it may refuse less than half; empty if there are none."""
        names = [kind for kind, least in self.least.items() if least < WEAK]
        return " and ".join(filter(None, [", ".join(names[:-1]), *names[-1:]]))


@dataclass(frozen=True, eq=False)
class ScoreCalibration(Checked):
    """The likelihood ratio of a model's cosines, and the people on whom it rests.

    Attributes:
        model: name, SHA-256 and preprocessing of the model, as JSON types.
        flip: whether its embeddings are sums over image and mirror image.
        source: file or bench whose people were compared.
        ratio: of scores.
        cllr: cost of its log-likelihood ratios on people whom it does not know, by ten folds, bits.
        least_cllr: the least cost there of any monotone calibration with the same ends.
        groups: figures by group where groups are recorded, as JSON types.
    """

    model: dict[str, Any]
    flip: bool
    source: str
    ratio: LikelihoodRatio
    cllr: Annotated[float, Limits(0, 1000)]
    least_cllr: Annotated[float, Limits(0, 1.001)]
    groups: tuple[dict[str, Any], ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Return all fields as JSON types, which `from_dict` takes back."""
        return _json(self)

    def evidence(self, score: float) -> Evidence:
        """Return what a cosine of this model says."""
        ratio = self.ratio
        ends, (share, near) = ratio.interval(score), ratio.stranger(score)
        beyond = not ratio.low <= score <= ratio.high
        seen = score <= ratio.strangers[-1, 0]
        few = f"; too few pairs score so {'high' if score > ratio.high else 'low'} to tell more"
        return Evidence(
            likelihood_ratio=None if beyond else math.exp(float(ratio.log_ratio(score))),
            low=None if math.isinf(ends.low) else math.exp(ends.low),
            high=None if math.isinf(ends.high) else math.exp(ends.high),
            strangers=share if seen else 0.0,
            strangers_interval=(near.low if seen else 0.0, near.high),
            basis=self.basis + few * beyond,
        )

    @property
    def basis(self) -> str:
        """On whom it was calibrated, in words."""
        pairs = self.ratio.mated + self.ratio.non_mated
        people = f"{self.ratio.subjects:,} people ({printable(self.source)})"
        return f"calibrated on {pairs:,} pairs of {people}"


@dataclass(frozen=True, eq=False)
class ModelCalibration:
    """What decides beside the weights of a model.

    Attributes:
        sha256: of the model file.
        preprocessing: of its pixels.
        shift: pixels by which its pictures were moved right and down.
        flip: whether mirror images were added.
        align: how its faces were found, see `Aligner.describe`; None for crops as they came.
        source: the bench or the people that it was made of.
        thresholds: its operating points.
        faces: which pictures the model knows as faces; None where that was not measured.
        score_calibration: what a cosine is worth as evidence; None where that is not known.
        where: the file.
    """

    sha256: str | None
    preprocessing: Preprocessing
    shift: tuple[int, int]
    flip: bool
    align: dict[str, Any] | None
    source: str
    thresholds: tuple[Threshold, ...]
    faces: FaceScore | None
    score_calibration: ScoreCalibration | None
    where: str = ""

    def pixels(self, asked: Mapping[str, Any]) -> dict[str, Any]:
        """Return its channels, mean and std.

        Args:
            asked: what is asked for, under the same names; None for what is not.

        Raises:
            ModelError: what is asked for contradicts it.
        """
        own = vars(self.preprocessing)
        return {name: self._agreed(name, own[name], asked.get(name)) for name in own}

    def flip_mode(self, flip: bool | None) -> bool:
        """Return whether to add mirror images, asked for or not.

        Raises:
            ModelError: what is asked for contradicts it.
        """
        return bool(self._agreed("flip", self.flip, flip))

    def _agreed(self, name: str, own: Any, asked: Any) -> Any:
        if asked not in (None, own):
            raise ModelError(
                f"{self.where}: this calibration was made with {name} {own}, and {name} {asked} "
                "contradicts it; leave it out, or run facerec calibrate with it"
            )
        return own

    def to_json(self) -> dict[str, Any]:
        """Return everything but the name of the file as JSON types."""
        given = _json(self)
        del given["where"]
        return {"schema": SCHEMA, **given}

    def write(self, path: Path) -> None:
        """Write the file, whole or not at all."""
        write_json(path, {**self.to_json(), "facerec": facerec.__version__})

    @classmethod
    def read(cls, path: Path) -> ModelCalibration:
        """Return the calibration of a file.

        Raises:
            ModelError: there is no such file, or it holds something else.
        """
        with _reading(str(path)):
            found = parse_json(read_file(path)) | {"where": str(path)}
            if (schema := found.pop("schema")) != SCHEMA:
                raise ValueError(f"schema {schema!r}")
            found.pop("facerec", None)  # the version that wrote it
            return from_dict(cls, found, str(path))


def calibration_file(model: Path) -> Path:
    """Return where ``facerec calibrate`` leaves the calibration of a model file, beside it."""
    return model.with_name(f"{model.name}.facerec.json")


def find_calibration(model: Path, file: OnnxFile | None) -> tuple[ModelCalibration | None, str]:
    """Return the calibration in a model file or else beside it, and why one there is not used.

    Args:
        model: the file.
        file: what it holds, of an ``.onnx`` file.

    Raises:
        ModelError: it is damaged.
    """
    note = None if file is None else file.note
    if (known := _inside(note or {}, str(model))) is not None:
        return known, ""
    path = calibration_file(model)
    if path.is_file():
        known = ModelCalibration.read(path)
        if known.sha256 == (sha256(model) if file is None else file.sha256):
            return known, ""
        return None, f"{path}: this calibration is of another model, so it is not used"
    return None, ""


def _inside(note: Mapping[str, Any], where: str) -> ModelCalibration | None:
    """Return the calibration that an exported file has in itself."""
    thresholds, worth = note.get("thresholds") or [], note.get("score_calibration")
    if not thresholds and worth is None:
        return None
    with _reading(where, "export the model again"):
        first = worth if worth is not None else {"source": thresholds[0]["bench"], **thresholds[0]}
        found = {
            "sha256": None,
            "preprocessing": stated_preprocessing(note["preprocessing"], where).preprocessing,
            "shift": [0, 0],
            "flip": first["flip"],
            "align": {"method": note.get("alignment")},
            "source": first["source"],
            "thresholds": thresholds,
            "faces": note.get("faces"),
            "score_calibration": worth,
            "where": where,
        }
        return from_dict(ModelCalibration, found, where)
