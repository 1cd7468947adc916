"""Galleries: embeddings → overlap of sets, cleaning, enrolment, identification, bridges."""

from typing import TYPE_CHECKING

from facerec.base.lazy import lazy_names

if TYPE_CHECKING:
    from facerec.embedding.space import Space
    from facerec.galleries.alarms import find_alarms
    from facerec.galleries.bridge import Bridge, Price
    from facerec.galleries.cleaning import Cleaning, clean_set
    from facerec.galleries.gallery import Answer, Enrolment, Gallery, Identification
    from facerec.galleries.overlap import Overlap, find_overlap
    from facerec.galleries.threshold import Calibration, Fpir
else:
    __getattr__, __all__ = lazy_names(__name__)
