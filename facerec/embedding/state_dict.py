"""State dicts that ``torch.save`` or safetensors wrote, read without running what they may hold."""

from __future__ import annotations

import re
import warnings
import zipfile
from pathlib import Path

import torch
from torch import Tensor

from facerec.embedding.onnx_file import first_line, printable
from facerec.errors import ModelError

_WRAPPER = "module."
"""What torch's data-parallel wrappers put before every name."""


def read_state_dict(path: str | Path) -> dict[str, Tensor]:
    """Read a ``.pth`` or ``.safetensors`` of names and tensors, on the CPU.

    Names come without the prefix of a data-parallel wrapper, and half precision as float32, which
    holds the same numbers.

    Raises:
        ModelError: missing, without rights, damaged, compressed, with anything but plain tensors in
            it, or with code to run.
    """
    # Imported here so that a step needs nothing of it.
    from safetensors.torch import load_file

    path = Path(path)
    if not path.is_file():
        raise ModelError(f"{path}: no such file of weights")
    check_readable(path)
    try:
        _check_archive(path)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            # torch's own loader takes a .safetensors in newer releases only.
            tensors = (
                load_file(path)
                if path.suffix == ".safetensors"
                else torch.load(path, map_location="cpu", weights_only=True)
            )
    except ModelError:
        raise
    # torch names no errors, and a damaged pickle ends in nearly all that Python has.
    except Exception as error:
        raise ModelError(
            f"{path}: not a state dict that loads without running code ({_reason(error)}); save "
            "the model's state_dict() alone"
        ) from error
    if not isinstance(tensors, dict) or not all(
        isinstance(name, str) and isinstance(tensor, Tensor) for name, tensor in tensors.items()
    ):
        entries = tensors if isinstance(tensors, dict) else ()
        names = [name for name in entries if isinstance(name, str)]
        raise ModelError(
            f"{path}: a state dict maps names to tensors, found a {type(tensors).__name__} "
            f"({printable(', '.join(names)) or 'no names'}); save the model's state_dict() alone"
        )
    for name, tensor in tensors.items():
        if tensor.layout != torch.strided or tensor.device.type != "cpu":
            raise ModelError(
                f"{path}: tensor '{printable(name)}' is no plain array of numbers "
                f"({tensor.device.type}, {tensor.layout}); save the weights as they were trained"
            )
    if all(name.startswith(_WRAPPER) for name in tensors):
        tensors = {name.removeprefix(_WRAPPER): tensor for name, tensor in tensors.items()}
    half = (torch.float16, torch.bfloat16)
    return {name: t.float() if t.dtype in half else t for name, t in tensors.items()}


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
        path.open("rb").close()
    except OSError as error:
        raise ModelError(
            f"{path}: cannot be read ({error.strerror or error}); check the path and its rights"
        ) from error


def _check_archive(path: Path) -> None:
    """Refuse an archive that unpacks to more than it has: torch stores numbers as they are."""
    if not zipfile.is_zipfile(path):
        with path.open("rb") as file:
            begin = file.read(4)
        if begin in (b"", b"PK\x03\x04"):
            raise ModelError(
                f"{path}: {'an empty file' if not begin else 'its end is missing'}; copy or "
                "download it again"
            )
        return  # the form of old releases, or nothing at all
    with zipfile.ZipFile(path) as archive:
        members = archive.infolist()
    size = path.stat().st_size
    if (
        any(member.compress_type != zipfile.ZIP_STORED for member in members)
        or sum(member.file_size for member in members) > size
    ):
        raise ModelError(
            f"{path}: its parts are compressed or overlap, which torch.save never writes; save "
            "the weights again"
        )


def _reason(error: Exception) -> str:
    """Say what is wrong without torch's advice to load the file in a way that may run code."""
    text = str(error)
    if match := re.search(r"GLOBAL (\S+)", text):
        return f"it names {printable(match[1])}, which is code and no number"
    if "weights_only" in text or "Weights only" in text:
        return "its pickle is damaged or asks for more than tensors"
    return first_line(error)
