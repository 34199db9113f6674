"""Positions of FLUX.2's tokens: time, row, column and place in the text.

Source: diffusers pipeline_flux2_klein.py, _prepare_text_ids, _prepare_latent_ids and
_prepare_image_ids.
"""

from __future__ import annotations

import numpy as np

from models.flux2.config import AXES

BETWEEN_IMAGES = 10
"""Time from the image that is drawn, at 0, to the first reference, and from one to the next."""


def text_ids(tokens: int) -> np.ndarray:
    """Return positions of text, [tokens, 4]."""
    ids = np.zeros((tokens, AXES), int)
    ids[:, 3] = np.arange(tokens)
    return ids


def image_ids(rows: int, columns: int, index: int = 0) -> np.ndarray:
    """Return positions of an image's tokens, [rows · columns, 4].

    Args:
        index: 0: the image that is drawn; from 1 on: references.
    """
    ids = np.zeros((rows, columns, AXES), int)
    ids[..., 0] = BETWEEN_IMAGES * index
    ids[..., 1:3] = np.moveaxis(np.mgrid[:rows, :columns], 0, -1)
    return ids.reshape(-1, AXES)
