"""State dicts that ``torch.save`` or safetensors wrote, read without running what they may hold."""

from __future__ import annotations

import re
import warnings
import zipfile
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from facerec.errors import ModelError, message_line
from facerec.files import open_file

_DEPTH = 8
"""Mappings inside mappings that are looked into."""

_WRAPPERS = {"_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module"}
"""What torch's wrappers put into names, at the start or before single layers."""

COUNTER = "num_batches_tracked"
"""A batch norm's number of batches, which computes nothing; old or cleaned files lack it."""


class _Placeholder(dict[Any, Any]):
    """Stands where a file names code (hyperparameters, callbacks), which is never looked up."""

    def __init__(self, *_: object, **__: object) -> None:
        super().__init__()


def read_state_dict(path: str | Path) -> dict[str, Tensor]:
    """Read the tensors of a ``.pth``, ``.ckpt`` or ``.safetensors`` of anybody, on the CPU.

    Names of mappings inside mappings are joined by points, as in ``state_dict.module.conv1.weight``
    (see `own_names`); what is no tensor is passed over. Numbers of any precision come as float32,
    and AdaFace's names as those of the same network here.

    Raises:
        ModelError: missing, without rights, damaged, compressed, a TorchScript program, or without
            tensors that have names.
    """
    path = Path(path)
    check_readable(path)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            content = _load(path)
    except ModelError:
        raise
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
    tensors = dict(_flat(content)) if isinstance(content, dict) else {}
    if not tensors:
        found = "a whole model or other objects"
        if type(content) is not _Placeholder:
            found = f"a {type(content).__name__}"
        raise ModelError(
            f"{path}: a state dict maps names to tensors, found {found}; save the model's "
            "state_dict() alone"
        )
    for name, tensor in tensors.items():
        if tensor.layout != torch.strided or tensor.device.type != "cpu":
            raise ModelError(f"{path}: tensor {name[:80]!r} is no plain array of numbers")
    return _from_adaface(
        {name: t.float() if t.is_floating_point() else t for name, t in tensors.items()}
    )


def _load(path: Path) -> Any:
    # Imported here so that a step needs nothing of it.
    from safetensors.torch import load_file

    if path.suffix == ".safetensors":  # torch's own loader takes them in newer releases only
        return load_file(path)
    code: list[str] = []
    if zipfile.is_zipfile(path):  # else the form of old releases, or nothing at all
        _check_archive(path)
        code = torch.serialization.get_unsafe_globals_in_checkpoint(path)
    with torch.serialization.safe_globals([(_Placeholder, name) for name in code]):
        return torch.load(path, map_location="cpu", weights_only=True)


def _flat(content: Mapping[Any, Any]) -> Iterator[tuple[str, Tensor]]:
    """Yield the tensors of mappings inside mappings, of one that is there twice once."""
    seen: set[int] = set()
    waiting = [("", content, 1)]
    while waiting:
        prefix, mapping, depth = waiting.pop()
        if id(mapping) in seen or depth > _DEPTH:
            continue
        seen.add(id(mapping))
        for key, value in mapping.items():
            if isinstance(value, Tensor) and isinstance(key, str):
                parts = f"{prefix}{key}".split(".")
                yield ".".join(part for part in parts if part not in _WRAPPERS), value
            elif isinstance(value, Mapping) and isinstance(key, str):
                waiting.append((f"{prefix}{key}.", value, depth + 1))


def own_names(
    where: str | Path, tensors: Mapping[str, Tensor], names: Iterable[str]
) -> tuple[dict[str, Tensor], tuple[str, ...]]:
    """Return the tensors of a network without the prefix they share, and the names of all others.

    The prefix is the one under which most of the network's names are found, whatever wrappers and
    mappings it is made of. Of two whole copies the moving average (``ema``) is taken.

    Args:
        where: the file, for messages.
        tensors: of `read_state_dict`.
        names: of the network's tensors.

    Raises:
        ModelError: several whole copies.
    """
    known = {name for name in names if not name.endswith(COUNTER)}
    longest = max((name.count(".") for name in known), default=0) + 1
    counts: Counter[str] = Counter()
    for full in tensors:
        parts = full.split(".")
        for start in range(max(0, len(parts) - longest), len(parts)):
            if (tail := ".".join(parts[start:])) in known:
                counts[full.removesuffix(tail)] += 1
    most = max(counts.values(), default=0)
    best = sorted((prefix for prefix, count in counts.items() if count == most), key=len) or [""]
    if len(best) > 1 and most == len(known):
        averages = [prefix for prefix in best if re.search(r"(^|[._])ema[._]", prefix)]
        if len(averages) != 1:
            raise ModelError(
                f"{where}: holds the network more than once, as {best[0]!r} and {best[1]!r}; save "
                "the one that is meant alone"
            )
        best = averages
    prefix = best[0]
    inside = {n.removeprefix(prefix): t for n, t in tensors.items() if n.startswith(prefix)}
    return inside, tuple(name for name in tensors if not name.startswith(prefix))


