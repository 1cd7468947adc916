"""Verification: embeddings or scores of labelled pairs → figures with intervals.

Tables, plots and pages are in `facerec.verification.report` and its neighbours, which cost more to
import.
"""

from typing import TYPE_CHECKING

from facerec.base.lazy import lazy_names

if TYPE_CHECKING:
    from facerec.verification.bench import Bench, Pairs, find_pack, pack_bench
    from facerec.verification.evaluation import (
        evaluate,
        evaluate_bench,
        evaluate_embeddings,
        score_pairs,
        select_embeddings,
    )
    from facerec.verification.result import Failure, TprEstimate, VerificationResult
else:
    __getattr__, __all__ = lazy_names(__name__)
