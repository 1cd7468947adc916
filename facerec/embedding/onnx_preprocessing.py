"""What a model wants its pixels to be, and what speaks for that."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from facerec.backbones.preprocessing import Preprocessing
from facerec.embedding.onnx_file import METADATA_KEY, OnnxFile
from facerec.errors import ModelError, RecipeError
from facerec.recipe import from_dict

Numbers = npt.NDArray[np.float64]

UNSCALED = Preprocessing("rgb", 0.0, 1.0)
"""For a graph that normalises by itself: pixels 0…255."""

KNOWN_NAMES = (
    (r"adaface", Preprocessing("bgr", 127.5, 127.5), "AdaFace (mk-minchul/AdaFace: inference.py)"),
    (
        r"(?<!mobile)facenet",
        Preprocessing("rgb", 127.5, 128.0),
        "facenet (davidsandberg/facenet: src/facenet.py, fixed_image_standardization)",
    ),
)
"""Of the file, in lower case; what the family trains with, and where that is written. Looked at
where nothing inside a file tells."""

_ALL = ("channels", "mean", "std")


@dataclass(frozen=True)
class PixelGuess:
    """What must happen to pixels before the model, and how that is known."""

    preprocessing: Preprocessing
    evidence: tuple[str, ...]
    """Sentences, the decisive one first."""
    fixed: tuple[str, ...] = ()
    """Parts that the file itself tells, of ``channels``, ``mean``, ``std``."""
    assumed: tuple[str, ...] = ()
    """Parts of which it tells nothing."""

    def asked(self, where: object, given: Mapping[str, Any]) -> PixelGuess:
        """Return it with what the user says in the place of what the file leaves open.

        Args:
            where: names the model in messages.
            given: ``channels``, ``mean`` and ``std``, None for what is not given.

        Raises:
            ModelError: the file says otherwise, or a value is out of range.
        """
        given = {name: value for name, value in given.items() if value is not None}
        known = self.preprocessing
        for name in given.keys() & {*self.fixed}:
            if given[name] != getattr(known, name):
                raise ModelError(
                    f"{where}: the file wants {name} {getattr(known, name)}, so {name} "
                    f"{given[name]} would be wrong; leave it out"
                )
        if known == UNSCALED and {"mean", "std"} & given.keys() - {*self.fixed}:
            # Whoever scales outside does not believe the guess that the graph does it.
            known = Preprocessing()
        try:
            known = replace(known, **given)
        except RecipeError as error:
            raise ModelError(f"{where}: {error}") from error
        said = (f"{name} was given by the user" for name in given)
        assumed = tuple(name for name in self.assumed if name not in given)
        return PixelGuess(known, (*said, *self.evidence), self.fixed, assumed)


@dataclass(frozen=True)
class Scaling:
    """The normalisation with which a graph begins: ``(x − mean) / std``."""

    mean: tuple[float, ...]
    """One number, or one for each channel."""
    std: tuple[float, ...]
    steps: str
    """The nodes that do it, with their constants, for people to read."""


def guess_preprocessing(file: OnnxFile) -> PixelGuess:
    """Find out what the model wants its pixels to be, and say what speaks for it.

    The first that applies decides: what facerec wrote into the file; an input of type uint8; a
    normalisation at the start of the graph, read from its constants; a name of `KNOWN_NAMES`; else
    the assumption that the model was trained as InsightFace's are.

    Raises:
        ModelError: facerec's own entry in the file is damaged.
    """
    pixels = bool(file.inputs) and file.inputs[0].dtype == "uint8"
    if (note := file.note) is not None:
        return stated_preprocessing(note.get("preprocessing"), file.where)
    usual = "the channel order is an assumption: nothing in the file tells; RGB is usual"
    if pixels:
        evidence = "the input is uint8, so the graph itself must normalise"
        return PixelGuess(UNSCALED, (evidence, usual), ("mean", "std"), ("channels",))
    scaling = leading_scaling(file)
    if scaling is None:
        return guess_by_name(file.path)
    raw = max(map(abs, scaling.mean)) > 2 or min(map(abs, scaling.std)) > 2
    fits = "pixels 0…255" if raw else "pixels scaled to 0…1"
    evidence = f"the graph begins with {scaling.steps}, which fits {fits}"
    wanted = UNSCALED if raw else Preprocessing("rgb", 0.0, 255.0)
    return PixelGuess(wanted, (evidence, usual), (), ("channels",))


def guess_by_name(path: Path | None) -> PixelGuess:
    """Return what `KNOWN_NAMES` says of a file's name, else that it wants what InsightFace's do.

    For files in which nothing tells.
    """
    name = "" if path is None else path.stem
    wanted = Preprocessing()
    evidence = (
        "an assumption: nothing in the file tells; RGB with mean 127.5 and std 127.5 is what "
        "InsightFace's models want"
    )
    for pattern, usual, family in KNOWN_NAMES:
        if re.search(pattern, name.lower()):
            wanted = usual
            evidence = f"the name '{name}' is that of {family}; nothing else tells"
            break
    return PixelGuess(wanted, (evidence,), (), _ALL)


def stated_preprocessing(entry: Any, where: str) -> PixelGuess:
    """Return the preprocessing that facerec's own note tells.

    Raises:
        ModelError: the entry is damaged.
    """
    try:
        if entry != "embedded" and not {*_ALL} <= {*entry}:
            raise TypeError("neither 'embedded' nor channels, mean and std")
        found = UNSCALED if entry == "embedded" else from_dict(Preprocessing, entry, where)
    except (RecipeError, TypeError, AttributeError) as error:
        raise ModelError(
            f"{where}: the preprocessing in its metadata entry {METADATA_KEY!r} is damaged "
            f"({str(error)[:200]}); write the model again"
        ) from error
    return PixelGuess(found, (f"its metadata entry {METADATA_KEY!r} says so",), _ALL)


def leading_scaling(file: OnnxFile) -> Scaling | None:
    """Return what the graph does to pixels first, as long as it only adds and multiplies.

    None where it does not, or changes nothing.
    """
    import onnx

    if not file.inputs:
        return None
    graph = onnx.load_model_from_string(file.content).graph
    constants = {tensor.name: tensor for tensor in graph.initializer}
    users: dict[str, list[Any]] = {}
    for node in graph.node:
        values = [entry.t for entry in node.attribute if entry.name == "value"]
        if node.op_type == "Constant" and values:
            constants[node.output[0]] = values[0]
        elif node.op_type == "Identity" and node.input[0] in constants:
            constants[node.output[0]] = constants[node.input[0]]
        for source in set(node.input):
            users.setdefault(source, []).append(node)
    name = file.inputs[0].name
    factor, shift = np.ones(1), np.zeros(1)
    steps: list[str] = []
    for _ in graph.node:  # a chain without end would be a cycle
        following = users.get(name, [])
        if len(following) != 1 or not following[0].output:
            break
        node = following[0]
        if node.op_type not in ("Cast", "Identity", "Transpose"):
            step = _scaling_step(node, name, constants)
            if step is None:
                break
            times, plus, shown = step
            with np.errstate(all="ignore"):  # infinite constants are looked for below
                factor, shift = factor * times, shift * times + plus
            steps.append(shown)
        name = node.output[0]
    if not np.isfinite(factor + shift).all() or not factor.all():
        return None
    if (factor == 1).all() and not shift.any():
        return None
    mean, std = np.broadcast_arrays(-shift / factor, 1 / factor)
    return Scaling(tuple(mean.tolist()), tuple(std.tolist()), " → ".join(steps))


def _scaling_step(
    node: Any, name: str, constants: Mapping[str, Any]
) -> tuple[Numbers, Numbers, str] | None:
    """Return (times, plus, words) of a node that computes ``x · times + plus``, else None."""
    from onnx import numpy_helper

    if node.op_type not in ("Sub", "Add", "Mul", "Div") or len(node.input) != 2:
        return None
    left, right = node.input
    tensor = constants.get(right if left == name else left)
    if tensor is None or left == right or math.prod(tensor.dims) not in (1, 3):
        return None
    try:
        value = numpy_helper.to_array(tensor).astype(np.float64).ravel()
    except (ValueError, TypeError):  # a tensor that holds other numbers than it says
        return None
    one, zero = np.ones(1), np.zeros(1)
    shown = f"{node.op_type} {', '.join(f'{number:.6g}' for number in value)}"
    if node.op_type == "Add":
        return one, value, shown
    if node.op_type == "Mul":
        return value, zero, shown
    if node.op_type == "Sub":
        return (one, -value, shown) if left == name else (-one, value, f"{shown} − x")
    return (1 / value, zero, shown) if left == name and value.all() else None
