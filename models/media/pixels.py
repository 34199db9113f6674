"""Pixels with alpha."""

from __future__ import annotations

import numpy as np


def on_white(pixels: np.ndarray) -> np.ndarray:
    """Composite uint8 RGBA [height, width, 4] on white; return uint8 [height, width, 3]."""
    colours, alpha = pixels[..., :3].astype(np.float32), pixels[..., 3:].astype(np.float32) / 255
    return np.round(255 - (255 - colours) * alpha).astype(np.uint8)
