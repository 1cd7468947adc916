"""Cosines of vectors: exact ones, counts at thresholds, and best ones, at the speed of int8.

The way of the data: `unit_rows` says what a cosine is and computes those of single pairs; `coarse`
makes copies in fewer bits and bounds what they lack; `tiles` compares all rows of two sides by
these and computes again what the bounds leave open; `counts` and `searches` ask the questions.
"""

from typing import TYPE_CHECKING

from facerec.base.lazy import lazy_names

if TYPE_CHECKING:
    from facerec.cosines.counts import Sample
    from facerec.cosines.searches import best, nearest_entries, search_gallery
    from facerec.cosines.tiles import Tile, Tiles
    from facerec.cosines.unit_rows import UnitRows, cosines, score_pairs
else:
    __getattr__, __all__ = lazy_names(__name__)
