"""Request of SDXL, validated. No JAX: front ends import this module."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic.dataclasses import dataclass

from models.spec.field_types import (
    SWITCH,
    ClipSkip,
    Fraction,
    NoiseLevel,
    Offset,
    Scale,
    Score,
    Strength,
    Switch,
)
from models.spec.model_spec import Task
from models.spec.prompt_syntax import PromptSyntax
from models.spec.request import REQUEST, Request, RequestError, served_fields

Size = tuple[Offset, Offset]
"""Height and width in pixels, in diffusers' order; top and left for crops."""
TimeIds = tuple[tuple[int | float, ...], tuple[int | float, ...]]
"""Size conditioning of the UNet for the prompt and for the negative prompt."""


@dataclass(frozen=True, config=REQUEST)
class RequestedRefiner:
    """Refiner options of a request; the refiner runs the last steps."""

    switch: Switch = SWITCH
    """Share of the noise schedule that the base model runs: diffusers' `denoising_end` of the base
    and `denoising_start` of the refiner."""


@dataclass(frozen=True, kw_only=True, config=REQUEST)
class SdxlRequest(Request):
    """Parameters of one SDXL image, named as in diffusers' three StableDiffusionXL pipelines."""

    guidance_scale: Scale
    guidance_rescale: Fraction = 0.0
    eta: Fraction | None = None
    """Noise that DDIM adds at each step, as a fraction of DDPM's, or TCD's gamma; ignored by other
    schedulers."""
    prompt_syntax: PromptSyntax = "plain"
    prompt_2: str | None = None
    negative_prompt_2: str | None = None
    clip_skip: ClipSkip | None = None
    timesteps: tuple[NoiseLevel, ...] | None = None
    sigmas: tuple[NoiseLevel, ...] | None = None
    scheduler: Mapping[str, Any] | None = None
    """Scheduler `name` and options; None selects the checkpoint's scheduler."""
    strength: Strength = 1.0
    original_size: Size | None = None
    crops_coords_top_left: Size = (0, 0)
    target_size: Size | None = None
    negative_original_size: Size | None = None
    negative_crops_coords_top_left: Size = (0, 0)
    negative_target_size: Size | None = None
    aesthetic_score: Score = 6.0
    """Refiner conditioning that replaces the target size, like `negative_aesthetic_score`."""
    negative_aesthetic_score: Score = 2.5

    refiner: RequestedRefiner | None = None

    def __post_init__(self) -> None:
        """Reject a request with both `timesteps` and `sigmas`.

        Raises: RequestError: both are given.
        """
        if self.timesteps is not None and self.sigmas is not None:
            raise RequestError("sigmas", "cannot be given together with timesteps")

    def texts(self, prompts: int) -> tuple[dict[str, str], dict[str, str]]:
        """Return the texts of each of the two encoders, by the request field they come from.

        Args:
            prompts: 1, or 2 with the negative prompt.
        """
        fields = ("prompt", "negative_prompt")[:prompts]
        first = {field: getattr(self, field) or "" for field in fields}
        return first, dict(map(self._second, fields))

    def _second(self, field: str) -> tuple[str, str]:
        """Return the second encoder's request field and text; falls back to the first encoder's."""
        text = getattr(self, f"{field}_2")
        return (f"{field}_2", text) if text else (field, getattr(self, field) or "")

    def time_ids(self, task: Task) -> TimeIds:
        """Return original size, crop and target size of the prompt and the negative prompt.

        diffusers' pipelines differ, and so does this. For text-to-image, the negative values apply
        only if both negative sizes are given. With an image, each negative size defaults to the
        positive one, and the positive crop applies.
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

    @property
    def scored_time_ids(self) -> TimeIds:
        """Original size, crop and aesthetic score of the prompt and the negative prompt.

        Matches diffusers' image-to-image and inpainting pipelines, which use the negative crop
        here.
        """
        original = self.original_size or (self.height, self.width)
        negative = self.negative_original_size or original
        crop, negative_crop = self.crops_coords_top_left, self.negative_crops_coords_top_left
        return (
            (*original, *crop, self.aesthetic_score),
            (*negative, *negative_crop, self.negative_aesthetic_score),
        )


FIELDS = served_fields(SdxlRequest, "image", "mask_image")


def task_of(images: Mapping[str, bytes]) -> Task:
    """Infer the task from a request's images. Raises: RequestError: a mask without an image."""
    if "mask_image" in images:
        if "image" not in images:
            raise RequestError("image", "is needed with mask_image")
        return "inpainting"
    return "image-to-image" if "image" in images else "text-to-image"
