"""Comparisons of published papers, made runnable."""
