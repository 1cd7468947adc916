"""What a model wants its pixels to be, and what speaks for that."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from facerec.backbones.preprocessing import Preprocessing, numbers_words
from facerec.base.errors import ModelError, RecipeError
from facerec.base.files import reading
from facerec.base.recipe import from_dict
from facerec.embedding.onnx_file import METADATA_KEY, OnnxFile, constants_of

UNSCALED = Preprocessing("rgb", 0.0, 1.0)
"""For a graph that normalises by itself: pixels 0…255."""

PIXELS = ("channels", "mean", "std")
"""What of the preprocessing must be equal for cosines to mean the same."""
_HIGH = 256.0
_OPERATORS = {"Add": np.add, "Sub": np.subtract, "Mul": np.multiply, "Div": np.divide}


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
            ModelError: the file says otherwise.
            RecipeError: a value is out of range.
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
        said = (f"{name} was given by the user" for name in given)
        assumed = tuple(name for name in self.assumed if name not in given)
        known = replace(known, **given)
        return PixelGuess(known, (*said, *self.evidence), self.fixed, assumed)


@dataclass(frozen=True)
class Scaling:
    """The normalisation with which a graph begins: ``(x − mean) / std``."""

    mean: tuple[float, ...]
    """One number, or one for each channel."""
    std: tuple[float, ...]
    steps: str
    """The nodes that do it, with their constants, for people to read."""
    undone: Preprocessing | None = None
    """The normalisation that the graph begins by taking back, so that its input has it."""


def guess_preprocessing(file: OnnxFile) -> PixelGuess:
    """Return what the model wants its pixels to be, and what speaks for it.

    The first that applies decides: what facerec wrote into the file; an input of type uint8; a
    normalisation at the start of the graph, read from its constants; a name with ``adaface``;
    else the assumption that the model was trained as InsightFace's are.

    Raises:
        FacerecError: facerec's own entry in the file is damaged.
    """
    if (note := file.note) is not None:
        return stated_preprocessing(note.get("preprocessing"), file.where)
    usual = "the channel order is an assumption: nothing in the file tells; RGB is usual"
    if file.inputs and file.inputs[0].dtype == "uint8":
        evidence = "the input is uint8, so the graph itself must normalise"
        return PixelGuess(UNSCALED, (evidence, usual), ("mean", "std"), ("channels",))
    if (scaling := leading_scaling(file)) is None:
        return guess_by_name(file.path)
    raw = max(map(abs, scaling.mean)) > 2 or min(map(abs, scaling.std)) > 2
    fits = "pixels 0…255" if raw else "pixels scaled to 0…1"
    wanted = UNSCALED if raw else Preprocessing("rgb", 0.0, 255.0)
    if (undone := scaling.undone) is not None:
        wanted, mean, std = undone, numbers_words(undone.mean), numbers_words(undone.std)
        fits = f"pixels that come normalised by mean {mean} and std {std}, which it takes back"
    evidence = f"the graph begins with {scaling.steps}, which fits {fits}"
    return PixelGuess(wanted, (evidence, usual), (), ("channels",))


def guess_by_name(path: Path | None, beside: Iterable[str] = ()) -> PixelGuess:
    """Return BGR for a file named as AdaFace's are, else what InsightFace's models want.

    Args:
        path: of the file.
        beside: names of its tensors that are none of the network's; the head of AdaFace tells too.
    """
    head = next((name for name in beside if name.endswith("head.batch_mean")), None)
    if head is not None or (path is not None and "adaface" in path.stem.lower()):
        name = head if path is None or head is not None else path.stem
        evidence = f"the name '{name}' is that of AdaFace (mk-minchul/AdaFace: inference.py)"
        return PixelGuess(Preprocessing("bgr"), (f"{evidence}; nothing else tells",), (), PIXELS)
    evidence = (
        "an assumption: nothing in the file tells; RGB with mean 127.5 and std 127.5 is what "
        "InsightFace's models want"
    )
    return PixelGuess(Preprocessing(), (evidence,), (), PIXELS)


def stated_preprocessing(entry: Any, where: str) -> PixelGuess:
    """Return the preprocessing that facerec's own note tells.

    Raises:
        RecipeError: the entry is damaged, or lacks a part, for which no default may stand.
    """
    inside = f"its metadata entry {METADATA_KEY!r}"
    what = f"{where}, preprocessing in {inside}"
    with reading(what, RecipeError, "save or export the model again", (KeyError, TypeError)):
        found = from_dict(Preprocessing, {name: entry[name] for name in {*PIXELS, *entry}}, what)
    return PixelGuess(found, (f"{inside} says so",), PIXELS)


def leading_scaling(file: OnnxFile) -> Scaling | None:
    """Return what the graph does to pixels first, as long as it only adds and multiplies.

    None where it does not, or changes nothing.
    """
    import onnx

    graph = onnx.load_model_from_string(file.content).graph
    constants, users = constants_of(graph), dict[str, list[Any]]()
    for node in graph.node:
        for source in set(node.input):
            users.setdefault(source, []).append(node)
    # Where the graph maps two values to says all of a straight line.
    name = file.inputs[0].name if file.inputs else ""
    low, high = np.zeros(1), np.full(1, _HIGH)
    steps: list[str] = []
    undone: Preprocessing | None = None
    while len(following := users.get(name, [])) == 1 and following[0].output:
        (node,) = following
        if node.op_type in _OPERATORS:
            value = _constant(node, name, constants)
            if value is None:
                break
            first, compute = node.input[0] == name, _OPERATORS[node.op_type]
            with np.errstate(all="ignore"):  # what is not finite is looked for below
                low, high = (compute(x, value) if first else compute(value, x) for x in (low, high))
            shown = ", ".join(f"{number:.6g}" for number in value)
            reversed_sub = node.op_type == "Sub" and not first
            steps.append(f"{node.op_type} {shown}{' − x' if reversed_sub else ''}")
            undone = undone or _undone(low, high)
        elif node.op_type not in ("Cast", "Identity", "Transpose"):
            break
        name = node.output[0]
    with np.errstate(all="ignore"):
        factor = (high - low) / _HIGH
        mean, std = np.broadcast_arrays(-low / factor, 1 / factor)
    if not np.isfinite(mean / std).all() or (not mean.any() and (std == 1).all()):
        return None
    return Scaling(tuple(mean.tolist()), tuple(std.tolist()), " → ".join(steps), undone)


def _undone(low: NDArray[np.float64], high: NDArray[np.float64]) -> Preprocessing | None:
    """Return what a graph takes back that maps 0 to ``low`` and `_HIGH` to ``high``, ``(1 or 3,)``.

    A normalisation subtracts a mean; where the zero of the input becomes a grey inside of the
    pixels' range, 0…1 or 0…255, it was subtracted before.
    """
    with np.errstate(all="ignore"):
        factor = (high - low) / _HIGH
    top = 1.0 if bool((low + factor < 4).all()) else 255.0
    if not bool(((0.2 * top < low) & (low < 0.8 * top) & (0.1 * top < factor)).all()):
        return None
    mean, std = (
        tuple(np.round(255 / top * each, 4).tolist()) for each in np.broadcast_arrays(low, factor)
    )
    return Preprocessing("rgb", mean, std)


def _constant(node: Any, name: str, constants: Mapping[str, Any]) -> Any:
    """Return the one number, or three, that a node computes with; None if it is none of these."""
    from onnx import numpy_helper

    others = [constants.get(source) for source in node.input if source != name]
    if len(node.input) != 2 or len(others) != 1 or others[0] is None:
        return None
    if math.prod(others[0].dims) not in (1, 3) or (node.op_type, node.input[1]) == ("Div", name):
        return None
    try:
        return numpy_helper.to_array(others[0]).astype(np.float64).ravel()
    except (ValueError, TypeError):  # a tensor that holds other numbers than it says
        return None
