"""State dicts that ``torch.save`` or safetensors wrote, read without running what they may hold."""

from __future__ import annotations

import warnings
import zipfile
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from facerec.base.errors import ModelError, message_line
from facerec.base.files import open_file, reading
from facerec.embedding.ir_names import iresnet_names

_DEPTH = 8
"""Mappings inside mappings that are looked into."""

_WRAPPERS = {"_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module"}
"""What torch's wrappers put into names, at the start or before single layers."""

COUNTER = "num_batches_tracked"
"""A batch norm's number of batches, which computes nothing; old or cleaned files lack it."""


def read_state_dict(path: str | Path) -> dict[str, Tensor]:
    """Read the tensors of a ``.pth``, ``.ckpt`` or ``.safetensors`` of anybody, on the CPU.

    Names of mappings inside mappings are joined by points, as in ``state_dict.module.conv1.weight``
    (see `own_names`); what is no tensor is passed over. Numbers of any precision come as float32.

    Raises:
        ModelError: missing, without rights, damaged, compressed, with code, or without tensors that
            have names.
    """
    # Imported here so that a step needs nothing of it.
    from safetensors.torch import load_file

    path = Path(path)
    with reading(path, ModelError):
        open_file(path).close()  # no pipe, which would be waited for
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            # torch's own loader takes them in newer releases only.
            if path.suffix == ".safetensors":
                content = load_file(path)
            else:
                _check_archive(path)
                content = torch.load(path, map_location="cpu", weights_only=True)
        tensors = dict(_flat(content))
    # torch names no errors, and a damaged pickle ends in nearly all that Python has. What it says
    # of weights_only is advice to load the file in a way that may run code.
    except Exception as error:
        reason = message_line(error)
        if "eights_only" in str(error).replace(" ", "_"):
            reason = "its pickle is damaged or asks for more than tensors"
        raise ModelError(
            f"{path}: not a state dict that loads without running code ({reason}); save the "
            "model's state_dict() alone"
        ) from error
    if not tensors:
        raise ModelError(f"{path}: holds no tensors with names; save the model's state_dict()")
    return {name: t.float() if t.is_floating_point() else t for name, t in tensors.items()}


def _flat(content: Mapping[Any, Any]) -> Iterator[tuple[str, Tensor]]:
    """Yield the plain tensors of mappings inside mappings, of one that is there twice once."""
    seen: set[int] = set()
    waiting = [("", content, 1)]
    while waiting:
        prefix, mapping, depth = waiting.pop()
        if id(mapping) in seen or depth > _DEPTH:
            continue
        seen.add(id(mapping))
        for key, value in mapping.items():
            plain = isinstance(value, Tensor) and value.layout == torch.strided and value.is_cpu
            if plain and isinstance(key, str):
                parts = f"{prefix}{key}".split(".")
                yield ".".join(part for part in parts if part not in _WRAPPERS), value
            elif isinstance(value, Mapping) and isinstance(key, str):
                waiting.append((f"{prefix}{key}.", value, depth + 1))


def own_names(
    where: str | Path, tensors: Mapping[str, Tensor], names: Iterable[str]
) -> tuple[dict[str, Tensor], tuple[str, ...]]:
    """Return the tensors of a network without the prefix they share, and the names of all others.

    The prefix is the one under which most of the network's names are found, whatever wrappers and
    mappings it is made of. For an iResNet, those of IR networks come under its names.

    Args:
        where: the file, for messages.
        tensors: of `read_state_dict`.
        names: of the network's tensors.

    Raises:
        ModelError: several whole copies, or an IR network that the iResNet does not compute.
    """
    known = {name for name in names if not name.endswith(COUNTER)}
    tensors = iresnet_names(where, tensors, known)
    longest = max((name.count(".") for name in known), default=0) + 1
    counts: Counter[str] = Counter()
    for full in tensors:
        parts = full.rsplit(".", longest)
        tails = (".".join(parts[start:]) for start in range(len(parts)))
        counts.update(full.removesuffix(tail) for tail in tails if tail in known)
    most = max(counts.values(), default=0)
    best = sorted((prefix for prefix, count in counts.items() if count == most), key=len) or [""]
    if len(best) > 1 and most == len(known):
        raise ModelError(
            f"{where}: holds the network more than once, as {best[0]!r} and {best[1]!r}; save the "
            "one that is meant alone"
        )
    prefix = best[0]
    inside = {n.removeprefix(prefix): t for n, t in tensors.items() if n.startswith(prefix)}
    return inside, tuple(name for name in tensors if not name.startswith(prefix))


def own_note(path: Path) -> str | None:
    """Return what a ``.safetensors`` that facerec wrote says of itself, as JSON; None for others.

    None also for a file that cannot be read, which is told of when it is.
    """
    from safetensors import SafetensorError, safe_open

    if path.suffix != ".safetensors":
        return None
    try:
        with safe_open(path, framework="pt") as file:
            return (file.metadata() or {}).get("facerec")
    except (OSError, SafetensorError):
        return None


def _check_archive(path: Path) -> None:
    """Refuse an archive that unpacks to more than it has: torch stores numbers as they are."""
    if not zipfile.is_zipfile(path):
        return  # the form of old releases, or nothing at all
    with zipfile.ZipFile(path) as archive:
        members = archive.infolist()
    stored = all(member.compress_type == zipfile.ZIP_STORED for member in members)
    if not stored or sum(member.file_size for member in members) > path.stat().st_size:
        raise ValueError("its parts are compressed, as those of a TorchScript program, or overlap")
