"""A request of fal's in our fields."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from service.errors.problems import FieldError, Invalid
from service.routes.compat.fal.bodies import FalLora, FalRequest, FalSize
from service.routes.compat.names import Names

SIZES: Mapping[str, tuple[int, int]] = {
    "square_hd": (1024, 1024),
    "square": (512, 512),
    "portrait_4_3": (768, 1024),
    "portrait_16_9": (576, 1024),
    "landscape_4_3": (1024, 768),
    "landscape_16_9": (1024, 576),
}
"""Width and height by name. Source: docs.fal.ai, the models' schemas."""
FORMATS = {"jpg": "jpeg"}
PRIORITIES = ("low", "normal")
"""Values of `X-Fal-Queue-Priority`, which are ours."""


def model_of(app: str) -> str:
    """Return a model's name: the last part of an app's."""
    return app.rpartition("/")[2]


def translated(asked: FalRequest, app: str, priority: str | None) -> dict[str, Any]:
    """Return a request in our fields. Raises: Invalid."""
    given = asked.__pydantic_extra__ or {}
    if "model" in given:
        raise Invalid([FieldError("model", "the model is part of the address; leave it out")])
    scheduler, output = asked.scheduler, asked.output_format
    ours: dict[str, Any] = {
        "image": asked.image_url,
        "mask_image": asked.mask_url,
        "scheduler": {"name": scheduler} if isinstance(scheduler, str) else scheduler,
        "loras": [_lora(one) for one in asked.loras] if asked.loras else None,
        "output": {"format": FORMATS.get(output, output)} if output else None,
        "priority": priority if priority in PRIORITIES else None,
        **_size(asked.image_size),
    }
    chosen = {name: value for name, value in ours.items() if value is not None}
    if twice := sorted(chosen.keys() & given.keys()):
        raise Invalid([FieldError(name, "is there by two names") for name in twice])
    return {**given, **chosen, "model": model_of(app)}


def _lora(lora: FalLora | dict[str, Any]) -> dict[str, Any]:
    if isinstance(lora, FalLora):
        return {"name": lora.path, "scale": lora.scale}
    return lora


def _size(size: FalSize | str | None) -> dict[str, int]:
    """Raises: Invalid."""
    if size is None:
        return {}
    if isinstance(size, FalSize):
        return size.model_dump()
    if size not in SIZES:
        said = f"there is no size {size[:80]!r}; there is {', '.join(SIZES)}, or width and height"
        raise Invalid([FieldError("image_size", said)])
    width, height = SIZES[size]
    return {"width": width, "height": height}


def names_of(asked: FalRequest) -> Names:
    """Return the names of our fields in this request."""
    foreign = {"output.format": "output_format"} if asked.output_format else {}
    foreign |= {"image": "image_url"} if asked.image_url else {}
    foreign |= {"mask_image": "mask_url"} if asked.mask_url else {}
    foreign |= {"scheduler.name": "scheduler"} if isinstance(asked.scheduler, str) else {}
    if asked.image_size is not None:
        inside = "." if isinstance(asked.image_size, FalSize) else None
        for side in ("width", "height"):
            foreign[side] = f"image_size.{side}" if inside else "image_size"
    return Names(foreign)
