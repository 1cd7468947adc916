"""People whose templates will raise alarms, known from their scores with others.

* A template is too much like another one for two subjects: mostly one person under two names. Tail
  and p-value are those of `facerec.galleries.impostor_tail`, on standardised scores.
* It reaches the threshold of FPIR 1e-1 with more probes of the gallery's calibration than the FMR
  of all templates explains (a lamb: Doddington et al., "Sheep, Goats, Lambs and Wolves", ICSLP
  1998), by the binomial distribution.

Either way at most `OVERLAP_SHARE` of those who are named are expected to be so by chance.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

import numpy as np
import pandas as pd

from facerec.base.defaults import OVERLAP_SHARE
from facerec.base.errors import MetricError
from facerec.base.progress import Progress
from facerec.cosines.unit_rows import score_pairs
from facerec.galleries.gallery import CALIBRATION_PROBES, Gallery
from facerec.galleries.impostor_tail import accept, nearest_subjects

FEWEST = 30
"""People among whom somebody can be told to stand out."""


def find_alarms(
    gallery: Gallery, subjects: Sequence[str], progress: Progress | None = None
) -> pd.DataFrame:
    """Return those of some subjects whose templates will raise alarms, the most alike first.

    Args:
        gallery: those who have expired take no part.
        subjects: who are in it; the first `CALIBRATION_PROBES` are looked at, among others drawn at
            random.
        progress: see `Gallery.search`.

    Returns:
        columns ``subject``, ``other`` whom it resembles most, their ``cosine``, how many probes of
        the calibration ``reached`` the ``threshold`` with it, and that.
    """
    from scipy.stats import binom

    now = gallery.current()
    size, names, templates = len(now), now.subjects, now.templates
    if size < FEWEST or not len(subjects):
        return pd.DataFrame()
    asked = now.rows_of(np.array(subjects, np.str_))
    asked = asked[asked >= 0][:CALIBRATION_PROBES]
    others = np.random.default_rng(0).permutation(np.delete(np.arange(size), asked))
    rows = np.append(asked, others[: CALIBRATION_PROBES - len(asked)])

    nearest, log_p = nearest_subjects(templates, share=OVERLAP_SHARE, asked=rows, progress=progress)
    named = np.zeros(size, bool)
    named[rows] = accept(log_p, OVERLAP_SHARE)

    reached, threshold, known = np.zeros(size, np.int64), None, now.calibration
    with suppress(MetricError):
        if known is not None:
            threshold = known.threshold("1e-1", size).threshold
            hits = np.bincount(known.entries[known.scores >= threshold], minlength=size)
            chance = hits.sum() / (len(known.scores) * known.entry_subjects.size)
            named |= accept(binom.logsf(hits - 1, len(known.scores), chance), OVERLAP_SHARE)
            reached = hits
    cosine = score_pairs(templates, rows, nearest)
    found = pd.DataFrame({"subject": names[rows], "other": names[nearest], "cosine": cosine})
    found = found.assign(reached=reached[rows], threshold=threshold)[: len(asked)][named[asked]]
    return found.sort_values("cosine", ascending=False, kind="stable")
