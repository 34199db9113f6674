"""Calls of a diffusers pipeline without Atelier, for comparison."""

from __future__ import annotations

import inspect
import io
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from PIL import Image

SIZES = {"use_resolution_binning": False}
"""Further arguments of a direct call, for an image of exactly the requested size."""


def called(pipeline: Any, fields: Mapping[str, Any], **images: Image.Image) -> np.ndarray:
    """Return the pixels of a direct call with a request's fields."""
    parameters = inspect.signature(type(pipeline).__call__).parameters
    given = {**SIZES, **fields, **images, "output_type": "pil"}
    kwargs = {name: value for name, value in given.items() if name in parameters}
    pipeline.set_progress_bar_config(disable=True)
    output = pipeline(**kwargs, generator=torch.Generator("cpu").manual_seed(fields["seed"]))
    if hasattr(output, "frames"):
        return np.stack([np.asarray(frame) for frame in output.frames[0]])
    return np.asarray(output.images[0])


def picture(side: int = 16, mode: str = "RGB") -> Image.Image:
    """Return an image of random pixels."""
    levels = np.random.default_rng(0).integers(0, 256, (side, side, 3), np.uint8)
    return Image.fromarray(levels).convert(mode)


def file_of(image: Image.Image) -> bytes:
    """Return an image as a PNG file."""
    data = io.BytesIO()
    image.save(data, "PNG")
    return data.getvalue()
