"""Libraries that are loaded when something in them is first used, such as those for images.

Training and scoring work on tensors, and run where these are not installed, as in many an image
with CUDA; only who reads or draws pictures needs them.
"""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from facerec.base.errors import MissingExtraError


@contextlib.contextmanager
def needed(package: str, what: str = "") -> Iterator[None]:
    """Import in the block what a package brings that may not be installed.

    Args:
        package: what to install.
        what: needs it.

    Raises:
        MissingExtraError: it is not installed, or does not import.
    """
    try:
        yield
    except ImportError as error:
        raise MissingExtraError(
            f"{what or 'facerec'} needs {error.name or package}, which cannot be imported "
            f"({error}); run: pip install {package}"
        ) from error


class Library:
    """Stands for a module until one of its names is asked for.

    Args:
        name: of the module.
        package: what to install for it.
    """

    def __init__(self, name: str, package: str) -> None:
        self._name, self._package = name, package

    def __getattr__(self, attribute: str) -> Any:
        """Return what the module has under this name.

        Raises:
            MissingExtraError: the module is not installed.
        """
        return getattr(Library.require(self), attribute)

    def require(self: Any) -> Any:
        """Return the module; called before any work, it tells what is not installed.

        Raises:
            MissingExtraError: the module is not installed.
        """
        with needed(self._package):
            return importlib.import_module(self._name)


if TYPE_CHECKING:
    import cv2
    import PIL.Image as pillow
    import simplejpeg
else:
    cv2 = Library("cv2", "'opencv-python>=5'")
    pillow = Library("PIL.Image", "pillow")
    simplejpeg = Library("simplejpeg", "simplejpeg")

__all__ = ["Library", "cv2", "pillow", "simplejpeg"]