_ADAFACE_STEM = {"input_layer.0": "conv1", "input_layer.1": "bn1", "input_layer.2": "prelu"}
_ADAFACE_END = {"output_layer.0": "bn2", "output_layer.3": "fc", "output_layer.4": "features"}
_ADAFACE_BLOCK = ("bn1", "conv1", "bn2", "prelu", "conv2", "bn3")


def _from_adaface(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return the weights of AdaFace's iResNet (mk-minchul/AdaFace: net.py) under the names here.

    Two layers without weights there have weights here: the first block's shortcut, which takes
    every second pixel (a 1×1 convolution by the identity), and the last batch norm's γ and β.
    """
    name = next((name for name in tensors if name.endswith("input_layer.0.weight")), None)
    if name is None:
        return tensors
    prefix = name.removesuffix("input_layer.0.weight")
    block = re.compile(re.escape(prefix) + r"body\.(\d{1,4})\.(res|shortcut)_layer\.([0-5])\.(\w+)")
    firsts = [int(m[1]) for n in tensors if (m := block.fullmatch(n)) and m[2] == "shortcut"]
    starts = sorted({0, *firsts})
    renamed = {}
    for full, tensor in tensors.items():
        layer, _, last = full.removeprefix(prefix).rpartition(".")
        own = (_ADAFACE_STEM | _ADAFACE_END).get(layer)
        if match := block.fullmatch(full):
            number, place = int(match[1]), int(match[3])
            stage = sum(start <= number for start in starts)
            inner = _ADAFACE_BLOCK[place] if match[2] == "res" else f"downsample.{place}"
            own = f"layer{stage}.{number - starts[stage - 1]}.{inner}"
        renamed[full if own is None else f"{prefix}{own}.{last}"] = tensor
    stem, end = renamed.get(f"{prefix}bn1.bias"), renamed.get(f"{prefix}features.running_mean")
    if stem is None or end is None or len(stem) > 1024:
        return renamed
    shortcut, ones, size = f"{prefix}layer1.0.downsample", torch.ones_like(stem), len(stem)
    return {
        f"{shortcut}.0.weight": torch.eye(size).reshape(size, size, 1, 1),
        f"{shortcut}.1.weight": ones,
        f"{shortcut}.1.bias": 0 * ones,
        f"{shortcut}.1.running_mean": 0 * ones,
        f"{shortcut}.1.running_var": ones - 1e-5,  # with torch's ε the identity
        f"{prefix}features.weight": torch.ones_like(end),
        f"{prefix}features.bias": torch.zeros_like(end),
        **renamed,
    }


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


def check_readable(path: Path) -> None:
    """Refuse a file that cannot be opened, of which the libraries say that it is damaged or gone.

    Raises:
        ModelError: for want of rights, for example.
    """
    try:
        open_file(path).close()
    except OSError as error:
        raise ModelError(
            f"{path}: cannot be read ({error.strerror or error}); check the path and its rights"
        ) from error


def _check_archive(path: Path) -> None:
    """Refuse an archive that unpacks to more than it has: torch stores numbers as they are."""
    with zipfile.ZipFile(path) as archive:
        members = archive.infolist()
    if any(member.filename.endswith("/constants.pkl") for member in members):
        raise ModelError(
            f"{path}: a TorchScript program, which is code and no state dict; save the "
            "state_dict() of the model that it was made from"
        )
    stored = all(member.compress_type == zipfile.ZIP_STORED for member in members)
    if not stored or sum(member.file_size for member in members) > path.stat().st_size:
        raise ModelError(
            f"{path}: its parts are compressed or overlap, which torch.save never writes; save "
            "the weights again"
        )
