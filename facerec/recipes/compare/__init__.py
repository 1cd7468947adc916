"""Comparisons of losses."""
