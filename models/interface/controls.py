"""Controls of a request, decoded for a family: name, scale, step range and pixels."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import UInt8
from PIL import Image

from models.interface.canny import canny
from models.interface.images import open_image
from models.interface.pipeline import Fields, RequestError
from models.spec.controls import FIELD
from models.spec.model_spec import ModelSpec

Pixels = UInt8[np.ndarray, "height width 3"]


@dataclass(frozen=True)
class RequestedControl:
    """Control image (edges, depth, pose) of a request, with its ControlNet's name and scale."""

    name: str
    scale: float
    start: float
    end: float
    pixels: Pixels

    def scale_at(self, step: int, steps: int) -> float:
        """Return the scale in a step; 0 outside the control's step range.

        Source: diffusers' `controlnet_keep` in its ControlNet pipelines.
        """
        is_out = step / steps < self.start or (step + 1) / steps > self.end
        return 0.0 if is_out else self.scale


def requested_controls(
    fields: Fields, images: Mapping[str, bytes], spec: ModelSpec, size: tuple[int, int]
) -> tuple[RequestedControl, ...]:
    """Return a request's controls in order.

    Args:
        images: files by their paths in the request.
        size: width and height of the output image (px).

    Raises: RequestError: too many controls, an unknown name, a missing or unreadable image, or a
        step range that ends before it begins; names the field.
    """
    entries, top = fields.get(FIELD) or (), spec.limits.max_controls
    if len(entries) > top:
        raise RequestError(FIELD, f"has {len(entries)} entries; the model takes {top} at most")
    return tuple(_read(index, entry, images, spec, size) for index, entry in enumerate(entries))


def _read(
    index: int,
    entry: Mapping[str, Any],
    images: Mapping[str, bytes],
    spec: ModelSpec,
    size: tuple[int, int],
) -> RequestedControl:
    path, name = f"{FIELD}.{index}", entry.get("name")
    if name not in spec.controls:
        raise RequestError(f"{path}.name", f"must be {' or '.join(sorted(spec.controls))}")
    field = f"{path}.image"
    if field not in images:
        raise RequestError(field, "is needed: the output follows it")
    start, end = float(entry.get("start", 0.0)), float(entry.get("end", 1.0))
    if start >= end:
        raise RequestError(f"{path}.start", f"{start:g} must be less than end, {end:g}")
    image = open_image(images[field], field).resize(size, Image.Resampling.LANCZOS)
    pixels = np.asarray(image)
    if entry.get("preprocess") == "canny":
        pixels = canny(pixels)
    return RequestedControl(str(name), float(entry.get("scale", 1.0)), start, end, pixels)
