"""Losses of one's own in a comparison: functions, classes and objects, from Python or a file.

Each becomes a row of the table of losses, with the hash of its code, so that a comparison goes on
only with the loss that it began with.
"""

from __future__ import annotations

import copy
import hashlib
import inspect
import io
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch

from facerec.backbones.registry import drawn_from
from facerec.base.errors import RecipeError, TrainingError
from facerec.base.files import reading, sha256
from facerec.base.recipe import run_python
from facerec.comparison.loss_table import TABLE, Entry, Formula, Setting, Shape
from facerec.comparison.losses import HEADS, Loss, LossModule, MarginHead, MetricLoss


def as_loss(given: Any) -> Loss:
    """Return the loss of an arm: facerec's by its name, or one of one's own, see `own_loss`."""
    if isinstance(given, (MetricLoss, MarginHead)):
        return given
    if not isinstance(given, str) or ".py" in given:
        return own_loss(given)
    return MarginHead(HEADS[given]()) if given in HEADS else MetricLoss(given)


def own_loss(given: Any, **settings: Setting) -> MetricLoss:
    """Add a loss of one's own to the table, and return it with its settings at their defaults.

    Args:
        given: one of

            * a function of embeddings ``(N, D)``, labels ``(N,)`` and the settings → scalar;
            * a class or function that makes such a loss of the settings, and of ``num_classes``,
              ``embedding_size`` and ``seed`` where it has no default for them;
            * such a loss without parameters, as it is;
            * the name of one of these in a file, ``FILE.py:NAME``.
        settings: what a search changes, made by `searched`, besides those that a function or class
            has in an attribute: ``search = {"margin": searched(0.2, 0.0, 1.0)}``.

    Raises:
        RecipeError: the file or the name is not there, or it is no loss.

    Examples:
        >>> from facerec.comparison import searched
        >>> def pull(embeddings, labels, margin):
        ...     same = labels[:, None] == labels
        ...     return (torch.cdist(embeddings, embeddings)[same] - margin).relu().mean()
        >>> own_loss(pull, margin=searched(0.1, 0.0, 1.0))
        MetricLoss(name='pull', settings={'margin': 0.1})
    """
    from_file = isinstance(given, str)
    name = given if from_file else getattr(given, "__name__", type(given).__name__)
    advice = "mend it, or give another as FILE.py:NAME"
    with reading(f"the loss {name}", RecipeError, advice, Exception, "made"):
        given, code = _from_file(given) if from_file else (given, _code_hash(given))
        make, settings = _maker(given, settings)
        default = make(Shape(4, 8, 0), **{key: each.default for key, each in settings.items()})
    if not from_file and name in TABLE and TABLE[name].sha256 != code:
        name = f"{name}-{code[:8]}"
    TABLE[name] = Entry(make, settings, learns=bool(_parameters(default)), sha256=code)
    return MetricLoss(name)


def check_first_step(loss: LossModule, per_class: int) -> None:
    """Refuse a loss that has no finite value, or no gradient, on random embeddings.

    Args:
        loss: made for as many classes as a batch has.
        per_class: samples of each of them.

    Raises:
        TrainingError: it has none, or fails.
    """
    labels = torch.arange(loss.shape.num_classes).repeat_interleave(per_class)
    drawn = torch.Generator().manual_seed(0)
    embeddings = torch.randn(len(labels), loss.shape.embedding_size, generator=drawn)
    what = f"the loss {loss.config.kind} of random embeddings"
    advice = "it must return a finite scalar tensor with a gradient"
    with reading(what, TrainingError, advice, Exception, "computed"):
        found = loss(embeddings.requires_grad_(), labels)
        found.backward()
        if not found.isfinite():
            raise ValueError(f"it is {found.item()}")


def _maker(
    given: Any, settings: Mapping[str, Setting]
) -> tuple[Callable[..., Formula], dict[str, Setting]]:
    """Return what makes the loss of a shape and settings, and all its settings."""
    ready = not (isinstance(given, type) or inspect.isfunction(given))
    if ready and _parameters(given):
        raise TypeError("every training begins with new weights; give its class")
    if ready:
        return lambda shape: copy.deepcopy(given), {}
    both, takes = {**settings, **getattr(given, "search", {})}, inspect.signature(given).parameters
    if not all(isinstance(each, Setting) for each in both.values()):
        raise TypeError('search must be {"argument": searched(default, lowest, highest)}')
    needed = [key for key, each in takes.items() if each.default is each.empty and key not in both]
    asked = [key for key in Shape._fields if _needs(given, key)]
    if inspect.isfunction(given) and len(needed) == 2 and not asked:
        return lambda shape, **values: partial(given, **values), both

    def make(shape: Shape, **values: Any) -> Any:
        with drawn_from(shape.seed):
            return given(**{key: getattr(shape, key) for key in asked}, **values)

    return make, both


def _needs(given: Any, key: str) -> bool:
    """Tell whether a function or class, or a base that it hands arguments on to, needs a name."""
    for kind in getattr(given, "__mro__", (given, object))[:-1]:
        takes = inspect.signature(kind).parameters
        if key in takes:
            return takes[key].default is inspect.Parameter.empty
        if not any(each.kind == each.VAR_KEYWORD for each in takes.values()):
            break
    return False


def _parameters(loss: Any) -> list[Any]:
    return list(loss.parameters()) if isinstance(loss, torch.nn.Module) else []


def _from_file(text: str) -> tuple[Any, str]:
    """Return what ``FILE.py:NAME`` names, and the SHA-256 of the file."""
    stem, _, name = text.rpartition(".py")
    path = Path(f"{stem}.py")
    code = sha256(path)
    return run_python(path)[name.removeprefix(":")], code


def _code_hash(given: Any) -> str:
    """Return the SHA-256 of the code of a loss and of what it holds, the same in every process."""
    named, held = hasattr(given, "__name__"), io.BytesIO()
    try:
        code = inspect.getsource(given if named else type(given))
    except (OSError, TypeError):  # typed in, not written in a file
        code = str(getattr(given, "__name__", type(given)))
    inside = inspect.getclosurevars(given).nonlocals if inspect.isfunction(given) else given
    torch.save(inside, held)
    return hashlib.sha256(code.encode() + held.getvalue()).hexdigest()
