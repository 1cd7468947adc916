"""Libraries that are loaded when something in them is first used, such as those for images.

Training and scoring work on tensors, and run where these are not installed, as in many an image
with CUDA; only who reads or draws pictures needs them.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from facerec.errors import MissingExtraError


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
        try:
            module = importlib.import_module(self._name)
        except ImportError as error:
            raise MissingExtraError(
                f"{self._name} is needed and cannot be imported ({error}); run: pip install "
                f"{self._package}"
            ) from error
        return getattr(module, attribute)


if TYPE_CHECKING:
    import cv2
    import PIL.Image as pillow
    import simplejpeg
else:
    cv2 = Library("cv2", "'opencv-python>=5'")
    pillow = Library("PIL.Image", "pillow")
    simplejpeg = Library("simplejpeg", "simplejpeg")

__all__ = ["Library", "cv2", "pillow", "simplejpeg"]
