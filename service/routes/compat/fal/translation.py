"""Conversion of a fal request to the fields of `POST /v1/generate`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from service.errors.problems import FieldError, Invalid
from service.routes.compat.endpoint import file_format
from service.routes.compat.fal.bodies import FalLora, FalRequest, FalSize
from service.routes.compat.names import FieldNames

SIZES: Mapping[str, tuple[int, int]] = {
    "square_hd": (1024, 1024),
    "square": (512, 512),
    "portrait_4_3": (768, 1024),
    "portrait_16_9": (576, 1024),
    "landscape_4_3": (1024, 768),
    "landscape_16_9": (1024, 576),
}
"""Width and height by fal's size name. Source: docs.fal.ai, the models' schemas."""
PRIORITIES = ("low", "normal")
"""Supported values of `X-Fal-Queue-Priority`, which equal this API's priorities."""


def to_generate_fields(body: FalRequest, model: str, priority: str | None) -> dict[str, Any]:
    """Convert a fal request for a model to the fields of `POST /v1/generate`. Raises: Invalid."""
    extra_fields = body.__pydantic_extra__ or {}
    if "model" in extra_fields:
        raise Invalid([FieldError("model", "the model is part of the path; leave it out")])
    scheduler, output = body.scheduler, body.output_format
    converted: dict[str, Any] = {
        **_images(body),
        "mask_image": body.mask_url,
        "scheduler": {"name": scheduler} if isinstance(scheduler, str) else scheduler,
        "loras": [_lora(lora) for lora in body.loras] if body.loras else None,
        "output": {"format": file_format(output)} if output else None,
        "priority": priority if priority in PRIORITIES else None,
        **_size(body.image_size),
    }
    present = {name: value for name, value in converted.items() if value is not None}
    if duplicates := sorted(present.keys() & extra_fields.keys()):
        raise Invalid([FieldError(name, "is given under two names") for name in duplicates])
    return {**extra_fields, **present, "model": model}


def _images(body: FalRequest) -> dict[str, Any]:
    """Convert the input images of a fal request. Raises: Invalid: in both of its forms."""
    if not body.image_urls:
        return {"image": body.image_url}
    if body.image_url:
        raise Invalid([FieldError("image_urls", "cannot be combined with image_url")])
    return {"image": body.image_urls[0], "reference_images": body.image_urls[1:] or None}


def _lora(lora: FalLora | dict[str, Any]) -> dict[str, Any]:
    if isinstance(lora, FalLora):
        return {"name": lora.path, "scale": lora.scale}
    return lora


def _size(size: FalSize | str | None) -> dict[str, int]:
    """Convert a fal size to width and height. Raises: Invalid."""
    if size is None:
        return {}
    if isinstance(size, FalSize):
        return size.model_dump()
    if size not in SIZES:
        message = (
            f"there is no size {size[:80]!r}; available: {', '.join(SIZES)}, or width and height"
        )
        raise Invalid([FieldError("image_size", message)])
    width, height = SIZES[size]
    return {"width": width, "height": height}


def field_names(body: FalRequest) -> FieldNames:
    """Return fal's names of the converted fields, for errors."""
    foreign = {"output.format": "output_format"} if body.output_format else {}
    foreign |= {"image": "image_url"} if body.image_url else {}
    if body.image_urls:
        foreign |= dict.fromkeys(("image", "reference_images"), "image_urls")
    foreign |= {"mask_image": "mask_url"} if body.mask_url else {}
    foreign |= {"scheduler.name": "scheduler"} if isinstance(body.scheduler, str) else {}
    if body.image_size is not None:
        inside = "." if isinstance(body.image_size, FalSize) else None
        for side in ("width", "height"):
            foreign[side] = f"image_size.{side}" if inside else "image_size"
    return FieldNames(foreign)
