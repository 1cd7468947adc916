"""Rates, intervals and K-fold accuracy from scores: pure functions on numpy arrays."""
