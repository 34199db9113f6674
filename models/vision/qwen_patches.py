"""Qwen2.5-VL's image preprocessing: an image of any size → patches of pixels.

Uses Pillow and NumPy alone. Source: transformers image_processing_pil_qwen2_vl.py.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float
from PIL import Image

from models.vision.preprocess import FILE, ClipPreprocessor, read_preprocessor

MAX_RATIO = 200
"""Maximum ratio of an image's sides."""
UNCROPPED = ClipPreprocessor(do_center_crop=False)


@dataclass(frozen=True)
class QwenPreprocessor:
    """Preprocessor that resizes to whole tokens, scales, normalizes, and cuts patches."""

    pixels: ClipPreprocessor = UNCROPPED
    """Scaling and normalization; the size is computed by `size_of`."""
    min_pixels: int = 56 * 56
    max_pixels: int = 28 * 28 * 1280
    patch_size: int = 14
    merge_size: int = 2
    temporal_patch_size: int = 2

    @classmethod
    def read(cls, folder: Path) -> QwenPreprocessor:
        """Read a checkpoint's `processor` folder.

        Raises:
            CheckpointError: no `preprocessor_config.json`, or invalid JSON.
            ValueError: an unsupported value, by name.
        """
        return cls.from_dict(read_preprocessor(folder))

    @classmethod
    def from_dict(cls, config: Mapping[str, Any]) -> QwenPreprocessor:
        """Read a parsed `preprocessor_config.json`, ignoring keys that do not affect pixels."""
        names = ("patch_size", "merge_size", "temporal_patch_size")
        values = {name: config[name] for name in names if config.get(name) is not None}
        size = config.get("size") or {}
        for name, edge in (("min_pixels", "shortest_edge"), ("max_pixels", "longest_edge")):
            value = config.get(name) or size.get(edge)
            if value is not None:
                values[name] = value
        for name, value in values.items():
            if type(value) is not int or value < 1:
                raise ValueError(f"{FILE}: {name} must be a positive integer, not {value!r}")
        if config.get("do_resize") is False:
            raise ValueError(f"{FILE}: do_resize must be true: images are made of whole patches")
        rest = {name: value for name, value in config.items() if name not in ("size", "crop_size")}
        pixels = UNCROPPED.changed({**rest, "do_center_crop": False})
        return cls(pixels, **values)

    def size_of(self, width: int, height: int) -> tuple[int, int]:
        """Return the width and height that an image is resized to.

        Raises: ValueError: a side is more than 200 times the other.
        """
        if max(width, height) > MAX_RATIO * min(width, height):
            raise ValueError(f"must have an aspect ratio of at most {MAX_RATIO}:1")
        token = self.patch_size * self.merge_size
        sides = [round(side / token) * token for side in (width, height)]
        if math.prod(sides) > self.max_pixels:
            shrink = math.sqrt(height * width / self.max_pixels)
            sides = [
                max(token, math.floor(side / shrink / token) * token) for side in (width, height)
            ]
        elif math.prod(sides) < self.min_pixels:
            grow = math.sqrt(self.min_pixels / (height * width))
            sides = [math.ceil(side * grow / token) * token for side in (width, height)]
        return sides[0], sides[1]

    def __call__(
        self, image: Image.Image
    ) -> tuple[Float[np.ndarray, "patches pixels"], tuple[int, int]]:
        """Return an RGB image's patches, and the patch grid. Raises: ValueError: invalid shape."""
        width, height = self.size_of(*image.size)
        pixels = replace(self.pixels, size=(height, width))(image)
        p, m = self.patch_size, self.merge_size
        rows, columns = height // p, width // p
        cut = pixels.reshape(rows // m, m, p, columns // m, m, p, 3)
        patches = cut.transpose(0, 3, 1, 4, 6, 2, 5)[:, :, :, :, :, None]
        patches = np.repeat(patches, self.temporal_patch_size, axis=5)
        return patches.reshape(rows * columns, -1), (rows, columns)
