"""Image prompts of a request, validated for a family: name, scale and file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from models.spec.image_prompts import FIELD, ImagePromptOptions, name_of
from models.spec.model_spec import ModelSpec
from models.spec.request import RequestError


@dataclass(frozen=True)
class RequestedImagePrompt:
    """Image prompt of a request: an image that guides the content of the output.

    Args:
        field: path of its image in the request, for errors.
        name: of the network that encodes it.
        image: a file's bytes.
    """

    field: str
    name: str
    scale: float
    image: bytes


def requested_image_prompts(
    entries: Sequence[ImagePromptOptions], images: Mapping[str, bytes], spec: ModelSpec
) -> tuple[RequestedImagePrompt, ...]:
    """Return a request's image prompts in order.

    Args:
        images: files by their paths in the request.

    Raises: RequestError: too many image prompts, an unknown name, or a missing image; names the
        field.
    """
    top = spec.limits.max_image_prompts
    if len(entries) > top:
        raise RequestError(FIELD, f"has {len(entries)} images; the model takes {top} at most")
    return tuple(_read(index, entry, images, spec) for index, entry in enumerate(entries))


def _read(
    index: int, entry: ImagePromptOptions, images: Mapping[str, bytes], spec: ModelSpec
) -> RequestedImagePrompt:
    path, name = f"{FIELD}.{index}", name_of(entry.name, spec.image_prompts)
    if name not in spec.image_prompts:
        names = " or ".join(sorted(spec.image_prompts))
        raise RequestError(f"{path}.name", f"must be {names}, not {name!r}")
    field = f"{path}.image"
    if field not in images:
        raise RequestError(field, "is needed: it guides the content of the output")
    return RequestedImagePrompt(field, str(name), entry.scale, images[field])
