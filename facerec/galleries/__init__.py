"""Galleries: embeddings → overlap of two sets, cleaning of one, enrolment and identification."""

from facerec.galleries.cleaning import Cleaning, clean_set
from facerec.galleries.gallery import Answer, Enrolment, Gallery, Identification, Space
from facerec.galleries.threshold import Calibration, Fpir

__all__ = [
    "Answer",
    "Calibration",
    "Cleaning",
    "Enrolment",
    "Fpir",
    "Gallery",
    "Identification",
    "Space",
    "clean_set",
]
