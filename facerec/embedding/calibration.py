"""The calibration of a model: all that decides beside its weights, as one file beside the model.

``MODEL.facerec.json`` is written by ``facerec calibrate`` alone. It says how pixels are prepared,
which faces the model knows, which cosine decides, and what a cosine is worth as evidence.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from facerec.backbones.preprocessing import Preprocessing
from facerec.base.errors import FacerecError, ModelError, fault, printable
from facerec.base.files import parse_json, read_file
from facerec.base.recipe import check, from_dict
from facerec.embedding.face_score import FaceScore
from facerec.embedding.onnx_preprocessing import UNSCALED
from facerec.embedding.score_calibration import ScoreCalibration
from facerec.statistics.operating_points import parse_rate

SCHEMA = "facerec.model_calibration/1"

PIXELS = ("channels", "mean", "std")
"""What of the preprocessing must be equal for cosines to mean the same."""

_ROW: dict[str, Any] = {
    "bench": str,
    "fpr": str,
    "threshold": float,
    "threshold_interval": tuple[float, float] | None,
    "fpr_realised": float,
    "fpr_interval": tuple[float, float],
    "false_accepts": tuple[int, int],
    "tpr": float | None,
    "tpr_interval": tuple[float, float],
    "true_accepts": tuple[int, int],
    "reliable": bool,
    "flip": bool,
    "score": str,
}
"""The types of a row of thresholds, see ``docs/export.md``."""


@dataclass(frozen=True)
class Threshold:
    """An operating point of the model."""

    value: float
    """Cosine at or above which two faces are taken for the same subject."""
    fpr: str
    """Share of different pairs that it accepts at most, as it was asked for."""
    bench: str
    """Set of people on which it was found."""
    flip: bool
    """Whether the embeddings were sums over image and mirror image."""

    def __str__(self) -> str:
        return f"FPR {self.fpr} on {self.bench}"

    @classmethod
    def from_json(cls, row: Any) -> Threshold:
        """Return the operating point of a row, which anybody may have written, and is printed.

        Raises:
            KeyError, TypeError, ValueError, FacerecError: it is damaged.
        """
        read = {name: check(kind, row[name], "a row", name) for name, kind in _ROW.items()}
        parse_rate(read["fpr"])
        rates = [*read["fpr_interval"], *read["tpr_interval"], read["fpr_realised"], read["tpr"]]
        counts = read["false_accepts"], read["true_accepts"]
        if (
            not -1.01 <= read["threshold"] <= 1.01
            or not all(0 <= rate <= 1 for rate in rates if rate is not None)
            or not all(0 <= seen <= of < 1e15 for seen, of in counts)
        ):
            raise ValueError(f"no threshold of {read['threshold']:g} gives what its row says")
        return cls(read["threshold"], read["fpr"], printable(read["bench"]), read["flip"])


@dataclass(frozen=True, eq=False)
class ModelCalibration:
    """What decides beside the weights of a model.

    Attributes:
        sha256: of the model file.
        preprocessing: ``channels``, ``mean`` and ``std`` as JSON types.
        shift: pixels by which its pictures were moved right and down.
        flip: whether mirror images were added.
        align: how its faces were found, see `Aligner.describe`; None for crops as they came.
        source: the bench or the people that it was made of.
        thresholds: rows as JSON types, see ``docs/export.md``.
        faces: which pictures the model knows as faces; None where that was not measured.
        ratio: what a cosine is worth as evidence; None where that is not known.
        where: the file.
    """

    sha256: str | None
    preprocessing: Mapping[str, Any]
    shift: tuple[int, int]
    flip: bool
    align: Mapping[str, Any] | None
    source: str
    thresholds: tuple[Mapping[str, Any], ...]
    faces: FaceScore | None
    ratio: ScoreCalibration | None
    where: str = ""

    def points(self) -> tuple[Threshold, ...]:
        """Return the operating points of its thresholds."""
        return tuple(map(Threshold.from_json, self.thresholds))

    def pixels(self, asked: Mapping[str, Any]) -> dict[str, Any]:
        """Return its channels, mean and std.

        Args:
            asked: the same; None for what is not asked for.

        Raises:
            ModelError: what is asked for contradicts it.
        """
        for name, own in self.preprocessing.items():
            if asked.get(name) not in (None, own):
                raise ModelError(
                    f"{self.where}: this calibration was made with {name} {own}, and {name} "
                    f"{asked[name]} contradicts it; leave it out, or run facerec calibrate with it"
                )
        return dict(self.preprocessing)

    def flip_mode(self, flip: bool | None) -> bool:
        """Return whether to add mirror images, asked for or not.

        Raises:
            ModelError: what is asked for contradicts it.
        """
        own = self.flip
        if flip is not None and flip != own:
            raise ModelError(
                f"{self.where}: this calibration was made {'with' if own else 'without'} mirror "
                f"images, and flip {flip} contradicts it; leave that out, or run facerec calibrate "
                "with it"
            )
        return own if flip is None else flip

    def to_json(self) -> dict[str, Any]:
        """Return everything as JSON types."""
        return {
            "schema": SCHEMA,
            "model": {"sha256": self.sha256},
            "preprocessing": dict(self.preprocessing),
            "shift": list(self.shift),
            "flip": self.flip,
            "align": None if self.align is None else dict(self.align),
            "source": self.source,
            "thresholds": [dict(row) for row in self.thresholds],
            "faces": None if self.faces is None else self.faces.to_json(),
            "score_calibration": None if self.ratio is None else self.ratio.to_json(),
        }

    @classmethod
    def from_json(cls, found: Any, where: str) -> ModelCalibration:
        """Return what `to_json` wrote, or what a bundle's model file says of the same.

        Args:
            found: parsed JSON.
            where: it comes from.

        Raises:
            ModelError: it is damaged, or something else.
        """
        try:
            if found["schema"] != SCHEMA:
                raise ValueError(f"schema {found['schema']!r}")
            pixels = {name: found["preprocessing"][name] for name in PIXELS}
            preprocessing = vars(from_dict(Preprocessing, pixels, where))
            worth, faces, align = (found[n] for n in ("score_calibration", "faces", "align"))
            read = cls(
                sha256=check(str | None, found["model"]["sha256"], where, "sha256"),
                preprocessing=preprocessing,
                shift=check(tuple[int, int], found["shift"], where, "shift"),
                flip=check(bool, found["flip"], where, "flip"),
                align=None if align is None else check(dict[str, Any], align, where, "align"),
                source=printable(check(str, found["source"], where, "source")),
                thresholds=check(tuple[dict[str, Any], ...], found["thresholds"], where, "rows"),
                faces=None if faces is None else FaceScore.from_json(faces),
                ratio=None if worth is None else ScoreCalibration.from_json(worth, where),
                where=where,
            )
            if {point.flip for point in read.points()} - {read.flip}:
                raise ValueError(f"flip {read.flip}, and thresholds of another")
            points = sorted(read.points(), key=lambda at: (at.bench, parse_rate(at.fpr)))
            for rarer, other in itertools.pairwise(points):
                if rarer.bench == other.bench and rarer.value < other.value:
                    raise ValueError(f"the threshold of {rarer} is below that of {other}")
        except ModelError:
            raise
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError, FacerecError) as no:
            raise ModelError(
                f"{where}: not a calibration, or a damaged one ({fault(no)}); run facerec calibrate"
            ) from no
        return read

    @classmethod
    def read(cls, path: Path) -> ModelCalibration:
        """Return the calibration of a file.

        Raises:
            ModelError: there is no such file, or it holds something else.
        """
        try:
            found = parse_json(read_file(path))
        except (OSError, ValueError) as error:
            raise ModelError(
                f"{path}: cannot be read as a calibration ({error}); run facerec calibrate"
            ) from error
        return cls.from_json(found, str(path))


def calibration_file(model: Path) -> Path:
    """Return where ``facerec calibrate`` leaves the calibration of a model file, beside it."""
    return model.with_name(f"{model.name}.facerec.json")


def find_calibration(
    model: Path, digest: Callable[[], str], note: Mapping[str, Any] | None
) -> tuple[ModelCalibration | None, str]:
    """Return the calibration in a model file or else beside it, and why one there is not used.

    Args:
        model: the file.
        digest: returns its SHA-256.
        note: what facerec wrote into the file, if it did.

    Raises:
        ModelError: it is damaged.
    """
    if (known := _inside(note or {}, str(model))) is not None:
        return known, ""
    path = calibration_file(model)
    if path.is_file():
        known = ModelCalibration.read(path)
        if known.sha256 == digest():
            return known, ""
        return None, f"{path}: this calibration is of another model, so it is not used"
    for old in ("thresholds", "calibration"):
        if (file := model.with_name(f"{model.name}.{old}.json")).is_file():
            return None, f"{file}: not read, as facerec calibrate writes one file of another form"
    return None, ""


def _inside(note: Mapping[str, Any], where: str) -> ModelCalibration | None:
    """Return the calibration that an exported file has in itself."""
    thresholds, worth = note.get("thresholds") or [], note.get("score_calibration")
    if not thresholds and worth is None:
        return None
    try:
        first = worth if worth is not None else {"source": thresholds[0]["bench"], **thresholds[0]}
        pixels = note["preprocessing"]
        found = {
            "schema": SCHEMA,
            "model": {"sha256": None},
            "preprocessing": asdict(UNSCALED) if pixels == "embedded" else pixels,
            "shift": [0, 0],
            "flip": first["flip"],
            "align": {"method": note.get("alignment")},
            "source": first["source"],
            "thresholds": thresholds,
            "faces": note.get("faces"),
            "score_calibration": worth,
        }
    except (KeyError, TypeError, IndexError) as error:
        raise ModelError(
            f"{where}: its table of thresholds is damaged ({fault(error)}); export it again"
        ) from error
    return ModelCalibration.from_json(found, where)
