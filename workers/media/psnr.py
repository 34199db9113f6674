"""Peak signal-to-noise ratio (PSNR) of two images or videos."""

from __future__ import annotations

import math

import numpy as np

MAX_DB = 99.0
"""PSNR reported for equal images, instead of infinity."""


def psnr_db(image: np.ndarray, other: np.ndarray, peak: float = 255) -> float:
    """Return the PSNR of two images, or of two videos over all frames; at most `MAX_DB`.

    Sums errors per row or per frame, to save memory.

    Args:
        peak: range of the values.
    """
    pairs = zip(image, other, strict=True)
    error = sum(
        float(np.square(row.astype(np.float64) - other_row).sum()) for row, other_row in pairs
    )
    return MAX_DB if error == 0 else min(MAX_DB, 10 * math.log10(peak**2 * image.size / error))
