"""Controls of a request, decoded for a family: name, scale, step range and pixels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import UInt8
from PIL import Image

from models.interface.canny import canny
from models.interface.images import open_image
from models.spec.controls import FIELD, ControlOptions
from models.spec.model_spec import ModelSpec
from models.spec.request import RequestError

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
    entries: Sequence[ControlOptions],
    images: Mapping[str, bytes],
    spec: ModelSpec,
    size: tuple[int, int],
) -> tuple[RequestedControl, ...]:
    """Return a request's controls in order.

    Args:
        images: files by their paths in the request.
        size: width and height of the output image (px).

    Raises: RequestError: too many controls, an unknown name, a missing or unreadable image, or a
        step range that ends before it begins; names the field.
    """
    top = spec.limits.max_controls
    if len(entries) > top:
        raise RequestError(FIELD, f"has {len(entries)} entries; the model takes {top} at most")
    return tuple(_read(index, entry, images, spec, size) for index, entry in enumerate(entries))


def _read(
    index: int,
    entry: ControlOptions,
    images: Mapping[str, bytes],
    spec: ModelSpec,
    size: tuple[int, int],
) -> RequestedControl:
    path, start, end = f"{FIELD}.{index}", entry.start, entry.end
    if entry.name not in spec.controls:
        raise RequestError(f"{path}.name", f"must be {' or '.join(sorted(spec.controls))}")
    field = f"{path}.image"
    if field not in images:
        raise RequestError(field, "is needed: the output follows it")
    if start >= end:
        raise RequestError(f"{path}.start", f"{start:g} must be less than end, {end:g}")
    image = open_image(images[field], field).resize(size, Image.Resampling.LANCZOS)
    pixels = np.asarray(image)
    if entry.preprocess == "canny":
        pixels = canny(pixels)
    return RequestedControl(entry.name, entry.scale, start, end, pixels)
