"""Positions of packed latents."""

from __future__ import annotations

import numpy as np

from models.flux.latents import image_ids


def test_positions_are_index_row_and_column() -> None:
    np.testing.assert_array_equal(image_ids(4, 6)[5], [0, 1, 2])
    np.testing.assert_array_equal(image_ids(4, 6, index=1)[3], [1, 1, 0])
