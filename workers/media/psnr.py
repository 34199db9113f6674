"""Likeness of two images or videos."""

from __future__ import annotations

import math

import numpy as np

MOST_DB = 99.0
"""PSNR of two equal images, to have a number."""


def psnr_db(one: np.ndarray, other: np.ndarray, peak: float = 255) -> float:
    """Return the PSNR of two images, or of two videos over all frames; at most `MOST_DB`.

    It is summed up by rows of an image and by frames of a video, in the memory of one of them.

    Args:
        peak: whole range of the values.
    """
    pairs = zip(one, other, strict=True)
    error = sum(float(np.square(mine.astype(np.float64) - theirs).sum()) for mine, theirs in pairs)
    return MOST_DB if error == 0 else min(MOST_DB, 10 * math.log10(peak**2 * one.size / error))
