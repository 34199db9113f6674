"""An image of any size → patches of pixels, as Qwen2.5-VL's vision tower reads them.

By Pillow and NumPy alone. Source: transformers image_processing_pil_qwen2_vl.py.
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

MOST_RATIO = 200
"""Most that an image may be as long as wide."""
UNCROPPED = ClipPreprocessor(do_center_crop=False)


@dataclass(frozen=True)
class QwenPreprocessor:
    """Resize to whole tokens within bounds, scale, normalise, and cut into patches."""

    pixels: ClipPreprocessor = UNCROPPED
    """Scaling and normalising; sizes are found here."""
    min_pixels: int = 56 * 56
    max_pixels: int = 28 * 28 * 1280
    patch_size: int = 14
    merge_size: int = 2
    temporal_patch_size: int = 2

    @classmethod
    def read(cls, folder: Path) -> QwenPreprocessor:
        """Read a checkpoint's `processor` folder.

        Raises:
            CheckpointError: no `preprocessor_config.json` in it, or not readable as JSON.
            ValueError: a value that is not served, by name.
        """
        return cls.from_dict(read_preprocessor(folder))

    @classmethod
    def from_dict(cls, config: Mapping[str, Any]) -> QwenPreprocessor:
        """Read a parsed `preprocessor_config.json`; keys that change no pixel are passed over."""
        own = ("patch_size", "merge_size", "temporal_patch_size")
        given = {name: config[name] for name in own if config.get(name) is not None}
        size = config.get("size") or {}
        for name, edge in (("min_pixels", "shortest_edge"), ("max_pixels", "longest_edge")):
            value = config.get(name) or size.get(edge)
            if value is not None:
                given[name] = value
        for name, value in given.items():
            if type(value) is not int or value < 1:
                raise ValueError(f"{FILE}: {name} must be a positive integer, not {value!r}")
        if config.get("do_resize") is False:
            raise ValueError(f"{FILE}: do_resize must be true: images are made of whole patches")
        rest = {name: value for name, value in config.items() if name not in ("size", "crop_size")}
        pixels = UNCROPPED.changed({**rest, "do_center_crop": False})
        return cls(pixels, **given)

    def size_of(self, width: int, height: int) -> tuple[int, int]:
        """Width and height that an image is resized to.

        Raises: ValueError: it is 200 times as long as wide, or more.
        """
        if max(width, height) > MOST_RATIO * min(width, height):
            raise ValueError(f"must not be more than {MOST_RATIO} times as long as wide")
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
        self, picture: Image.Image
    ) -> tuple[Float[np.ndarray, "patches pixels"], tuple[int, int]]:
        """Patches of an RGB image, and their rows and columns. Raises: ValueError: its shape."""
        width, height = self.size_of(*picture.size)
        pixels = replace(self.pixels, size=(height, width))(picture)
        p, m = self.patch_size, self.merge_size
        rows, columns = height // p, width // p
        cut = pixels.reshape(rows // m, m, p, columns // m, m, p, 3)
        patches = cut.transpose(0, 3, 1, 4, 6, 2, 5)[:, :, :, :, :, None]
        patches = np.repeat(patches, self.temporal_patch_size, axis=5)
        return patches.reshape(rows * columns, -1), (rows, columns)
