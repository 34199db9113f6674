"""Distances of outputs from a reference's, which the comparisons bound."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
from PIL import Image


def png(image: Image.Image) -> bytes:
    file = io.BytesIO()
    image.save(file, "PNG")
    return file.getvalue()


def relative(output: Any, expected: np.ndarray) -> float:
    """Norm of the difference, relative to the expected values' norm."""
    assert output.shape == expected.shape
    return float(np.linalg.norm(np.asarray(output) - expected) / np.linalg.norm(expected))


def relative_of_streams(output: Any, expected: tuple[np.ndarray, ...]) -> float:
    """Largest of the streams' relative distances."""
    return max(relative(*stream) for stream in zip(output, expected, strict=True))


def largest(output: Any, expected: np.ndarray) -> float:
    """Largest difference, relative to the largest expected value."""
    assert output.shape == expected.shape
    return float(np.abs(output - expected).max() / np.abs(expected).max())


def psnr_db(output: np.ndarray, expected: np.ndarray) -> float:
    error = np.mean((output.astype(np.float64) - expected) ** 2)
    return float(np.inf if error == 0 else 10 * np.log10(255**2 / error))
