"""All pairs of a set of images: exact operating points, and errors by subject and by group.

The cosines of N images are computed tile by tile and never stored. Images are sorted by subject,
so that the mated pairs lie near the diagonal and most tiles hold non-mated pairs only.

One pass finds exact thresholds and counts the errors at them. A random sample of pairs tells
between which edges a threshold will lie. What reaches the upper edge is counted at once, what lies
between them is kept until the threshold is known. A histogram of the non-mated scores, whose bins
are exact because their width is a power of two, tells whether the edges were right; a threshold
that lies elsewhere costs another pass. So does one with too many scores about it to keep them.

Each tile is one single-threaded float32 matrix product of fixed shape, so the scores, and with
them every count, do not depend on the number of threads or ranks.

The way of the data: `sample` sorts the images, `tiles` computes their scores, `search` says where
thresholds must lie, `non_mated` and `mated` look at the scores, `all_pairs` puts the `results`
together.
"""

from typing import TYPE_CHECKING

from facerec.lazy import lazy_names

if TYPE_CHECKING:
    from facerec.verification.scoring.all_pairs import score_all_pairs
    from facerec.verification.scoring.bins import BIN_EDGES, BIN_WIDTH
    from facerec.verification.scoring.results import (
        AllPairs,
        ErrorTable,
        Groups,
        check_pairs,
    )
else:
    __getattr__ = lazy_names(__name__)

__all__ = [
    "BIN_EDGES",
    "BIN_WIDTH",
    "AllPairs",
    "ErrorTable",
    "Groups",
    "check_pairs",
    "score_all_pairs",
]
