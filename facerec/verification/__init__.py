"""Verification: embeddings and labelled pairs → figures with intervals.

Tables and plots are in `facerec.verification.report`, which costs more to import.
"""

from facerec.verification.bench import find_pack
from facerec.verification.evaluate import (
    Estimate,
    Failure,
    NormSummary,
    TprEstimate,
    VerificationResult,
    evaluate,
    evaluate_pack,
    score_pairs,
)

__all__ = [
    "Estimate",
    "Failure",
    "NormSummary",
    "TprEstimate",
    "VerificationResult",
    "evaluate",
    "evaluate_pack",
    "find_pack",
    "score_pairs",
]
