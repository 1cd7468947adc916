"""Choices and defaults that flags show and functions take.

They stand apart from what uses them so that flags are parsed before anything heavy is imported.
"""

from __future__ import annotations

from typing import Literal

FPR_TARGETS = ("1e-1", "1e-2", "1e-3", "1e-4")
"""Of a verification on pairs."""

ALL_PAIRS_TARGETS = (*FPR_TARGETS, "1e-5", "1e-6")
"""Of all pairs of a set."""

FMR_TARGETS = ("1e-2", "1e-3", "1e-4", "1e-5")
"""Of an audit."""

AUDIT_FPIR_TARGETS = ("1e-1", "1e-2", "2e-3")
"""Of searches in an audit; 2e-3 is that of NIST's demographic tables."""

REPLICATES = 2000
"""Of a bootstrap over subjects."""

PERMUTATIONS = 9999
"""Of a permutation test."""

OVERLAP_SHARE = 0.02
"""Of the proposals of an overlap, how many may be false, in expectation."""

OPSET = 17
"""ONNX operator set of an export."""

Compat = Literal["insightface"]
"""Projects whose accuracy is computed in their way too."""

ClusterMetric = Literal["nmi", "f1"]
"""Of k-means on all queries, so that no single query has one."""

IndexKind = Literal["auto", "exact", "faiss"]
"""How a gallery is searched."""
