"""A resolved request, as SDXL reads it: its values checked, its texts and sizes filled in."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from models.interface.pipeline import Fields, RequestError
from models.spec.model_spec import Task

Size = tuple[int, int]
"""Height and width in pixels, in diffusers' order; of crops: top and left."""

_SIZES = (
    *("original_size", "crops_coords_top_left", "target_size"),
    *("negative_original_size", "negative_crops_coords_top_left", "negative_target_size"),
)


def _floats(values: Sequence[Any]) -> tuple[float, ...]:
    return tuple(map(float, values))


_READ: Mapping[str, Callable[[Any], Any]] = {
    **dict.fromkeys(_SIZES, tuple),
    **dict.fromkeys(("timesteps", "sigmas"), _floats),
}
"""Fields that JSON holds as lists."""


@dataclass(frozen=True)
class SdxlRequest:
    """One picture. Names are diffusers' arguments of the three StableDiffusionXL pipelines."""

    prompt: str
    seed: int
    width: int
    height: int
    num_inference_steps: int
    guidance_scale: float
    guidance_rescale: float = 0.0
    eta: float | None = None
    """Noise that DDIM adds at each step, as a share of DDPM's; other schedulers ignore it."""
    prompt_2: str | None = None
    negative_prompt: str | None = None
    negative_prompt_2: str | None = None
    clip_skip: int | None = None
    timesteps: tuple[float, ...] | None = None
    sigmas: tuple[float, ...] | None = None
    scheduler: Mapping[str, Any] | None = None
    strength: float = 1.0
    original_size: Size | None = None
    crops_coords_top_left: Size = (0, 0)
    target_size: Size | None = None
    negative_original_size: Size | None = None
    negative_crops_coords_top_left: Size = (0, 0)
    negative_target_size: Size | None = None

    @classmethod
    def from_fields(cls, fields: Fields) -> SdxlRequest:
        """Fields that are None count as left out.

        Raises: RequestError for a value out of range, by the field's name.
        """
        known = {
            name: _READ.get(name, lambda value: value)(fields[name])
            for name in cls.__dataclass_fields__
            if fields.get(name) is not None
        }
        missing = [name for name in ("prompt", "seed") if name not in known]
        if missing:
            raise RequestError(missing[0], "is needed")
        for name in known.keys() & set(_SIZES):
            if len(known[name]) != 2 or min(known[name]) < 0:
                raise RequestError(name, "must be two numbers of pixels, neither negative")
        request = cls(**known)
        request._check()
        return request

    def _check(self) -> None:
        if self.num_inference_steps < 1:
            raise RequestError("num_inference_steps", "must be at least 1")
        if not 0 < self.strength <= 1:
            raise RequestError("strength", "must be above 0 and at most 1")
        if self.eta is not None and not 0 <= self.eta <= 1:
            raise RequestError("eta", "must be 0 to 1")
        if self.clip_skip is not None and self.clip_skip < 0:
            raise RequestError("clip_skip", "must not be negative")
        if self.timesteps is not None and self.sigmas is not None:
            raise RequestError("sigmas", "cannot be given together with timesteps")

    @property
    def prompts(self) -> tuple[str, str]:
        """The prompt for each of the two encoders; the second defaults to the first."""
        return self.prompt, self.prompt_2 or self.prompt

    @property
    def negative_prompts(self) -> tuple[str, str]:
        first = self.negative_prompt or ""
        return first, self.negative_prompt_2 or first

    def texts(self, prompts: int) -> tuple[dict[str, str], dict[str, str]]:
        """What each of the two encoders reads, by the field that it comes from.

        Args:
            prompts: 1, or 2 with the negative prompt.
        """
        fields = ("prompt", "negative_prompt")[:prompts]
        first = {field: getattr(self, field) or "" for field in fields}
        return first, dict(map(self._second, fields))

    def _second(self, field: str) -> tuple[str, str]:
        """The second encoder's text, and its field."""
        own = getattr(self, f"{field}_2")
        return (f"{field}_2", own) if own else (field, getattr(self, field) or "")

    def time_ids(self, task: Task) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Original size, crop and target size; then those of the negative prompt.

        As in diffusers, whose pipelines differ: from text the negative ones count only where both
        negative sizes are given; with a picture each defaults to the positive one, and the crop
        is the positive one.
        """
        size = (self.height, self.width)
        original, target = self.original_size or size, self.target_size or size
        crop = self.crops_coords_top_left
        positive = (*original, *crop, *target)
        negative_sizes = self.negative_original_size, self.negative_target_size
        if task != "text-to-image":
            return positive, (
                *(negative_sizes[0] or original),
                *crop,
                *(negative_sizes[1] or target),
            )
        if negative_sizes[0] is None or negative_sizes[1] is None:
            return positive, positive
        crop = self.negative_crops_coords_top_left
        return positive, (*negative_sizes[0], *crop, *negative_sizes[1])


def task_of(images: Mapping[str, bytes]) -> Task:
    """The pictures of a request decide its task. Raises: RequestError: a mask without a picture."""
    if "mask_image" in images:
        if "image" not in images:
            raise RequestError("image", "is needed with mask_image")
        return "inpainting"
    return "image-to-image" if "image" in images else "text-to-image"
