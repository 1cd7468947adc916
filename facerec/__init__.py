"""facerec: train, verify, export and audit face embeddings."""

from typing import TYPE_CHECKING

import facerec.base.environment
from facerec.base.lazy import lazy_names

if TYPE_CHECKING:
    from facerec.embedding.recognizer import load, verify
    from facerec.galleries.finding import find
else:
    __getattr__, __all__ = lazy_names(__name__)

    def __dir__():
        return sorted({*globals(), *__all__})


__version__ = "0.1.0"

facerec.base.environment.prepare()
