"""Galleries: embeddings → who is in two sets at once, what is wrong in one, who is on a photo."""

from facerec.galleries.overlap import Match, Overlap, Side, find_overlap

__all__ = ["Match", "Overlap", "Side", "find_overlap"]
