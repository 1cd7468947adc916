"""Galleries: embeddings → overlap of two sets, cleaning of one, enrolment and identification."""

from facerec.galleries.cleaning import Cleaning, clean_set

__all__ = ["Cleaning", "clean_set"]
