"""CLIP's and SigLIP's image preprocessing: an image of any size → the encoder's input pixels.

Uses Pillow and NumPy alone, so that pixels do not depend on installed libraries. Source:
transformers image_processing_backends.py, PilBackend; the defaults are CLIPImageProcessor's and
SiglipImageProcessor's.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float, UInt8
from PIL import Image

from models.checkpoint.folder import CheckpointError

FILE = "preprocessor_config.json"
PROCESSOR_FILE, NESTED = "processor_config.json", "image_processor"
"""File of a combined processor, and its key for images, which transformers 5 writes instead."""

Size = int | tuple[int, int]
"""Shorter side, or height and width; in pixels."""


def read_preprocessor(folder: Path) -> dict[str, Any]:
    """Read a folder's image preprocessing config: from a combined processor, or its own file.

    Raises: CheckpointError: no config, or invalid JSON.

    Source: transformers image_processing_base.py, get_image_processor_dict, for the order.
    """
    config = (_read_json(folder / PROCESSOR_FILE) or {}).get(NESTED)
    if config is None:
        config = _read_json(folder / FILE)
    if config is None:
        raise CheckpointError(f"{folder}: no {FILE} in it")
    return dict(config)


def _read_json(file: Path) -> dict[str, Any] | None:
    """Return a JSON file's contents; None: no such file. Raises: CheckpointError."""
    try:
        config: dict[str, Any] = json.loads(file.read_bytes())
    except FileNotFoundError:
        return None
    except json.JSONDecodeError as error:
        raise CheckpointError(f"{file}: not valid JSON ({error})") from error
    return config


@dataclass(frozen=True)
class ClipPreprocessor:
    """Preprocessor that resizes, crops the centre, scales and normalizes, as configured.

    Raises:
        ValueError: an unsupported value, by name.
    """

    do_resize: bool = True
    size: Size = 224
    resample: int = Image.Resampling.BICUBIC
    do_center_crop: bool = True
    crop_size: tuple[int, int] = (224, 224)
    """Height and width."""
    do_rescale: bool = True
    rescale_factor: float = 1 / 255
    do_normalize: bool = True
    image_mean: tuple[float, ...] = (0.48145466, 0.4578275, 0.40821073)
    image_std: tuple[float, ...] = (0.26862954, 0.26130258, 0.27577711)

    def __post_init__(self) -> None:
        if self.resample not in list(Image.Resampling):
            raise ValueError(f"{FILE}: resample {self.resample!r} is not one of Pillow's filters")
        for name in ("image_mean", "image_std"):
            if len(getattr(self, name)) != 3:
                raise ValueError(f"{FILE}: {name} must be three numbers, of red, green and blue")

    def changed(self, config: Mapping[str, Any]) -> ClipPreprocessor:
        """Return a copy with the values of a parsed `preprocessor_config.json`.

        Ignores keys that do not affect pixels.
        """
        if config.get("do_pad"):
            raise ValueError(f"{FILE}: do_pad is not served: images are cropped or resized")
        names = {field.name for field in fields(self)}
        values = {key: value for key, value in config.items() if key in names and value is not None}
        if "size" in values:
            values["size"] = _size(values["size"])
        if "crop_size" in values:
            size = _size(values["crop_size"])
            values["crop_size"] = (size, size) if isinstance(size, int) else size
        for name in ("image_mean", "image_std"):
            if name in values:
                numbers = values[name]
                values[name] = tuple(numbers) if isinstance(numbers, list) else (numbers,) * 3
        return replace(self, **values)

    @classmethod
    def from_dict(cls, config: Mapping[str, Any]) -> ClipPreprocessor:
        """Read a parsed `preprocessor_config.json` of CLIP's."""
        return cls().changed(config)

    @classmethod
    def read(cls, folder: Path, default: ClipPreprocessor | None = None) -> ClipPreprocessor:
        """Read a component's folder (`…/image_processor`).

        Args:
            default: values for keys that the config omits; None: CLIP's.

        Raises:
            CheckpointError: no `preprocessor_config.json`, or invalid JSON.
            ValueError: an unsupported value, by name.
        """
        return (default or cls()).changed(read_preprocessor(folder))

    def __call__(self, image: Image.Image) -> Float[np.ndarray, "height width 3"]:
        """Preprocess an image to float32 pixels."""
        image = image.convert("RGB")
        if self.do_resize:
            height, width = _resized(image.height, image.width, self.size)
            image = image.resize((width, height), Image.Resampling(self.resample))
        pixels = np.asarray(image)
        if self.do_center_crop:
            pixels = center_crop(pixels, *self.crop_size)
        # Computed in float64 and rounded once, as in the reference.
        factor = self.rescale_factor if self.do_rescale else 1.0
        scaled = (pixels.astype(np.float64) * factor).astype(np.float32)
        if not self.do_normalize:
            return scaled
        mean, deviation = (np.asarray(v, np.float32) for v in (self.image_mean, self.image_std))
        return (scaled - mean) / deviation


HALVES = (0.5, 0.5, 0.5)
SIGLIP = ClipPreprocessor(
    size=(224, 224), do_center_crop=False, image_mean=HALVES, image_std=HALVES
)
"""Preprocessing of SigLIP: stretched to a square, not cropped."""


def center_crop(
    pixels: UInt8[np.ndarray, "rows columns 3"], height: int, width: int
) -> UInt8[np.ndarray, "height width 3"]:
    """Crop the centre of an image; smaller images are centred on black."""
    rows, columns = pixels.shape[:2]
    framed = np.zeros((max(rows, height), max(columns, width), 3), np.uint8)
    # An odd remainder is above and left of padded images, below and right of cropped images.
    top, left = -(-(framed.shape[0] - rows) // 2), -(-(framed.shape[1] - columns) // 2)
    framed[top : top + rows, left : left + columns] = pixels
    top, left = top + (rows - height) // 2, left + (columns - width) // 2
    return framed[top : top + height, left : left + width]


def _resized(height: int, width: int, size: Size) -> tuple[int, int]:
    if not isinstance(size, int):
        return size
    longer = int(size * max(height, width) / min(height, width))
    return (longer, size) if width <= height else (size, longer)


def _size(value: Any) -> Size:
    """Parse an image size in any format that preprocessor configs use."""
    if isinstance(value, Mapping):
        if set(value) == {"shortest_edge"}:
            return _size(value["shortest_edge"])
        if set(value) == {"height", "width"}:
            return _size([value["height"], value["width"]])
    if type(value) is int and value > 0:
        return value
    if isinstance(value, list) and len(value) == 2 and all(type(v) is int and v > 0 for v in value):
        return (value[0], value[1])
    raise ValueError(f"{FILE}: a size must be shortest_edge or height and width, not {value!r}")
