"""All pairs of a set of images: exact operating points, and errors by subject.

The cosines of N images are computed tile by tile and never stored. Images are sorted by subject,
so that the mated pairs lie near the diagonal and most tiles hold non-mated pairs only.

One pass finds exact thresholds and counts the errors at them, see `counts.count_non_mated`. Each
tile is one single-threaded float32 matrix product of fixed shape, so the scores, and with them
every count, do not depend on the number of threads.

The way of the data: `tiles` sorts the images and computes their scores, `counts` looks at them,
`all_pairs` puts the `results` together.
"""

from facerec.verification.scoring.all_pairs import score_all_pairs
from facerec.verification.scoring.results import AllPairs, ErrorTable

__all__ = ["AllPairs", "ErrorTable", "score_all_pairs"]
