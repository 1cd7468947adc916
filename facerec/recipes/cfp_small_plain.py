"""cfp_small without the spherical embedding constraint: its twin."""

from dataclasses import replace

from facerec.recipes.cfp_small import recipe as with_sec

recipe = replace(with_sec, regularizer=None)
