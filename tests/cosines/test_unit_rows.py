from __future__ import annotations

import warnings

import numpy as np

from facerec.cosines.unit_rows import row_norms


def test_what_is_zero_or_not_finite_has_no_norm_and_gives_no_warning() -> None:
    matrix = np.full((5, 3), 2, np.float32)
    matrix[0] = 0
    matrix[1, 1] = np.inf
    matrix[2].view(np.uint32)[:] = 0x7F800001  # a NaN that signals
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        norms = row_norms(matrix)
        large = row_norms(np.full((1, 3), 1e200))
    np.testing.assert_array_equal(np.isnan(norms), [True, True, True, False, False])
    np.testing.assert_allclose(norms[3:], np.sqrt(12), rtol=1e-15)
    assert np.isnan(large).all()
